//! Marks of a plot and where their words stand: those of upright lines in rows above the axes, those
//! of level lines inside, where they cover the fewest points.

use maud::Markup;
use maud::html;

use super::curve::Frame;
use super::plot::{line, round, shorten, text_width};
use crate::results::Plot;

const ROW: f64 = 15.0;
/// Between words and a line beside them.
const GAP: f64 = 4.0;

/// Upright lines and their words, placed.
pub(super) struct Flags {
    flags: Vec<Flag>,
    rows: usize,
}

struct Flag {
    /// Of the line.
    place: f64,
    /// Of the words: the left end and the width.
    left: f64,
    width: f64,
    row: usize,
    label: String,
}

impl Flag {
    fn covers(&self, left: f64, width: f64) -> bool {
        left < self.left + self.width + 2.0 * GAP && self.left < left + width + 2.0 * GAP
    }
}

impl Flags {
    /// Words stand above their line; beside it where another line would cross them; a row higher
    /// where they would cross other words.
    pub(super) fn of(plot: &Plot, across: impl Fn(f64) -> Option<f64>, width: f64) -> Self {
        let marks = plot.marks.iter();
        let mut lines: Vec<(f64, &str)> =
            marks.filter_map(|mark| Some((across(mark.at.x()?)?, &*mark.label))).collect();
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut placed = Self { flags: Vec::new(), rows: 0 };
        for (index, (place, label)) in lines.iter().enumerate() {
            let label = shorten(label, width - 16.0);
            let text = text_width(&label);
            let crossed = |left: f64| {
                lines.iter().enumerate().any(|(other, (line, _))| {
                    other != index && *line > left - 2.0 && *line < left + text + 2.0
                })
            };
            let sides = [place - text / 2.0, place - text - GAP, place + GAP];
            let inside = |left: &f64| *left >= 2.0 && left + text <= width - 2.0;
            let free = |row: usize, left: f64| {
                !placed.flags.iter().any(|flag| flag.row == row && flag.covers(left, text))
            };
            let rows = 0..placed.rows.max(1);
            let beside = rows
                .flat_map(|row| sides.iter().map(move |left| (row, *left)))
                .find(|(row, left)| inside(left) && !crossed(*left) && free(*row, *left));
            let (row, left) = beside.unwrap_or_else(|| {
                let left = sides[0].clamp(2.0, (width - text - 2.0).max(2.0));
                let row = (0..).find(|row| free(*row, left)).unwrap_or(placed.rows);
                (row, left)
            });
            placed.rows = placed.rows.max(row + 1);
            placed.flags.push(Flag { place: *place, left, width: text, row, label });
        }
        placed
    }

    /// What they take above the axes.
    pub(super) fn height(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.rows as f64 * ROW + 4.0 }
    }

    pub(super) fn draw(&self, frame: &Frame) -> Markup {
        let top = frame.top - self.height();
        let base = |flag: &Flag| top + flag.row as f64 * ROW + 11.0;
        // A line beside its words begins where these do, else below them.
        let begin = |flag: &Flag| {
            let above = flag.left < flag.place && flag.place < flag.left + flag.width;
            base(flag) + if above { 4.0 } else { -10.0 }
        };
        html! {
            @for flag in &self.flags {
                (line("mark", flag.place, begin(flag), flag.place, frame.bottom))
            }
            @for flag in &self.flags {
                text class="halo" x=(round(flag.left)) y=(round(base(flag))) { (flag.label) }
            }
        }
    }
}

/// Level lines and their words.
pub(super) fn levels(plot: &Plot, frame: &Frame) -> Markup {
    let marks = plot.marks.iter();
    let mut lines: Vec<(f64, &str)> =
        marks.filter_map(|mark| Some((frame.up(mark.at.y()?)?, &*mark.label))).collect();
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut covered: Vec<[f64; 2]> =
        plot.curves.iter().flat_map(|curve| super::curve::trace(curve, frame)).collect();
    let mut texts: Vec<(f64, f64, String)> = Vec::new();
    for (place, label) in &lines {
        let label = shorten(label, frame.right - frame.left - 2.0 * GAP);
        let width = text_width(&label);
        let (left, right) = (frame.left + GAP, frame.right - GAP - width);
        let places = [
            (right, place - 5.0),
            (right, place + 14.0),
            (left, place - 5.0),
            (left, place + 14.0),
        ];
        let hidden = |(left, base): (f64, f64)| {
            let within = base >= frame.top - 2.0 && base < frame.bottom;
            let inside = |[x, y]: &&[f64; 2]| {
                *x > left - 3.0 && *x < left + width + 3.0 && *y > base - 13.0 && *y < base + 5.0
            };
            covered.iter().filter(inside).count() + if within { 0 } else { 10_000 }
        };
        let [first, ..] = places;
        let (left, base) = places.into_iter().min_by_key(|place| hidden(*place)).unwrap_or(first);
        covered.extend((0..=width as usize).step_by(4).map(|x| [left + x as f64, base - 4.0]));
        texts.push((left, base, label));
    }
    html! {
        @for (place, _) in &lines { (line("mark", frame.left, *place, frame.right, *place)) }
        @for (left, base, label) in &texts {
            text class="halo" x=(round(*left)) y=(round(*base)) { (label) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Axis, Mark};

    fn flags(places: &[f64], label: &str) -> Flags {
        let mut plot = Plot::new("", "", Axis::linear("", ""), Axis::linear("", ""));
        plot.marks = places.iter().map(|place| Mark::at_x(*place, label)).collect();
        Flags::of(&plot, Some, 350.0)
    }

    #[test]
    fn words_of_marks_never_cross_one_another() {
        let mut random = fastrand::Rng::with_seed(9);
        for count in 1..8 {
            for _ in 0..50 {
                let places: Vec<f64> = (0..count).map(|_| random.f64() * 350.0).collect();
                let placed = flags(&places, "T* predicted, 64 MiB");
                for (index, one) in placed.flags.iter().enumerate() {
                    assert!(one.left >= 0.0 && one.left + one.width <= 350.0);
                    let others = placed.flags[index + 1..].iter().filter(|o| o.row == one.row);
                    assert!(others.clone().all(|o| !o.covers(one.left, one.width)), "{places:?}");
                }
            }
        }
    }

    #[test]
    fn two_lines_near_one_another_have_their_words_on_either_side() {
        let placed = flags(&[170.0, 176.0], "T* predicted");
        assert_eq!(placed.rows, 1);
        assert!(placed.flags[0].left + placed.flags[0].width < 170.0);
        assert!(placed.flags[1].left > 176.0);
    }
}
