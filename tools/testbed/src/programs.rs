//! Finds programs, clears the variables that would set their flags, and keeps what they say.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
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

/// Lines of a log that an error shows.
const LOG_LINES: usize = 6;

/// Creates a log, for a program's standard output and its standard error.
///
/// # Errors
/// The file cannot be created.
pub fn create_log(path: &Path) -> Result<[File; 2], String> {
    let failed = |error| format!("{}: {error}", path.display());
    let file = File::create(path).map_err(failed)?;
    let copy = file.try_clone().map_err(failed)?;
    Ok([file, copy])
}

/// The last lines of a program's log, each on a line of its own, indented, after the program's
/// name.
pub fn log_tail(name: &str, path: &Path) -> String {
    let log = fs::read(path).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    last.iter().map(|line| format!("\n    {name}: {line}")).collect()
}
