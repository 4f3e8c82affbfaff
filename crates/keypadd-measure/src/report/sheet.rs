//! Lays out what every picture has: a title, a caption, a width.
//!
//! Shapes have classes, not colors: `plot.css` colors them for light and dark themes, so that a picture follows its
//! reader's theme on a page and on its own. Pictures are drawn for a width instead of scaled to it, since scaling
//! would shrink the text on a phone.

use maud::Markup;
use maud::html;

use crate::results::Axis;

/// Of a letter of the pictures' type: a little more than the mean, so that estimates are too wide
/// rather than too narrow.
const LETTER: f64 = 6.9;
/// For which reader a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// A desktop, or a page of paper.
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

    /// With room beside it, on the axis to the right.
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

/// A picture by itself has its head, its caption and its colors within.
pub(super) struct Standalone<'a> {
    pub(super) head: &'a str,
    /// Below the picture, a line each.
    pub(super) lines: Vec<String>,
}

/// What a picture shows, and where it ends.
pub(super) struct Drawn {
    pub(super) markup: Markup,
    pub(super) bottom: f64,
}

/// A picture of what `draw` draws from a height downwards; `alone` for a file of its own.
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
    match axis.unit.as_str() {
        "" => axis.name.clone(),
        unit => format!("{} ({unit})", axis.name),
    }
}

pub(super) fn line(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> Markup {
    html! {
        line class=(class) x1=(round(x1)) y1=(round(y1)) x2=(round(x2)) y2=(round(y2)) {}
    }
}

/// Tenths of a pixel.
pub(super) fn round(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// As much as has room.
pub(super) fn shorten(text: &str, room: f64) -> String {
    let letters = (room / LETTER) as usize;
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    text.chars().take(letters.saturating_sub(1)).chain(['…']).collect()
}

/// Lines that have room, broken at spaces.
pub(super) fn wrap(text: &str, room: f64, letter: f64) -> Vec<String> {
    crate::text::wrap(text, (room / letter) as usize)
}
