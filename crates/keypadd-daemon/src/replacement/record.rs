//! Records how a daemon was started. `keypadd reload --binary` starts the replacement from that,
//! and from nothing that the daemon says: strangers reach a daemon, and it may do their will.
//!
//! A record is a file beside the control socket, named after the process. It is written before the
//! sandbox, which lets the daemon remove files there, and write, make or rename none (`files.rs` of
//! keypadd-sandbox). Without Landlock, or without the sandbox, only file modes protect it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::{Pid, geteuid, getpid};
use serde::{Deserialize, Serialize};

use super::VARIABLE;
use super::privileges::Privileges;
use crate::command_line::server_id::AWS_SERVER_ID;

/// How the name of a record ends.
pub(crate) const EXTENSION: &str = "start";

/// The longest record: the kernel allows no command line and environment of this length.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Write permission of all but the owner.
const OTHERS_WRITE: u32 = 0o022;

/// How the names of the program's own variables begin.
const OWN_VARIABLES: &str = "KEYPADD_";

/// The other variables that a daemon reads, or that its resolver does. A replacement gets no others
/// of the old process, above all none that makes the loader run other code (ld.so(8)).
const OTHER_VARIABLES: [&str; 14] = [
    AWS_SERVER_ID,
    // systemd.exec(5), sd_notify(3)
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    // The user's own files
    "HOME",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    // Output
    "NO_COLOR",
    "RUST_BACKTRACE",
    // resolv.conf(5)
    "LOCALDOMAIN",
    "RES_OPTIONS",
];

/// How a daemon was started.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartRecord {
    pub(crate) arguments: Vec<OsString>,
    pub(crate) directory: OsString,
    environment: Vec<(OsString, OsString)>,
    pub(crate) privileges: Privileges,
}

/// The file of a record; dropping it removes it.
#[derive(Debug)]
pub(crate) struct RecordFile(PathBuf);

impl StartRecord {
    /// How this process was started.
    pub(crate) fn own(privileges: Privileges) -> Self {
        Self {
            arguments: env::args_os().skip(1).collect(),
            directory: env::current_dir().unwrap_or_else(|_| Path::new("/").into()).into(),
            environment: env::vars_os().filter(|(name, _)| is_passed_on(name)).collect(),
            privileges,
        }
    }

    /// Writes the record of this process to the directory of its control socket.
    ///
    /// # Errors
    /// The record cannot be written; none is left.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<RecordFile> {
        let path = path(directory, getpid());
        let text = serde_json::to_vec(self)?;
        // That of a dead process with the same ID.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let record = RecordFile(path);
        file.write_all(&text)?;
        Ok(record)
    }

    /// Reads the record of a process from the directory of its control socket, which nobody else
    /// may change.
    ///
    /// # Errors
    /// `NotFound`: it has none. Others: it cannot be read, another user could have written it, or
    /// it is of another version.
    pub(crate) fn read(directory: &Path, process: Pid) -> io::Result<Self> {
        // Opens no symbolic link, and waits for no FIFO's writer.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file =
            OpenOptions::new().read(true).custom_flags(flags).open(path(directory, process))?;
        let metadata = file.metadata()?;
        let refused = |cause: &str| Err(io::Error::new(ErrorKind::PermissionDenied, cause));
        if !metadata.is_file() {
            return refused("it is not a regular file");
        }
        if metadata.uid() != geteuid().as_raw() {
            return refused("it is owned by another user");
        }
        if metadata.mode() & OTHERS_WRITE != 0 {
            return refused("other users may write to it");
        }
        let mut text = Vec::new();
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// The environment of a new process.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let passed_on = self.environment.iter().filter(|(name, _)| is_passed_on(name));
        passed_on.map(|(name, value)| (&**name, &**value))
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn path(directory: &Path, process: Pid) -> PathBuf {
    directory.join(format!("{process}.{EXTENSION}"))
}

/// Whether a replacement gets this variable of the old process. It gets its own of those that tell
/// it what it replaces.
fn is_passed_on(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_own = name.starts_with(OWN_VARIABLES) && !name.starts_with(VARIABLE);
    is_own || OTHER_VARIABLES.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn record() -> StartRecord {
        StartRecord::own(Privileges::own(true, false).unwrap())
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_goes_when_its_daemon_does() {
        let directory = tempfile::tempdir().unwrap();
        // A process with this ID was killed.
        fs::write(path(directory.path(), getpid()), "{").unwrap();
        let (record, file) = (record(), record().write(directory.path()).unwrap());
        assert_eq!(StartRecord::read(directory.path(), getpid()).unwrap(), record);
        let mode = fs::metadata(path(directory.path(), getpid())).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        drop(file);
        let error = StartRecord::read(directory.path(), getpid()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_record_is_read_for_no_other_process() {
        let directory = tempfile::tempdir().unwrap();
        let _file = record().write(directory.path()).unwrap();
        let error = StartRecord::read(directory.path(), Pid::INIT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_record_that_another_user_could_have_written_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = record().write(directory.path()).unwrap();
        let is_refused = || {
            let error = StartRecord::read(directory.path(), getpid()).unwrap_err();
            assert_ne!(error.kind(), ErrorKind::NotFound);
            error.to_string()
        };
        fs::set_permissions(&file.0, Permissions::from_mode(0o620)).unwrap();
        assert_eq!(is_refused(), "other users may write to it");
        let elsewhere = directory.path().join("elsewhere");
        fs::set_permissions(&file.0, Permissions::from_mode(0o600)).unwrap();
        fs::rename(&file.0, &elsewhere).unwrap();
        symlink(&elsewhere, &file.0).unwrap();
        is_refused();
        fs::remove_file(&file.0).unwrap();
        fs::create_dir(&file.0).unwrap();
        assert_eq!(is_refused(), "it is not a regular file");
        fs::remove_dir(&file.0).unwrap();
        fs::write(&file.0, r#"{"arguments":[]}"#).unwrap();
        assert!(is_refused().contains("missing field"));
    }

    #[test]
    fn a_replacement_gets_only_the_variables_that_a_daemon_reads() {
        let of_loader =
            ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES", "GCONV_PATH"];
        let others = ["PATH", "KEYPADD", "KEYPADD_TAKEOVER", "KEYPADD_TAKEOVER_KEY", "AWS_SECRET"];
        let passed = ["KEYPADD_CONFIG", "KEYPADD_KEY", "HOME", "NOTIFY_SOCKET"];
        let names = [&of_loader[..], &others, &passed].concat();
        let environment =
            names.iter().map(|name| (OsString::from(name), OsString::from("x"))).collect();
        // Whoever has written it.
        let record = StartRecord { environment, ..record() };
        let kept: Vec<_> = record.environment().map(|(name, _)| name).collect();
        assert_eq!(kept, passed);
    }
}
