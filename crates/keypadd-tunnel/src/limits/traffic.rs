//! Counts the connections and bytes of each forward by peer, since the daemon started.
//!
//! Bounded in memory: a peer chooses the targets it asks for, so beyond [`FORWARDS_MAX`] of a peer
//! the others count as one. Peers are those that are listed or dialed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keypadd_transport::TransferStats;

/// Forwards of a peer that are counted separately.
const FORWARDS_MAX: usize = 64;

/// Name under which the others are counted.
const OTHER: &str = "other";

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Both ends finished cleanly.
    Closed,
    /// One end reset it, failed, or closed it before it was connected.
    Reset,
    /// The connection to the peer was lost, or this daemon shut down.
    Lost,
    /// The end that connects to the target could not.
    Refused,
}

impl ConnectionEnd {
    const ALL: [Self; 4] = [Self::Closed, Self::Reset, Self::Lost, Self::Refused];

    /// Its name, as a label of a metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Lost => "lost",
            Self::Refused => "refused",
        }
    }
}

/// The totals of one forward of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTotals {
    /// The peer's name.
    pub peer: String,
    /// The forward, or a server's target.
    pub forward: String,
    /// Bytes to the peer.
    pub sent_bytes: u64,
    /// Bytes from the peer that programs have accepted.
    pub received_bytes: u64,
    /// Connections by how they ended.
    pub ended: [(ConnectionEnd, u64); 4],
    /// What its UDP flows have carried, if it had any.
    pub datagrams: Option<DatagramTotals>,
}

/// The datagrams of a forward's UDP flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramTotals {
    /// To the peer.
    pub sent: u64,
    /// From the peer.
    pub received: u64,
    /// Dropped by this end: for lack of room, or because they came too late.
    pub dropped: u64,
}

impl DatagramTotals {
    fn add(&mut self, carried: &TransferStats) {
        let (sent, received) = carried.datagrams();
        self.sent += sent;
        self.received += received;
        self.dropped += carried.dropped();
    }
}

/// The totals of all forwards.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<BTreeMap<String, BTreeMap<String, Entry>>>);

#[derive(Debug, Default)]
struct Entry {
    sent_bytes: u64,
    received_bytes: u64,
    ended: [u64; 4],
    datagrams: Option<DatagramTotals>,
    /// What the open connections have carried so far.
    open: Vec<Arc<TransferStats>>,
}

impl Traffic {
    /// A connection begins to carry bytes, which are counted from now on.
    pub(crate) fn add(&self, peer: &str, forward: &str, carried: &Arc<TransferStats>) {
        self.with(peer, forward, |entry| {
            if carried.is_flow() {
                entry.datagrams.get_or_insert_default();
            }
            entry.open.push(Arc::clone(carried));
        });
    }

    /// A connection has ended; `carried` if it was added.
    pub(crate) fn end(
        &self,
        peer: &str,
        forward: &str,
        carried: Option<&Arc<TransferStats>>,
        end: ConnectionEnd,
    ) {
        self.with(peer, forward, |entry| {
            entry.ended[end as usize] += 1;
            let Some(carried) = carried else { return };
            let place = entry.open.iter().position(|one| Arc::ptr_eq(one, carried));
            if let Some(place) = place {
                entry.open.swap_remove(place);
                entry.sent_bytes += carried.from_socket();
                entry.received_bytes += carried.to_socket();
                if let Some(datagrams) = &mut entry.datagrams {
                    datagrams.add(carried);
                }
            }
        });
    }

    /// The totals now.
    pub(crate) fn totals(&self) -> Vec<ForwardTotals> {
        let peers = self.peers();
        let forwards = peers
            .iter()
            .flat_map(|(peer, forwards)| forwards.iter().map(move |forward| (peer, forward)));
        let totals = forwards.map(|(peer, (forward, entry))| {
            let open = |bytes: fn(&TransferStats) -> u64| {
                entry.open.iter().map(|carried| bytes(carried)).sum::<u64>()
            };
            ForwardTotals {
                peer: peer.clone(),
                forward: forward.clone(),
                sent_bytes: entry.sent_bytes + open(TransferStats::from_socket),
                received_bytes: entry.received_bytes + open(TransferStats::to_socket),
                ended: ConnectionEnd::ALL.map(|end| (end, entry.ended[end as usize])),
                datagrams: entry.datagrams.map(|mut datagrams| {
                    entry.open.iter().for_each(|carried| datagrams.add(carried));
                    datagrams
                }),
            }
        });
        totals.collect()
    }

    fn with(&self, peer: &str, forward: &str, change: impl FnOnce(&mut Entry)) {
        let mut peers = self.peers();
        let forwards = peers.entry(peer.into()).or_default();
        let is_counted = forwards.contains_key(forward) || forwards.len() < FORWARDS_MAX;
        change(forwards.entry(if is_counted { forward } else { OTHER }.into()).or_default());
    }

    /// A panic cannot leave the counts half changed.
    fn peers(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_by_peer_forward_and_end() {
        let traffic = Traffic::default();
        let carried = Arc::default();
        traffic.add("lab", "-L 1:a:1", &carried);
        traffic.end("lab", "-L 1:a:1", Some(&carried), ConnectionEnd::Closed);
        traffic.end("lab", "-L 1:a:1", None, ConnectionEnd::Refused);
        traffic.end("home", "-L 1:a:1", None, ConnectionEnd::Lost);
        let totals = traffic.totals();
        let ended = |place: usize| totals[place].ended.map(|(_, count)| count);
        assert_eq!((totals[0].peer.as_str(), ended(0)), ("home", [0, 0, 1, 0]));
        assert_eq!((totals[1].peer.as_str(), ended(1)), ("lab", [1, 0, 0, 1]));
        assert!(traffic.peers().values().flat_map(BTreeMap::values).all(|one| one.open.is_empty()));
    }

    #[test]
    fn what_a_peer_asks_for_beyond_a_bound_counts_as_one() {
        let traffic = Traffic::default();
        for target in 0..10 * FORWARDS_MAX {
            traffic.end("lab", &format!("a:{target}"), None, ConnectionEnd::Refused);
        }
        traffic.end("home", "a:1", None, ConnectionEnd::Refused);
        let totals = traffic.totals();
        assert_eq!(totals.len(), FORWARDS_MAX + 2);
        let other = totals.iter().find(|one| one.forward == OTHER).expect("the others");
        assert_eq!(other.ended[3].1, 9 * FORWARDS_MAX as u64);
    }
}
