//! Reads the whole file, and those with more peers: checks every key by itself and against the
//! others, and reports all faults together. Returns settings only if there are none.

use std::collections::HashMap;
use std::iter;
use std::path::PathBuf;
use std::time::SystemTime;

use keypadd_provider::PublicKey;
use toml::Spanned;
use toml::de::DeValue;

use crate::document::{self, Reader};
use crate::expiry::Expiry;
use crate::fault::{Fault, Faults};
use crate::peer::{Context, Found, KeyOwner, Peer, refuse_legacy};
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

/// A file with more peers, beside the main one (`peers.d/*.toml`).
#[derive(Clone, Debug)]
pub struct Part {
    /// Its name, for messages.
    pub name: String,
    /// Its text: `[peer.NAME]` tables alone.
    pub text: String,
}

/// The texts of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'t> {
    /// The main file's.
    pub main: &'t str,
    /// The files with more peers.
    pub parts: &'t [Part],
}

impl<'t> From<&'t str> for Texts<'t> {
    fn from(main: &'t str) -> Self {
        Self { main, parts: &[] }
    }
}

impl<'t> From<&'t String> for Texts<'t> {
    fn from(main: &'t String) -> Self {
        main.as_str().into()
    }
}

/// A file that cannot be used.
#[derive(Clone, Debug)]
pub struct InvalidConfig {
    /// Everything that is wrong, file by file, in each one's order; never empty.
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
    /// The peers: those of the main file first, in each file's order.
    pub peers: Vec<Peer>,
    /// What is valid but probably a mistake.
    pub warnings: Vec<Fault>,
    /// The peers' expiry dates.
    pub expiries: Vec<Expiry>,
    /// Whose the peers' keys are.
    keys: HashMap<PublicKey, KeyOwner>,
}

impl Config {
    /// Reads the text of a file, or of several. `memory_bytes` is this host's memory, which bounds
    /// the pool.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn read<'t>(texts: impl Into<Texts<'t>>, memory_bytes: u64) -> Result<Self, InvalidConfig> {
        Self::read_with(texts.into(), memory_bytes, Peers::Needed)
    }

    /// As [`read`](Self::read), for a file to which a peer is added: it may have none yet.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_to_extend<'t>(
        texts: impl Into<Texts<'t>>,
        memory_bytes: u64,
    ) -> Result<Self, InvalidConfig> {
        Self::read_with(texts.into(), memory_bytes, Peers::MayCome)
    }

    /// Warns about peers that have expired, or will within a week.
    pub fn expiry_warnings(&self, now: SystemTime) -> Vec<Fault> {
        self.expiries.iter().filter_map(|expiry| expiry.warning(now)).collect()
    }

    /// The name of the file in `peers.d` that a peer is in; `None` if it is in the main file.
    pub fn part_of(&self, peer: &Peer) -> Option<&str> {
        let owner = peer.keys.iter().find_map(|key| self.keys.get(key))?;
        owner.place.part.as_deref()
    }

    /// The fault of a file that lists this key, the one of the host itself, as a peer's. It comes
    /// from running `keypadd pubkey` on the wrong host.
    pub fn own_key_fault(&self, own: PublicKey) -> Option<Fault> {
        let place = self.keys.get(&own)?.place.clone();
        let cause = format!("public-key: {own} is this host's own key");
        let hint = Some("run `keypadd pubkey` on the other host, and give its key".into());
        Some(Fault { place, cause, hint })
    }

    fn read_with(
        texts: Texts<'_>,
        memory_bytes: u64,
        needed: Peers,
    ) -> Result<Self, InvalidConfig> {
        let mut main = FileRead::of(None, texts.main);
        let mut table = document::parse(texts.main, &mut main.faults);
        let (listens, has_key) = (table.has("listen"), table.has("key"));
        main.peers = table.take("peer");
        let mut reader = Reader { table: &mut table, faults: &mut main.faults, memory_bytes };
        let settings = Settings::take(&mut reader);
        table.refuse_rest(&mut main.faults);
        for suite in settings.suite.iter().flatten() {
            refuse_legacy(&settings, suite, &mut main.faults);
        }
        let mut parts: Vec<FileRead<'_>> = texts.parts.iter().map(FileRead::of_part).collect();
        let mut found = Found::default();
        for FileRead { peers, faults, warnings } in iter::once(&mut main).chain(&mut parts) {
            let found = &mut found;
            Context { settings: &settings, listens, faults, warnings, found }.peers(peers.take());
        }
        let Found { peers, expiries, keys, .. } = found;
        let is_faultless = iter::once(&main).chain(&parts).all(|file| file.faults.is_empty());
        if needed == Peers::Needed && peers.is_empty() && is_faultless {
            let hint = "add a [peer.NAME] with its public-key, and an endpoint to connect to it";
            main.faults.add(0, "no peers", Some(hint.into()));
        }
        if let Some(at) = settings.listen.as_ref().and_then(|listen| listen.at)
            && !peers.iter().any(|peer| peer.incoming.is_some())
        {
            let cause = "listen: no peer may connect to this host: each one has an endpoint";
            let hint = "remove listen, or add a [peer.NAME] without an endpoint";
            main.warnings.add(at, cause, Some(hint.into()));
        }
        let key = match &settings.key {
            Some(key) => Some(KeyPlace::File(key.value.clone())),
            None => (!has_key).then_some(KeyPlace::Default),
        };
        let (mut faults, mut warnings) = (Vec::new(), Vec::new());
        for file in iter::once(main).chain(parts) {
            faults.extend(file.faults.sorted());
            warnings.extend(file.warnings.sorted());
        }
        match key {
            Some(key) if faults.is_empty() => {
                Ok(Self { key, settings, peers, warnings, expiries, keys })
            }
            key => Err(InvalidConfig { faults, key }),
        }
    }
}

/// What reading one file has found.
struct FileRead<'t> {
    /// Its peers, until they are read.
    peers: Option<Spanned<DeValue<'t>>>,
    faults: Faults<'t>,
    warnings: Faults<'t>,
}

impl<'t> FileRead<'t> {
    fn of(part: Option<&'t str>, text: &'t str) -> Self {
        let [faults, warnings] = [0, 1].map(|_| Faults::of(part, text));
        Self { peers: None, faults, warnings }
    }

    fn of_part(Part { name, text }: &'t Part) -> Self {
        let mut file = Self::of(Some(name), text);
        let mut table = document::parse(text, &mut file.faults);
        file.peers = table.take("peer");
        table.refuse_all_but_peers(&mut file.faults);
        file
    }
}
