//! Reads and writes the private key file: default paths, permission checks, no overwriting.
//! Messages name the file and never quote its content.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use keypadd_provider::PrivateKey;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use zeroize::Zeroizing;

use crate::error::{Error, Exit, is_private, shown, system};
use crate::staged::Staged;
use crate::user_directory::user_directory;

/// Permission bits of group and others.
const OTHERS: u32 = 0o077;

/// Permission bits that others may not have to a systemd credential: systemd grants access by an
/// ACL, whose mask appears as the group bits, and protects the directory.
const OTHERS_THAN_GROUP: u32 = 0o027;

/// Longest key file; a longer one is some other file.
const KEY_FILE_BYTES_MAX: u64 = 16 * 1024;

/// The default path of the key.
///
/// # Errors
/// Exit 3: HOME is not set.
pub fn default_path() -> Result<PathBuf, Error> {
    match credentials_directory() {
        Some(directory) => Ok(directory.join("key")),
        None => writable_path(),
    }
}

/// The default path for `keygen`: as [`default_path`], without systemd credentials, which are
/// read-only.
///
/// # Errors
/// As [`default_path`].
pub fn writable_path() -> Result<PathBuf, Error> {
    if geteuid().is_root() {
        return Ok("/etc/keypadd/key".into());
    }
    match user_directory() {
        Some(directory) => Ok(directory.join("key")),
        None => Err(Error::new(Exit::Config, "cannot find the key file: HOME is not set")
            .hint("name a key file")),
    }
}

fn credentials_directory() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Environment variable with the number of the key file's descriptor, which a process inherits from
/// the one that it replaces.
pub const INHERITED: &str = "KEYPADD_TAKEOVER_KEY";

/// Opens a key file, or takes over the old process's descriptor: systemd shows a credential only to
/// the first process of a service.
///
/// # Errors
/// The system's error for the path.
pub fn open(path: &Path) -> io::Result<File> {
    let inherited =
        std::env::var_os(INHERITED).map(|number| Path::new("/proc/self/fd").join(number));
    match (open_anew(path), inherited) {
        (Err(error), Some(inherited)) if error.kind() == ErrorKind::PermissionDenied => {
            open_anew(&inherited)
        }
        (opened, _) => opened,
    }
}

/// Opens a key file, never the old process's. Non-blocking: opening a FIFO without a writer would
/// block forever.
///
/// # Errors
/// The system's error for the path.
pub fn open_anew(path: &Path) -> io::Result<File> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(nonblock).open(path)
}

/// Reads a private key that no other user can read or replace, from a file that [`open`] opens.
///
/// # Errors
/// Exit 3: the file does not exist, is accessible to others, is owned by another user, or is not a
/// key.
pub fn read(path: &Path) -> Result<PrivateKey, Error> {
    read_file(path, open(path))
}

/// Reads a key file, but never from the old process's file.
///
/// # Errors
/// As for [`read`].
pub fn read_anew(path: &Path) -> Result<PrivateKey, Error> {
    read_file(path, open_anew(path))
}

fn read_file(path: &Path, opened: io::Result<File>) -> Result<PrivateKey, Error> {
    let name = shown(path.to_string_lossy());
    let unusable = |cause: String| Error::new(Exit::Config, cause);
    let io = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => unusable(format!("key file {name} does not exist"))
            .hint(format!("run `keypadd keygen{}` to create one", keygen_argument(path))),
        _ => unusable(format!("key file {name} cannot be read: {}", system(&error))),
    };
    let file = opened.map_err(io)?;
    // Checks the open file rather than its path, so that the file checked is the file read.
    let metadata = file.metadata().map_err(io)?;
    if metadata.is_dir() {
        return Err(unusable(format!("key file {name} is a directory")).hint("name a file in it"));
    }
    if !metadata.is_file() {
        return Err(unusable(format!("key file {name} is not a regular file"))
            .hint("name the file that holds the key"));
    }
    let (owner, own) = (metadata.uid(), geteuid().as_raw());
    if owner != own && owner != 0 {
        return Err(unusable(format!("key file {name} is owned by another user (uid {owner})"))
            .hint(format!("run keypadd as that user, or chown {own} {}", quoted_for_shell(path))));
    }
    let credential = credentials_directory().is_some_and(|directory| path.starts_with(directory));
    let forbidden = if credential { OTHERS_THAN_GROUP } else { OTHERS };
    if metadata.mode() & forbidden != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(unusable(format!(
            "key file {name} is accessible to other users (mode {mode:04o})"
        ))
        .hint(format!("chmod 600 {}", quoted_for_shell(path))));
    }
    let mut text = Zeroizing::new(String::with_capacity(KEY_FILE_BYTES_MAX as usize));
    let not_a_key =
        || "`keypadd keygen` or `openssl genpkey -algorithm ed25519` creates a private key in PEM";
    match (&file).take(KEY_FILE_BYTES_MAX).read_to_string(&mut text) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            return Err(unusable(format!("key file {name} is not UTF-8 text")).hint(not_a_key()));
        }
        Err(error) => return Err(io(error)),
    }
    PrivateKey::from_pem(&text)
        .map_err(|error| unusable(format!("key file {name}: {error}")).hint(not_a_key()))
}

/// Creates a key file with mode 0600, and its directory with mode 0700 if it is missing.
///
/// # Errors
/// Exit 1: the file exists, and is not overwritten, or cannot be written.
pub fn create(path: &Path, key: &PrivateKey) -> Result<(), Error> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(exists(path));
    }
    make_directory(path)?;
    StagedKey::write(path, key)?.commit()
}

/// A key file that is staged and not yet in place; dropping it removes it.
#[derive(Debug)]
pub struct StagedKey {
    path: PathBuf,
    staged: Staged,
}

impl StagedKey {
    /// Stages the key next to its final path, in a directory that exists.
    ///
    /// # Errors
    /// Exit 1: it cannot be written.
    pub fn write(path: &Path, key: &PrivateKey) -> Result<Self, Error> {
        let staged = Staged::create(path, key.to_pem().as_bytes(), 0o600).map_err(|error| {
            let name = shown(path.to_string_lossy());
            let cause = format!("cannot create key file {name}: {}", system(&error));
            Error::new(Exit::Runtime, cause)
        })?;
        Ok(Self { path: path.to_owned(), staged })
    }

    /// Renames it into place.
    ///
    /// # Errors
    /// As for [`create`].
    pub fn commit(self) -> Result<(), Error> {
        let Self { path, staged } = self;
        staged.commit().map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(&path),
            _ => {
                let name = shown(path.to_string_lossy());
                let cause = format!("cannot write key file {name}: {}", system(&error));
                Error::new(Exit::Runtime, cause)
            }
        })
    }
}

/// Creates the directory of a file with mode 0700, if it is missing.
///
/// # Errors
/// Exit 1: it cannot be created.
pub fn make_directory(file: &Path) -> Result<(), Error> {
    let Some(parent) = file.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|error| {
        let parent = shown(parent.to_string_lossy());
        let cause = format!("cannot create directory {parent}: {}", system(&error));
        Error::new(Exit::Runtime, cause)
    })
}

fn exists(path: &Path) -> Error {
    let name = shown(path.to_string_lossy());
    let cause = format!("key file {name} already exists; not overwriting it");
    Error::new(Exit::Runtime, cause).hint(format!(
        "run `keypadd pubkey {}` to print its public key, or name another file",
        quoted_for_shell(path)
    ))
}

/// The argument of `keypadd keygen` that creates this file.
fn keygen_argument(path: &Path) -> String {
    match writable_path() {
        Ok(default) if default == path => String::new(),
        _ => format!(" {}", quoted_for_shell(path)),
    }
}

/// A path quoted for a shell; `FILE` if it cannot be quoted, or may be a pasted private key.
pub fn quoted_for_shell(path: &Path) -> String {
    let text = path.to_string_lossy();
    let bare = |c: char| c.is_ascii_alphanumeric() || "/._-+@%:,".contains(c);
    if text.contains('\'') || text.chars().any(char::is_control) || is_private(&text) {
        "FILE".to_owned()
    } else if text.chars().all(bare) {
        text.into_owned()
    } else {
        format!("'{text}'")
    }
}
