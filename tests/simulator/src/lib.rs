//! A deterministic simulator of two keypadd endpoints, and an auditor of what they put on the wire.
//!
//! Two quinn-proto endpoints with our packet protection, a virtual clock, a network that loses,
//! delays, doubles and corrupts, fillers that work when the scheduler says: all of it follows from
//! one seed. The auditor gets traffic secrets from rustls's key log and judges the datagrams with
//! ciphers of its own; it takes no word of ours for anything but where a pad came from.
//!
//! What stays random is inside TLS (key shares, randoms) and what follows from it (keys,
//! ciphertext). No length and no decision depends on it: a seed gives the same run each time.

mod auditor;
mod bugs;
mod ciphers;
mod ends;
mod figures;
mod network;
mod pools;
mod run;
mod schedule;
mod secrets;
mod tape;
mod traffic;
mod wire;

pub use auditor::Finding;
pub use bugs::Bug;
pub use figures::Figures;
pub use run::{Outcome, run, run_with_bug};
