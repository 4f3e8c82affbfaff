//! Finds and checks the directories of this user's control sockets, which nobody else may change.
//!
//! Root also controls the daemon of the service, whose directory systemd gives to the user that it
//! runs as. Root's own daemons have theirs apart: systemd would give their sockets to that user,
//! too.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use keypadd_cli::error::shown;
use keypadd_cli::state_directory;
use rustix::process::geteuid;
use rustix::system::uname;

use super::SOCKET_EXTENSION;

/// Permission bits of all but the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Where root's daemons have their sockets.
const ROOT: &str = "/run/keypadd-root";

/// Where the service has its socket (examples/systemd).
const SERVICE: &str = "/run/keypadd";

/// The directory where a daemon of this user makes its socket; `None` if the environment names
/// none.
pub(crate) fn own() -> Option<PathBuf> {
    all().into_iter().next()
}

/// The directories of the daemons that this user controls, the one of new daemons first.
pub(crate) fn all() -> Vec<PathBuf> {
    let user = geteuid();
    let session = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    let user = match user.is_root() {
        true => User::Root,
        false => User::Other {
            session: check(&session).is_ok().then_some(session),
            state: state_directory(),
        },
    };
    // After `su` the variable may be the caller's.
    let is_usable = |name, value: &OsString| {
        !value.is_empty() && (name != "XDG_RUNTIME_DIR" || check(Path::new(value)).is_ok())
    };
    directories(&user, |name| std::env::var_os(name).filter(|value| is_usable(name, value)))
}

/// Whose directories are asked for.
enum User {
    Root,
    Other {
        /// What a login session has, unless there is none: systemd sets no variable for `su` or
        /// cron.
        session: Option<PathBuf>,
        /// For a host without sessions.
        state: Option<PathBuf>,
    },
}

fn directories(user: &User, variable: impl Fn(&'static str) -> Option<OsString>) -> Vec<PathBuf> {
    if let Some(given) = variable("RUNTIME_DIRECTORY") {
        // systemd gives a list when a unit names several (systemd.exec(5)).
        let given = given.to_string_lossy();
        return given.split(':').next().map(PathBuf::from).into_iter().collect();
    }
    match user {
        User::Root => vec![ROOT.into(), SERVICE.into()],
        User::Other { session, state } => {
            let given = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
            let session = given.or_else(|| session.clone()).map(|path| path.join("keypadd"));
            // Hosts may share a home; each has its own processes.
            let host = uname().nodename().to_string_lossy().into_owned();
            let state = state.as_ref().map(|path| path.join(format!("run-{host}")));
            session.into_iter().chain(state).collect()
        }
    }
}

/// The sockets of the daemons that this user controls.
pub(crate) fn all_sockets() -> Vec<PathBuf> {
    all().iter().flat_map(|directory| sockets(directory)).collect()
}

/// Says that no daemon has a socket where this user's daemons would.
pub(crate) fn nothing_in_any() -> String {
    let directories =
        all().iter().map(|directory| shown(directory.to_string_lossy())).collect::<Vec<_>>();
    match directories.is_empty() {
        true => "no daemon found: neither XDG_RUNTIME_DIR nor HOME is set".into(),
        false => format!("no daemon found in {}", directories.join(" or ")),
    }
}

/// The sockets in a directory, by name.
pub(crate) fn sockets(directory: &Path) -> Vec<PathBuf> {
    files(directory, SOCKET_EXTENSION)
}

/// The files in a directory whose names end like this, by name.
pub(crate) fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|own| own == extension))
        .collect();
    paths.sort_unstable();
    paths
}

/// Creates the directory if it is missing, and checks that nobody else can replace files in it.
///
/// # Errors
/// The directory cannot be created, or another user owns it or may write to it.
pub(crate) fn prepare(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    check(directory)
}

/// Checks that nobody else can replace files in the directory. It may be a symbolic link of this
/// user or root: systemd makes one for a unit with DynamicUser= (systemd.exec(5)).
///
/// # Errors
/// The directory is missing, or another user owns it, or the link, or may write to it.
pub(crate) fn check(directory: &Path) -> io::Result<()> {
    let metadata = fs::metadata(directory)?;
    let refused = |cause: String| Err(io::Error::new(ErrorKind::PermissionDenied, cause));
    let mode = metadata.mode() & 0o777;
    for owner in [fs::symlink_metadata(directory)?.uid(), metadata.uid()] {
        if owner != geteuid().as_raw() && owner != 0 {
            return refused(format!("owned by another user (uid {owner}); chown it"));
        }
    }
    if mode & OTHERS_WRITE != 0 {
        return refused(format!("other users may write to it (mode {mode:04o}); chmod go-w it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_login_session_has_a_directory_too() {
        let host = uname().nodename().to_string_lossy().into_owned();
        let state = format!("/home/ann/.local/state/keypadd/run-{host}");
        let of = |session: Option<&str>, variables: &[(&str, &str)]| -> Vec<String> {
            let user = User::Other {
                session: session.map(PathBuf::from),
                state: Some("/home/ann/.local/state/keypadd".into()),
            };
            let found = directories(&user, |name| {
                let named = variables.iter().find(|(variable, _)| *variable == name);
                named.map(|(_, value)| value.into())
            });
            found.iter().map(|path| path.display().to_string()).collect()
        };
        let given = [("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(of(None, &given), ["/run/user/7/keypadd", &state]);
        // As after `su`, and in cron.
        assert_eq!(of(Some("/run/user/7"), &[]), ["/run/user/7/keypadd", &state]);
        assert_eq!(of(None, &[]), [&*state]);
        assert_eq!(of(None, &[("RUNTIME_DIRECTORY", "/run/a:/run/b")]), ["/run/a"]);
        assert_eq!(directories(&User::Root, |_| None), [Path::new(ROOT), Path::new(SERVICE)]);
    }
}
