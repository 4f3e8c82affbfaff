//! Decides which clients may connect, what each may reach, and where each may listen. No I/O.

pub(crate) mod listen;
pub(crate) mod open;
pub(crate) mod pattern;
pub(crate) mod peers;
