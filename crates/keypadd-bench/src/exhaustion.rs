//! Where the pool runs dry: the sustained rate above which it does, and how soon.
//!
//! - **R*** is the sustained rate above which the pool runs dry.
//! - **T*(r)** and **B*(r)**, for a rate r above R*, are the time and the payload from a full pool to the
//!   first packets that lack pad.
//! - The **speed after** is what gets through once pads are made while packets wait.
//!
//! All three are predicted from a calibration before the run ([`model`]) and then found by trying
//! ([`finder`]), which knows nothing of the prediction.

pub mod finder;
pub mod model;
pub mod readings;
