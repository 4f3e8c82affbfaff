//! Reads the whole file: checks every key by itself and against the others, and reports all faults
//! of a file together. Returns settings only if there are none.

use std::path::PathBuf;
use std::time::SystemTime;

use keypadd_provider::PublicKey;

use crate::document::{self, Reader};
use crate::expiry::Expiry;
use crate::fault::{Fault, Faults};
use crate::peer::{Context, Peer, refuse_legacy};
use crate::settings::Settings;

/// Where the private key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// In the default file.
    Default,
    /// In this file; relative to the configuration's directory.
    File(PathBuf),
}

/// Whether a file must have peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peers {
    Needed,
    MayCome,
}

/// A file that cannot be used.
#[derive(Clone, Debug)]
pub struct InvalidConfig {
    /// Everything that is wrong, in the file's order; never empty.
    pub faults: Vec<Fault>,
    /// Where the private key is, unless that is wrong too, so that the caller can check the key as
    /// well.
    pub key: Option<KeyPlace>,
}

/// A valid file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The private key's file.
    pub key: KeyPlace,
    /// The global settings.
    pub settings: Settings,
    /// The peers, in the file's order.
    pub peers: Vec<Peer>,
    /// What is valid but probably a mistake.
    pub warnings: Vec<Fault>,
    /// The peers' expiry dates.
    pub expiries: Vec<Expiry>,
    /// The peers' keys, each with its line and column.
    places: Vec<(PublicKey, (usize, usize))>,
}

impl Config {
    /// Reads a file's text. `memory_bytes` is this host's memory, which bounds the pool.
    ///
    /// # Errors
    /// Everything that is wrong, in the file's order.
    pub fn read(text: &str, memory_bytes: u64) -> Result<Self, InvalidConfig> {
        Self::read_with(text, memory_bytes, Peers::Needed)
    }

    /// As [`read`](Self::read), for a file to which a peer is added: it may have none yet.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_to_extend(text: &str, memory_bytes: u64) -> Result<Self, InvalidConfig> {
        Self::read_with(text, memory_bytes, Peers::MayCome)
    }

    /// Warns about peers that have expired, or will within a week.
    pub fn expiry_warnings(&self, now: SystemTime) -> Vec<Fault> {
        self.expiries.iter().filter_map(|expiry| expiry.warning(now)).collect()
    }

    /// The fault of a file that lists this key, the one of the host itself, as a peer's. It comes
    /// from running `keypadd pubkey` on the wrong host.
    pub fn own_key_fault(&self, own: PublicKey) -> Option<Fault> {
        let (_, (line, column)) = *self.places.iter().find(|(key, _)| *key == own)?;
        let cause = format!("public-key: {own} is this host's own key");
        let hint = Some("run `keypadd pubkey` on the other host, and give its key".into());
        Some(Fault { line, column, cause, hint })
    }

    fn read_with(text: &str, memory_bytes: u64, needed: Peers) -> Result<Self, InvalidConfig> {
        let (mut faults, mut warnings) = (Faults::of(text), Faults::of(text));
        let mut table = document::parse(text, &mut faults);
        let (listens, has_key) = (table.has("listen"), table.has("key"));
        let peers = table.take("peer");
        let mut reader = Reader { table: &mut table, faults: &mut faults, memory_bytes };
        let settings = Settings::take(&mut reader);
        table.refuse_rest(&mut faults);
        for suite in settings.suite.iter().flatten() {
            refuse_legacy(&settings, suite, &mut faults);
        }
        let (mut expiries, mut places) = (Vec::new(), Vec::new());
        let mut context = Context {
            settings: &settings,
            listens,
            faults: &mut faults,
            warnings: &mut warnings,
            expiries: &mut expiries,
            places: &mut places,
        };
        let peers = peers.map_or_else(Vec::new, |peers| context.peers(peers));
        if needed == Peers::Needed && peers.is_empty() && faults.is_empty() {
            let hint = "add a [peer.NAME] with its public-key, and an endpoint to connect to it";
            faults.add(0, "no peers", Some(hint.into()));
        }
        if let Some(at) = settings.listen.as_ref().and_then(|listen| listen.at)
            && !peers.iter().any(|peer| peer.incoming.is_some())
        {
            let cause = "listen: no peer may connect to this host: each one has an endpoint";
            let hint = "remove listen, or add a [peer.NAME] without an endpoint";
            warnings.add(at, cause, Some(hint.into()));
        }
        let key = match &settings.key {
            Some(key) => Some(KeyPlace::File(key.value.clone())),
            None => (!has_key).then_some(KeyPlace::Default),
        };
        match key {
            Some(key) if faults.is_empty() => {
                let warnings = warnings.sorted();
                Ok(Self { key, settings, peers, warnings, expiries, places })
            }
            key => Err(InvalidConfig { faults: faults.sorted(), key }),
        }
    }
}
