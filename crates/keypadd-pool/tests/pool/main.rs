//! Tests the pool through its public interface: lanes, memory, and the filler's thread. No test
//! depends on timing; they wait for the filler.

#[path = "../../../keypadd-keystream/tests/independent/mod.rs"]
#[allow(clippy::unwrap_used)] // as in the tests it belongs to
mod independent;

mod agreement;
mod filler;
mod lanes;
mod random;
mod shares;
mod support;
