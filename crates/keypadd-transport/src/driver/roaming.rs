//! Follows a connection from one network to another (RFC 9000 9).
//!
//! *At a server*, `quinn-proto` moves the connection to the address from which the client sends,
//! with a new congestion controller and small packets. Until the client has proved that address,
//! `quinn-proto` sends at most three times what came from there (8.1) and keeps the rest. So we
//! give it no more than it may send.
//!
//! *At a client*, `quinn-proto` notices no move. The server's challenge, when it arrives at another
//! address of this host, lets the client begin anew here.
//!
//! Also limits answers to addresses off the path. Knows addresses, no sockets.

use std::net::{IpAddr, SocketAddr};

use quinn_proto::ConnectionStats;

/// Bytes sent for each that came from an address that is not proved (RFC 9000 8.1): also for the
/// answer to a PATH_CHALLENGE (8.2.2).
const ANTI_AMPLIFICATION: usize = 3;

/// Where both ends of a connection are.
#[derive(Debug)]
pub(super) struct Roaming {
    /// The last address that the peer proved.
    proved: SocketAddr,
    /// PATH_RESPONSE frames received by then.
    responses: u64,
    /// The address of this host at which the peer was last seen to challenge, and the one at which
    /// datagrams arrive. The second may be forged.
    local: Option<IpAddr>,
    arrived_at: Option<IpAddr>,
    /// PATH_CHALLENGE frames received by then.
    challenges: u64,
    /// The last address off the path from which something came, and the bytes that may be sent
    /// there: nobody has to be there.
    off_path: (SocketAddr, usize),
}

impl Roaming {
    pub(super) fn new(remote: SocketAddr) -> Self {
        Self {
            proved: remote,
            responses: 0,
            local: None,
            arrived_at: None,
            challenges: 0,
            off_path: (remote, 0),
        }
    }

    /// Records the address of this host at which a datagram has arrived.
    pub(super) fn arrived_at(&mut self, local: IpAddr) {
        self.arrived_at = Some(local);
    }

    /// The address of this host at which a datagram has arrived last. It may be forged.
    pub(super) fn arrived_last_at(&self) -> Option<IpAddr> {
        self.arrived_at
    }

    /// Whether this many bytes may be sent to an address off the path; counts them.
    pub(super) fn may_answer(&mut self, to: SocketAddr, bytes: usize) -> bool {
        if to == self.proved {
            return true;
        }
        let (address, left) = &mut self.off_path;
        let after = left.checked_sub(bytes).filter(|_| *address == to);
        *left = after.unwrap_or(*left);
        after.is_some()
    }

    /// Records that this many bytes came from an address off the path.
    pub(super) fn came_off_path(&mut self, from: SocketAddr, bytes: usize) {
        let before = Some(self.off_path.1).filter(|_| self.off_path.0 == from).unwrap_or(0);
        self.off_path = (from, before.saturating_add(ANTI_AMPLIFICATION * bytes));
    }

    /// Whether the peer has proved that it receives at this address.
    pub(super) fn is_proved(
        &mut self,
        remote: SocketAddr,
        stats: impl FnOnce() -> ConnectionStats,
    ) -> bool {
        // After a failed proof quinn-proto returns to the old address.
        if remote == self.proved {
            return true;
        }
        let responses = stats().frame_rx.path_response;
        if responses == self.responses {
            return false;
        }
        (self.proved, self.responses) = (remote, responses);
        true
    }

    /// Whether this host has another address than before.
    pub(super) fn has_moved(&mut self, stats: impl FnOnce() -> ConnectionStats) -> bool {
        if self.arrived_at == self.local {
            return false;
        }
        let challenges = stats().frame_rx.path_challenge;
        let is_first = self.local.is_none();
        if !is_first && challenges == self.challenges {
            return false;
        }
        (self.local, self.challenges) = (self.arrived_at, challenges);
        !is_first
    }

    /// Counts frames that concern no change under way.
    pub(super) fn observe(&mut self, remote: SocketAddr, stats: &ConnectionStats) {
        if remote == self.proved {
            self.responses = stats.frame_rx.path_response;
        }
        if self.arrived_at == self.local {
            self.challenges = stats.frame_rx.path_challenge;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_off_the_path_are_at_most_three_times_what_came_from_there() {
        let [home, elsewhere, other] =
            [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut roaming = Roaming::new(home);
        assert!(!roaming.may_answer(elsewhere, 1_200));
        roaming.came_off_path(elsewhere, 300);
        roaming.came_off_path(elsewhere, 100);
        assert!(!roaming.may_answer(other, 1));
        assert!(roaming.may_answer(elsewhere, 1_200));
        assert!(!roaming.may_answer(elsewhere, 1));
        // What came from one address is not saved up for another.
        roaming.came_off_path(other, 10_000);
        roaming.came_off_path(elsewhere, 400);
        assert!(!roaming.may_answer(elsewhere, 1_201) && !roaming.may_answer(other, 1));
        // The challenge to the path that the client has just left (RFC 9000 9.3.3).
        assert!(roaming.may_answer(home, 1_200));
    }
}
