//! Properties that must hold for any text from a user, any bytes from a peer and any order of operations:
//! one per module, each a function that panics if it does not hold.
//!
//! The fuzzer searches for inputs that violate them (`fuzz/run`). `cargo test --test fuzz` runs them on the
//! inputs under `fuzz/seeds` and on mutations of these, so that they keep compiling and fixed bugs stay
//! fixed.

pub mod config;
pub mod flow_frames;
pub mod forwards;
pub mod frames;
pub mod handshakes;
pub mod headers;
mod input;
pub mod invitations;
pub mod keys;
pub mod network_packets;
pub mod packet_keys;
pub mod permits;
pub mod pool_operations;
pub mod proxy_headers;
pub mod receipts;
mod sessions;
pub mod socks;
pub mod srv_answers;
pub mod tags;
