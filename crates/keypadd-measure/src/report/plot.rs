//! Draws one plot as SVG: legend, axes, bands, curves and marks, from top to bottom.
//!
//! No plotting library: those hard-code colors, round to whole pixels or lay the legend over the
//! data.

use maud::Markup;
use maud::html;

use super::curve;
use super::frame::Frame;
use super::mark::{self, MarkLabels};
use super::palette::Palette;
use super::scale::Ruler;
use super::sheet::{Drawn, Size, Standalone, line, named, round, sheet, shorten, text_width};
use crate::results::{MarkPosition, Plot};

const ROW: f64 = 18.0;
const SWATCH: f64 = 34.0;

/// Draws a plot; `alone` for a separate file.
pub(super) fn draw(
    plot: &Plot,
    palette: &Palette,
    size: Size,
    alone: Option<&Standalone>,
) -> Markup {
    let described = format!("{}: {} against {}", plot.title, plot.y.name, plot.x.name);
    sheet(&described, size, alone, |top| {
        let (legend, legend_rows) = legend(plot, palette, size.width(), top);
        let top = top + legend_rows as f64 * ROW + 4.0;
        let body = body(plot, palette, size, top + 26.0);
        let markup = html! {
            (legend)
            @if !body.empty {
                text class="soft" x="8" y=(round(top + 12.0)) { (named(&plot.y)) }
            }
            (body.markup)
        };
        Drawn { markup, bottom: body.bottom }
    })
}

struct Body {
    markup: Markup,
    bottom: f64,
    empty: bool,
}

/// The axes and the area between them, from `top` down.
fn body(plot: &Plot, palette: &Palette, size: Size, top: f64) -> Body {
    let width = size.width();
    let points = || plot.curves.iter().flat_map(|curve| curve.points.iter());
    let bands = || plot.curves.iter().flat_map(|curve| curve.band.iter().flatten().flatten());
    let marks = |wanted: fn(MarkPosition) -> Option<f64>| {
        plot.marks.iter().filter_map(move |mark| wanted(mark.at))
    };
    let inner_height = size.inner_height();
    let (x_labels, y_labels) =
        (((width - 50.0) / size.label_width()) as usize, (inner_height / 45.0) as usize);
    let x = points().map(|point| point[0]).chain(marks(MarkPosition::x));
    let y = points().map(|point| point[1]).chain(bands().copied()).chain(marks(MarkPosition::y));
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
    let mark_labels =
        MarkLabels::of(plot, |figure| Some(left + x.place(figure)? * (right - left)), width);
    let top = top + mark_labels.height();
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
        (mark_labels.draw(&frame))
        (mark::levels(plot, &frame))
    };
    Body { markup, bottom: frame.bottom + 42.0, empty: false }
}

/// The curves' names in rows from `top` down, as many side by side as fit.
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
            g class=(palette.color(&curve.label)) {
                (curve::sample(curve, palette, *at, base - 4.0))
                text x=(round(at + SWATCH)) y=(round(*base)) { (label) }
            }
        }
    };
    (markup, rows)
}
