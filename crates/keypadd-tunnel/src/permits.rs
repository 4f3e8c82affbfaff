//! Which clients may connect, what each may reach, and where each may listen.

pub(crate) mod listen;
pub(crate) mod open;
pub(crate) mod pattern;
pub(crate) mod peers;
