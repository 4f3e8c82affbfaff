//! The pool from outside: lanes, memory, and the filler as the kernel sees it. No test judges
//! time; what a filler does is waited for.

#[path = "../../../keypadd-keystream/tests/independent/mod.rs"]
#[allow(clippy::unwrap_used)] // as in the tests that it is of
mod independent;

mod agreement;
mod filler;
mod lanes;
mod random;
mod shares;
mod support;
