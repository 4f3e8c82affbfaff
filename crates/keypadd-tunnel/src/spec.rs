//! Parses forward specifications: hosts, ports, socket paths, `-L`, `-R` and `-D`. Text only, no
//! I/O.

pub(crate) mod forward;
pub(crate) mod socket_path;
pub(crate) mod target;
