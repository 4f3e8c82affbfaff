//! Finds programs, clears the variables that would set their flags, and keeps what they say.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Looks a program up beside the running one, in `PATH`, and in the system's directories, which a
/// user's `PATH` may lack.
pub fn find(name: &str) -> Option<PathBuf> {
    directories().map(|it| it.join(name)).find(|it| it.is_file())
}

/// Where [`find`] looks, as the `PATH` of a script.
pub fn search_path() -> OsString {
    // A directory whose name has a colon cannot be in it.
    let fit = directories().filter(|it| std::env::join_paths([it]).is_ok());
    std::env::join_paths(fit).unwrap_or_default()
}

fn directories() -> impl Iterator<Item = PathBuf> {
    let own = std::env::current_exe().ok().and_then(|it| it.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    own.into_iter().chain(of_path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beside_the_running_one_is_found_first_and_by_scripts_too() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(find(name), Some(own.clone()));
        let first = std::env::split_paths(&search_path()).next();
        assert_eq!(first.as_deref(), own.parent());
        assert!(find("sh").is_some() && find("no-such-program").is_none());
    }
}
