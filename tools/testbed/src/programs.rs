//! Finds programs and clears the variables that would set their flags.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

/// Looks a program up in `PATH` and in the system's directories, which a user's `PATH` may lack.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|it| it.join(name)).find(|it| it.is_file())
}

/// The full path of a program, which sshd needs to re-execute itself; just the name if not found.
pub fn locate(name: impl AsRef<OsStr>) -> OsString {
    let name = name.as_ref();
    name.to_str().and_then(find).map_or_else(|| name.to_owned(), PathBuf::into_os_string)
}

/// Removes the caller's `KEYPADD_*` variables, which would set flags.
pub fn clear_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KEYPADD_") {
            command.env_remove(name);
        }
    }
}
