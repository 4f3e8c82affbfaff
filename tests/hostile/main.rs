//! The binary at both ends of a bad network: a userspace relay (`tools/testbed`) that loses, delays,
//! reorders, doubles and damages datagrams, moves the client to other ports, cuts the path, and
//! plays the attacker on it.
//!
//! The claim is I11 and its neighbors: a forwarded connection's bytes are exact or it ends in a
//! reset, nothing hangs for 60 s, and when all is over both daemons hold what they held before. Beside
//! it: what can be seen of pads from outside, on the wire and in memory, and what happens when nobody
//! makes any. `cargo test` runs a slice of each proof. The proofs as a whole take a quarter of an hour, print
//! figures, and have a command in CONTRIBUTING.md.
//! Counts and exactness decide; figures of time do in some of the long proofs and in no other test.

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

/// The suites that stand for the three kinds: an AEAD, encrypt-then-MAC, and a legacy cipher.
const SUITES: [&str; 3] = ["aes-256-gcm", "aes-256-ctr-hmac-sha1", "3des-ctr-hmac-sha1"];
