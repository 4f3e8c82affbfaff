//! Finds the peer that `connect @NAME` means in the configuration file. Knows no sockets: what it
//! finds is used like flags, and flags win.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use keypadd_cli::error::{Error, Exit, shown};
use keypadd_config::{Config, Outgoing, Peer, Setting, nearest};
use keypadd_provider::PublicKey;
use keypadd_tunnel::{Host, ServerAddress, ServerAddresses, ServerEntry};

use crate::command_line::configfile;

/// A peer that this host connects to, and what the file sets for it.
#[derive(Debug)]
pub(crate) struct Named {
    /// Its public keys.
    pub(crate) keys: Vec<PublicKey>,
    /// When this host stops connecting to it.
    pub(crate) valid_until: Option<SystemTime>,
    /// Where it is and what to offer to it.
    pub(crate) outgoing: Outgoing,
    /// The file of this host's private key.
    pub(crate) own_key: PathBuf,
    /// Whether the file allows legacy suites.
    pub(crate) allow_legacy: Setting<bool>,
}

/// Reads the peer of this name from the file, the default one if none is given.
///
/// # Errors
/// Exit 3: the file cannot be used, or the peer has no endpoint. Exit 2: no such peer.
pub(crate) fn find(name: &str, file: Option<PathBuf>) -> Result<Named, Error> {
    let path = configfile::place(file)?;
    let (config, own_key) = configfile::read_without_key(&path)?;
    let (peer, outgoing) = in_config(name, &config, &path)?;
    let (keys, valid_until) = (peer.keys.clone(), peer.valid_until);
    let (outgoing, allow_legacy) = (outgoing.clone(), config.settings.allow_legacy.clone());
    Ok(Named { keys, valid_until, outgoing, own_key, allow_legacy })
}

/// The peer of this name in a file that has been read.
///
/// # Errors
/// Exit 3: the peer has no endpoint. Exit 2: no such peer.
pub(crate) fn in_config<'c>(
    name: &str,
    config: &'c Config,
    path: &Path,
) -> Result<(&'c Peer, &'c Outgoing), Error> {
    let file = shown(path.to_string_lossy());
    let Some(peer) = config.peers.iter().find(|peer| peer.name == name) else {
        let cause = format!("@{name}: {file} has no [peer.{name}]");
        return Err(Error::new(Exit::Usage, cause).hint(suggestion(name, &config.peers)));
    };
    let outgoing = peer.outgoing.as_ref().ok_or_else(|| {
        let cause = format!("@{name}: [peer.{name}] in {file} has no endpoint");
        Error::new(Exit::Config, cause)
            .hint("add an endpoint there, as in endpoint = \"lab.example:4433\"")
    })?;
    Ok((peer, outgoing))
}

/// The peer of the file that a server without a key may have meant: one with that name.
pub(crate) fn meant(server: &ServerAddresses, file: Option<PathBuf>) -> Option<String> {
    let ServerEntry::Address(ServerAddress { host: Host::Name(host), .. }) = server.first() else {
        return None;
    };
    let (config, _) = configfile::read_without_key(&configfile::place(file).ok()?).ok()?;
    let mut peers = config.peers.into_iter().filter(|peer| peer.outgoing.is_some());
    peers.find(|peer| peer.name == **host).map(|peer| peer.name)
}

/// The hint for a name that no peer has.
fn suggestion(name: &str, peers: &[Peer]) -> String {
    let names = || peers.iter().filter(|peer| peer.outgoing.is_some()).map(|peer| &*peer.name);
    let all: Vec<_> = names().map(|name| format!("@{name}")).collect();
    match nearest(name, names()) {
        Some(near) => format!("did you mean @{near}?"),
        None if all.is_empty() => "add it there, with its public-key and endpoint".into(),
        None => format!("it has {}", all.join(", ")),
    }
}
