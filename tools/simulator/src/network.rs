//! Simulates the path between the ends: loss, duplication, corruption, delay, and changes of the
//! client's address.
//!
//! Knows lengths and addresses, and of contents only the auditor's note on each datagram. Every
//! decision comes from the seed and depends on lengths alone.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use fastrand::Rng;
use quinn_proto::Side;

use crate::auditor::ReceivedNumber;
use crate::counts::Counts;
use crate::schedule::Weather;

pub(crate) const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);

/// A datagram in transit.
pub(crate) struct Flying {
    pub(crate) at: Duration,
    order: u64,
    pub(crate) to: Side,
    pub(crate) from: SocketAddr,
    /// Its destination; the client may have moved by then.
    destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
    pub(crate) connection: usize,
    /// The auditor's note on it, unless it was corrupted.
    pub(crate) seen: Option<ReceivedNumber>,
}

/// A datagram that an end hands to the network.
pub(crate) struct Departure<'a> {
    pub(crate) destination: SocketAddr,
    pub(crate) connection: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) seen: Option<ReceivedNumber>,
}

impl Ord for Flying {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Flying {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Flying {}

/// The network of one run.
pub(crate) struct Network {
    weather: Weather,
    rng: Rng,
    flying: BinaryHeap<Flying>,
    order: u64,
    moves: u8,
    /// The newest phase that has passed, by connection and sender.
    phases: BTreeMap<(usize, Side), u64>,
}

/// Share of key updates, in per mille, whose first packet overtakes those in transit, so that many
/// packets come late for their phase.
const OVERTAKING: u32 = 600;

impl Network {
    pub(crate) fn new(weather: Weather, rng: Rng) -> Self {
        Self {
            weather,
            rng,
            flying: BinaryHeap::new(),
            order: 0,
            moves: 0,
            phases: BTreeMap::new(),
        }
    }

    /// The client's apparent address.
    pub(crate) fn client(&self) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, 7 + self.moves / 2], 50_000 + u16::from(self.moves)))
    }

    /// The client's NAT forgets it: a new port, every other time also a new address, and nothing
    /// reaches the old one.
    pub(crate) fn rebind(&mut self) {
        self.moves += 1;
    }

    /// Takes a datagram from an end and decides its fate.
    pub(crate) fn send(
        &mut self,
        now: Duration,
        from: Side,
        datagram: Departure<'_>,
        counts: &mut Counts,
    ) {
        let Departure { destination, connection, bytes, seen } = datagram;
        let weather = self.weather;
        let phase = self.phases.entry((connection, from)).or_default();
        let updated = seen.is_some_and(|seen| std::mem::replace(phase, seen.phase) < seen.phase);
        let overtakes = updated && self.chance(OVERTAKING);
        if bytes.len() > weather.mtu || self.chance(weather.loss) {
            counts.lost += 1;
            return;
        }
        let copies = if self.chance(weather.doubling) { 2 } else { 1 };
        counts.doubled += copies - 1;
        for _ in 0..copies {
            let mut delay = weather.delay + self.up_to(weather.jitter);
            if self.chance(weather.straggling) {
                delay += self.up_to(weather.straggle);
            }
            if overtakes {
                delay = weather.delay / 8;
            }
            let (mut bytes, mut seen) = (bytes.to_vec(), seen);
            if self.chance(weather.corruption) {
                self.corrupt(&mut bytes);
                counts.corrupted += 1;
                seen = None;
            }
            let (to, from) = match from {
                Side::Client => (Side::Server, self.client()),
                Side::Server => (Side::Client, SERVER),
            };
            self.order += 1;
            let (at, order) = (now + delay, self.order);
            self.flying.push(Flying { at, order, to, from, destination, bytes, connection, seen });
        }
    }

    /// When the next datagram arrives.
    pub(crate) fn next_arrival(&self) -> Option<Duration> {
        self.flying.peek().map(|flying| flying.at)
    }

    /// The next datagram that has arrived by now; datagrams to an address that the client has left
    /// are lost.
    pub(crate) fn arrival(&mut self, now: Duration, counts: &mut Counts) -> Option<Flying> {
        while self.next_arrival()? <= now {
            let flying = self.flying.pop()?;
            let address = if flying.to == Side::Client { self.client() } else { SERVER };
            if flying.destination == address {
                return Some(flying);
            }
            counts.lost += 1;
        }
        None
    }

    /// Flips one bit where its value cannot change the run: after the header and the sample that
    /// unmasks it; in a handshake datagram, in the last tag.
    fn corrupt(&mut self, bytes: &mut [u8]) {
        let tag = bytes.len().saturating_sub(16);
        let first = if bytes[0] & 0x80 == 0 { tag.min(33) } else { tag };
        let at = self.rng.usize(first..bytes.len());
        bytes[at] ^= 1 << self.rng.u32(0..8);
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.u32(0..1000) < per_mille
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.u64(0..=most.as_nanos() as u64))
    }
}
