//! Properties that must hold for any text from a user and any bytes from a peer: one per module,
//! each a function that panics if it does not hold.
//!
//! The fuzzer searches for inputs that violate them (`fuzz/run`). `cargo test` runs them on the
//! inputs under `fuzz/seeds`, so that they keep compiling and fixed bugs stay fixed.

pub mod config;
pub mod forwards;
pub mod frames;
pub mod headers;
pub mod permits;
pub mod socks;
