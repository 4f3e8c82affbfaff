//! What a daemon tells about its forwarded connections: how many there are, and each of those that
//! have carried most. As for the snapshot, field names are part of the command line's interface.

use std::cmp::Reverse;

use keypadd_tunnel::{ConnectionState, ConnectionStatus};
use serde::{Deserialize, Serialize};

/// Connections listed in one answer; some 300 bytes each.
pub(crate) const LISTED_MAX: usize = 1000;

/// The connections of one daemon at one moment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ConnectionsReport {
    pub(crate) pid: u32,
    pub(crate) verb: String,
    pub(crate) place: String,
    pub(crate) counts: ConnectionCounts,
    /// At most [`LISTED_MAX`], those that have carried most; by age.
    pub(crate) connections: Vec<ConnectionStatus>,
    /// How many more there are.
    pub(crate) unlisted: usize,
}

/// Connections and UDP flows by how far they have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionCounts {
    pub(crate) open: usize,
    pub(crate) held: usize,
    pub(crate) connecting: usize,
    /// Connections that wait for a place: one of each forward, behind which others may wait to be
    /// accepted.
    pub(crate) waiting: usize,
}

impl ConnectionCounts {
    pub(crate) fn of(states: impl IntoIterator<Item = ConnectionState>) -> Self {
        let mut counts = Self::default();
        for state in states {
            *match state {
                ConnectionState::Open => &mut counts.open,
                ConnectionState::Held => &mut counts.held,
                ConnectionState::Connecting => &mut counts.connecting,
                ConnectionState::Waiting => &mut counts.waiting,
            } += 1;
        }
        counts
    }
}

/// The connections to list, and how many are left out.
pub(crate) fn most_carried(mut all: Vec<ConnectionStatus>) -> (Vec<ConnectionStatus>, usize) {
    let unlisted = all.len().saturating_sub(LISTED_MAX);
    if unlisted > 0 {
        all.sort_by_key(|one| Reverse(one.sent_bytes + one.received_bytes));
        all.truncate(LISTED_MAX);
        all.sort_by_key(|one| one.id);
    }
    (all, unlisted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_thousands_of_connections_those_that_carried_most_are_listed() {
        let connection = |id: u64| ConnectionStatus {
            id,
            peer: Some("lab".into()),
            forward: Some("-L 2222:localhost:22".into()),
            target: Some("localhost:22".into()),
            from: "127.0.0.1:40000".parse().ok(),
            since_unix_seconds: 1_790_000_000,
            state: if id.is_multiple_of(2) { ConnectionState::Open } else { ConnectionState::Held },
            sent_bytes: id,
            received_bytes: 1 << 40,
            is_flow: false,
        };
        let all: Vec<_> = (1..=5000).map(connection).collect();
        let counts = ConnectionCounts::of(all.iter().map(|one| one.state));
        assert_eq!(counts, ConnectionCounts { open: 2500, held: 2500, ..Default::default() });
        let (listed, unlisted) = most_carried(all);
        assert_eq!((listed.len(), unlisted), (LISTED_MAX, 4000));
        assert_eq!((listed[0].id, listed[LISTED_MAX - 1].id), (4001, 5000));
        let answer = serde_json::to_vec(&listed).unwrap().len();
        assert!(answer < 400 * LISTED_MAX, "{answer}");
    }
}
