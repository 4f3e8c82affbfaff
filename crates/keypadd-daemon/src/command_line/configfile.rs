//! Finds and reads the configuration file, the files with more peers beside it, and the private key
//! that it names, and refuses a file that other users control. `keypadd-config` parses them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keypadd_cli::error::{Error, Exit, shown, system};
use keypadd_cli::keyfile;
use keypadd_cli::memory::host_bytes;
use keypadd_cli::user_directory;
use keypadd_config::{Config, Fault, InvalidConfig, KeyPlace, Part, Place, Texts};
use keypadd_provider::PrivateKey;
use rustix::fs::{OFlags, StatVfs, StatVfsMountFlags, statvfs};
use rustix::process::geteuid;

use crate::command_line::host_key::HostKey;

/// Longest configuration file; a longer one is some other file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Permission bits of all but the owner.
const OTHERS_WRITE: u32 = 0o022;

/// The bit of a directory in which only its owner may replace a file (inode(7), S_ISVTX).
const STICKY: u32 = 0o1000;

/// A valid file, and its key.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The settings.
    pub(crate) config: Config,
    /// The private key that it names.
    pub(crate) key: HostKey,
}

/// The file's path: as given, else the default.
///
/// # Errors
/// Exit 3: HOME is not set.
pub(crate) fn place(given: Option<PathBuf>) -> Result<PathBuf, Error> {
    const NAME: &str = "keypadd.toml";
    if let Some(given) = given {
        return Ok(given);
    }
    let directories = std::env::var_os("CONFIGURATION_DIRECTORY");
    if let Some(directories) = directories.filter(|value| !value.is_empty()) {
        // systemd gives a list when a unit names several (systemd.exec(5)).
        let directories = directories.to_string_lossy();
        return Ok(Path::new(directories.split(':').next().unwrap_or_default()).join(NAME));
    }
    if geteuid().is_root() {
        return Ok(Path::new("/etc/keypadd").join(NAME));
    }
    match user_directory() {
        Some(directory) => Ok(directory.join("config.toml")),
        None => {
            Err(Error::new(Exit::Config, "cannot find the configuration file: HOME is not set")
                .hint("name the file with --config"))
        }
    }
}

/// The directory of the files with more peers.
pub(crate) fn peers_directory(file: &Path) -> PathBuf {
    file.with_file_name("peers.d")
}

/// The files with more peers, in the order of their names; none if there is no directory.
///
/// # Errors
/// Exit 3: the directory or a file cannot be read, or other users control it.
pub(crate) fn parts(file: &Path) -> Result<Vec<Part>, Error> {
    let directory = peers_directory(file);
    let paths = match fs::read_dir(&directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>(),
        Err(error)
            if error.kind() == ErrorKind::NotFound && directory.symlink_metadata().is_err() =>
        {
            return Ok(Vec::new());
        }
        Err(error) => Err(error),
    };
    let mut paths = paths.map_err(|error| {
        let name = shown(directory.to_string_lossy());
        let cause = format!("configuration {name} cannot be read: {}", system(&error));
        Error::new(Exit::Config, cause)
    })?;
    // What editors leave begins or ends otherwise.
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_ours = |name: &String| name.ends_with(".toml") && !name.starts_with('.');
    paths.retain(|path| name_of(path).is_some_and(|name| is_ours(&name)));
    paths.sort_unstable();
    let part = |path: &PathBuf| {
        let name = name_of(path).unwrap_or_default();
        match text(path)? {
            Some(text) => Ok(Some(Part { name, text })),
            // It has gone meanwhile. A link that leads nowhere has not.
            None if path.symlink_metadata().is_err() => Ok(None),
            None => {
                let name = shown(path.to_string_lossy());
                let cause = format!("configuration {name} is a link to a missing file");
                Err(Error::new(Exit::Config, cause))
            }
        }
    };
    paths.iter().filter_map(|path| part(path).transpose()).collect()
}

/// Reads the files and the key. `known`: the key to keep if the file still names this place, and
/// the process may not read it any more.
///
/// # Errors
/// Exit 3: everything that is wrong with the file and the key; a peer has the key of this host.
pub(crate) fn load(
    file: &Path,
    known: Option<(&KeyPlace, &Arc<PrivateKey>)>,
) -> Result<Loaded, Error> {
    let (text, parts) = (read(file)?, parts(file)?);
    match Config::read(Texts { main: &text, parts: &parts }, host_bytes()) {
        Ok(config) => {
            let path = key_path(file, &config.key)?;
            let key = match known {
                Some((place, key)) if *place == config.key && is_out_of_reach(&path) => {
                    Arc::clone(key)
                }
                // What this process has inherited may be the file of another place.
                Some(_) => Arc::new(keyfile::read_anew(&path)?),
                None => Arc::new(keyfile::read(&path)?),
            };
            if let Some(fault) = config.own_key_fault(key.public()) {
                return Err(Error::listed(Exit::Config, [in_file(file, &fault)]));
            }
            Ok(Loaded { config, key: HostKey { key, path } })
        }
        Err(refused) => {
            let mut error = faulty(file, &refused);
            let key = refused.key.map(|key| key_path(file, &key));
            if let Some(Err(wrong)) = key.map(|key| key.and_then(|key| keyfile::read(&key))) {
                error = error.and(wrong);
            }
            Err(error)
        }
    }
}

/// Reads the files, and finds where their key is. The key may be missing.
///
/// # Errors
/// Exit 3: everything that is wrong with the files.
pub(crate) fn read_without_key(path: &Path) -> Result<(Config, PathBuf), Error> {
    let (text, parts) = (read(path)?, parts(path)?);
    let config = Config::read(Texts { main: &text, parts: &parts }, host_bytes());
    let config = config.map_err(|refused| faulty(path, &refused))?;
    let key_path = key_path(path, &config.key)?;
    Ok((config, key_path))
}

/// Whether the file or directory exists and this process may not read it.
pub(crate) fn is_out_of_reach(path: &Path) -> bool {
    open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Opens a file for reading. Non-blocking: opening a FIFO without a writer would block forever.
fn open(path: &Path) -> io::Result<File> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(nonblock).open(path)
}

/// The faults of a file.
pub(crate) fn faulty(path: &Path, refused: &InvalidConfig) -> Error {
    Error::listed(Exit::Config, refused.faults.iter().map(|fault| in_file(path, fault)))
}

/// A fault as `FILE:LINE:COLUMN: cause`, and its hint; `path` is the main file.
pub(crate) fn in_file(path: &Path, fault: &Fault) -> (String, Option<String>) {
    let Fault { place: Place { part, line, column }, cause, hint } = fault;
    let file = match part {
        Some(name) => peers_directory(path).join(name),
        None => path.to_owned(),
    };
    (format!("{}:{line}:{column}: {cause}", file.display()), hint.clone())
}

/// The key's path; a relative one is relative to the directory of the configuration file.
pub(crate) fn key_path(config: &Path, key: &KeyPlace) -> Result<PathBuf, Error> {
    match key {
        KeyPlace::Default => keyfile::default_path(),
        KeyPlace::File(path) => Ok(config.with_file_name("").join(path)),
    }
}

/// The text of a file that must exist.
fn read(path: &Path) -> Result<String, Error> {
    text(path)?.ok_or_else(|| {
        let cause = format!("configuration {} does not exist", shown(path.to_string_lossy()));
        Error::new(Exit::Config, cause).hint(
            "`keypadd invite` and `join` create it, and `keypadd run --help` has an example; \
             --config names another",
        )
    })
}

/// The file's text; `None` if there is no file.
///
/// # Errors
/// Exit 3: it cannot be read, or other users control it.
pub(crate) fn text(path: &Path) -> Result<Option<String>, Error> {
    let name = shown(path.to_string_lossy());
    let unusable = |cause: &str| Error::new(Exit::Config, format!("configuration {name} {cause}"));
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::InvalidData => unusable("is not UTF-8 text"),
        _ => unusable(&format!("cannot be read: {}", system(&error))),
    };
    let file = match open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(unusable("is not a regular file").hint("name a regular file with --config"));
    }
    let (owner, own) = (metadata.uid(), geteuid().as_raw());
    if owner != own && owner != 0 {
        return Err(unusable(&format!("is owned by another user (uid {owner})"))
            .hint("it controls who may connect, so it must be owned by you or root"));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(unusable(&format!("can be changed by other users (mode {mode:04o})"))
            .hint(format!("chmod go-w {}", keyfile::quoted_for_shell(path))));
    }
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    let mode = fs::metadata(directory).map_err(failed)?.mode() & 0o7777;
    if can_be_replaced(mode, || statvfs(directory).is_ok_and(is_read_only)) {
        let cause = format!("can be replaced by other users (mode {mode:04o} of its directory)");
        return Err(
            unusable(&cause).hint(format!("chmod go-w {}", keyfile::quoted_for_shell(directory)))
        );
    }
    let mut text = String::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(unusable("is longer than 1 MiB"));
    }
    Ok(Some(text))
}

/// Whether other users can replace a file in a directory of this mode. In one such as /tmp they
/// cannot, nor where nobody can write: Kubernetes mounts a ConfigMap so, with mode 0777.
fn can_be_replaced(mode: u32, is_read_only: impl FnOnce() -> bool) -> bool {
    mode & OTHERS_WRITE != 0 && mode & STICKY == 0 && !is_read_only()
}

fn is_read_only(mount: StatVfs) -> bool {
    mount.f_flag.contains(StatVfsMountFlags::RDONLY)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_removes_no_peers() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keypadd.toml");
        assert!(parts(&file).unwrap().is_empty());
        symlink("nowhere", peers_directory(&file)).unwrap();
        assert_eq!(parts(&file).unwrap_err().exit(), Exit::Config);
        fs::remove_file(peers_directory(&file)).unwrap();
        fs::create_dir(peers_directory(&file)).unwrap();
        assert!(parts(&file).unwrap().is_empty());
        symlink("nowhere", peers_directory(&file).join("a.toml")).unwrap();
        assert_eq!(parts(&file).unwrap_err().exit(), Exit::Config);
    }

    #[test]
    fn a_file_can_be_replaced_where_others_may_write_unless_the_mount_is_read_only() {
        for (mode, is_read_only, expected) in [
            (0o777, false, true),
            (0o777, true, false),
            (0o1777, false, false),
            (0o775, false, true),
            (0o755, false, false),
        ] {
            assert_eq!(can_be_replaced(mode, || is_read_only), expected, "{mode:o}");
        }
    }
}
