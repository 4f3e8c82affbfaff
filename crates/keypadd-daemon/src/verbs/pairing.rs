//! Applies a pairing to this host: creates its key if there is none, and adds a peer to its
//! configuration file. Both are staged on disk before the other end is told to continue.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keypadd_cli::error::{Error, Exit, shown, system};
use keypadd_cli::keyfile::{self, StagedKey, make_directory, quoted_for_shell};
use keypadd_cli::memory::host_bytes;
use keypadd_cli::staged::Staged;
use keypadd_config::{AddPeerError, Config, KeyPlace, NewPeer, Settings, Texts, offered};
use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, KeyExchange, PrivateKey, PublicKey};
use keypadd_sandbox::directory_or_file;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::command_line::configfile;
use crate::daemon::confine::{Confinement, SandboxNeeds};

/// Mode of a new configuration file: it has no secrets, and daemons may run as another user.
const NEW_FILE_MODE: u32 = 0o644;

/// Whether a file, or the one to which it is a link, is in a directory that other programs share.
fn is_in_shared_directory(file: &Path) -> bool {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    directory_or_file(&file) == file
}

/// This host as it is before a pairing.
#[derive(Debug)]
pub(crate) struct ThisHost {
    /// The configuration file, which may not exist yet.
    pub(crate) path: PathBuf,
    /// The flag with which other commands find it: ` --config FILE`, or empty if it is the default
    /// file.
    pub(crate) config_flag: String,
    /// Its content; it may have no peers yet.
    pub(crate) config: Config,
    /// Its private key.
    pub(crate) key: Arc<PrivateKey>,
    key_path: PathBuf,
    /// Whether the key is not in its file yet.
    key_is_new: bool,
    /// The key's path, if the configuration has to name it.
    key_to_name: Option<PathBuf>,
}

/// The files of a pairing, staged next to their final paths.
#[derive(Debug)]
pub(crate) struct Prepared {
    path: PathBuf,
    before: Option<String>,
    after: String,
    file: Staged,
    key: Option<StagedKey>,
}

/// The configuration file of a pairing, renamed into place.
#[derive(Debug)]
pub(crate) struct CommittedConfig {
    path: PathBuf,
    before: Option<String>,
    after: String,
}

impl ThisHost {
    /// Reads the configuration file and the key, and makes a key in memory if there is none.
    ///
    /// # Errors
    /// Exit 3: the file or the key cannot be used. Exit 2: `key` is not the one that the file
    /// names.
    pub(crate) fn find(config: Option<PathBuf>, key: Option<PathBuf>) -> Result<Self, Error> {
        let is_default = config.is_none();
        let path = configfile::place(config)?;
        let path = std::path::absolute(&path).unwrap_or(path);
        let config_flag = match is_default {
            true => String::new(),
            false => format!(" --config {}", quoted_for_shell(&path)),
        };
        let text = configfile::text(&path)?.unwrap_or_default();
        let parts = configfile::parts(&path)?;
        let config = Config::read_to_extend(Texts { main: &text, parts: &parts }, host_bytes())
            .map_err(|refused| configfile::faulty(&path, &refused))?;
        let key = key.map(|key| std::path::absolute(&key).unwrap_or(key));
        let (key_path, key_to_name) = match (configfile::key_path(&path, &config.key)?, key) {
            (named, Some(given)) if matches!(config.key, KeyPlace::File(_)) && named != given => {
                let (file, named) = (shown(path.to_string_lossy()), shown(named.to_string_lossy()));
                return Err(Error::new(
                    Exit::Usage,
                    format!("--key: {file} names another, {named}"),
                )
                .hint("leave it out, or change the file"));
            }
            (named, Some(given)) if named != given => (given.clone(), Some(given)),
            (named, _) => (named, None),
        };
        // A dangling link, or a file that cannot be read, is not missing: reading it reports what
        // is wrong.
        let missing = |error: io::Error| error.kind() == ErrorKind::NotFound;
        let key_is_new = fs::symlink_metadata(&key_path).is_err_and(missing);
        let key = match key_is_new {
            true => PrivateKey::generate().map_err(|error| {
                Error::new(Exit::Runtime, format!("cannot generate a key: {error}"))
            })?,
            false => keyfile::read(&key_path)?,
        };
        Ok(Self {
            path,
            config_flag,
            config,
            key: Arc::new(key),
            key_path,
            key_is_new,
            key_to_name,
        })
    }

    /// This host's public key.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    /// Packet protection for a pairing: what every daemon accepts by default, without a pool.
    pub(crate) fn crypto(&self) -> CryptoSettings {
        CryptoSettings {
            suites: offered(None).into_iter().map(Into::into).collect(),
            kex: KeyExchange::ALL.into_iter().map(Into::into).collect(),
            ..CryptoSettings::plain(Arc::clone(&self.key), Suite::default())
        }
    }

    /// Restricts the calling thread, before any other starts, to what a pairing with these settings
    /// needs.
    ///
    /// # Errors
    /// As for [`Confinement::start`]; exit 1: a directory cannot be made; exit 3: a file's
    /// directory is not keypadd's alone.
    pub(crate) fn confine(&self, settings: &Settings) -> Result<Confinement, Error> {
        let mut replaced = vec![self.path.clone()];
        make_directory(&self.path)?;
        if self.key_is_new {
            make_directory(&self.key_path)?;
            replaced.push(self.key_path.clone());
        }
        if settings.sandbox.value
            && let Some(file) = replaced.iter().find(|file| is_in_shared_directory(file))
        {
            let file = shown(file.to_string_lossy());
            let cause = format!("{file}: a pairing could write to everything in that directory");
            return Err(Error::new(Exit::Config, cause).hint(
                "move it to a directory of its own, such as /etc/keypadd or ~/.config/keypadd",
            ));
        }
        // The sandbox allows no chmod.
        umask(Mode::WGRP | Mode::WOTH);
        let files = vec![self.path.clone()];
        Confinement::start(settings, &SandboxNeeds { files, replaced, ..SandboxNeeds::default() })
    }

    /// Refuses a name that a peer already has, before anything is sent.
    ///
    /// # Errors
    /// Exit 2, with `hint` as the way out.
    pub(crate) fn refuse_name(&self, name: &str, hint: &str) -> Result<(), Error> {
        match self.config.peers.iter().any(|peer| peer.name == name) {
            true => Err(self.name_taken(name).hint(hint)),
            false => Ok(()),
        }
    }

    fn name_taken(&self, name: &str) -> Error {
        let file = shown(self.path.to_string_lossy());
        Error::new(Exit::Usage, format!("{file} has a [peer.{name}] already"))
    }

    /// Checks that the configuration file can be written, by staging a copy and removing it.
    ///
    /// # Errors
    /// Exit 1: it cannot.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        let text = configfile::text(&self.path)?;
        self.stage(text.is_some(), text.as_deref().unwrap_or_default()).map(drop)
    }

    /// Stages the configuration with this peer, and the key if it is new.
    ///
    /// # Errors
    /// Exit 2: another peer has its name or key. Exit 3: the file is not valid. Exit 1: a file
    /// cannot be written.
    pub(crate) fn prepare(&self, peer: &NewPeer) -> Result<Prepared, Error> {
        let before = configfile::text(&self.path)?;
        let parts = configfile::parts(&self.path)?;
        let texts = Texts { main: before.as_deref().unwrap_or_default(), parts: &parts };
        let addition = peer.add_to(texts, self.key_to_name.as_deref(), host_bytes());
        let file = || shown(self.path.to_string_lossy());
        let after =
            match addition {
                Ok(addition) => addition.text,
                Err(AddPeerError::NameTaken) => return Err(self.name_taken(&peer.name)),
                Err(AddPeerError::KeyTaken(name)) => {
                    let cause = format!("{} lists that key already, as [peer.{name}]", file());
                    return Err(Error::new(Exit::Usage, cause)
                        .hint("remove that from the file to pair again"));
                }
                Err(AddPeerError::Invalid(refused)) => {
                    return Err(configfile::faulty(&self.path, &refused));
                }
                Err(AddPeerError::Form) => {
                    let cause = format!("{}: a peer cannot be appended to this file", file());
                    return Err(Error::new(Exit::Config, cause)
                        .hint("write its peers as tables, [peer.NAME]"));
                }
            };
        let staged = self.stage(before.is_some(), &after)?;
        let key = match self.key_is_new {
            true => Some(StagedKey::write(&self.key_path, &self.key)?),
            false => None,
        };
        Ok(Prepared { path: self.path.clone(), before, after, file: staged, key })
    }

    fn stage(&self, exists: bool, text: &str) -> Result<Staged, Error> {
        match exists {
            true => Staged::replace(&self.path, text.as_bytes()),
            false => Staged::create(&self.path, text.as_bytes(), NEW_FILE_MODE),
        }
        .map_err(|error| not_written(&self.path, &error))
    }
}

impl Prepared {
    /// Renames the files into place, the key first.
    ///
    /// # Errors
    /// Exit 1: a file cannot be renamed, or the configuration has changed in the meantime; it stays
    /// as it is.
    pub(crate) fn commit(self) -> Result<CommittedConfig, Error> {
        let Self { path, before, after, file, key } = self;
        refuse_changed(&path, before.as_deref())?;
        if let Some(key) = key {
            key.commit()?;
        }
        file.commit().map_err(|error| not_written(&path, &error))?;
        Ok(CommittedConfig { path, before, after })
    }
}

impl CommittedConfig {
    /// Restores the previous configuration. A new key stays: it does no harm.
    ///
    /// # Errors
    /// Exit 1: it cannot be restored, or has changed in the meantime.
    pub(crate) fn undo(self) -> Result<(), Error> {
        let Self { path, before, after } = self;
        refuse_changed(&path, Some(&after))?;
        match before {
            Some(before) => Staged::replace(&path, before.as_bytes()).and_then(Staged::commit),
            None => fs::remove_file(&path),
        }
        .map_err(|error| not_written(&path, &error))
    }
}

/// Refuses a file that somebody else has changed since it was read.
fn refuse_changed(path: &Path, known: Option<&str>) -> Result<(), Error> {
    match configfile::text(path)?.as_deref() == known {
        true => Ok(()),
        false => {
            let cause = format!("{} has changed meanwhile", shown(path.to_string_lossy()));
            Err(Error::new(Exit::Runtime, cause))
        }
    }
}

fn not_written(path: &Path, error: &io::Error) -> Error {
    let cause = format!("cannot write {}: {}", shown(path.to_string_lossy()), system(error));
    Error::new(Exit::Runtime, cause).hint(match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "run it as the file's owner, or name another file with --config"
        }
        _ => "the file is unchanged; free some space, or name another with --config",
    })
}
