//! Says how many descriptors forwards may use, by the limit of open files and what else needs some.

use rustix::process::{Resource, getrlimit};

use crate::control;
use crate::status::metrics;

/// Descriptors of a server's eight event loops and of two for each of eight clients, five each, and
/// 24 others.
const OWN_DESCRIPTORS: usize = (8 + 2 * 8) * 5 + 24;

/// Concurrent name lookups.
const LOOKUPS: usize = 64;

/// Descriptors reserved for all but forwards, at most.
pub(crate) const RESERVED_MAX: usize =
    OWN_DESCRIPTORS + LOOKUPS + metrics::CONNECTIONS_MAX + control::CONNECTIONS_MAX;

/// A quarter is reserved, but no less than this.
pub(crate) const RESERVED_MIN: usize = 64;

/// How many of these descriptors, which listeners of our own leave, are reserved.
pub(super) fn reserved(files: usize) -> usize {
    (files / 4).clamp(RESERVED_MIN, RESERVED_MAX)
}

/// How many descriptors this process may still open, by the limit of open files.
pub(super) fn free_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    limit.saturating_sub(std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count))
}
