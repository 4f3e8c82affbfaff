//! Draws the marks of a plot and places their labels: those of vertical lines in rows above the
//! axes, those of horizontal lines inside, where they cover the fewest points. Knows pixel
//! positions only.

use maud::Markup;
use maud::html;

use super::frame::Frame;
use super::sheet::{line, round, shorten, text_width};
use crate::results::Plot;

const ROW: f64 = 15.0;
/// Distance between a label and its line.
const GAP: f64 = 4.0;

/// Vertical lines and their labels, placed.
pub(super) struct MarkLabels {
    labels: Vec<MarkLabel>,
    rows: usize,
}

struct MarkLabel {
    /// Position of the line.
    place: f64,
    /// Where the label starts.
    left: f64,
    width: f64,
    /// Rows above the axes.
    row: usize,
    label: String,
}

impl MarkLabel {
    /// Whether its label comes close to another's line or label.
    fn reaches(&self, other: &Self) -> bool {
        let (left, right) = (self.left - GAP, self.left + self.width + GAP);
        let (first, last) =
            (other.left.min(other.place), (other.left + other.width).max(other.place));
        left < last && first < right
    }
}

impl MarkLabels {
    /// Labels stand beside their lines, all on one side, and one row above those of every line that
    /// they would reach: no line extends that high, so none crosses a label.
    pub(super) fn of(plot: &Plot, across: impl Fn(f64) -> Option<f64>, width: f64) -> Self {
        let marks = plot.marks.iter();
        let mut labels: Vec<MarkLabel> = marks
            .filter_map(|mark| {
                let label = shorten(&mark.label, width - 16.0);
                let (place, width) = (across(mark.at.x()?)?, text_width(&label));
                Some(MarkLabel { place, left: place + GAP, width, row: 0, label })
            })
            .collect();
        labels.sort_by(|a, b| b.place.total_cmp(&a.place));
        let room = |label: &MarkLabel| label.left >= 2.0 && label.left + label.width <= width - 2.0;
        if !labels.iter().all(room) {
            for label in &mut labels {
                label.left = label.place - GAP - label.width;
            }
            if labels.iter().all(room) {
                labels.reverse();
            } else {
                for label in &mut labels {
                    let last = (width - label.width - 2.0).max(2.0);
                    label.left = (label.place + GAP).clamp(2.0, last);
                }
            }
        }
        // Ordered so that each can only reach earlier ones.
        for index in 0..labels.len() {
            let (before, rest) = labels.split_at(index);
            let reached = before.iter().filter(|other| rest[0].reaches(other));
            labels[index].row = reached.map(|other| other.row + 1).max().unwrap_or(0);
        }
        Self { rows: labels.iter().map(|label| label.row + 1).max().unwrap_or(0), labels }
    }

    /// Height above the axes that they need.
    pub(super) fn height(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.rows as f64 * ROW + 4.0 }
    }

    pub(super) fn draw(&self, frame: &Frame) -> Markup {
        let top = frame.top - self.height();
        let base = |label: &MarkLabel| top + (self.rows - label.row) as f64 * ROW - 4.0;
        html! {
            @for label in &self.labels {
                (line("mark", label.place, base(label) - 10.0, label.place, frame.bottom))
            }
            @for label in &self.labels {
                text class="halo" x=(round(label.left)) y=(round(base(label))) { (label.label) }
            }
        }
    }
}

/// Horizontal lines and their labels.
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

    fn labels(places: &[f64], label: &str) -> MarkLabels {
        let mut plot = Plot::new("", "", Axis::linear("", ""), Axis::linear("", ""));
        plot.marks = places.iter().map(|place| Mark::at_x(*place, label)).collect();
        MarkLabels::of(&plot, Some, 350.0)
    }

    /// Whether a line crosses a label: it starts at its own row and goes down.
    fn crosses(line: &MarkLabel, words: &MarkLabel) -> bool {
        let within = words.left < line.place && line.place < words.left + words.width;
        within && line.row >= words.row
    }

    #[test]
    fn labels_of_marks_never_overlap() {
        let mut random = fastrand::Rng::with_seed(9);
        for count in 1..8 {
            for _ in 0..50 {
                let places: Vec<f64> = (0..count).map(|_| random.f64() * 350.0).collect();
                let placed = labels(&places, "T* predicted, 64 MiB");
                for (index, one) in placed.labels.iter().enumerate() {
                    assert!(one.left >= 0.0 && one.left + one.width <= 350.0);
                    for other in &placed.labels[index + 1..] {
                        let apart = one.left + one.width <= other.left
                            || other.left + other.width <= one.left;
                        assert!(apart || one.row != other.row, "{places:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_line_crosses_labels_that_fit_on_one_side() {
        let mut random = fastrand::Rng::with_seed(10);
        for begin in [0.0, 150.0] {
            for _ in 0..200 {
                let places: Vec<f64> = (0..6).map(|_| begin + random.f64() * 200.0).collect();
                let placed = labels(&places, "T* predicted, 64 MiB");
                for words in &placed.labels {
                    assert!(!placed.labels.iter().any(|line| crosses(line, words)), "{places:?}");
                }
            }
        }
    }

    #[test]
    fn labels_of_distant_marks_share_one_row() {
        assert_eq!(labels(&[20.0, 200.0], "T* predicted").rows, 1);
    }
}
