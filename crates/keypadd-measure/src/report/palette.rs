//! Assigns colors, dashes and marker shapes to the labels of curves.

use crate::results::Plot;

/// Colors and dashes of labels: the same in all plots of a section.
pub(super) struct Palette(Vec<String>);

const COLORS: usize = 8;
/// Coprime with [`COLORS`], so that 40 curves differ.
const DASHES: usize = 5;

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

    /// The CSS class of everything that a curve draws.
    pub(super) fn color(&self, label: &str) -> String {
        format!("k{}", self.index(label) % COLORS)
    }

    /// The CSS class of its line.
    pub(super) fn dashes(&self, label: &str) -> String {
        format!("d{}", self.index(label) % DASHES)
    }

    /// The index of its points' shape.
    pub(super) fn shape(&self, label: &str) -> usize {
        self.index(label)
    }
}
