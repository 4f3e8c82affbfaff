//! What a daemon tells about its peers: who may connect or is dialed, and what is permitted. As for
//! the snapshot, field names are part of the command line's interface.

use std::time::SystemTime;

use keypadd_provider::PublicKey;
use keypadd_tunnel::{ServerAddresses, unix_seconds};
use serde::{Deserialize, Serialize};

/// The peers of one daemon, as they are in force.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PeersReport {
    pub(crate) pid: u32,
    pub(crate) verb: String,
    pub(crate) place: String,
    pub(crate) peers: Vec<PeerReport>,
}

/// A peer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PeerReport {
    /// Absent if it is known by its key alone.
    pub(crate) name: Option<String>,
    pub(crate) public_keys: Vec<String>,
    /// The file in `peers.d` that lists it; absent if that is the main file, or the command line.
    pub(crate) part: Option<String>,
    /// Whether it has a session.
    pub(crate) connected: bool,
    /// Where this daemon connects to it; absent if it does not.
    pub(crate) endpoint: Option<String>,
    /// What it may connect to, and where it may listen here.
    pub(crate) permit_open: Vec<String>,
    pub(crate) permit_listen: Vec<String>,
    /// The networks behind it.
    pub(crate) networks: Vec<String>,
    /// When it is no longer accepted or connected to, as seconds since 1970.
    pub(crate) valid_until_unix_seconds: Option<u64>,
}

impl PeerReport {
    /// A peer that is connected to, of no file.
    pub(crate) fn dialed(
        name: &str,
        keys: &[PublicKey],
        endpoint: &ServerAddresses,
        valid_until: Option<SystemTime>,
    ) -> Self {
        Self {
            name: Some(name.to_owned()),
            public_keys: texts(keys),
            endpoint: Some(endpoint.to_string()),
            valid_until_unix_seconds: valid_until.map(unix_seconds),
            ..Self::default()
        }
    }
}

/// Each as text.
pub(crate) fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}
