//! The pool from outside: lanes, memory, and the filler as the kernel sees it. No test judges
//! time; what a filler does is waited for.

mod filler;
mod lanes;
mod random;
mod shares;
mod support;
