//! Applies the rules of a network to each packet, answers some, and counts.
//!
//! Loops call it for each packet. The sessions of a peer share it, so that what one has begun, the
//! next one may answer.

use std::{
    borrow::Cow,
    hash::RandomState,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::Bytes;
use keypadd_network::{
    ANSWER_BYTES_MAX, Answers, DEVICE_HEADER_BYTES, Flows, HostAddresses, Packet, Problem, Reason,
    Rules, Shape, Signals, SuperPacket, Transport, clamp_mss,
};
use keypadd_transport::{Outbound, PacketFilter, PacketPath, Ruling};

use super::{NetworkCounts, NetworkRules};

/// What every link of IPv6 carries (RFC 8200 5): no sender is told less.
const IPV6_MTU_MIN: usize = 1_280;

/// The filter of one peer's networks.
#[derive(Debug)]
pub(super) struct Filter {
    peer: Arc<str>,
    mtu: u16,
    state: Mutex<State>,
    sent: Passed,
    received: Passed,
    fragmented: AtomicU64,
    too_big: AtomicU64,
    marked: AtomicU64,
    dropped: [AtomicU64; Reason::ALL.len()],
}

/// What decides.
#[derive(Debug)]
struct State {
    given: Option<NetworkRules>,
    /// Made from `given` and `host`.
    rules: Option<Rules<Arc<str>>>,
    /// Nothing passes until they are known.
    host: Option<Arc<HostAddresses>>,
    /// The device's addresses.
    own: Vec<IpAddr>,
    flows: Flows,
    answers: Answers,
}

/// Packets that have passed in one direction.
#[derive(Debug, Default)]
struct Passed {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Passed {
    fn add(&self, packets: u64, bytes: usize) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Filter {
    pub(super) fn new(peer: Arc<str>, mtu: u16) -> Self {
        let state = State {
            given: None,
            rules: None,
            host: None,
            own: Vec::new(),
            flows: Flows::new(RandomState::new(), Instant::now()),
            answers: Answers::new(Vec::new()),
        };
        Self {
            peer,
            mtu,
            state: Mutex::new(state),
            sent: Passed::default(),
            received: Passed::default(),
            fragmented: AtomicU64::default(),
            too_big: AtomicU64::default(),
            marked: AtomicU64::default(),
            dropped: Default::default(),
        }
    }

    pub(super) fn set_rules(&self, given: Option<NetworkRules>) {
        let mut state = self.state();
        state.given = given;
        state.make_rules(&self.peer);
    }

    pub(super) fn set_host(&self, host: Arc<HostAddresses>, own: Vec<IpAddr>) {
        let mut state = self.state();
        state.host = Some(host);
        state.make_rules(&self.peer);
        if state.own != own {
            state.answers = Answers::new(own.clone());
            state.own = own;
        }
    }

    pub(super) fn counts(&self) -> NetworkCounts {
        let count = |reason: &Reason| (*reason, self.dropped[*reason as usize].load(Relaxed));
        NetworkCounts {
            sent_packets: self.sent.packets.load(Relaxed),
            sent_bytes: self.sent.bytes.load(Relaxed),
            received_packets: self.received.packets.load(Relaxed),
            received_bytes: self.received.bytes.load(Relaxed),
            fragmented_packets: self.fragmented.load(Relaxed),
            too_big_answers: self.too_big.load(Relaxed),
            marked_packets: self.marked.load(Relaxed),
            dropped: Reason::ALL.iter().map(count).collect(),
        }
    }

    /// Reads a packet; counts it as dropped if it is malformed.
    fn parse<'a>(&self, packet: &'a [u8]) -> Option<Packet<'a>> {
        Packet::parse(packet).map_err(|malformed| self.drop_for(malformed.into(), 1)).ok()
    }

    fn drop_for(&self, reason: Reason, packets: u64) {
        self.dropped[reason as usize].fetch_add(packets, Relaxed);
    }

    /// The error for the sender of a packet that is dropped.
    fn refusal(
        state: &mut State,
        packet: &Packet<'_>,
        reason: Reason,
        now: Instant,
    ) -> Option<Bytes> {
        reason.problem().and_then(|problem| state.answer(packet, problem, now))
    }

    /// The largest packet that TCP connections are to send over this path.
    fn segment_mtu(&self, path: PacketPath) -> usize {
        match path.room {
            0 => self.mtu.into(),
            room => room.min(self.mtu.into()),
        }
    }

    /// A panic elsewhere leaves it as it is between two packets.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn make_rules(&mut self, peer: &Arc<str>) {
        self.rules = self.given.as_ref().zip(self.host.as_ref()).map(|(given, host)| {
            let (routes, permits) = (Arc::clone(&given.routes), given.permits.clone());
            Rules::new(Arc::clone(peer), routes, permits, Arc::clone(host))
        });
    }

    /// A packet for the sender of this one.
    fn answer(&mut self, packet: &Packet<'_>, problem: Problem, now: Instant) -> Option<Bytes> {
        let mut buffer = [0; ANSWER_BYTES_MAX];
        let answer = self.answers.answer(packet, problem, now, &mut buffer);
        answer.map(Bytes::copy_from_slice)
    }

    /// Whether this is one of the packets that carry the tunnel to where the peer is now.
    fn is_own(&self, packet: &Packet<'_>, remote: Option<SocketAddr>) -> bool {
        match (packet.transport(), remote) {
            (Transport::Udp(ports), Some(remote)) => {
                let to = SocketAddr::new(packet.destination(), ports.destination);
                to == remote && self.host.as_ref().is_some_and(|host| host.has(packet.source()))
            }
            _ => false,
        }
    }
}

impl PacketFilter for Filter {
    fn outbound(&self, frame: &mut [u8], path: PacketPath) -> Outbound {
        let shape = match Shape::read(frame) {
            Ok(shape) => shape,
            Err(malformed) => {
                self.drop_for(malformed.into(), 1);
                return Outbound::default();
            }
        };
        let (packets, packet) = (shape.packets as u64, &mut frame[DEVICE_HEADER_BYTES..]);
        let Some(parsed) = self.parse(packet) else { return Outbound::default() };
        let mut state = self.state();
        let state = &mut *state;
        if state.is_own(&parsed, path.remote) {
            self.drop_for(Reason::Loop, packets);
            return Outbound::default();
        }
        let verdict = match &state.rules {
            Some(rules) => rules.outbound(&parsed, &mut state.flows, path.now),
            None => Err(Reason::NoRoute),
        };
        if let Err(reason) = verdict {
            self.drop_for(reason, packets);
            let answer = Self::refusal(state, &parsed, reason, path.now);
            return Outbound { packets: None, answer };
        }
        let mut answer = None;
        let bytes = shape.packet_bytes_max;
        if path.room > 0 && bytes > path.room {
            if !shape.adapts() {
                self.fragmented.fetch_add(packets, Relaxed);
            }
            let least = if parsed.source().is_ipv6() { IPV6_MTU_MIN } else { 0 };
            // It goes in fragments all the same.
            if !parsed.may_fragment() && bytes > least {
                let problem = Problem::TooBig { mtu: path.room };
                answer = state.answer(&parsed, problem, path.now);
                self.too_big.fetch_add(u64::from(answer.is_some()), Relaxed);
            }
        }
        let is_syn = parsed.is_syn();
        self.sent.add(packets, packet.len());
        if is_syn {
            clamp_mss(packet, self.segment_mtu(path));
        }
        Outbound { packets: Some(SuperPacket::new(packet, shape)), answer }
    }

    fn inbound(&self, packet: &mut Cow<'_, [u8]>, path: PacketPath) -> Ruling {
        let Some(parsed) = self.parse(packet) else { return Ruling::DROP };
        let mut state = self.state();
        let state = &mut *state;
        let verdict = match &state.rules {
            Some(rules) => rules.inbound(&parsed, &mut state.flows, path.now),
            None => Err(Reason::Source),
        };
        if let Err(reason) = verdict {
            self.drop_for(reason, 1);
            let answer = Self::refusal(state, &parsed, reason, path.now);
            return Ruling { passes: false, answer };
        }
        if parsed.is_syn() {
            clamp_mss(packet.to_mut(), self.segment_mtu(path));
        }
        Ruling::PASS
    }

    fn delivered(&self, bytes: usize) {
        self.received.add(1, bytes);
    }

    fn refused_by_device(&self) {
        self.drop_for(Reason::Queue, 1);
    }

    fn signaled(&self, signals: Signals) {
        let Signals { dropped, marked } = signals;
        self.drop_for(Reason::Queue, dropped);
        self.marked.fetch_add(marked, Relaxed);
    }
}
