//! Controls congestion: fills the path, keeps its queue short, and does not take a single loss for
//! congestion.
//!
//! [`RateController`] keeps in flight what the path carries in its shortest round trip plus a queue
//! of 1 to 10 ms (`controller`). Delay is what counts, as in FAST TCP (Wei et al. 2006) and Copa
//! (NSDI 2018): a random loss changes nothing. Loss counts if sending faster brings more of it and
//! no more data (`losses`), ECN marks once a round trip. Against flows that keep the queue full it
//! follows CUBIC (`suspicion`, `competition`). Knows bytes and times, no packets and no streams.

mod ack_bursts;
mod algorithm;
mod competition;
mod constants;
mod controller;
mod extremes;
mod flight;
mod losses;
mod suspicion;

pub use algorithm::{Algorithm, Congestion, Control};
pub use constants::{ACK_DELAY, LONG_PATH};
pub use controller::{RateController, Waits};
pub use extremes::Windowed;
