//! Simulates two keypadd endpoints deterministically, and audits what they put on the wire.
//!
//! Two quinn-proto endpoints with our packet protection, by themselves or in the event loops that ship
//! (`loops.rs`), a virtual clock, a network that loses, delays, doubles and corrupts, fillers that work when the
//! scheduler says: all of it follows from one seed. The auditor gets traffic secrets from rustls's key log and judges the datagrams with
//! ciphers of its own; it takes no word of ours for anything but where a pad came from.
//!
//! What stays random is inside TLS (key shares, randoms) and what follows from it (keys,
//! ciphertext), and the loops' connection ids. No length and no decision depends on it: a seed gives the same run each time.

mod arrivals;
mod auditor;
mod bugs;
mod ciphers;
mod counts;
mod ends;
mod loops;
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
pub use counts::Counts;
pub use loops::{run_loops, run_loops_with_bug};
pub use run::{Outcome, run, run_with_bug};
