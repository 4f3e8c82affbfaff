//! Disables core dumps of the process, and reading of its memory by other processes of its user.

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

/// Forbids core dumps, debuggers and reading `/proc/PID/mem` to all but root (prctl(2),
/// PR_SET_DUMPABLE). Soft limit only, so that [`allow_core_dumps`] can undo it.
pub fn forbid_core_dumps() {
    let limit = getrlimit(Resource::Core);
    // Neither can fail: both are within what every process may do.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..limit });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Allows them again, for debugging.
pub fn allow_core_dumps() {
    let limit = getrlimit(Resource::Core);
    let _ = setrlimit(Resource::Core, Rlimit { current: limit.maximum, ..limit });
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
}
