//! Finds and checks the directory of this user's control sockets, which nobody else may change.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Permission bits of all but the owner.
const OTHERS_WRITE: u32 = 0o022;

/// The directory of this user's sockets; `None` if the environment names none.
pub(crate) fn path() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(given) = variable("RUNTIME_DIRECTORY") {
        // systemd gives a list when a unit names several (systemd.exec(5)).
        let given = given.to_string_lossy();
        return given.split(':').next().map(PathBuf::from);
    }
    if geteuid().is_root() {
        return Some("/run/keypadd".into());
    }
    variable("XDG_RUNTIME_DIR").map(|given| PathBuf::from(given).join("keypadd"))
}

/// The sockets in a directory, by name.
pub(crate) fn sockets(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    paths.sort();
    paths
}

/// Creates the directory if it is missing, and checks that nobody else can replace files in it.
///
/// # Errors
/// It cannot be created, or another user owns it or may write to it.
pub(crate) fn prepare(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    check(directory)
}

/// Checks that nobody else can replace files in the directory.
///
/// # Errors
/// It is missing, or another user owns it or may write to it.
pub(crate) fn check(directory: &Path) -> io::Result<()> {
    let metadata = fs::metadata(directory)?;
    let refused = |cause: String| Err(io::Error::new(ErrorKind::PermissionDenied, cause));
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if owner != geteuid().as_raw() && owner != 0 {
        return refused(format!("owned by another user (uid {owner}); chown it"));
    }
    if mode & OTHERS_WRITE != 0 {
        return refused(format!("other users may write to it (mode {mode:04o}); chmod go-w it"));
    }
    Ok(())
}
