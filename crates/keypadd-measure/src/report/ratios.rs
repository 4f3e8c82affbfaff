//! Draws the papers' ratios beside today's, one row per claim: how far apart they are, and on which
//! side of 1.

use maud::Markup;
use maud::html;

use super::scale::Ruler;
use super::sheet::{Drawn, Size, Standalone, line, round, sheet, wrap};
use crate::results::{PaperComparison, Scale, Verdict};

/// Height of a line of text.
const LINE: f64 = 15.0;
/// Height of a row below its text.
const ROW: f64 = 26.0;
/// Half the size of a mark.
const MARK: f64 = 5.0;

/// Whether there is anything to draw.
pub(super) fn has_any(verdicts: &[Verdict]) -> bool {
    rows(verdicts).next().is_some()
}

/// The claims that have a ratio of either kind.
pub(super) fn rows(verdicts: &[Verdict]) -> impl Iterator<Item = &PaperComparison> {
    let has_figure = |it: &&PaperComparison| it.paper.is_some() || it.today.is_some();
    verdicts.iter().filter_map(|verdict| verdict.beside.as_ref()).filter(has_figure)
}

/// Draws them; `alone` for a separate file.
pub(super) fn draw(verdicts: &[Verdict], size: Size, alone: Option<&Standalone>) -> Markup {
    sheet("ratios of the paper and of today", size, alone, |top| {
        let width = size.width();
        let (left, right) = (16.0, width - 26.0);
        let figures = rows(verdicts).flat_map(|it| {
            let today = it.today.iter().map(|it| it.value);
            let ends = it.today.iter().filter_map(|it| it.interval).flatten();
            it.paper.into_iter().chain(today).chain(ends).collect::<Vec<_>>()
        });
        let labels = ((width - 50.0) / size.label_width()) as usize;
        let Some(ruler) = Ruler::over(Scale::Log, figures.chain([1.0]), labels) else {
            return Drawn { markup: html! {}, bottom: top };
        };
        let across = |figure: f64| Some(left + ruler.place(figure)? * (right - left));
        let first = top + 24.0;
        let mut at = first;
        let mut drawn = Vec::new();
        for row in rows(verdicts) {
            let words = wrap(&format!("{}  {}", row.name, row.ratio), width - 16.0, 6.4);
            let base = at + words.len() as f64 * LINE + 12.0;
            drawn.push((at, base, words, row));
            at = base + ROW - 12.0;
        }
        let bottom = at + 4.0;
        let one = across(1.0);
        let markup = html! {
            (diamond(14.0, top + 10.0))
            text class="soft" x="24" y=(round(top + 14.0)) { "the paper" }
            g class="k0" { (whisker(100.0, 128.0, top + 10.0)) (dot(114.0, top + 10.0)) }
            text class="soft" x="136" y=(round(top + 14.0)) { "today, 95 % interval" }
            @for (tick, text) in ruler.ticks.iter().zip(ruler.labels()) {
                @if let Some(place) = across(*tick) {
                    (line("grid", place, first, place, bottom))
                    text class="soft" text-anchor="middle" x=(round(place)) y=(round(bottom + 16.0)) { (text) }
                }
            }
            @if let Some(place) = one { (line("mark", place, first, place, bottom)) }
            @for (head, base, words, row) in &drawn {
                @for (nth, words) in words.iter().enumerate() {
                    text class="halo" x="8" y=(round(head + 12.0 + nth as f64 * LINE)) { (words) }
                }
                (line("fine", left, *base, right, *base))
                @if let Some(place) = row.paper.and_then(across) { (diamond(place, *base)) }
                @if let Some(today) = &row.today {
                    g class="k0" {
                        @if let Some([low, high]) = today.interval {
                            @let [low, high] = [(low, true), (high, false)]
                                .map(|(end, low)| left + ruler.place_end(end, low) * (right - left));
                            (whisker(low, high, *base))
                        }
                        @if let Some(place) = across(today.value) { (dot(place, *base)) }
                    }
                }
            }
            text class="soft" text-anchor="end" x=(round(width - 8.0)) y=(round(bottom + 34.0)) { "ratio" }
        };
        Drawn { markup, bottom: bottom + 42.0 }
    })
}

fn dot(x: f64, y: f64) -> Markup {
    html! { circle class="dot" cx=(round(x)) cy=(round(y)) r=(MARK - 0.5) {} }
}

fn diamond(x: f64, y: f64) -> Markup {
    let points =
        [(x, y - MARK - 1.0), (x + MARK + 1.0, y), (x, y + MARK + 1.0), (x - MARK - 1.0, y)];
    let points = points.map(|(x, y)| format!("{},{}", round(x), round(y))).join(" ");
    html! { polygon class="theirs" points=(points) {} }
}

fn whisker(low: f64, high: f64, y: f64) -> Markup {
    let (low, high, up, down) = (round(low), round(high), round(y - 4.0), round(y + 4.0));
    html! { path class="whisker" d={ "M" (low) "," (up) "V" (down) "M" (low) "," (round(y)) "H" (high) "M" (high) "," (up) "V" (down) } {} }
}
