//! Model-checks held streams: runs both ends through random but repeatable schedules of losses,
//! renewals, late receipts, crashes, replaced processes and token theft, and compares every byte.
//!
//! The shipped code makes the decisions: the tokens ([`Lineages`], [`ClientHold`]), the frames, the
//! claims, the receipts and the replay buffers. Sockets and connections are queues: a connection
//! delivers in order, and loses the tail of what is in transit. `KEYPADD_SCHEDULES=100000 cargo
//! test -p keypadd-tunnel hold::model` runs that many schedules.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use keypadd_provider::{PrivateKey, PublicKey, SESSION_TOKEN_BYTES};
use keypadd_transport::{Receipt, Replay, StreamName};

use super::{
    claims::Claims,
    held_list::HeldList,
    lineage::{Effect, Event},
    lineages::{Admitted, Away, ClientKey, Lineages},
    *,
};
use crate::{
    limits::places::Places,
    wire::{
        Claim, FRAME_HEAD_BYTES, Frame, Instance, STREAM_HEAD_BYTES, StreamHead, StreamHeader,
        VERSION,
    },
};

/// Schedules in a plain `cargo test`.
const SCHEDULES: u64 = 3_000;

const STREAMS: usize = 3;
const STEPS: usize = 160;
const HOLD: Duration = Duration::from_secs(600);

struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// One direction of one stream.
struct Direction {
    seed: u64,
    total: u64,
    /// Bytes taken from the sender's socket.
    read: u64,
    /// `None` once the receiver has everything.
    replay: Option<Replay>,
    /// What the receiver's socket has taken.
    given: Receipt,
    /// In transit on this connection: bytes, whether the end follows, and receipts.
    wire: VecDeque<u8>,
    wire_end: bool,
    receipts: VecDeque<u64>,
    /// Receipts of earlier connections that may still arrive.
    late: Vec<u64>,
}

impl Direction {
    fn byte(&self, offset: u64) -> u8 {
        ((self.seed ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8
    }

    fn send(&mut self, random: &mut Random) {
        let Some(replay) = &mut self.replay else { return };
        if replay.has_ended() {
            return;
        }
        if self.read == self.total {
            replay.finish();
            self.wire_end = true;
            return;
        }
        let most = (replay.room() as u64).min(self.total - self.read);
        let count = (1 + random.below(2_000)).min(most);
        let piece: Vec<_> = (self.read..self.read + count).map(|at| self.byte(at)).collect();
        self.wire.extend(&piece);
        self.read += count;
        if let Some(replay) = &mut self.replay {
            replay.push(&Bytes::from(piece));
        }
    }

    fn deliver(&mut self, most: u64) {
        for _ in 0..most {
            let Some(byte) = self.wire.pop_front() else { break };
            assert!(!self.given.end, "a byte after the end");
            assert_eq!(byte, self.byte(self.given.bytes), "lost, doubled or reordered");
            self.given.bytes += 1;
        }
        if self.wire.is_empty() && self.wire_end {
            assert_eq!(self.given.bytes, self.total, "an end before its time");
            self.given.end = true;
        }
    }

    fn take_receipt(&mut self, receipt: Option<u64>) {
        let (Some(receipt), Some(replay)) = (receipt, &mut self.replay) else { return };
        if replay.release(Receipt::decode(receipt)).expect("an honest receipt") {
            self.replay = None;
        }
    }

    /// The connection is lost: the receiver still gets the beginning of what was in transit.
    fn lose(&mut self, random: &mut Random) {
        let kept = random.below(self.wire.len() as u64 + 1) as usize;
        self.wire_end &= kept == self.wire.len() && random.one_in(2);
        self.wire.truncate(kept);
        self.late.extend(self.receipts.drain(..));
    }

    /// No connection carries it any more.
    fn park(&mut self, random: &mut Random) {
        self.lose(random);
        self.deliver(random.below(3_000));
        (self.wire, self.wire_end) = (VecDeque::new(), false);
    }

    /// The sender learns on another connection what the receiver has.
    fn resume(&mut self, receipt: Receipt) {
        self.wire_end = match &mut self.replay {
            Some(replay) => {
                let again = replay.resume(receipt).expect("an honest receipt");
                self.wire.extend(again.into_iter().flatten());
                replay.has_ended()
            }
            None => true,
        };
        self.take_receipt(Some(receipt.encode()));
    }

    fn is_over(&self) -> bool {
        self.replay.is_none() && self.given.end
    }
}

/// Two ends, their streams, and a clock.
struct World {
    random: Random,
    now: Instant,
    lineages: Lineages,
    client: ClientHold,
    keys: [PublicKey; 2],
    instance: Instance,
    /// The server's session, and whether the client knows it.
    session: Option<SessionHold>,
    connected: bool,
    /// Whether the server has the streams, and when it gives them up, while they are held.
    has_streams: bool,
    until: Option<Instant>,
    /// Up and down.
    streams: Vec<[Direction; 2]>,
    /// Whether this connection carries them, at the client and at the server.
    attached: Vec<[bool; 2]>,
    list: HeldList,
    resumed: usize,
    renewed: usize,
}

impl World {
    fn new(seed: u64, keys: [PublicKey; 2]) -> Self {
        let settings = settings();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let budgets = [(); 2].map(|()| settings.budget(&Arc::default()));
        let mut direction = |stream: usize, way: usize| Direction {
            seed: seed ^ (stream * 2 + way) as u64,
            total: random.below(30_000),
            read: 0,
            replay: Some(Replay::new(Arc::clone(&budgets[way]))),
            given: Receipt::default(),
            wire: VecDeque::new(),
            wire_end: false,
            receipts: VecDeque::new(),
            late: Vec::new(),
        };
        let streams = (0..STREAMS).map(|at| [direction(at, 0), direction(at, 1)]).collect();
        let mut world = Self {
            random,
            now: Instant::now(),
            lineages: Lineages::default(),
            client: ClientHold::new(settings, &Arc::default()),
            keys,
            instance: Instance([1; 16]),
            session: None,
            connected: false,
            has_streams: false,
            until: None,
            streams,
            attached: vec![[true; 2]; STREAMS],
            list: HeldList::default(),
            resumed: 0,
            renewed: 0,
        };
        // The first session carries the streams from their beginning.
        assert!(!world.hello());
        world.has_streams = true;
        world.confirm();
        world
    }

    fn client_key(&self) -> ClientKey {
        (self.keys[0], self.instance)
    }

    /// A new connection of the client with this key.
    fn channel(&mut self, client: PublicKey) -> Channel {
        let mut bytes = || std::array::from_fn(|_| self.random.below(256) as u8);
        let (token, binding): ([u8; SESSION_TOKEN_BYTES], _) = (bytes(), bytes());
        Channel::new(SessionToken::from_bytes(&token), binding, client, self.keys[1])
    }

    /// The server gets the hello of a client over this connection.
    fn admit(
        &mut self,
        by: ClientKey,
        hold: Option<HoldRequest>,
        channel: &Channel,
    ) -> Option<Admitted> {
        let hello = Frame::HelloClient { version: VERSION, instance: by.1, hold };
        let Frame::HelloClient { hold, .. } = over_the_wire(hello) else { panic!("a hello") };
        self.lineages.hello(by, hold, &settings(), channel, &Places::new(8), self.now)
    }

    /// The client connects and gets an answer; returns whether the streams continue.
    fn hello(&mut self) -> bool {
        let channel = self.channel(self.keys[0]);
        let last = self.client.token();
        let admitted = self.greet(&channel).expect("both ends hold");
        let frame = Frame::HelloServer { version: VERSION, hold: Some(admitted.grant), home: None };
        let Frame::HelloServer { hold: Some(grant), .. } = over_the_wire(frame) else {
            panic!("a hello")
        };
        let claim = HoldGrant { proof: Some([1; 32]), ..grant.clone() };
        let verify = |grant| Granted::verified(grant, &channel, self.instance, last.as_ref());
        assert!(verify(claim).is_err(), "a server goes on that has no token");
        let granted = verify(grant).expect("an honest server");
        let resumed = granted.is_resumed();
        let (session, _) = self.client.granted(Some(granted));
        assert_eq!(session.map(|it| it.epoch), self.session.as_ref().map(|it| it.epoch));
        self.connected = true;
        resumed
    }

    /// The server gets the client's hello, which ends any session it had with the client.
    fn greet(&mut self, channel: &Channel) -> Option<Admitted> {
        let hold = self.client.request(channel, self.instance, self.client.token().as_ref());
        let admitted = self.admit(self.client_key(), hold, channel)?;
        // At any step, the client can resume and nobody else can.
        self.has_streams &= self.until.is_none_or(|until| self.now < until);
        assert_eq!(admitted.grant.proof.is_some(), self.has_streams);
        (self.session, self.until) = (Some(admitted.hold.clone()), None);
        Some(admitted)
    }

    fn confirm(&mut self) {
        if let Some(session) = &self.session {
            let event = Event::Claims { epoch: session.epoch };
            self.lineages.step(&self.client_key(), event, None, self.now);
        }
    }

    /// The connection is lost, and both ends notice.
    fn lose(&mut self) {
        self.park();
        self.server_notices(true);
    }

    /// No connection carries the streams any more.
    fn park(&mut self) {
        self.connected = false;
        for stream in &mut self.streams {
            for direction in stream {
                direction.park(&mut self.random);
            }
        }
        self.attached.fill([false; 2]);
    }

    /// The client makes another connection, for new keys, while this one is up.
    fn renew(&mut self) {
        self.steal();
        match self.random.below(6) {
            // The new connection is refused, or does not get through: this one continues.
            0 => return,
            // The server has ended this session, but its answer does not arrive.
            1 => {
                let channel = self.channel(self.keys[0]);
                self.greet(&channel);
                self.park();
                let held = self.random.one_in(2);
                self.server_notices(held);
                return;
            }
            _ => assert!(self.hello(), "a live session is resumed"),
        }
        self.park();
        self.connected = true;
        if self.claim_all() {
            self.renewed += 1;
        }
    }

    fn server_notices(&mut self, held: bool) {
        let Some(session) = self.session.take() else { return };
        let listed = self.list.add("client", &session.streams, HOLD);
        let away = Away { place: None, _listed: listed, _over: oneshot() };
        let SessionHold { epoch, time, .. } = session;
        let event = if held { Event::Lost { epoch, time } } else { Event::Closed { epoch, time } };
        let (effect, _) = self.lineages.step(&self.client_key(), event, Some(away), self.now);
        self.until = match effect {
            Effect::Hold(until) => Some(until),
            _ => None,
        };
        let held = self.until.is_some_and(|until| until <= self.now + HOLD);
        assert!(held || !self.has_streams, "it is not held");
    }

    /// Attempts to come back, each of which may be cut short anywhere. Returns whether the streams
    /// continue, perhaps in part; `None` if nothing is decided yet.
    fn reconnect(&mut self) -> Option<bool> {
        self.now += Duration::from_millis(self.random.below(4_000));
        self.steal();
        match self.random.below(6) {
            // There is no path.
            0 => return None,
            // The answer does not arrive, and the client closes the attempt, or falls silent.
            1 => {
                let channel = self.channel(self.keys[0]);
                self.greet(&channel);
                let held = self.random.one_in(2);
                self.server_notices(held);
                return None;
            }
            _ => {}
        }
        if !self.hello() {
            return Some(false);
        }
        self.claim_all().then_some(true)
    }

    /// The client claims its streams; returns whether the connection lasted that long.
    fn claim_all(&mut self) -> bool {
        if self.random.one_in(8) {
            // Lost before the client confirms: it has the new token, and the server both.
            self.lose();
            return false;
        }
        self.confirm();
        let claims = Claims::default();
        claims.expect(STREAMS as u32);
        for at in 0..STREAMS {
            let lost_at = self.random.below(12);
            if lost_at == 0 {
                self.lose();
                return false;
            }
            self.claim(at, lost_at != 1);
            claims.answered(None);
            if lost_at == 1 {
                self.lose();
                return false;
            }
        }
        self.resumed += 1;
        true
    }

    /// The client claims a stream; the server's answer may be lost.
    fn claim(&mut self, at: usize, answered: bool) {
        let [up, down] = &mut self.streams[at];
        let name = StreamName { epoch: 0, stream: 4 * at as u64 };
        let sent = StreamHeader::Resume(Claim { name, receipt: down.given }).encode();
        let (head, rest) = sent.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
        let header = StreamHead::decode(*head).unwrap().header(rest).unwrap();
        let StreamHeader::Resume(claim) = header else { panic!("{header:?}") };
        assert_eq!(claim.name, name);
        let answer = Receipt::decode(up.given.encode());
        down.resume(claim.receipt);
        self.attached[at][1] = true;
        if answered {
            up.resume(answer);
            self.attached[at][0] = true;
        }
    }

    /// A new process of the server continues.
    fn replace_server(&mut self) {
        let lineages = Lineages::default();
        for handed in self.lineages.hand_over(self.now).expect("descriptors") {
            let record = &handed.record;
            let client = (record.key.parse().expect("its key"), Instance(record.instance));
            let list = self.list.clone();
            let away = |streams: &HeldStreams| {
                let listed = list.add("client", streams, HOLD);
                Away { place: None, _listed: listed, _over: oneshot() }
            };
            lineages.adopt(client, record, &settings(), &Places::new(8), away, self.now);
        }
        self.lineages = lineages;
    }

    /// A new process of the client continues.
    fn replace_client(&mut self) {
        let client = ClientHold::new(settings(), &Arc::default());
        client.adopt(self.client.hand_over());
        self.client = client;
    }

    /// Others try the client's proof and its token: another key and another instance of the same
    /// key, on the client's connection and on another.
    fn steal(&mut self) {
        if !self.random.one_in(4) {
            return;
        }
        let channel = self.channel(self.keys[0]);
        let hold = self.client.request(&channel, self.instance, self.client.token().as_ref());
        for thief in [(self.keys[1], self.instance), (self.keys[0], Instance([9; 16]))] {
            let other = self.channel(thief.0);
            let with_token = self.client.request(&other, thief.1, self.client.token().as_ref());
            for (hold, channel) in [(&hold, &channel), (&hold, &other), (&with_token, &other)] {
                let admitted = self.admit(thief, hold.clone(), channel);
                let admitted = admitted.expect("it is a client like others");
                assert!(admitted.grant.proof.is_none(), "somebody else resumed");
                let event = Event::GivenUp { epoch: admitted.hold.epoch };
                self.lineages.step(&thief, event, None, self.now);
            }
        }
    }

    fn step(&mut self) {
        let (at, way) = (self.random.below(STREAMS as u64) as usize, self.random.below(2) as usize);
        let (sends, receives) = (self.attached[at][way], self.attached[at][1 - way]);
        let direction = &mut self.streams[at][way];
        match self.random.below(8) {
            0..3 if sends => direction.send(&mut self.random),
            3..5 if receives => direction.deliver(self.random.below(3_000)),
            5 if receives => direction.receipts.push_back(direction.given.encode()),
            6 if sends => {
                let receipt = direction.receipts.pop_front();
                direction.take_receipt(receipt);
            }
            7 if !direction.late.is_empty() => {
                let nth = self.random.below(direction.late.len() as u64) as usize;
                // Any number of times.
                let receipt = direction.late[nth];
                direction.take_receipt(Some(receipt));
            }
            _ => {}
        }
    }

    /// From now on everything arrives, and nothing is left over.
    fn finish(&mut self) {
        for stream in &mut self.streams {
            for direction in stream {
                while !direction.is_over() {
                    direction.send(&mut self.random);
                    direction.deliver(u64::MAX);
                    direction.take_receipt(Some(direction.given.encode()));
                }
            }
        }
    }
}

fn settings() -> HoldSettings {
    HoldSettings { time: HOLD, stream_bytes: 6_000, peer_bytes: 12_000 }
}

fn oneshot() -> tokio::sync::oneshot::Sender<()> {
    tokio::sync::oneshot::channel().0
}

fn over_the_wire(frame: Frame) -> Frame {
    let bytes = frame.encode();
    let (head, body) = bytes.split_at(FRAME_HEAD_BYTES);
    Frame::decode(head[2], body).unwrap().unwrap()
}

/// How a schedule ended.
#[derive(Default)]
struct Tally {
    finished: usize,
    resumed: usize,
    renewed: usize,
    ended: usize,
}

fn run(seed: u64, keys: [PublicKey; 2], tally: &mut Tally) {
    // Shown if an assertion fails.
    println!("seed {seed}");
    let mut world = World::new(seed, keys);
    for _ in 0..STEPS {
        if world.connected {
            match world.random.below(24) {
                0 | 1 => world.lose(),
                2 => world.renew(),
                _ => world.step(),
            }
            continue;
        }
        match world.random.below(400) {
            // The server is restarted, or does not hear from the client for too long.
            0 => (world.lineages, world.has_streams) = (Lineages::default(), false),
            1 => world.now += HOLD,
            // The client is restarted: its next instance has no token.
            2 => {
                world.instance = Instance([world.instance.0[0].wrapping_add(2); 16]);
                (world.client, world.has_streams) =
                    (ClientHold::new(settings(), &Arc::default()), false);
            }
            3..40 => world.replace_server(),
            40..80 => world.replace_client(),
            _ => {}
        }
        if world.reconnect() == Some(false) {
            // Both ends reset their streams.
            tally.ended += 1;
            return;
        }
    }
    while !world.connected {
        if world.reconnect() == Some(false) {
            tally.ended += 1;
            return;
        }
    }
    world.finish();
    tally.finished += 1;
    tally.resumed += world.resumed;
    tally.renewed += world.renewed;
}

#[test]
fn no_schedule_loses_doubles_or_reorders_a_byte_or_lets_anybody_else_go_on() {
    let count = std::env::var("KEYPADD_SCHEDULES").ok();
    let count = count.map_or(SCHEDULES, |count| count.parse().unwrap());
    let keys = [(); 2].map(|()| PrivateKey::generate().unwrap().public());
    let mut tally = Tally::default();
    for seed in 1..=count {
        run(seed, keys, &mut tally);
    }
    let Tally { finished, resumed, renewed, ended } = tally;
    println!(
        "{count} schedules: {finished} carried everything, over {resumed} resumptions, {renewed} \
            of them renewals; {ended} ended"
    );
    assert!(renewed > finished);
    assert!(finished as u64 > count / 4 && ended as u64 > count / 50 && resumed > finished);
}
