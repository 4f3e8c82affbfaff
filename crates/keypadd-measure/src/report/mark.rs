//! Draws the marks of a plot and places their labels: those of vertical lines in rows above the axes, those of
//! horizontal lines inside, where they cover the fewest points. Knows pixel positions only.

use maud::Markup;
use maud::html;

use super::frame::Frame;
use super::sheet::{line, round, shorten, text_width};
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
    /// Where the words begin.
    left: f64,
    width: f64,
    /// How many rows above the axes.
    row: usize,
    label: String,
}

impl Flag {
    /// Whether its words come near the line or the words of another.
    fn reaches(&self, other: &Self) -> bool {
        let (left, right) = (self.left - GAP, self.left + self.width + GAP);
        let (first, last) =
            (other.left.min(other.place), (other.left + other.width).max(other.place));
        left < last && first < right
    }
}

impl Flags {
    /// Words stand beside their line, all on one side, and a row above those of every line that they
    /// would reach: no line goes that far up, so that none crosses words.
    pub(super) fn of(plot: &Plot, across: impl Fn(f64) -> Option<f64>, width: f64) -> Self {
        let marks = plot.marks.iter();
        let mut flags: Vec<Flag> = marks
            .filter_map(|mark| {
                let label = shorten(&mark.label, width - 16.0);
                let (place, width) = (across(mark.at.x()?)?, text_width(&label));
                Some(Flag { place, left: place + GAP, width, row: 0, label })
            })
            .collect();
        flags.sort_by(|a, b| b.place.total_cmp(&a.place));
        let room = |flag: &Flag| flag.left >= 2.0 && flag.left + flag.width <= width - 2.0;
        if !flags.iter().all(room) {
            for flag in &mut flags {
                flag.left = flag.place - GAP - flag.width;
            }
            if flags.iter().all(room) {
                flags.reverse();
            } else {
                for flag in &mut flags {
                    let last = (width - flag.width - 2.0).max(2.0);
                    flag.left = (flag.place + GAP).clamp(2.0, last);
                }
            }
        }
        // In the order in which each can only reach those before it.
        for index in 0..flags.len() {
            let (before, rest) = flags.split_at(index);
            let reached = before.iter().filter(|other| rest[0].reaches(other));
            flags[index].row = reached.map(|other| other.row + 1).max().unwrap_or(0);
        }
        Self { rows: flags.iter().map(|flag| flag.row + 1).max().unwrap_or(0), flags }
    }

    /// What they take above the axes.
    pub(super) fn height(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.rows as f64 * ROW + 4.0 }
    }

    pub(super) fn draw(&self, frame: &Frame) -> Markup {
        let top = frame.top - self.height();
        let base = |flag: &Flag| top + (self.rows - flag.row) as f64 * ROW - 4.0;
        html! {
            @for flag in &self.flags {
                (line("mark", flag.place, base(flag) - 10.0, flag.place, frame.bottom))
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

    /// Whether a line goes through words: it begins at its own row and goes down.
    fn crosses(line: &Flag, words: &Flag) -> bool {
        let within = words.left < line.place && line.place < words.left + words.width;
        within && line.row >= words.row
    }

    #[test]
    fn words_of_marks_never_cover_one_another() {
        let mut random = fastrand::Rng::with_seed(9);
        for count in 1..8 {
            for _ in 0..50 {
                let places: Vec<f64> = (0..count).map(|_| random.f64() * 350.0).collect();
                let placed = flags(&places, "T* predicted, 64 MiB");
                for (index, one) in placed.flags.iter().enumerate() {
                    assert!(one.left >= 0.0 && one.left + one.width <= 350.0);
                    for other in &placed.flags[index + 1..] {
                        let apart = one.left + one.width <= other.left
                            || other.left + other.width <= one.left;
                        assert!(apart || one.row != other.row, "{places:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_line_crosses_words_where_these_have_room_on_one_side() {
        let mut random = fastrand::Rng::with_seed(10);
        for begin in [0.0, 150.0] {
            for _ in 0..200 {
                let places: Vec<f64> = (0..6).map(|_| begin + random.f64() * 200.0).collect();
                let placed = flags(&places, "T* predicted, 64 MiB");
                for words in &placed.flags {
                    assert!(!placed.flags.iter().any(|line| crosses(line, words)), "{places:?}");
                }
            }
        }
    }

    #[test]
    fn marks_far_from_one_another_have_their_words_in_one_row() {
        assert_eq!(flags(&[20.0, 200.0], "T* predicted").rows, 1);
    }
}
