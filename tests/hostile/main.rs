//! Runs the binary at both ends of a bad network: a userspace relay (`tools/testbed`) that loses,
//! delays, reorders, duplicates and corrupts datagrams, moves the client to other ports, cuts the
//! path, and plays the attacker on it.
//!
//! The claim is I11 and its neighbors: a forwarded connection's bytes are exact or it ends in a
//! reset, nothing hangs for 60 s, and at the end both daemons hold what they held before. It also
//! checks what of pads is visible from outside, on the wire and in memory, and what happens when
//! the filler stops. `cargo test` runs a slice of each proof. The full proofs take a quarter of an
//! hour and print measurements; `scripts/nightly` runs them. Verdicts rest on counts and
//! exact bytes; only some of the long proofs judge times.

#![allow(clippy::unwrap_used)]

mod capture;
#[path = "../daemons/mod.rs"]
#[allow(dead_code)]
mod daemons;
mod exchange;
mod fillers;
mod flood;
mod forgeries;
mod networks;
mod plain;
mod remains;
mod replays;
mod soak;
mod strangers;
mod tunnel;

/// One suite of each kind: an AEAD, encrypt-then-MAC, and a legacy cipher.
const SUITES: [&str; 3] = ["aes-256-gcm", "aes-256-ctr-hmac-sha1", "3des-ctr-hmac-sha1"];
