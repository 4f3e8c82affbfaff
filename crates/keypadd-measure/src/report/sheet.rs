//! Lays out what every plot has: a title, a caption, a width.
//!
//! Shapes have classes, not colors: `plot.css` colors them for light and dark themes, so that a
//! plot follows its reader's theme on a page and on its own. Plots are drawn for a width instead of
//! scaled to it, since scaling would shrink the text on a phone.

use maud::Markup;
use maud::html;

use crate::results::Axis;

/// Width of a letter: a little more than the mean, so that estimates are too wide rather than too
/// narrow.
const LETTER: f64 = 6.9;
/// The screen that a plot is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// A desktop, or a printed page.
    Wide,
    /// A phone held upright.
    Narrow,
}

impl Size {
    pub(super) fn width(self) -> f64 {
        match self {
            Self::Wide => 720.0,
            Self::Narrow => 350.0,
        }
    }

    pub(super) fn inner_height(self) -> f64 {
        match self {
            Self::Wide => 300.0,
            Self::Narrow => 230.0,
        }
    }

    /// Room for a label on the right axis.
    pub(super) fn label_width(self) -> f64 {
        match self {
            Self::Wide => 85.0,
            Self::Narrow => 60.0,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Wide => "plot wide",
            Self::Narrow => "plot narrow",
        }
    }
}

/// A plot in its own file contains its title, its caption and its colors.
pub(super) struct Standalone<'a> {
    pub(super) head: &'a str,
    /// Lines of text below the plot.
    pub(super) lines: Vec<String>,
}

/// The content of a plot, and where it ends.
pub(super) struct Drawn {
    pub(super) markup: Markup,
    pub(super) bottom: f64,
}

/// A plot of what `draw` draws from a height downwards; `alone` for a separate file.
pub(super) fn sheet(
    described: &str,
    size: Size,
    alone: Option<&Standalone>,
    draw: impl FnOnce(f64) -> Drawn,
) -> Markup {
    let width = size.width();
    let mut top = 6.0;
    let heads = alone.map_or_else(Vec::new, |alone| wrap(alone.head, width - 16.0, 9.4));
    let head_top = top;
    top += if heads.is_empty() { 0.0 } else { heads.len() as f64 * 20.0 + 4.0 };
    let drawn = draw(top);
    let mut height = drawn.bottom;
    let below: Vec<String> = alone.map_or_else(Vec::new, |alone| {
        alone.lines.iter().flat_map(|line| wrap(line, width - 16.0, LETTER)).collect()
    });
    let below_top = height + 14.0;
    if !below.is_empty() {
        height = below_top + below.len() as f64 * 16.0;
    }
    let view = format!("0 0 {width} {}", round(height));
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class=(size.class()) viewBox=(view) role="img"
            width=[alone.map(|_| width)] height=[alone.map(|_| round(height))]
            aria-label=(described) {
            @if alone.is_some() {
                style { (maud::PreEscaped(super::PLOT_STYLE)) }
                rect class="paper" width="100%" height="100%" {}
            }
            @for (row, line) in heads.iter().enumerate() {
                text class="head" x="8" y=(round(head_top + 16.0 + row as f64 * 20.0)) { (line) }
            }
            (drawn.markup)
            @for (row, line) in below.iter().enumerate() {
                text class="soft" x="8" y=(round(below_top + row as f64 * 16.0)) { (line) }
            }
        }
    }
}

/// An axis and its unit.
pub(super) fn named(axis: &Axis) -> String {
    crate::text::with_unit(&axis.name, &axis.unit)
}

pub(super) fn line(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> Markup {
    html! {
        line class=(class) x1=(round(x1)) y1=(round(y1)) x2=(round(x2)) y2=(round(y2)) {}
    }
}

/// Rounds to tenths of a pixel.
pub(super) fn round(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// Truncates text to the available width.
pub(super) fn shorten(text: &str, room: f64) -> String {
    let letters = (room / LETTER) as usize;
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    text.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
}

/// Wraps text at spaces to the available width.
pub(super) fn wrap(text: &str, room: f64, letter: f64) -> Vec<String> {
    crate::text::wrap(text, (room / letter) as usize)
}
