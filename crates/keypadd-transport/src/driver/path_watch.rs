//! Watches the path of a connection: whether the peer responds (`silence`), where both ends are
//! (`roaming`), and how long packets wait on each way (`one_way`).

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use quinn_proto::{Connection, ConnectionStats, Transmit};

use super::{one_way::OneWay, roaming::Roaming, silence::Silence};
use crate::handed_controller::NetworkPath;

/// What is known of a connection's path.
pub(super) struct PathWatch {
    silence: Silence,
    roaming: Roaming,
    pub(super) one_way: OneWay,
}

impl PathWatch {
    pub(super) fn new(remote: SocketAddr) -> Self {
        let (silence, roaming) = (Silence::default(), Roaming::new(remote));
        Self { silence, roaming, one_way: OneWay::new() }
    }

    /// Probes the path if the peer has not responded for long; `waits` says whether anything is in
    /// flight.
    pub(super) fn probe_silence(&mut self, quic: &mut Connection, waits: bool, now: Instant) {
        let stats = quic.stats();
        let (datagrams, streamed) = (stats.udp_rx.datagrams, stats.frame_tx.stream);
        if self.silence.is_probe_due(now, datagrams, streamed, waits) {
            quic.ping();
        }
    }

    /// When the next probe is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.silence.deadline()
    }

    /// Records the address of this host at which a datagram of the connection has arrived, and from
    /// where that came, with its length.
    pub(super) fn arrived(
        &mut self,
        quic: &Connection,
        local: Option<IpAddr>,
        from: SocketAddr,
        len: usize,
    ) {
        if let Some(local) = local {
            self.roaming.arrived_at(local);
        }
        if from != quic.remote_address() {
            self.roaming.came_off_path(from, len);
        }
    }

    /// Where both ends are; `None` if this host's address is not known.
    pub(super) fn ends(&self, quic: &Connection) -> Option<NetworkPath> {
        let local = quic.local_ip().or_else(|| self.roaming.arrived_last_at())?;
        Some((Some(local), quic.remote_address().ip()))
    }

    /// Whether a datagram may be sent. On the path quinn-proto itself heeds the limit for addresses
    /// that are not proved; off the path it does not, so we do.
    pub(super) fn may_send(&mut self, quic: &Connection, transmit: &Transmit) -> bool {
        transmit.destination == quic.remote_address()
            || self.roaming.may_answer(transmit.destination, transmit.size)
    }

    /// Whether the peer has proved its address.
    pub(super) fn peer_is_proved(&mut self, quic: &Connection) -> bool {
        self.roaming.is_proved(quic.remote_address(), || quic.stats())
    }

    /// Begins as on a new path if this host is a client that has another address: with a new
    /// congestion controller and round-trip time (RFC 9000 9.4), and packets that every path
    /// carries (14.3). Returns whether it does.
    pub(super) fn follow_own_address(&mut self, quic: &mut Connection, now: Instant) -> bool {
        let has_moved = quic.side().is_client() && self.roaming.has_moved(|| quic.stats());
        if has_moved {
            quic.path_changed(now);
            self.one_way.start_afresh();
        }
        has_moved
    }

    /// Counts frames that concern no change of addresses under way.
    pub(super) fn observe(&mut self, remote: SocketAddr, stats: &ConnectionStats) {
        self.roaming.observe(remote, stats);
    }

    /// Asks how long packets wait, if that is due while bulk is sent. A peer without datagrams does
    /// not answer.
    pub(super) fn ask(&mut self, quic: &mut Connection, now: Instant) {
        if let Some(question) = self.one_way.question(quic.remote_address(), quic.rtt(), now) {
            let _ = quic.datagrams().send(question, false);
        }
    }
}
