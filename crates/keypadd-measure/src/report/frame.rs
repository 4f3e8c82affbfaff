//! Maps values to pixels between the axes of a plot.

use super::scale::Ruler;

/// Where the axes are, in pixels.
pub(super) struct Frame {
    pub(super) x: Ruler,
    pub(super) y: Ruler,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Frame {
    /// Pixels from the left edge.
    pub(super) fn across(&self, x: f64) -> Option<f64> {
        Some(self.left + self.x.place(x)? * (self.right - self.left))
    }

    /// Pixels from the upper edge.
    pub(super) fn up(&self, y: f64) -> Option<f64> {
        Some(self.level(self.y.place(y)?))
    }

    pub(super) fn level(&self, place: f64) -> f64 {
        self.bottom - place * (self.bottom - self.top)
    }

    pub(super) fn point(&self, [x, y]: [f64; 2]) -> Option<[f64; 2]> {
        Some([self.across(x)?, self.up(y)?])
    }
}
