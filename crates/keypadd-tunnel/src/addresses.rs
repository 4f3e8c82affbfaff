//! Parses hosts, targets, socket paths and forwards (`-L`, `-R`, `-D`). Text only, no I/O.

pub(crate) mod forward;
pub(crate) mod servers;
pub(crate) mod service;
pub(crate) mod socket_path;
pub(crate) mod target;
