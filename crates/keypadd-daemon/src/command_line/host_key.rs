//! Finds and reads the private key of this host.

use std::path::PathBuf;
use std::sync::Arc;

use keypadd_cli::error::Error;
use keypadd_cli::keyfile;
use keypadd_config::Settings;
use keypadd_provider::PrivateKey;

/// This host's key.
#[derive(Debug)]
pub(crate) struct HostKey {
    pub(crate) key: Arc<PrivateKey>,
    /// Its file.
    pub(crate) path: PathBuf,
}

impl HostKey {
    /// Reads the key of `serve` or `connect`.
    ///
    /// # Errors
    /// Exit 3: no usable key file.
    pub(crate) fn of_flags(settings: &Settings) -> Result<Self, Error> {
        let given = settings.key.as_ref();
        let path = given.map_or_else(keyfile::default_path, |key| Ok(key.value.clone()))?;
        Ok(Self { key: Arc::new(keyfile::read(&path)?), path })
    }
}
