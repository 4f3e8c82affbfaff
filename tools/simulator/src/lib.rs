//! Simulates two keypadd endpoints deterministically and audits what they put on the wire.
//!
//! Runs two quinn-proto endpoints with our packet protection, alone or in the shipped event loops
//! (`loops.rs`), on a virtual clock, over a network that loses, delays, duplicates and corrupts,
//! with fillers stepped by the scheduler. Everything follows from one seed. The auditor gets
//! traffic secrets from rustls's key log and checks datagrams with its own ciphers; it trusts our
//! code only for where a pad came from.
//!
//! Still random: TLS internals (key shares, randoms), what follows from them (keys, ciphertext),
//! and the loops' connection IDs. No length and no decision depends on these, so a seed repeats its
//! run.

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
