//! Defines figures over two factors: a surface, drawn as a heat map.

use serde::{Deserialize, Serialize};

use super::{Axis, Estimate};

/// A figure for each pair of two factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// Names its file, once in its section: lower-case letters, digits and `-`.
    pub id: String,
    /// Its head.
    pub title: String,
    /// How to read it, in a sentence or two; may be empty.
    pub caption: String,
    /// The factor to the right, its steps in [`Self::columns`].
    pub x: Axis,
    /// The factor upwards, its steps in [`Self::rows`].
    pub y: Axis,
    /// What the figures are; its scale is that of the shades.
    pub z: Axis,
    /// Steps of x, ascending.
    pub columns: Vec<f64>,
    /// Steps of y, ascending.
    pub rows: Vec<f64>,
    /// A row for each step of y, a figure for each of x; `None` where nothing was measured.
    pub cells: Vec<Vec<Option<Estimate>>>,
    /// The least and the largest figure that shades tell apart: the same for surfaces that are compared.
    /// `None` for those of this surface alone.
    pub range: Option<[f64; 2]>,
}

impl Surface {
    /// All figures.
    pub fn figures(&self) -> impl Iterator<Item = &Estimate> {
        self.cells.iter().flatten().flatten()
    }
}
