//! Tests streams that continue over another connection: every byte, each end and each reset.
#![allow(unreachable_pub, dead_code, clippy::unwrap_used)]

mod bytes;
mod ends;
mod held;
#[path = "../pair/mod.rs"]
mod pair;
