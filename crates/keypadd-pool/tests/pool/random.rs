//! Uses the pool at random from several threads, with a filler thread, and compares every byte that
//! a lane serves with inline keystream.
//!
//! Each lane records the pads it has served, so that none is served twice; in the end every
//! generated pad was served or wiped. A seed decides what each consumer requests; the interleaving
//! is up to the machine (tests/loom.rs explores interleavings of few steps exhaustively).

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, iter, thread};

use fastrand::Rng;
use keypadd_keystream::{
    InlineKeystream, KeystreamKey, MASK_BYTES_MAX, PacketNumber, Protection, SEGMENT_PACKETS,
    SuiteKey,
};
use keypadd_pool::{
    BODY_BYTES, Direction, HEAD_BYTES, Lane, PAD_BYTES, Part, Pool, PoolAllowance, Stage, Traffic,
};

use crate::support::{poll_until, pool};

const SEGMENT: u64 = SEGMENT_PACKETS as u64;
/// Numbers are below this (RFC 9000 12.3).
const NUMBERS_END: u64 = 1 << 62;
const CONSUMERS: u64 = 4;
/// The most lanes of a consumer.
const LANES: usize = 4;
/// Budgets, from one body chunk to more than the lanes need.
const BUDGET_BYTES: [usize; 2] = [11 * 8192, 24 << 20];
/// The content of a packet's buffer before its pad is taken.
const UNTOUCHED: u8 = 0x5a;
/// The least pads of each part that a run must serve, and second takes that it must refuse, to be
/// meaningful.
const ENOUGH: u64 = 1000;

/// State shared by the consumers of one run.
struct Run {
    pool: Pool,
    largest_budget: AtomicUsize,
    allowances: [PoolAllowance; 2],
    /// Lanes that move between threads, as connections do.
    exchange: Mutex<Vec<Held>>,
    given: [AtomicU64; 2],
    refused: AtomicU64,
}

/// A lane and the record of what it served.
struct Held {
    lane: Lane,
    traffic: Traffic,
    key: Arc<KeystreamKey>,
    inline: InlineKeystream,
    newest: u64,
    /// Numbers whose pads it has served, by part.
    given: [HashSet<u64>; 2],
    /// The last number requested.
    last_given: Vec<u64>,
}

fn random_key(rng: &mut Rng) -> Arc<KeystreamKey> {
    let with_pads = Protection::all().filter(|suite| !suite.cipher().is_null());
    let suite = rng.choice(with_pads.collect::<Vec<_>>()).expect("suites");
    let key: Vec<u8> = iter::repeat_with(|| rng.u8(..)).take(suite.key_bytes()).collect();
    let iv = [(); 12].map(|()| rng.u8(..));
    SuiteKey::derive(suite, &key, &iv).keystream.expect("not a null cipher")
}

fn random_stage(rng: &mut Rng) -> Stage {
    let stages = [
        Stage::Dormant,
        Stage::Imminent,
        Stage::Standby,
        Stage::Brief,
        Stage::Active,
        Stage::Active,
    ];
    rng.choice(stages).expect("stages")
}

/// Any pad length, biased towards keystrokes, full packets and boundaries.
fn random_length(rng: &mut Rng) -> usize {
    match rng.u8(0..16) {
        0..6 => rng.usize(0..=HEAD_BYTES + 2),
        6..9 => rng.usize(0..=PAD_BYTES),
        9..15 => rng.usize(PAD_BYTES - 60..=PAD_BYTES + 20),
        _ => rng.usize(0..=65_527),
    }
}

impl Held {
    fn open(pool: &Pool, rng: &mut Rng, traffic: Traffic, next: u64) -> Self {
        let key = random_key(rng);
        let stage = random_stage(rng);
        let lane = pool.open_lane(Arc::clone(&key), &traffic, PacketNumber::new(next), stage);
        Self {
            lane,
            traffic,
            inline: InlineKeystream::new(Arc::clone(&key)),
            key,
            newest: next,
            given: Default::default(),
            last_given: Vec::new(),
        }
    }

    fn random_number(&self, rng: &mut Rng) -> u64 {
        let newest = self.newest;
        let number = match rng.u16(0..10_000) {
            0..6000 => newest + 1,
            6000..7500 => newest + rng.u64(0..8),
            7500..7700 => newest + rng.u64(0..3 * SEGMENT),
            7700..8600 => newest.saturating_sub(rng.u64(0..3 * SEGMENT)),
            8600..9500 => rng.choice(&self.last_given).copied().unwrap_or(newest),
            // The boundaries of this segment and of its neighbors.
            9500..9990 => {
                ((newest / SEGMENT + rng.u64(0..3)) * SEGMENT + rng.u64(0..3)).saturating_sub(1)
            }
            9990..9998 => newest + (1 << rng.u32(8..20)),
            9998 => newest + (1 << rng.u32(20..41)),
            _ => rng.u64(..NUMBERS_END),
        };
        number.min(NUMBERS_END - 1)
    }

    /// Requests one packet's pad in a random way.
    fn ask(&mut self, rng: &mut Rng, run: &Run) {
        let number = self.random_number(rng);
        let packet = PacketNumber::new(number);
        let bytes = random_length(rng);
        let masks = [0, 16, 32];
        let mask_bytes = masks[rng.usize(..masks.len())].min(bytes);
        let peek = self.lane.peek(packet, bytes);
        let at_hand = peek.bytes();
        if let Some(mask) = peek.mask(MASK_BYTES_MAX) {
            let mut expected = [0; MASK_BYTES_MAX];
            self.inline.write(packet, 0, &mut expected);
            assert_eq!(mask, expected, "{:?}: mask of {number}", self.key);
            assert!(
                !self.given[Part::Head as usize].contains(&number),
                "{number}: a mask was served twice"
            );
        }
        // Some requests only peek, as for a forgery, and some seek without taking.
        let way = rng.u8(0..32);
        if way == 0 {
            return;
        }
        self.newest = self.newest.max(number);
        if way == 1 {
            self.lane.seek(packet, bytes);
            return;
        }
        let served = self.take(number, mask_bytes, bytes, run);
        let brought = served_bytes(served, bytes);
        assert!(at_hand <= brought, "{number}: {at_hand} bytes were promised, {brought} served");
        if served != [false; 2] {
            if self.last_given.len() == 128 {
                self.last_given.swap_remove(rng.usize(..128));
            }
            self.last_given.push(number);
        }
    }

    /// Takes a pad, compares every byte and records it.
    fn take(&mut self, number: u64, mask_bytes: usize, bytes: usize, run: &Run) -> [bool; 2] {
        let packet = PacketNumber::new(number);
        let mut buffer = vec![UNTOUCHED; bytes];
        let (mask, data) = buffer.split_at_mut(mask_bytes);
        let mut found_all = false;
        let taken = self.lane.take(packet, mask, data, 0, || found_all = true);
        let served = [taken.head, taken.body];
        assert_eq!(taken.bytes, served_bytes(served, bytes), "{number}: {bytes} bytes");
        assert_eq!(found_all, bytes > 0 && taken.bytes == bytes, "{number}: {bytes} bytes");
        let mut expected = vec![UNTOUCHED; bytes];
        for part in Part::ALL {
            let range = part.range().start.min(bytes)..part.range().end.min(bytes);
            let was_given = self.given[part as usize].contains(&number);
            if !served[part as usize] {
                let is_refusal = was_given && !range.is_empty();
                run.refused.fetch_add(u64::from(is_refusal), Relaxed);
                continue;
            }
            assert!(!was_given, "{:?}: the {part:?} of {number} was served twice", self.key);
            self.given[part as usize].insert(number);
            run.given[part as usize].fetch_add(1, Relaxed);
            self.inline.apply(packet, range.start, &mut expected[range]);
        }
        assert!(buffer == expected, "{:?}: {number}, {bytes} bytes, {served:?}", self.key);
        served
    }
}

/// The bytes of a packet's pad that the served parts cover.
fn served_bytes(served: [bool; 2], bytes: usize) -> usize {
    let of = |part: Part| part.range().end.min(bytes).saturating_sub(part.range().start);
    Part::ALL.into_iter().filter(|&part| served[part as usize]).map(of).sum()
}

impl Run {
    fn new(rng: &mut Rng) -> Self {
        let budget_bytes = rng.usize(4 << 20..=BUDGET_BYTES[1]);
        Self {
            pool: pool(budget_bytes),
            largest_budget: AtomicUsize::new(budget_bytes),
            allowances: [PoolAllowance::new(PoolAllowance::UNLIMITED), PoolAllowance::new(1 << 20)],
            exchange: Mutex::default(),
            given: Default::default(),
            refused: AtomicU64::default(),
        }
    }

    fn open(&self, rng: &mut Rng) -> Held {
        let [one, other] = &self.allowances;
        let of_peers = [None, None, Some(one), Some(other)];
        let pool = match rng.choice(of_peers).flatten() {
            Some(allowance) => self.pool.for_peer(allowance.clone()),
            None => self.pool.clone(),
        };
        let direction = if rng.bool() { Direction::Send } else { Direction::Receive };
        let next = if rng.u8(0..4) == 0 { rng.u64(..NUMBERS_END / 2) } else { rng.u64(0..100) };
        Held::open(&pool, rng, Traffic::new(direction), next)
    }

    /// Performs one random operation.
    fn step(&self, rng: &mut Rng, lanes: &mut Vec<Held>) {
        if lanes.is_empty() {
            lanes.push(self.open(rng));
        }
        let at = rng.usize(..lanes.len());
        match rng.u32(0..40_000) {
            0..40 if lanes.len() < LANES => lanes.push(self.open(rng)),
            40..60 => drop(lanes.swap_remove(at)),
            // The next phase of the same traffic: a new key, continuing numbers.
            60..80 => {
                let (traffic, next) = (lanes[at].traffic.clone(), lanes[at].newest + 1);
                lanes[at] = Held::open(&self.pool, rng, traffic, next);
            }
            80..110 => {
                let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
                exchange.push(lanes.swap_remove(at));
                if exchange.len() > CONSUMERS as usize {
                    let other = rng.usize(..exchange.len());
                    lanes.push(exchange.swap_remove(other));
                }
            }
            110..200 => lanes[at].lane.set_stage(random_stage(rng)),
            200..210 => {
                let bytes = [PoolAllowance::UNLIMITED, 0, rng.u64(0..8 << 20)];
                let allowance = &self.allowances[rng.usize(..2)];
                allowance.set(rng.choice(bytes).expect("sizes"));
            }
            210..212 => {
                let smallest = BUDGET_BYTES[0] << rng.u32(0..7);
                let bytes = rng.usize(smallest..=BUDGET_BYTES[1]);
                self.largest_budget.fetch_max(bytes, Relaxed);
                self.pool.set_budget(bytes).expect("a budget");
            }
            _ => lanes[at].ask(rng, self),
        }
    }

    /// Runs one consumer. It pauses now and then, or the SCHED_IDLE filler would never run.
    fn consume(&self, seed: u64, operations: u64) {
        let mut rng = Rng::with_seed(seed);
        let mut lanes = Vec::new();
        let mut done = 0;
        let mut deadline = None;
        while done < operations || !self.has_enough() {
            if done >= operations {
                let deadline =
                    *deadline.get_or_insert_with(|| Instant::now() + Duration::from_secs(120));
                assert!(Instant::now() < deadline, "the filler generates too little");
            }
            // In an emulator it gets too little even so: wait for it in the end.
            if deadline.is_some() || rng.u8(0..16) == 0 {
                let micros = if rng.u8(0..64) == 0 { 10_000 } else { 50 };
                thread::sleep(Duration::from_micros(micros));
                let filled = self.pool.snapshot().filled_bytes;
                assert!(filled <= self.largest_budget.load(Relaxed) as u64, "{filled} bytes");
            }
            self.step(&mut rng, &mut lanes);
            done += 1;
        }
    }

    fn has_enough(&self) -> bool {
        self.counts().iter().all(|&count| count >= ENOUGH)
    }

    /// Heads and bodies served, and second takes refused.
    fn counts(&self) -> [u64; 3] {
        [&self.given[0], &self.given[1], &self.refused].map(|count| count.load(Relaxed))
    }

    /// Whether every generated pad was served or wiped unused: the bytes and pads generated
    /// determine the number of chunks of each part, which must come out whole.
    fn accounts_agree(&self) -> bool {
        let snapshot = self.pool.snapshot();
        let [heads_given, bodies_given, _] = self.counts();
        let pads = heads_given + bodies_given + snapshot.pads_wasted_total;
        let (head, body) = (HEAD_BYTES as u64, BODY_BYTES as u64);
        let Some(above_heads) = snapshot.fill_bytes_total.checked_sub(pads * head) else {
            return false;
        };
        let bodies = above_heads / (body - head);
        above_heads.is_multiple_of(body - head)
            && bodies.is_multiple_of(SEGMENT)
            && pads.is_multiple_of(SEGMENT)
            && (bodies_given..=pads.saturating_sub(heads_given)).contains(&bodies)
    }
}

/// Runs the consumers for this many operations each, then checks the pool.
fn run(operations: u64) {
    let seed = match env::var("KEYPADD_POOL_SEED") {
        Ok(seed) => seed.parse().expect("KEYPADD_POOL_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("KEYPADD_POOL_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let run = Run::new(&mut rng);
    thread::scope(|scope| {
        for _ in 0..CONSUMERS {
            let (run, seed) = (&run, rng.u64(..));
            scope.spawn(move || run.consume(seed, operations / CONSUMERS));
        }
    });
    let of_its_own = || run.exchange.lock().expect("no consumer has panicked");
    of_its_own().clear();
    poll_until("all memory is free", || run.pool.snapshot().filled_bytes == 0);
    poll_until("every generated pad was served or wiped", || run.accounts_agree());

    // It still serves, within its budget.
    let snapshot = run.pool.snapshot();
    assert!(snapshot.filler_alive && snapshot.filler_fault.is_none());
    assert!(snapshot.locked_bytes <= snapshot.budget_bytes + snapshot.withheld_bytes);
    let mut held = Held::open(&run.pool, &mut rng, Traffic::new(Direction::Send), 0);
    held.lane.set_stage(Stage::Active);
    poll_until("a lane is served", || held.lane.level(Part::Head).packets > 0);
    assert!(run.pool.snapshot().filled_bytes <= snapshot.budget_bytes);
    assert_eq!(held.take(0, 16, HEAD_BYTES, &run), [true, false]);

    let [heads, bodies, refused] = run.counts();
    println!(
        "{operations} operations: {heads} heads and {bodies} bodies given and right, {refused} \
         second takes refused; {} pads wiped unused, {} bytes made",
        snapshot.pads_wasted_total, snapshot.fill_bytes_total
    );
}

#[test]
fn concurrent_random_use_serves_each_pad_right_and_once() {
    run(200_000);
}

#[test]
#[ignore = "minutes: ten million operations, scripts/nightly"]
fn ten_million_concurrent_random_uses_serve_each_pad_right_and_once() {
    run(10_000_000);
}
