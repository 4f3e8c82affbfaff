//! Draws a surface as a heat map with its figures: darker is more (lighter in dark themes). Unlike
//! a perspective plot, it hides nothing, and its figures are readable.

use maud::Markup;
use maud::html;

use super::sheet::{Drawn, Size, Standalone, named, round, sheet, text_width};
use crate::figure;
use crate::results::{Estimate, Scale, Surface};

/// Shades, the faintest first, as in `plot.css`.
const SHADES: usize = 8;
/// From this shade on, text is light on dark, or the reverse.
const DEEP: usize = 4;

/// Draws it; `alone` for a separate file.
pub(super) fn draw(surface: &Surface, size: Size, alone: Option<&Standalone>) -> Markup {
    let Surface { title, x, y, z, .. } = surface;
    let described = format!("{title}: {} against {} and {}", z.name, x.name, y.name);
    sheet(&described, size, alone, |top| {
        let (width, height) = match size {
            Size::Wide => (size.width(), 34.0),
            Size::Narrow => (size.width(), 30.0),
        };
        let step = |figure: &f64| figure::write(&Estimate::single(*figure));
        let names: Vec<String> = surface.rows.iter().map(step).collect();
        let left = 16.0 + names.iter().map(|name| text_width(name)).fold(0.0, f64::max);
        let across = (width - left - 8.0) / surface.columns.len().max(1) as f64;
        let first = top + 44.0;
        let bottom = first + height * surface.rows.len() as f64;
        let shade = Shade::of(surface);
        let markup = html! {
            text class="soft" x="8" y=(round(top + 14.0)) { "in each field: " (named(z)) }
            text class="soft" x="8" y=(round(top + 34.0)) { (named(y)) }
            // The first row is the lowest, as on any axis.
            @for (row, (cells, name)) in surface.cells.iter().zip(&names).enumerate() {
                @let up = bottom - height * (row + 1) as f64;
                text class="soft" text-anchor="end" x=(round(left - 6.0)) y=(round(up + height / 2.0 + 4.0)) { (name) }
                @for (column, cell) in cells.iter().enumerate() {
                    (field(cell.as_ref(), &shade, [left + across * column as f64, up], [across, height]))
                }
            }
            @for (column, figure) in surface.columns.iter().enumerate() {
                text class="soft" text-anchor="middle" x=(round(left + across * (column as f64 + 0.5)))
                    y=(round(bottom + 16.0)) { (step(figure)) }
            }
            text class="soft" text-anchor="end" x=(round(width - 8.0)) y=(round(bottom + 34.0)) { (named(x)) }
        };
        Drawn { markup, bottom: bottom + 42.0 }
    })
}

fn field(
    cell: Option<&Estimate>,
    shade: &Shade,
    [x, y]: [f64; 2],
    [wide, high]: [f64; 2],
) -> Markup {
    let nth = cell.and_then(|cell| shade.nth(cell.value));
    let text = cell.map_or_else(|| figure::NONE.to_owned(), |cell| figure::brief(cell.value));
    let fill = nth.map_or_else(|| "empty".to_owned(), |nth| format!("h{nth}"));
    let ink = if nth.is_some_and(|nth| nth >= DEEP) { "deep" } else { "" };
    html! {
        rect class=(fill) x=(round(x + 1.0)) y=(round(y + 1.0)) width=(round(wide - 2.0)) height=(round(high - 2.0)) {}
        text class=(ink) text-anchor="middle" x=(round(x + wide / 2.0)) y=(round(y + high / 2.0 + 4.0)) { (text) }
    }
}

/// Maps figures to shades.
struct Shade {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Shade {
    fn of(surface: &Surface) -> Self {
        let figures = surface.figures().map(|it| it.value).filter(|it| it.is_finite());
        let ends = |(low, high): (f64, f64), it: f64| (low.min(it), high.max(it));
        let own = figures.fold((f64::INFINITY, f64::NEG_INFINITY), ends);
        let (low, high) = surface.range.map_or(own, |[low, high]| (low, high));
        Self { scale: surface.z.scale, low, high }
    }

    /// `None` for a figure that the scale cannot place.
    fn nth(&self, figure: f64) -> Option<usize> {
        let place = |figure: f64| match self.scale {
            Scale::Linear => figure,
            Scale::Log => figure.ln(),
        };
        let (low, high) = (place(self.low), place(self.high));
        let share = if high > low { (place(figure) - low) / (high - low) } else { 0.0 };
        let nth = (share.clamp(0.0, 1.0) * SHADES as f64) as usize;
        share.is_finite().then(|| nth.min(SHADES - 1))
    }
}
