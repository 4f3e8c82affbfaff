//! Checks packet keys: whatever is asked of the keys of a connection whose client has a pool and whose server has
//! none, a number is sealed once in all phases, what cannot be sealed is zeros, what was sealed opens once
//! and unchanged at the other end (so pooled pads are inline pads), and nothing else opens.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::BytesMut;
use keypadd_keystream::{PAYLOAD_BYTES_MAX, SEGMENT_PACKETS, Suite, TAG_BYTES};
use keypadd_pool::{Direction, Filler, Pool, PoolSettings, Step};
use keypadd_provider::{ConnectionKeys, HandshakeData, KeyExchange, Meters, PoolSwitch};
use quinn_proto::crypto::{KeyPair, PacketKey, Session};

use super::input::Input;
use super::sessions::{sessions, shake_hands};

/// Room for the lanes of both directions, heads and bodies.
const POOL_BYTES: usize = 1 << 20;
/// Numbers below the newest that a receiver may still open (docs/argument.md, step 17).
const WINDOW_PACKETS: u64 = 1984;
/// Sealed packets that are kept for opening.
const KEPT_PACKETS: usize = 64;
/// A pad of zeros leaves plaintext; shorter pieces are equal by chance.
const PLAINTEXT_BYTES: usize = 8;

/// A packet that was sealed.
struct Packet {
    phase: u64,
    number: u64,
    header: Vec<u8>,
    payload: Vec<u8>,
    sealed: Vec<u8>,
}

/// One direction: the keys of its live phases, and what they must do.
#[derive(Default)]
struct Way {
    seals: BTreeMap<u64, Box<dyn PacketKey>>,
    opens: BTreeMap<u64, Box<dyn PacketKey>>,
    packets: Vec<Packet>,
    /// The lowest number that may be sealed, in any phase.
    next: u64,
    is_poisoned: bool,
    opened: HashSet<u64>,
    newest: Option<u64>,
}

impl Way {
    /// Seals a packet, or sees that it becomes zeros; returns whether a number was repeated.
    fn seal(&mut self, current: u64, phase: u64, number: u64, header: &[u8], bytes: usize) -> bool {
        let Some(key) = self.seals.get(&phase) else { return false };
        let payload: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 256) as u8 | 1).collect();
        let mut packet = [header, &payload, &[0x55; TAG_BYTES]].concat();
        key.encrypt(number, &mut packet, header.len());
        assert_eq!(&packet[..header.len()], header, "headers stay readable");
        let sealed = packet.split_off(header.len());

        let fits = !self.is_poisoned && bytes <= PAYLOAD_BYTES_MAX;
        let is_repeated = fits && number < self.next;
        let is_sound = fits && !is_repeated && number < u64::MAX;
        if is_sound {
            self.next = number + 1;
        }
        if !is_sound || phase < current {
            assert!(sealed.iter().all(|byte| *byte == 0), "{number} was sealed");
            self.is_poisoned = true;
            return is_repeated;
        }
        let pieces =
            payload.chunks_exact(PLAINTEXT_BYTES).zip(sealed.chunks_exact(PLAINTEXT_BYTES));
        assert!(pieces.into_iter().all(|(plain, sealed)| plain != sealed), "plaintext in {number}");
        if self.packets.len() == KEPT_PACKETS {
            self.packets.remove(0);
        }
        self.packets.push(Packet { phase, number, header: header.to_vec(), payload, sealed });
        false
    }

    /// Opens a packet that was sealed, and sees that this happens once at most.
    fn open(&mut self, nth: usize) {
        let Some(nth) = nth.checked_rem(self.packets.len()) else { return };
        let Packet { phase, number, header, payload, sealed } = &self.packets[nth];
        let Some(key) = self.opens.get(phase) else { return };
        let opened = open(&**key, *number, header, sealed);
        let is_old =
            self.newest.is_some_and(|newest| newest - number.min(&newest) >= WINDOW_PACKETS);
        if is_old || self.opened.contains(number) {
            assert!(opened.is_none(), "{number} was opened again");
            return;
        }
        assert!(opened.as_ref() == Some(payload), "{number} does not open to what was sealed");
        self.opened.insert(*number);
        self.newest = self.newest.max(Some(*number));
    }

    /// Changes a packet that was sealed in one way, and sees that it is refused.
    fn forge(&self, nth: usize, input: &mut Input<'_>) {
        let Some(nth) = nth.checked_rem(self.packets.len()) else { return };
        let Packet { phase, number, header, sealed, .. } = &self.packets[nth];
        let (mut phase, mut number) = (*phase, *number);
        let (mut header, mut sealed) = (header.clone(), sealed.clone());
        let way = input.byte().unwrap_or(0);
        let at = input.short().unwrap_or(0);
        match way % 6 {
            0 => {
                let bytes = sealed.len();
                sealed[at / 8 % bytes] ^= 1 << (at % 8);
            }
            1 if header.is_empty() => header.push(way),
            1 => {
                let bytes = header.len();
                header[at / 8 % bytes] ^= 1 << (at % 8);
            }
            2 => sealed.truncate(at % sealed.len()),
            3 => sealed.push(way),
            4 => number = number.wrapping_add(1 << (at % 64)),
            _ => phase = phase.wrapping_add(1),
        }
        if let Some(key) = self.opens.get(&phase) {
            assert!(
                open(&**key, number, &header, &sealed).is_none(),
                "a forgery of {number}, {way}"
            );
        }
    }

    /// Opens what nobody sealed.
    fn open_noise(&self, number: u64, input: &mut Input<'_>) {
        let bytes = input.byte().map_or(0, usize::from);
        let noise = input.bytes(bytes);
        for key in self.opens.values() {
            assert!(open(&**key, number, b"header", noise).is_none(), "noise opens");
        }
    }

    /// A number to seal, near those sealed or far from them.
    fn number(&self, input: &mut Input<'_>) -> u64 {
        let next = self.next;
        let segment = SEGMENT_PACKETS as u64;
        match input.byte().unwrap_or(0) {
            kind @ 0..192 => next.saturating_add(u64::from(kind).saturating_sub(160)),
            kind @ 192..224 => next.saturating_sub(u64::from(kind - 192)),
            kind @ 224..232 => (next / segment + u64::from(kind - 224)).saturating_mul(segment),
            kind @ 232..254 => next.saturating_add(1 << (3 * (kind - 232))),
            254 => (1 << 62) - 1,
            _ => u64::MAX,
        }
    }
}

fn open(key: &dyn PacketKey, number: u64, header: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let mut payload = BytesMut::from(sealed);
    key.decrypt(number, header, &mut payload).ok().map(|()| payload.to_vec())
}

/// Both ends of a connection, with the keys that quinn would hold and those that it has just dropped.
struct Connection {
    sessions: [Box<dyn Session>; 2],
    views: [ConnectionKeys; 2],
    /// Packets of the client, and of the server.
    ways: [Way; 2],
    current: u64,
    pool: Pool,
    switch: PoolSwitch,
    filler: Filler,
    now: Duration,
    meters: Arc<Meters>,
}

impl Connection {
    fn new(suite: Suite) -> Self {
        let settings = PoolSettings { budget_bytes: POOL_BYTES };
        let (pool, filler) = Pool::with_filler(settings).expect("memory");
        let (switch, meters) = (PoolSwitch::new(Some(pool.clone())), Arc::new(Meters::default()));
        let mut sessions =
            sessions(suite.into(), KeyExchange::X25519.into(), switch.clone(), &meters);
        let keys = shake_hands(&mut sessions);
        let views = sessions.each_ref().map(|session| {
            let data = session.handshake_data().expect("the handshake is complete");
            data.downcast::<HandshakeData>().expect("ours").keys
        });
        let (ways, now) = (Default::default(), Duration::ZERO);
        let mut connection =
            Self { sessions, views, ways, current: 0, pool, switch, filler, now, meters };
        connection.add(0, keys.map(|keys| keys.packet));
        connection.derive();
        connection
    }

    fn add(&mut self, phase: u64, [client, server]: [KeyPair<Box<dyn PacketKey>>; 2]) {
        let [upward, downward] = &mut self.ways;
        upward.seals.insert(phase, client.local);
        downward.opens.insert(phase, client.remote);
        downward.seals.insert(phase, server.local);
        upward.opens.insert(phase, server.remote);
    }

    /// Derives the keys of the phase after the current one, as quinn does as soon as that comes into use.
    fn derive(&mut self) {
        let keys = self.sessions.each_mut().map(|session| session.next_1rtt_keys());
        self.add(self.current + 1, keys.map(|keys| keys.expect("1-RTT keys")));
    }

    /// Updates the keys. Those of the past phase stay, to be asked for what they must not do.
    fn update(&mut self) {
        self.current += 1;
        self.derive();
        for way in &mut self.ways {
            way.seals.retain(|phase, _| phase + 1 >= self.current);
            way.opens.retain(|phase, _| phase + 1 >= self.current);
        }
    }

    fn step(&mut self, operation: u8, input: &mut Input<'_>) -> Option<()> {
        let way = &mut self.ways[usize::from(operation & 1)];
        match operation >> 1 & 15 {
            0..6 => {
                let (number, length) = (way.number(input), input.short()?);
                let phase = match operation >> 5 {
                    0 => self.current.saturating_sub(1),
                    1 => self.current + 1,
                    _ => self.current,
                };
                let bytes = match length {
                    0xffff => PAYLOAD_BYTES_MAX + 1,
                    0xfffe => PAYLOAD_BYTES_MAX,
                    _ => length % 1500,
                };
                let header = &b"a short header of forty bytes, or fewer."[..length % 41];
                let reuse = self.meters.pad_reuse();
                let is_repeated = way.seal(self.current, phase, number, header, bytes);
                let is_counted = self.meters.pad_reuse() > reuse;
                assert_eq!(is_counted, is_repeated && operation & 1 == 0, "{number}");
            }
            6..10 => way.open(input.byte()?.into()),
            10..12 => {
                let levels = self.levels();
                let nth = input.byte()?.into();
                self.ways[usize::from(operation & 1)].forge(nth, input);
                assert_eq!(self.levels(), levels, "a forgery has cost keystream");
            }
            12 => {
                let number = way.number(input);
                way.open_noise(number, input);
            }
            13 => self.fill(input.byte()?),
            14 if operation >> 5 == 0 => {
                self.switch.set(input.byte()?.is_multiple_of(2).then(|| self.pool.clone()));
            }
            14 => {
                let past = self.current.saturating_sub(1);
                way.opens.retain(|phase, _| *phase != past);
            }
            _ => self.update(),
        }
        Some(())
    }

    /// The client's pads for packets to come and to open.
    fn levels(&self) -> [[u64; 2]; 2] {
        [Direction::Send, Direction::Receive].map(|direction| {
            let status = self.views[0].status(direction);
            [status.head.packets, status.body.packets]
        })
    }

    fn fill(&mut self, chunks: u8) {
        self.now += Duration::from_millis(u64::from(chunks));
        for _ in 0..chunks % 32 {
            if self.filler.step(self.now) != Step::Worked {
                return;
            }
        }
    }
}

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(kind) = input.byte().map(usize::from) else { return };
    let mut connection = Connection::new(Suite::ALL[kind % Suite::ALL.len()]);
    while let Some(operation) = input.byte() {
        if connection.step(operation, &mut input).is_none() {
            break;
        }
    }
    for (view, way) in connection.views.iter().zip(&connection.ways) {
        let fault = pin!(view.fault()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(
            fault.is_ready(),
            way.is_poisoned,
            "a fault is latched if, and only if, one was"
        );
    }
}
