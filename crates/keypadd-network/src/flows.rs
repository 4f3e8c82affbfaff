//! Remembers the flows that began here, so that their answers pass.
//!
//! A flow is what joins two ports, the identifier of echo requests, or two hosts by another
//! protocol. The table is bounded: a new flow takes the place of the one unused for longest. The
//! caller passes the time, and the keys of the hash, since hosts choose their ports.

use std::{
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use hashbrown::HashTable;
use lru_slab::LruSlab;

use crate::packet::{TCP, Transport};

/// Flows of a peer that are remembered.
pub(crate) const FLOWS_MAX: u32 = 65_536;

/// How long a flow of TCP without packets is remembered: that long is a connection silent before
/// hosts send keep-alives (RFC 1122 4.2.3.6, RFC 5382 5).
pub(crate) const TCP_IDLE_MAX: Duration = Duration::from_secs(2 * 3600);

/// How long another flow without packets is remembered (RFC 4787 4.3).
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(2 * 60);

/// The flows of one peer that began here.
#[derive(Debug)]
pub struct Flows {
    /// The place of each flow, by its key.
    index: HashTable<u32>,
    flows: LruSlab<Flow>,
    hasher: RandomState,
    /// What the times of flows count from.
    start: Instant,
}

#[derive(Debug)]
struct Flow {
    key: FlowKey,
    /// When its last packet passed, in seconds.
    used: u32,
}

/// What tells a flow from others. IPv4 addresses are in IPv4-mapped form, which no packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    here: Ipv6Addr,
    there: Ipv6Addr,
    port_here: u16,
    port_there: u16,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Tcp,
    Udp,
    /// Echo requests from here. The identifier is the port here.
    Echo,
    /// Another protocol, without ports.
    Protocol(u8),
    /// Later fragments, which have no ports: joins two hosts that have a flow of this protocol.
    Later(u8),
}

/// The hosts at both ends of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hosts {
    pub(crate) here: IpAddr,
    pub(crate) there: IpAddr,
}

impl Hosts {
    fn key(self, (port_here, port_there): (u16, u16), kind: Kind) -> FlowKey {
        let [here, there] = [self.here, self.there].map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        });
        FlowKey { here, there, port_here, port_there, kind }
    }

    /// The flow that a packet from here begins or continues; `None` if it begins nothing.
    pub(crate) fn begun_by(self, transport: Transport) -> Option<FlowKey> {
        Some(match transport {
            Transport::Tcp { ports, .. } => self.key((ports.source, ports.destination), Kind::Tcp),
            Transport::Udp(ports) => self.key((ports.source, ports.destination), Kind::Udp),
            Transport::EchoRequest(id) => self.key((id, 0), Kind::Echo),
            Transport::Other(protocol) => self.key((0, 0), Kind::Protocol(protocol)),
            Transport::EchoReply(_)
            | Transport::IcmpError
            | Transport::OtherIcmp
            | Transport::LinkIcmp
            | Transport::Later(_) => return None,
        })
    }

    /// The flow that a packet to here answers; `None` if it is no answer.
    pub(crate) fn answered_by(self, transport: Transport) -> Option<FlowKey> {
        Some(match transport {
            // It begins a connection, also from the port of one that there was.
            Transport::Tcp { syn: true, ack: false, .. } => return None,
            Transport::Tcp { ports, .. } => self.key((ports.destination, ports.source), Kind::Tcp),
            Transport::Udp(ports) => self.key((ports.destination, ports.source), Kind::Udp),
            Transport::EchoReply(id) => self.key((id, 0), Kind::Echo),
            Transport::Other(protocol) => self.key((0, 0), Kind::Protocol(protocol)),
            Transport::Later(protocol) => self.key((0, 0), Kind::Later(protocol)),
            Transport::EchoRequest(_)
            | Transport::IcmpError
            | Transport::OtherIcmp
            | Transport::LinkIcmp => return None,
        })
    }

    /// What lets later fragments of this protocol pass between the hosts.
    fn later(self, protocol: u8) -> FlowKey {
        self.key((0, 0), Kind::Later(protocol))
    }
}

impl FlowKey {
    fn idle_max(&self) -> Duration {
        match self.kind {
            Kind::Tcp | Kind::Later(TCP) => TCP_IDLE_MAX,
            Kind::Udp | Kind::Echo | Kind::Protocol(_) | Kind::Later(_) => IDLE_MAX,
        }
    }
}

impl Flows {
    /// An empty table, which takes memory as flows begin.
    pub fn new(hasher: RandomState, now: Instant) -> Self {
        Self { index: HashTable::new(), flows: LruSlab::new(), hasher, start: now }
    }

    /// How many flows are remembered, with one for each pair of hosts and protocol that fragments
    /// may come from.
    pub fn len(&self) -> u32 {
        self.flows.len()
    }

    /// Whether no flow is remembered.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Remembers a flow, of which a packet leaves now. If it is new, later fragments between its
    /// hosts pass from now on, too.
    pub(crate) fn begin(&mut self, hosts: Hosts, key: FlowKey, protocol: u8, now: Instant) {
        if !self.use_flow(&key, now) {
            self.insert(key, now);
            self.allow_later(hosts, protocol, now);
        }
    }

    /// Lets later fragments between two hosts pass.
    pub(crate) fn allow_later(&mut self, hosts: Hosts, protocol: u8, now: Instant) {
        let key = hosts.later(protocol);
        if !self.use_flow(&key, now) {
            self.insert(key, now);
        }
    }

    /// Whether this flow is remembered. If so, it has been used now.
    pub(crate) fn use_flow(&mut self, key: &FlowKey, now: Instant) -> bool {
        let seconds = self.seconds(now);
        let hash = self.hasher.hash_one(key);
        let flows = &mut self.flows;
        let Ok(entry) = self.index.find_entry(hash, |at| flows.peek(*at).key == *key) else {
            return false;
        };
        let at = *entry.get();
        let flow = flows.get_mut(at);
        let idle = Duration::from_secs(seconds.saturating_sub(flow.used).into());
        flow.used = seconds;
        if idle > key.idle_max() {
            entry.remove();
            flows.remove(at);
            return false;
        }
        true
    }

    /// Remembers a flow that is not in the table.
    fn insert(&mut self, key: FlowKey, now: Instant) {
        if self.flows.len() >= FLOWS_MAX {
            self.forget_oldest();
        }
        let used = self.seconds(now);
        let at = self.flows.insert(Flow { key, used });
        let (flows, hasher) = (&self.flows, &self.hasher);
        let hash = |at: &u32| hasher.hash_one(flows.peek(*at).key);
        self.index.insert_unique(hasher.hash_one(key), at, hash);
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.flows.lru() else { return };
        let hash = self.hasher.hash_one(self.flows.peek(oldest).key);
        if let Ok(entry) = self.index.find_entry(hash, |at| *at == oldest) {
            entry.remove();
        }
        self.flows.remove(oldest);
    }

    fn seconds(&self, now: Instant) -> u32 {
        let seconds = now.saturating_duration_since(self.start).as_secs();
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Ports, UDP};

    const HOSTS: Hosts = Hosts {
        here: IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 5)),
        there: IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 9)),
    };

    fn flow(transport: Transport) -> FlowKey {
        HOSTS.begun_by(transport).unwrap()
    }

    fn udp(port: u16) -> FlowKey {
        flow(Transport::Udp(Ports { source: port, destination: 53 }))
    }

    fn tcp() -> FlowKey {
        let ports = Ports { source: 50_000, destination: 22 };
        flow(Transport::Tcp { ports, syn: true, ack: false })
    }

    fn flows() -> (Flows, Instant) {
        let start = Instant::now();
        (Flows::new(RandomState::new(), start), start)
    }

    #[test]
    fn an_entry_takes_less_than_56_bytes() {
        assert!(size_of::<Option<Flow>>() + 2 * size_of::<u32>() < 56);
    }

    #[test]
    fn the_flow_unused_for_longest_makes_room_for_a_new_one() {
        let (mut flows, now) = flows();
        // One entry of the hosts, for later fragments.
        let room = u16::try_from(FLOWS_MAX - 1).unwrap();
        (0..room).for_each(|port| flows.begin(HOSTS, udp(port), UDP, now));
        assert_eq!(flows.len(), FLOWS_MAX);
        assert!(flows.use_flow(&udp(0), now));
        // Two entries, one of them for later fragments of TCP.
        flows.begin(HOSTS, tcp(), TCP, now);
        assert_eq!(flows.len(), FLOWS_MAX);
        let mut is_known = |key: FlowKey| flows.use_flow(&key, now);
        assert!(is_known(tcp()) && is_known(udp(0)) && is_known(udp(3)));
        assert!(!is_known(udp(1)) && !is_known(udp(2)));
        assert!(is_known(HOSTS.later(UDP)), "each new flow has used it");
    }

    #[test]
    fn a_flow_is_forgotten_when_it_was_idle_for_its_time() {
        let (mut flows, start) = flows();
        let second = Duration::from_secs(1);
        for (key, protocol, idle) in [(tcp(), TCP, TCP_IDLE_MAX), (udp(1), UDP, IDLE_MAX)] {
            flows.begin(HOSTS, key, protocol, start);
            assert!(flows.use_flow(&key, start + idle));
            assert!(flows.use_flow(&key, start + 2 * idle), "it was used meanwhile");
            assert!(!flows.use_flow(&key, start + 3 * idle + second));
            assert!(!flows.use_flow(&key, start + 3 * idle + second), "it is gone");
            flows.begin(HOSTS, key, protocol, start + 4 * idle);
            assert!(flows.use_flow(&key, start + 4 * idle));
        }
    }

    #[test]
    fn more_flows_than_the_table_has_take_no_more_memory() {
        let (mut flows, now) = flows();
        for there in 0..2u8 {
            let there = IpAddr::from([10, 2, 0, there]);
            let hosts = Hosts { there, ..HOSTS };
            for source in 0..u16::MAX {
                let ports = Ports { source, destination: 53 };
                let key = hosts.begun_by(Transport::Udp(ports)).unwrap();
                flows.begin(hosts, key, UDP, now);
            }
        }
        assert_eq!(flows.len(), FLOWS_MAX);
        assert_eq!(flows.index.len(), FLOWS_MAX as usize);
        assert_eq!(flows.flows.capacity(), FLOWS_MAX);
    }

    #[test]
    fn families_and_protocols_do_not_meet() {
        let v6 = Hosts { here: "fd00::1".parse().unwrap(), there: "fd00::2".parse().unwrap() };
        let ports = Ports { source: 1, destination: 2 };
        let keys = [
            flow(Transport::Udp(ports)),
            flow(Transport::Tcp { ports, syn: true, ack: false }),
            flow(Transport::EchoRequest(1)),
            flow(Transport::Other(17)),
            HOSTS.later(17),
            v6.begun_by(Transport::Udp(ports)).unwrap(),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| one != other), "{one:?}");
        }
    }
}
