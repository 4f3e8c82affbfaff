//! Forward specifications as text: hosts, ports, socket paths, and `-L`, `-R` and `-D`.

pub(crate) mod forward;
pub(crate) mod socket_path;
pub(crate) mod target;
