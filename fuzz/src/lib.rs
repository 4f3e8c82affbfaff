//! What must hold of any text that a user and any bytes that a peer may give: one claim a module, each
//! a function that panics where it does not hold.
//!
//! The fuzzer looks for such texts and bytes (`fuzz/run`); `cargo test` tries those under `fuzz/seeds`,
//! so that the claims keep compiling and what was found once stays mended.

pub mod config;
pub mod forwards;
pub mod frames;
pub mod headers;
pub mod permits;
pub mod socks;
