//! Connects the loops: audits each datagram as it leaves, passes it to the network, and steps the
//! fillers in between.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use keypadd_transport::SentDatagrams;
use quinn_proto::Side;
use sha2::{Digest, Sha256};

use crate::arrivals::Arrivals;
use crate::auditor::{Auditor, Finding, Sender};
use crate::counts::Counts;
use crate::network::{Departure, Flying, Network};
use crate::pools::SteppedPool;
use crate::schedule::Schedule;

pub(super) struct Path {
    pub(super) now: Duration,
    pub(super) network: Network,
    pub(super) auditor: Auditor,
    pub(super) arrivals: Arrivals,
    pub(super) counts: Counts,
    pub(super) pools: [SteppedPool; 2],
    /// Both ends of each connection.
    pub(super) senders: Vec<[Sender; 2]>,
    pub(super) transcript: Sha256,
    /// Connections that were cut off, or abandoned during the handshake. A server that has
    /// forgotten one would repeat the handshake, under keys that the log cannot tell from the first
    /// ones.
    pub(super) left_behind: BTreeSet<usize>,
}

/// Whether a datagram begins with an Initial packet (RFC 9000 17.2.2).
fn is_initial(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0xb0 == 0x80)
}

impl Path {
    pub(super) fn new(schedule: &Schedule, rng: &mut Rng) -> Self {
        Self {
            now: Duration::ZERO,
            network: Network::new(schedule.weather, rng.fork()),
            auditor: Auditor::default(),
            arrivals: Arrivals::default(),
            counts: Counts { runs: 1, ..Counts::default() },
            pools: [0, 1].map(|end| SteppedPool::new(schedule, end, rng.fork())),
            senders: Vec::new(),
            transcript: Sha256::new(),
            left_behind: BTreeSet::new(),
        }
    }

    pub(super) fn note(&mut self, what: &str, values: &[u64]) {
        self.transcript.update(what);
        self.transcript.update((self.now.as_nanos() as u64).to_be_bytes());
        values.iter().for_each(|value| self.transcript.update(value.to_be_bytes()));
    }

    /// Takes what a loop sends.
    pub(super) fn send(&mut self, from: Side, left: &SentDatagrams<'_>) {
        let destination = left.destination;
        for bytes in left.bytes.chunks(left.segment_bytes) {
            // A lone Initial packet is on no tape, nor are the endpoint's answers to strangers;
            // neither needs an audit.
            let sealed = self.senders.iter().position(|ends| ends[from as usize].has_sealed(bytes));
            let connection = sealed.unwrap_or_else(|| self.senders.len().saturating_sub(1));
            let seen = sealed.and_then(|index| {
                self.auditor.datagram(&mut self.senders[index][from as usize], bytes)
            });
            let (phase, number) = seen.map_or((0, 0), |seen| (seen.phase, seen.number));
            self.note("send", &[from as u64, bytes.len() as u64, phase, number]);
            let datagram = Departure { destination, connection, bytes, seen };
            self.network.send(self.now, from, datagram, &mut self.counts);
        }
        for end in 0..2 {
            let steps = self.pools[end].turn(self.now);
            self.note("filler", &[end as u64, steps.into()]);
            if let Some(broken) = self.pools[end].broken_promise() {
                self.auditor.find(Finding::Accounts(broken));
            }
        }
    }

    /// The next datagram that has arrived by now.
    pub(super) fn arrival(&mut self) -> Option<Flying> {
        let flying = loop {
            let flying = self.network.arrival(self.now, &mut self.counts)?;
            let left_behind = self.left_behind.contains(&flying.connection);
            if !(left_behind && flying.to == Side::Server && is_initial(&flying.bytes)) {
                break flying;
            }
            self.counts.lost += 1;
        };
        self.note("arrival", &[flying.to as u64, flying.bytes.len() as u64]);
        if let Some(seen) = flying.seen {
            self.arrivals.arrive(flying.connection, flying.to, seen, &mut self.counts);
        }
        Some(flying)
    }
}
