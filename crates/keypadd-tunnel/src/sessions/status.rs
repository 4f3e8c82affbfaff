//! Describes the status of sessions and of a client's link as plain values, for text and JSON.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::{Deserialize, Serialize};

use crate::sessions::reconnect_reason::ReconnectReason;

/// Which end of a session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// This end connected.
    Client,
    /// The peer connected.
    Server,
}

/// Whether a session's keys are replaced by a new handshake when they have served long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyRenewal {
    /// Keys are replaced.
    On,
    /// This end sets no lifetime.
    Off,
    /// Keys are not replaced, because an end does not hold connections.
    NeedsHold,
}

/// What a session has carried so far: numbers alone, for who asks often about thousands of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SessionCounts {
    /// Identifies the session within the process; never reused.
    pub id: u64,
    /// Smoothed round-trip time, seconds.
    pub rtt_seconds: f64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Ack-eliciting frames sent (RFC 9000 13.2.1).
    pub sent_ack_eliciting_frames: u64,
    /// Datagrams received.
    pub received_datagrams: u64,
    /// UDP payload bytes sent.
    pub sent_bytes: u64,
    /// UDP payload bytes received.
    pub received_bytes: u64,
}

/// The status of one session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Identifies the session within the process; never reused.
    pub id: u64,
    /// The peer's name, or the first characters of its key.
    pub peer: String,
    /// The peer's public key, 44 characters.
    pub public_key: String,
    /// Which end this is.
    pub role: Role,
    /// The peer's current address; it may change.
    pub remote: SocketAddr,
    /// The target of an SRV record that it was reached by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Name of the suite agreed on.
    pub suite: String,
    /// Name of the key exchange agreed on.
    pub kex: String,
    /// When the session was ready, as seconds since 1970.
    pub since_unix_seconds: u64,
    /// When its keys were agreed on by a handshake, as seconds since 1970.
    pub keys_since_unix_seconds: u64,
    /// Whether another handshake replaces them.
    pub key_renewal: KeyRenewal,
    /// Smoothed round-trip time, seconds.
    pub rtt_seconds: f64,
    /// Largest UDP payload that the path is known to carry.
    pub mtu_bytes: u16,
    /// Bytes that congestion control lets be in flight.
    pub congestion_window_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Datagrams received: one packet each, except for a few of the handshake.
    pub received_datagrams: u64,
    /// Packets sent and declared lost.
    pub lost_packets: u64,
    /// UDP payload bytes sent.
    pub sent_bytes: u64,
    /// UDP payload bytes received.
    pub received_bytes: u64,
    /// Open connections by forward. A client lists all its forwards; a server lists the targets in
    /// use and its listeners for remote forwards.
    pub forwards: Vec<ForwardStatus>,
}

/// The status of one forward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardStatus {
    /// The forward as given; on a server the target, or `-R` and the listen address.
    pub forward: String,
    /// Open connections.
    pub open: u64,
    /// Why a remote forward failed at the server.
    pub cause: Option<String>,
}

/// Whether a client has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// The link has a session.
    Connected,
    /// The link has no session and is reconnecting.
    Waiting,
}

/// The status of a client's link to its server.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// Whether there is a session.
    pub state: LinkState,
    /// Since when, as seconds since 1970.
    pub since_unix_seconds: u64,
    /// Why there is no session: what ended the last one, or why the last attempt failed.
    pub cause: Option<String>,
    /// When the next attempt is made, as seconds since 1970; absent during an attempt.
    pub retry_unix_seconds: Option<u64>,
    /// Number of reconnects, by what ended the session before.
    pub reconnects: BTreeMap<ReconnectReason, u64>,
    /// How often a session has got new keys, over another connection.
    pub renewals: u64,
}
