//! Limits handshakes from unknown clients, so that stalled ones cannot lock others out.
//!
//! A handshake that has not proved a key yet holds one of a few thousand slots. When all are taken,
//! or some hundreds are and the newcomer's network has more than its share, the oldest of the
//! busiest network is evicted: an honest handshake needs two round trips, a stalled one stays until
//! it is the oldest. Below these hundreds, a client that shares its address with strangers has
//! time, too. One that has failed has cost as much, and stays until it would have timed out.
//! Networks are IPv6 /64, /56 and /48, and IPv4 addresses, /24 and /16. Those that have proved a
//! key before count by themselves. Some slots are reserved for them, and the others for the rest.
//! Knows addresses and times, no packets.

mod networks;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use self::networks::{LARGEST, Network, ProvedNetworks, SHARES, forget_in, oldest_of_busiest};

/// Handshakes in progress at once, where the memory allows.
#[cfg(test)]
pub(crate) const SLOTS: usize = crate::settings::LoopLimits::MOST.handshakes;

/// One slot in this many is reserved for networks that have proved a key before.
const KEPT_ONE_IN: usize = 8;

/// Up to this many handshakes in a loop, a network may have more than its share: with 3,000 a
/// second from one address, each has 128 ms. Less than [`CROWD`], from which on that address would
/// have to wait.
pub(crate) const ROOMY: usize = 384;

/// From this many handshakes on, a client must validate its address first (RFC 9000 8.1.2).
const RETRY_FROM: usize = 8;

/// From this many handshakes in a loop on, an address may begin only one per [`CROWD_PACE`]: a
/// handshake costs a third of a millisecond, ignoring a packet almost nothing.
const CROWD: usize = 512;

/// How long an address must wait in a crowd after its last handshake, unless that proved a key.
const CROWD_PACE: Duration = Duration::from_secs(2);

/// Handshakes in progress in the networks of an address, the largest first.
pub(crate) type Load = [usize; 3];

/// Time limit of a handshake, from its first packet.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// How to answer a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Accept,
    /// Require it to validate its address.
    Retry,
    /// Ignore it: it will retransmit.
    Wait,
}

/// Handshakes that did not complete, since the endpoint started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Refused because of the connection limit.
    pub full: u64,
    /// Evicted by newer ones.
    pub displaced: u64,
    /// Timed out.
    pub timed_out: u64,
    /// Ignored because many were in progress, and their network had just begun another or was the
    /// busiest of those that waited.
    pub crowded: u64,
}

/// A handshake in progress, or one that has failed, which has no ID.
struct Entry<K> {
    id: Option<K>,
    address: IpAddr,
    since: Instant,
}

/// Handshakes in progress, and those that have failed lately, by age.
pub(crate) struct Handshakes<K> {
    by_age: BTreeMap<u64, Entry<K>>,
    by_key: HashMap<K, u64>,
    by_network: HashMap<Network, BTreeSet<u64>>,
    /// Handshakes of networks that had not proved a key when they began.
    unknown: BTreeSet<u64>,
    /// Handshakes of networks that had proved one, by the largest network.
    known: HashMap<Network, BTreeSet<u64>>,
    next: u64,
    proved: ProvedNetworks,
    slots: usize,
    /// Slots reserved for networks that have proved a key.
    kept: usize,
}

impl<K: Copy + Eq + std::hash::Hash> Handshakes<K> {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::with_slots(SLOTS)
    }

    /// For so many at once.
    pub(crate) fn with_slots(slots: usize) -> Self {
        Self {
            by_age: BTreeMap::new(),
            by_key: HashMap::new(),
            by_network: HashMap::new(),
            unknown: BTreeSet::new(),
            known: HashMap::new(),
            next: 0,
            proved: ProvedNetworks::default(),
            slots,
            kept: slots / KEPT_ONE_IN,
        }
    }

    /// How to answer a newcomer from `address`.
    pub(crate) fn decide(&self, address: IpAddr, validated: bool, now: Instant) -> Admission {
        if !validated && self.by_age.len() >= RETRY_FROM {
            return Admission::Retry;
        }
        match self.by_age.len() >= CROWD && self.has_just_begun(address, now) {
            true => Admission::Wait,
            false => Admission::Accept,
        }
    }

    /// Whether a network that has never proved a key has just begun a handshake.
    fn has_just_begun(&self, address: IpAddr, now: Instant) -> bool {
        let newest = self.by_network.get(&Network::smallest(address)).and_then(BTreeSet::last);
        let newest = newest.and_then(|age| self.by_age.get(age));
        !self.proved.has(address)
            && newest.is_some_and(|it| now.saturating_duration_since(it.since) < CROWD_PACE)
    }

    /// How busy the networks of a newcomer are.
    pub(crate) fn load(&self, address: IpAddr) -> Load {
        let count = |length| {
            let ages = self.by_network.get(&Network::of(address, length));
            ages.map_or(0, BTreeSet::len)
        };
        let [smallest, middle, largest] = SHARES.map(|(length, _)| count(length));
        match self.proved.has(address) {
            true => {
                let of_known = self.known.get(&Network::largest(address));
                [of_known.map_or(0, BTreeSet::len), smallest, smallest]
            }
            false => [largest, middle, smallest],
        }
    }

    /// Evicts a handshake if a newcomer from `address` needs its place; returns it if it was in
    /// progress: abandon it.
    pub(crate) fn make_room(&mut self, address: IpAddr) -> Option<K> {
        let age = self.displaced_by(address)?;
        self.forget(age)?.id
    }

    fn displaced_by(&self, address: IpAddr) -> Option<u64> {
        let known = self.proved.has(address);
        let over_share = || {
            if self.by_age.len() < ROOMY {
                return None;
            }
            Network::all(address, known).find_map(|(network, share)| {
                let ages = self.by_network.get(&network).filter(|ages| ages.len() >= share)?;
                ages.first()
            })
        };
        let (unknown, slots) = (self.unknown.len(), self.slots - self.kept);
        let is_full = self.by_age.len() >= self.slots || !known && unknown >= slots;
        match over_share() {
            Some(age) => Some(*age),
            None if is_full => {
                // Neither the known nor the rest take what is reserved for the other.
                let oldest = match known || unknown < slots {
                    true => oldest_of_busiest(self.known.values()),
                    false => self.oldest_of_busiest_unknown(),
                };
                oldest.or_else(|| self.by_age.keys().next()).copied()
            }
            None => None,
        }
    }

    fn oldest_of_busiest_unknown(&self) -> Option<&u64> {
        let largest = self.by_network.iter().filter(|(network, _)| network.length == LARGEST);
        oldest_of_busiest(largest.map(|(_, ages)| ages))
    }

    /// Records a handshake that has begun, or `None` for one that has failed at once.
    pub(crate) fn add(&mut self, id: Option<K>, address: SocketAddr, now: Instant) {
        let address = address.ip();
        let age = self.next;
        self.next += 1;
        let known = self.proved.has(address);
        for (network, _) in Network::all(address, known) {
            self.by_network.entry(network).or_default().insert(age);
        }
        match known {
            true => self.known.entry(Network::largest(address)).or_default().insert(age),
            false => self.unknown.insert(age),
        };
        self.by_age.insert(age, Entry { id, address, since: now });
        if let Some(id) = id {
            self.by_key.insert(id, age);
        }
    }

    /// Records that a handshake has failed.
    pub(crate) fn fail(&mut self, id: K) {
        let age = self.by_key.remove(&id);
        if let Some(entry) = age.and_then(|age| self.by_age.get_mut(&age)) {
            entry.id = None;
        }
    }

    /// Removes a handshake; `proved` if it has proved a key.
    pub(crate) fn remove(&mut self, id: K, proved: bool) -> bool {
        let Some(&age) = self.by_key.get(&id) else { return false };
        let Some(entry) = self.forget(age) else { return false };
        if proved {
            self.proved.add(entry.address);
        }
        true
    }

    fn forget(&mut self, age: u64) -> Option<Entry<K>> {
        let entry = self.by_age.remove(&age)?;
        if let Some(id) = entry.id {
            self.by_key.remove(&id);
        }
        for (network, _) in Network::all(entry.address, false) {
            forget_in(&mut self.by_network, network, age);
        }
        if !self.unknown.remove(&age) {
            forget_in(&mut self.known, Network::largest(entry.address), age);
        }
        Some(entry)
    }

    /// Forgets the handshakes past their time limit up to one that is in progress: abandon it.
    pub(crate) fn overdue(&mut self, now: Instant) -> Option<K> {
        loop {
            let (&age, oldest) = self.by_age.first_key_value()?;
            if now.saturating_duration_since(oldest.since) < HANDSHAKE_TIME {
                return None;
            }
            if let Some(id) = self.forget(age)?.id {
                return Some(id);
            }
        }
    }

    /// When the oldest will reach its time limit.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.by_age.first_key_value().map(|(_, oldest)| oldest.since + HANDSHAKE_TIME)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_age.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(host: u32) -> SocketAddr {
        SocketAddr::new(IpAddr::V4((0x0a00_0000 + host).into()), 1)
    }

    /// Adds a handshake as a loop does; returns the evicted one.
    fn arrive(table: &mut Handshakes<u32>, id: u32, from: SocketAddr, now: Instant) -> Option<u32> {
        let displaced = table.make_room(from.ip());
        table.add(Some(id), from, now);
        displaced
    }

    #[test]
    fn stalled_handshakes_of_one_address_make_way_for_the_next_behind_it() {
        let (mut table, now) = (Handshakes::new(), Instant::now());
        for id in 0..384 {
            assert_eq!(arrive(&mut table, id, v4(1), now), None);
        }
        assert_eq!(arrive(&mut table, 384, v4(1), now), Some(0));
        assert_eq!(arrive(&mut table, 385, v4(2), now), Some(1), "of the same /24, the oldest");
        assert_eq!(arrive(&mut table, 386, v4(1 << 8), now), None, "another one has its own share");
        assert_eq!(table.len(), 385);
    }

    #[test]
    fn a_client_has_time_beside_many_handshakes_from_its_own_address() {
        const RATE: u32 = 3_000;
        let (mut table, start) = (Handshakes::new(), Instant::now());
        for id in 0..3 * RATE {
            let now = start + id * Duration::from_secs(1) / RATE;
            assert_eq!(table.decide(v4(1).ip(), true, now), Admission::Accept);
            // The client's may be any of them.
            let evicted = arrive(&mut table, id, v4(1), now);
            let time = evicted.map(|evicted| (id - evicted) * Duration::from_secs(1) / RATE);
            assert!(time.is_none_or(|time| time > Duration::from_millis(120)), "{time:?}");
        }
    }

    #[test]
    fn a_full_table_gives_up_the_oldest_and_keeps_slots_for_the_known() {
        let (mut table, now) = (Handshakes::with_slots(80), Instant::now());
        table.add(Some(1000), v4(5000), now);
        assert!(table.remove(1000, true));
        for id in 0..70 {
            assert_eq!(arrive(&mut table, id, v4(id), now), None);
        }
        assert_eq!(arrive(&mut table, 70, v4(70), now), Some(0), "strangers have 7 of 8 slots");
        for id in 0..10 {
            assert_eq!(arrive(&mut table, 2000 + id, v4(5000), now), None);
        }
        assert_eq!(arrive(&mut table, 2010, v4(5000), now), Some(2000), "the oldest of the known");
    }

    #[test]
    fn ipv6_networks_have_shares_at_every_size() {
        let at = |network: u128| {
            SocketAddr::new(IpAddr::V6((0x2001_0db8_u128 << 96 | network << 64).into()), 1)
        };
        let (mut table, now) = (Handshakes::new(), Instant::now());
        for id in 1_000..1_128 {
            assert_eq!(arrive(&mut table, id, v4(id << 16), now), None, "from many networks");
        }
        // 256 slots of a /56, from its 256 different /64s.
        for id in 0..256 {
            assert_eq!(arrive(&mut table, id, at(id.into()), now), None);
        }
        assert_eq!(arrive(&mut table, 256, at(7), now), Some(0));
        assert_eq!(arrive(&mut table, 257, at(0x100), now), None, "the next /56");
    }

    #[test]
    fn a_full_table_gives_up_the_oldest_of_the_busiest_network() {
        let (mut table, now) = (Handshakes::with_slots(8), Instant::now());
        // Seven of eight are for the unknown: one network has three addresses.
        for (id, host) in [(0, 1 << 16), (1, 1), (2, 2 << 16), (3, 2), (4, 3), (5, 3 << 16)] {
            assert_eq!(arrive(&mut table, id, v4(host), now), None);
        }
        assert_eq!(table.load(v4(1).ip()), [3, 3, 1]);
        assert_eq!(table.load(v4(1 << 10).ip()), [3, 0, 0]);
        assert_eq!(table.load(v4(4 << 16).ip()), [0, 0, 0]);
        assert_eq!(arrive(&mut table, 6, v4(4 << 16), now), None);
        assert_eq!(arrive(&mut table, 7, v4(5 << 16), now), Some(1));
        assert_eq!(arrive(&mut table, 8, v4(6 << 16), now), Some(3));
        assert_eq!(arrive(&mut table, 9, v4(7 << 16), now), Some(0), "one each: the oldest");
    }

    #[test]
    fn an_address_that_has_proved_a_key_counts_by_itself() {
        let (mut table, now) = (Handshakes::with_slots(16), Instant::now());
        table.add(Some(100), v4(0), now);
        assert!(table.remove(100, true));
        for id in 0..15 {
            arrive(&mut table, id, v4(1 + id), now);
        }
        assert_eq!(table.load(v4(0).ip()), [0, 0, 0]);
        table.add(Some(101), v4(0), now);
        assert_eq!(table.load(v4(0).ip()), [1, 1, 1]);
        assert_eq!(table.load(v4(99).ip()), [14, 14, 0]);
    }

    #[test]
    fn networks_that_have_proved_a_key_cannot_keep_out_the_others() {
        const NETWORKS: u32 = 40;
        const RATE: u32 = 2_000;
        let (mut table, start) = (Handshakes::new(), Instant::now());
        let known = |id: u32| v4(id % NETWORKS);
        for id in 0..NETWORKS {
            table.add(Some(id), known(id), start);
            assert!(table.remove(id, true));
        }
        for id in 0..5 * RATE {
            let now = start + id * Duration::from_secs(1) / RATE;
            arrive(&mut table, id, known(id), now);
            if id % 20 == 0 {
                // A hundred clients a second, each from another network, that take half a second.
                let newcomer = 100_000 + id;
                arrive(&mut table, newcomer, v4((1_000 + id / 20) << 10), now);
                if let Some(begun) = newcomer.checked_sub(RATE / 2).filter(|it| *it >= 100_000) {
                    assert!(table.remove(begun, false), "{begun} was given up for others");
                }
            }
        }
        let unknown = v4(2_000 << 10).ip();
        assert!(table.load(unknown) < table.load(known(0).ip()));
    }

    #[test]
    fn a_crowd_has_to_prove_its_addresses() {
        let (mut table, now) = (Handshakes::new(), Instant::now());
        for id in 0..8 {
            assert_eq!(table.decide(v4(id).ip(), false, now), Admission::Accept);
            table.add(Some(id), v4(id), now);
        }
        assert_eq!(table.decide(v4(8).ip(), false, now), Admission::Retry);
        assert_eq!(table.decide(v4(8).ip(), true, now), Admission::Accept);
    }

    #[test]
    fn in_a_crowd_an_address_that_proves_nothing_waits_before_it_begins_again() {
        let (mut table, now) = (Handshakes::new(), Instant::now());
        table.add(Some(9_999), v4(0), now);
        assert!(table.remove(9_999, true));
        for id in 0..512 {
            assert_eq!(table.decide(v4(1).ip(), true, now), Admission::Accept, "no crowd yet");
            table.add(Some(id), v4(id % 256), now);
        }
        assert_eq!(table.decide(v4(1).ip(), true, now), Admission::Wait);
        assert_eq!(table.decide(v4(1).ip(), true, now + CROWD_PACE), Admission::Accept);
        assert_eq!(table.decide(v4(300).ip(), true, now), Admission::Accept, "its first");
        assert_eq!(
            table.decide(v4(0).ip(), true, now),
            Admission::Accept,
            "it proved a key before"
        );
    }

    #[test]
    fn a_handshake_that_has_failed_counts_until_it_would_have_timed_out() {
        let (mut table, now) = (Handshakes::new(), Instant::now());
        for id in 0..8 {
            table.add((id % 2 == 0).then_some(id), v4(1), now);
            table.fail(id);
        }
        assert_eq!(table.load(v4(1).ip()), [8, 8, 8]);
        assert_eq!(table.decide(v4(2).ip(), false, now), Admission::Retry);
        for id in 8..384 {
            assert_eq!(arrive(&mut table, id, v4(1), now), None);
        }
        assert_eq!(arrive(&mut table, 384, v4(1), now), None, "in the place of a failed one");
        assert_eq!(table.len(), 384);
        assert_eq!(table.overdue(now + HANDSHAKE_TIME), Some(8));
        assert_eq!(table.len(), 376);
    }

    #[test]
    fn finished_handshakes_leave_nothing_behind() {
        let (mut table, now) = (Handshakes::new(), Instant::now());
        for id in 0..10_000 {
            arrive(&mut table, id, v4(id), now);
        }
        for id in 0..10_000 {
            table.remove(id, id % 2 == 0);
        }
        assert!(table.by_network.is_empty() && table.by_key.is_empty() && table.len() == 0);
        assert!(table.unknown.is_empty() && table.known.is_empty());
        assert!(table.proved.len() <= networks::PROVED_MAX);
    }

    #[test]
    fn the_oldest_is_overdue_first() {
        let (mut table, now) = (Handshakes::new(), Instant::now());
        table.add(Some(1), v4(1), now);
        table.add(Some(2), v4(2), now + Duration::from_secs(1));
        assert_eq!(table.overdue(now + HANDSHAKE_TIME - Duration::from_millis(1)), None);
        assert_eq!(table.deadline(), Some(now + HANDSHAKE_TIME));
        assert_eq!(table.overdue(now + HANDSHAKE_TIME), Some(1));
        assert_eq!(table.overdue(now + HANDSHAKE_TIME), None);
    }
}
