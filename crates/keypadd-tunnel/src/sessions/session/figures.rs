//! Measures a session: its status, the age of its keys, and what its connections have carried.

use keypadd_transport::{Connection, ConnectionStats, ack_eliciting};

use super::LiveSession;
use crate::{
    clock::unix_seconds,
    sessions::status::{ForwardStatus, KeyRenewal, SessionCounts, SessionStatus},
};

impl LiveSession {
    /// What the session has carried, over both of its connections.
    pub fn counts(&self) -> SessionCounts {
        let (stats, sent_ack_eliciting_frames) = self.stats();
        SessionCounts {
            id: self.id,
            rtt_seconds: stats.path.rtt.as_secs_f64(),
            sent_packets: stats.path.sent_packets,
            sent_ack_eliciting_frames,
            received_datagrams: stats.udp_rx.datagrams,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
        }
    }

    /// The statistics of both connections as one's, and their ack-eliciting frames sent.
    fn stats(&self) -> (ConnectionStats, u64) {
        let mut stats = self.connection.stats();
        let mut sent_ack_eliciting_frames = ack_eliciting(&stats.frame_tx);
        if let Some(bulk) = self.bulk.get() {
            let more = bulk.connection.stats();
            // The connection that sends full-size packets notices first that the path MTU has
            // shrunk.
            stats.path.current_mtu = stats.path.current_mtu.min(more.path.current_mtu);
            stats.path.cwnd += more.path.cwnd;
            stats.path.sent_packets += more.path.sent_packets;
            stats.path.lost_packets += more.path.lost_packets;
            stats.udp_rx.datagrams += more.udp_rx.datagrams;
            stats.udp_rx.bytes += more.udp_rx.bytes;
            stats.udp_tx.bytes += more.udp_tx.bytes;
            sent_ack_eliciting_frames += ack_eliciting(&more.frame_tx);
        }
        (stats, sent_ack_eliciting_frames)
    }

    /// The status of the session, with both of its connections.
    pub fn status(&self) -> SessionStatus {
        let (stats, _) = self.stats();
        let refused = self.remote_forwards.refused();
        let forwards = self.forwards.list();
        SessionStatus {
            id: self.id,
            peer: self.label.clone(),
            public_key: self.proof.key.to_string(),
            role: self.role,
            remote: self.remote(),
            target: self.target.as_ref().map(ToString::to_string),
            suite: self.proof.handshake.suite.to_string(),
            kex: self.proof.handshake.kex.to_string(),
            since_unix_seconds: unix_seconds(self.since),
            keys_since_unix_seconds: unix_seconds(self.keys_since.0),
            key_renewal: self.key_renewal(),
            rtt_seconds: stats.path.rtt.as_secs_f64(),
            mtu_bytes: stats.path.current_mtu,
            congestion_window_bytes: stats.path.cwnd,
            sent_packets: stats.path.sent_packets,
            received_datagrams: stats.udp_rx.datagrams,
            lost_packets: stats.path.lost_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
            forwards: forwards
                .iter()
                .map(|(forward, open)| ForwardStatus {
                    forward: forward.clone(),
                    open: *open,
                    cause: refused.get(forward).map(ToString::to_string),
                })
                .collect(),
        }
    }

    /// Whether a new handshake replaces its keys in time.
    fn key_renewal(&self) -> KeyRenewal {
        match (self.lifetimes.get(), &self.hold) {
            (lifetime, _) if !lifetime.is_limited() => KeyRenewal::Off,
            (_, None) => KeyRenewal::NeedsHold,
            (_, Some(_)) => KeyRenewal::On,
        }
    }

    /// Its number among the sessions that continue each other; 0 also if none may continue it.
    pub fn epoch(&self) -> u32 {
        self.hold.as_ref().map_or(0, |hold| hold.epoch)
    }

    /// Waits until its keys have served for so many thousandths of their lifetime.
    pub(crate) async fn keys_served(&self, permille: u32) {
        self.lifetimes.over(self.keys_since.1, || self.carried_bytes(), permille).await;
    }

    /// UDP payload bytes that its connections have sent and received.
    fn carried_bytes(&self) -> u64 {
        self.connections()
            .map(Connection::stats)
            .map(|stats| stats.udp_tx.bytes + stats.udp_rx.bytes)
            .sum()
    }

    /// How often the peer has acknowledged something new.
    pub(crate) fn received_acks(&self) -> u64 {
        self.connections().map(Connection::acks).sum()
    }

    /// Open connections of all its forwards, without UDP flows.
    pub fn open_connections(&self) -> u64 {
        self.forwards.connections()
    }

    /// Which forwards they are of, for one line.
    pub(crate) fn open_by_forward(&self) -> String {
        self.forwards.shown()
    }
}
