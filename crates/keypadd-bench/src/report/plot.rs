//! One plot as SVG: legend, axes, bands, curves, marks, from above to below.
//!
//! Shapes have classes and no colours: `plot.css` has them, for light and for dark, so that a picture
//! follows its reader's theme within a page and by itself. A picture is drawn for a width rather than
//! scaled to it, because a phone would scale its words too. Drawn here and not by a plotting library:
//! those write colours, place on whole pixels or lay their legends over the data.

use maud::Markup;
use maud::html;

use super::curve::{self, Frame};
use super::mark::{self, Flags};
use super::scale::Ruler;
use crate::results::{At, Axis, Plot};

/// For which reader a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// A desktop, or a page of paper.
    Wide,
    /// A phone held upright.
    Narrow,
}

/// Which colour and dashes a label has: the same in all plots of a section.
pub(super) struct Palette(Vec<String>);

const COLOURS: usize = 8;
/// Without a divisor in common with [`COLOURS`], so that 40 curves differ.
const DASHES: usize = 5;

/// Of a letter of the pictures' type: a little more than the mean, so that estimates are too wide
/// rather than too narrow.
const LETTER: f64 = 6.9;
const ROW: f64 = 18.0;
const SWATCH: f64 = 34.0;

impl Palette {
    pub(super) fn of<'a>(plots: impl IntoIterator<Item = &'a Plot>) -> Self {
        let mut labels: Vec<String> = Vec::new();
        for curve in plots.into_iter().flat_map(|plot| &plot.curves) {
            if !labels.contains(&curve.label) {
                labels.push(curve.label.clone());
            }
        }
        Self(labels)
    }

    fn index(&self, label: &str) -> usize {
        self.0.iter().position(|known| known == label).unwrap_or(0)
    }

    /// The class of everything that one curve draws.
    pub(super) fn colour(&self, label: &str) -> String {
        format!("k{}", self.index(label) % COLOURS)
    }

    /// The class of its line.
    pub(super) fn dashes(&self, label: &str) -> String {
        format!("d{}", self.index(label) % DASHES)
    }

    /// Which of the shapes its points have.
    pub(super) fn shape(&self, label: &str) -> usize {
        self.index(label)
    }
}

impl Size {
    fn width(self) -> f64 {
        match self {
            Self::Wide => 720.0,
            Self::Narrow => 350.0,
        }
    }

    fn inner_height(self) -> f64 {
        match self {
            Self::Wide => 300.0,
            Self::Narrow => 230.0,
        }
    }

    /// With room beside it, on the axis to the right.
    fn label_width(self) -> f64 {
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

/// A picture by itself has its head, its caption and its colours within.
pub(super) struct Alone<'a> {
    pub(super) head: &'a str,
    /// Below the picture, a line each.
    pub(super) lines: Vec<String>,
}

/// Draws a plot; `alone` for a file of its own.
pub(super) fn draw(plot: &Plot, palette: &Palette, size: Size, alone: Option<&Alone>) -> Markup {
    let width = size.width();
    let mut top = 6.0;
    let heads = alone.map_or_else(Vec::new, |alone| wrap(alone.head, width - 16.0, 9.4));
    let head_top = top;
    top += if heads.is_empty() { 0.0 } else { heads.len() as f64 * 20.0 + 4.0 };
    let (legend, legend_rows) = legend(plot, palette, width, top);
    top += legend_rows as f64 * ROW + 4.0;
    let name_base = top + 12.0;
    top += 26.0;

    let body = body(plot, palette, size, top);
    let mut height = body.bottom;
    let below: Vec<String> = alone.map_or_else(Vec::new, |alone| {
        alone.lines.iter().flat_map(|line| wrap(line, width - 16.0, LETTER)).collect()
    });
    let below_top = height + 14.0;
    if !below.is_empty() {
        height = below_top + below.len() as f64 * 16.0;
    }
    let view = format!("0 0 {width} {}", round(height));
    let described = format!("{}: {} against {}", plot.title, plot.y.name, plot.x.name);
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
            (legend)
            @if !body.empty {
                text class="soft" x="8" y=(round(name_base)) { (named(&plot.y)) }
            }
            (body.markup)
            @for (row, line) in below.iter().enumerate() {
                text class="soft" x="8" y=(round(below_top + row as f64 * 16.0)) { (line) }
            }
        }
    }
}

struct Body {
    markup: Markup,
    bottom: f64,
    empty: bool,
}

/// Axes and what is between them, from `top` downwards.
fn body(plot: &Plot, palette: &Palette, size: Size, top: f64) -> Body {
    let width = size.width();
    let points = || plot.curves.iter().flat_map(|curve| curve.points.iter());
    let bands = || plot.curves.iter().flat_map(|curve| curve.band.iter().flatten().flatten());
    let marks =
        |wanted: fn(At) -> Option<f64>| plot.marks.iter().filter_map(move |mark| wanted(mark.at));
    let inner_height = size.inner_height();
    let (x_labels, y_labels) =
        (((width - 50.0) / size.label_width()) as usize, (inner_height / 45.0) as usize);
    let x = points().map(|point| point[0]).chain(marks(At::x));
    let y = points().map(|point| point[1]).chain(bands().copied()).chain(marks(At::y));
    let (x, y) = (Ruler::over(plot.x.scale, x, x_labels), Ruler::over(plot.y.scale, y, y_labels));
    let (Some(x), Some(y)) = (x, y) else {
        let markup = html! {
            text class="soft" x=(round(width / 2.0)) y=(round(top + 24.0)) text-anchor="middle" {
                "nothing was measured"
            }
        };
        return Body { markup, bottom: top + 44.0, empty: true };
    };
    let (x_texts, y_texts) = (x.labels(), y.labels());
    let left = 14.0 + y_texts.iter().map(|text| text_width(text)).fold(0.0, f64::max);
    let right = width - 10.0 - x_texts.last().map_or(0.0, |text| text_width(text) / 2.0);
    let flags = Flags::of(plot, |figure| Some(left + x.place(figure)? * (right - left)), width);
    let top = top + flags.height();
    let frame = Frame { x, y, left, right, top, bottom: top + inner_height };
    let ticks = || frame.x.ticks.iter().zip(&x_texts);
    let markup = html! {
        @for place in frame.x.faint.iter().filter_map(|tick| frame.across(*tick)) {
            (line("fine", place, frame.top, place, frame.bottom))
        }
        @for place in frame.y.faint.iter().filter_map(|tick| frame.up(*tick)) {
            (line("fine", left, place, right, place))
        }
        @for (tick, text) in ticks() {
            @if let Some(place) = frame.across(*tick) {
                (line("grid", place, frame.top, place, frame.bottom))
                text class="soft" text-anchor="middle" x=(round(place)) y=(round(frame.bottom + 16.0)) { (text) }
            }
        }
        @for (tick, text) in frame.y.ticks.iter().zip(&y_texts) {
            @if let Some(place) = frame.up(*tick) {
                (line("grid", left, place, right, place))
                text class="soft" text-anchor="end" x=(round(left - 6.0)) y=(round(place + 4.0)) { (text) }
            }
        }
        (line("axis", left, frame.bottom, right, frame.bottom))
        text class="soft" text-anchor="end" x=(round(width - 8.0)) y=(round(frame.bottom + 34.0)) {
            (named(&plot.x))
        }
        @for curve in &plot.curves { (curve::band(curve, palette, &frame)) }
        @for curve in &plot.curves { (curve::line(curve, palette, &frame)) }
        (flags.draw(&frame))
        (mark::levels(plot, &frame))
    };
    Body { markup, bottom: frame.bottom + 42.0, empty: false }
}

/// The curves' names in rows from `top` downwards, as many beside one another as have room.
fn legend(plot: &Plot, palette: &Palette, width: f64, top: f64) -> (Markup, usize) {
    let mut entries = Vec::new();
    let (mut at, mut row) = (8.0, 0);
    for curve in &plot.curves {
        let label = shorten(&curve.label, width - SWATCH - 16.0);
        let entry = SWATCH + text_width(&label) + 16.0;
        if at > 8.0 && at + entry > width {
            (at, row) = (8.0, row + 1);
        }
        entries.push((at, top + 12.0 + row as f64 * ROW, curve, label));
        at += entry;
    }
    let rows = if entries.is_empty() { 0 } else { row + 1 };
    let markup = html! {
        @for (at, base, curve, label) in &entries {
            g class=(palette.colour(&curve.label)) {
                (curve::sample(curve, palette, *at, base - 4.0))
                text x=(round(at + SWATCH)) y=(round(*base)) { (label) }
            }
        }
    };
    (markup, rows)
}

fn named(axis: &Axis) -> String {
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
fn wrap(text: &str, room: f64, letter: f64) -> Vec<String> {
    crate::text::wrap(text, (room / letter) as usize)
}
