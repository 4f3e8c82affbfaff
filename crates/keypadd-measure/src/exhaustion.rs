//! Finds the rate above which a pool runs dry, and how soon a burst empties it.
//!
//! - **R*** is the sustained rate above which the pool runs dry.
//! - **T*(r)** and **B*(r)**, for a rate r above R*, are the time and the payload from a full pool to the
//!   first packets that lack pad.
//! - The **speed after** is what gets through once pads are made while packets wait.
//!
//! All are predicted from a calibration before the run (`model.rs`) and then found by trying
//! (`finder.rs`), which knows nothing of the prediction.

mod calibration;
mod cell;
mod finder;
mod model;

mod readings;
mod run;
mod section;
mod stream;
mod tunnel;

pub use finder::Patience;
pub use run::Exhaustion;
