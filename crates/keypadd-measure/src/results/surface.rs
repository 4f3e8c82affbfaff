//! Defines figures over two factors: a surface, drawn as a heat map.

use serde::{Deserialize, Serialize};

use super::{Axis, Estimate};

/// A figure for each pair of two factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// Base name of its file, unique in its section: lowercase letters, digits and `-`.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// How to read it, in a sentence or two; may be empty.
    pub caption: String,
    /// The horizontal factor, with its steps in [`Self::columns`].
    pub x: Axis,
    /// The vertical factor, with its steps in [`Self::rows`].
    pub y: Axis,
    /// The quantity of the figures; its scale is that of the shades.
    pub z: Axis,
    /// Steps of x, ascending.
    pub columns: Vec<f64>,
    /// Steps of y, ascending.
    pub rows: Vec<f64>,
    /// One row per step of y, one figure per step of x; `None` where not measured.
    pub cells: Vec<Vec<Option<Estimate>>>,
    /// The smallest and largest figure that shades distinguish: the same for surfaces to be
    /// compared. `None` for the range of this surface alone.
    pub range: Option<[f64; 2]>,
}

impl Surface {
    /// All figures.
    pub fn figures(&self) -> impl Iterator<Item = &Estimate> {
        self.cells.iter().flatten().flatten()
    }
}
