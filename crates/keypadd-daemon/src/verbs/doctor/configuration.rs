//! Checks the configuration file and this host's key: content, owner, and who can change them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use keypadd_cli::error::{Error, shown};
use keypadd_cli::keyfile;
use keypadd_cli::memory::host_bytes;
use keypadd_config::{Config, Outgoing, Peer};
use keypadd_provider::PrivateKey;

use crate::command_line::configfile::{self, Loaded};
use crate::command_line::host_key::HostKey;
use crate::command_line::named;

use super::finding::{Finding, Findings};

/// The file's settings, and the key.
#[derive(Debug)]
pub(super) struct Configuration {
    path: PathBuf,
    pub(super) config: Config,
    pub(super) key: Arc<PrivateKey>,
}

impl Configuration {
    /// Reads the file and the key; `None` if either cannot be used, or there is no file.
    ///
    /// # Errors
    /// Exit 3: HOME is not set. Exit 1: standard output fails.
    pub(super) fn check(
        given: Option<PathBuf>,
        findings: &mut Findings,
    ) -> Result<Option<Self>, Error> {
        let path = configfile::place(given.clone())?;
        let name = shown(path.to_string_lossy());
        if given.is_none() && !path.exists() {
            findings.add([Finding::ok("configuration", format!("there is no {name}"))])?;
            let key_path = keyfile::default_path()?;
            let key = shown(key_path.to_string_lossy());
            findings.add(match keyfile::read(&key_path) {
                Ok(read) => {
                    vec![Finding::ok("key", format!("{key}, public key {}", read.public()))]
                }
                Err(_) if !key_path.exists() => vec![Finding::warn(
                    "key",
                    format!("there is no {key}"),
                    "run `keypadd keygen`, or pair with `keypadd invite` and `join`",
                )],
                Err(error) => Finding::failed("key", &error),
            })?;
            return Ok(None);
        }
        let loaded = configfile::load(&path, None);
        let Loaded { config, key: HostKey { key, path: key_path } } = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                findings.add(Finding::failed("configuration", &error))?;
                return Ok(None);
            }
        };
        let peers = config.peers.len();
        findings.add([Finding::ok("configuration", format!("{name} is valid, peers: {peers}"))])?;
        let expiring = config.expiry_warnings(SystemTime::now());
        let warnings = config.warnings.iter().chain(&expiring).map(|warning| {
            let (cause, hint) = configfile::in_file(&path, warning);
            Finding::warn("configuration", cause, hint.unwrap_or_default())
        });
        findings.add(warnings)?;
        let key_name = shown(key_path.to_string_lossy());
        findings.add([Finding::ok("key", format!("{key_name}, public key {}", key.public()))])?;
        Ok(Some(Self { path, config, key }))
    }

    /// The settings of a host without a file.
    pub(super) fn none() -> Config {
        Config::read_to_extend("", host_bytes()).expect("no line, no fault")
    }

    /// The peers to connect to: the named one, or all.
    ///
    /// # Errors
    /// As for [`named::in_config`].
    pub(super) fn dialed(&self, name: Option<&str>) -> Result<Vec<(&Peer, &Outgoing)>, Error> {
        if let Some(name) = name {
            return Ok(vec![named::in_config(name, &self.config, &self.path)?]);
        }
        let peers = self.config.peers.iter();
        Ok(peers.filter_map(|peer| Some((peer, peer.outgoing.as_ref()?))).collect())
    }
}
