//! Figures of live sessions, as plain values for a status line or JSON.
//!
//! Knows nothing of where they come from; `session` fills them in.

use std::{collections::BTreeMap, net::SocketAddr, time::SystemTime};

use serde::{Deserialize, Serialize};

/// Which part this end plays in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// This end connected.
    Client,
    /// The peer connected.
    Server,
}

/// One session at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Distinguishes sessions of one daemon, also two of one peer; never used again.
    pub id: u64,
    /// The peer's name, or its key's first characters.
    pub peer: String,
    /// The peer's public key, 44 characters.
    pub public_key: String,
    /// The part this end plays.
    pub role: Role,
    /// Where the peer is now; it may move.
    pub remote: SocketAddr,
    /// Name of the suite agreed on.
    pub suite: String,
    /// Name of the key exchange agreed on.
    pub kex: String,
    /// When the session was ready, as seconds since 1970.
    pub since_unix_seconds: u64,
    /// Smoothed round-trip time, seconds.
    pub rtt_seconds: f64,
    /// Largest UDP payload that the path is known to carry.
    pub mtu_bytes: u16,
    /// Packets sent.
    pub sent_packets: u64,
    /// UDP payloads received: a packet each, but for a few of the handshake.
    pub received_datagrams: u64,
    /// Packets sent that never arrived.
    pub lost_packets: u64,
    /// UDP payload bytes sent.
    pub sent_bytes: u64,
    /// UDP payload bytes received.
    pub received_bytes: u64,
    /// Connections open now, by forward: on a client all its forwards, also idle ones; on a server the
    /// targets in use, and where it listens for the client.
    pub forwards: Vec<ForwardStatus>,
}

/// The connections of one forward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardStatus {
    /// The forward as given on the command line; on a server the target, or `-R` and where it listens.
    pub forward: String,
    /// Connections open now.
    pub open: u64,
    /// Of a remote forward: why the server does not listen for it.
    pub cause: Option<String>,
}

/// Whether a client has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// It has one.
    Connected,
    /// It has none, and tries to get one.
    Waiting,
}

/// A client's way to its server at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct LinkStatus {
    /// Whether there is a session.
    pub state: LinkState,
    /// Since when, as seconds since 1970.
    pub since_unix_seconds: u64,
    /// Why there is none: what ended the last one, or what the last attempt met; absent before that.
    pub cause: Option<String>,
    /// When the next attempt is made, as seconds since 1970; absent during an attempt.
    pub retry_unix_seconds: Option<u64>,
    /// How often a session came after one that was lost, by what ended that one.
    pub reconnects: BTreeMap<&'static str, u64>,
}

/// Seconds since 1970; a clock before that counts as 0.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
