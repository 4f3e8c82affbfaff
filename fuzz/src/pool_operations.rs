//! Checks pools: whatever is asked of a pool, its lanes and its filler, in any order, a lane serves the bytes
//! that are computed inline, each pad once, within the budget, and in the end all memory comes back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{
    InlineKeystream, KeystreamKey, PacketNumber, SEGMENT_PACKETS, Suite, SuiteKey,
};
use keypadd_pool::{
    Direction, Filler, HEAD_BYTES, Lane, PAD_BYTES, Part, Pool, PoolAllowance, PoolSettings, Stage,
    Step, Traffic,
};

use super::input::Input;

const UNIT_BYTES: usize = 8192;
/// Units of the smallest pool: one body chunk.
const UNITS_MIN: usize = 11;
const LANES_MAX: usize = 6;
/// More steps than any filler needs to be done.
const STEPS_MAX: usize = 100_000;

/// A lane, and what it has served.
struct Held {
    lane: Lane,
    traffic: Traffic,
    inline: InlineKeystream,
    newest: u64,
    served: [HashSet<u64>; 2],
}

impl Held {
    fn open(pool: &Pool, traffic: Traffic, next: u64, kind: u8) -> Self {
        let (key, stage) = (key(kind), stage(kind / 8));
        let number = PacketNumber::new(next);
        let lane = pool.open_lane(Arc::clone(&key), &traffic, number, stage);
        let (inline, served) = (InlineKeystream::new(key), Default::default());
        Self { lane, traffic, inline, newest: next, served }
    }

    /// A number, near the newest or far from it.
    fn number(&self, input: &mut Input<'_>) -> u64 {
        let (newest, segment) = (self.newest, SEGMENT_PACKETS as u64);
        let number = match input.byte().unwrap_or(0) {
            0..128 => newest + 1,
            kind @ 128..176 => newest + u64::from(kind - 128) * 8,
            kind @ 176..216 => newest.saturating_sub(u64::from(kind - 176) * 8),
            kind @ 216..232 => (newest / segment + u64::from(kind - 216)) * segment,
            kind => newest + (1 << (2 * (kind - 232))),
        };
        number.min((1 << 62) - 1)
    }

    /// Looks at a pad without taking it.
    fn peek(&mut self, number: u64, bytes: usize) {
        let packet = PacketNumber::new(number);
        if let Some(mask) = self.lane.peek(packet, bytes).mask(16) {
            let mut expected = [0; 16];
            self.inline.write(packet, 0, &mut expected);
            assert_eq!(mask, expected, "the mask of {number}");
            assert!(!self.served[Part::Head as usize].contains(&number), "{number} again");
        }
    }

    /// Takes a pad into zeros.
    fn take(&mut self, number: u64, bytes: usize, least: usize) {
        let packet = PacketNumber::new(number);
        self.newest = self.newest.max(number);
        let (mut pad, mut expected) = (vec![0; bytes], vec![0; bytes]);
        let (mask, data) = pad.split_at_mut(bytes.min(16));
        let mut is_whole = false;
        let taken = self.lane.take(packet, mask, data, least, || is_whole = true);
        assert_eq!(is_whole, taken.bytes > 0 && taken.bytes == bytes);
        assert!(taken.bytes == 0 || taken.bytes >= least);
        self.inline.write(packet, 0, &mut expected);
        for (part, is_served) in Part::ALL.into_iter().zip([taken.head, taken.body]) {
            let range = part.range().start.min(bytes)..part.range().end.min(bytes);
            if is_served {
                assert!(pad[range.clone()] == expected[range], "{number}, {part:?}");
                assert!(self.served[part as usize].insert(number), "{number}, {part:?} twice");
            } else {
                assert!(pad[range].iter().all(|byte| *byte == 0), "{number}, {part:?}");
            }
        }
        assert!(pad[bytes.min(PAD_BYTES)..].iter().all(|byte| *byte == 0));
    }
}

/// One of eight keys: two lanes of a key are two connections', which never have the same one. Here
/// they may, as their pads are their own.
fn key(kind: u8) -> Arc<KeystreamKey> {
    let suites = [
        Suite::AES_128_GCM,
        Suite::AES_256_GCM,
        Suite::AES_256_CTR_HMAC_SHA256,
        Suite::DES_CTR_HMAC_SHA1,
    ];
    let suite = suites[usize::from(kind % 4)];
    let bytes = [kind % 8; 32];
    let key = SuiteKey::derive(suite, &bytes[..suite.protection().key_bytes()], &[kind; 12]);
    key.keystream.expect("no cipher is null")
}

fn stage(kind: u8) -> Stage {
    [Stage::Dormant, Stage::Imminent, Stage::Standby, Stage::Brief, Stage::Active]
        [usize::from(kind % 5)]
}

/// Bytes of a pad: short, about a head's, about a whole one's, longer.
fn length(input: &mut Input<'_>) -> usize {
    let kind = usize::from(input.byte().unwrap_or(0));
    match kind % 4 {
        0 => kind / 2,
        1 => HEAD_BYTES - 16 + kind / 4,
        2 => PAD_BYTES - 32 + kind / 4,
        _ => kind * 8,
    }
}

/// A pool of which at most one handle is left, and what uses it.
struct State {
    pool: Option<Pool>,
    filler: Filler,
    now: Duration,
    allowance: PoolAllowance,
    lanes: Vec<Held>,
    largest_units: usize,
}

impl State {
    fn step(&mut self, operation: u8, input: &mut Input<'_>) -> Option<()> {
        let at = usize::from(operation >> 4).checked_rem(self.lanes.len());
        match (operation & 15, at, &self.pool) {
            (0 | 1, _, Some(pool)) if self.lanes.len() < LANES_MAX => {
                let (kind, first) = (input.byte()?, input.short()? as u64);
                let direction = [Direction::Send, Direction::Receive][usize::from(kind >> 7)];
                let pool = match operation & 1 {
                    0 => pool.clone(),
                    _ => pool.for_peer(self.allowance.clone()),
                };
                self.lanes.push(Held::open(&pool, Traffic::new(direction), first, kind));
            }
            (2, Some(at), _) => drop(self.lanes.swap_remove(at)),
            // The next phase of the same direction.
            (3, Some(at), Some(pool)) => {
                let Held { traffic, newest, .. } = &self.lanes[at];
                self.lanes[at] = Held::open(pool, traffic.clone(), newest + 1, input.byte()?);
            }
            (4, Some(at), _) => self.lanes[at].lane.set_stage(stage(input.byte()?)),
            (5, ..) if operation >> 4 < 8 => {
                self.allowance.set(input.byte()? as u64 * UNIT_BYTES as u64);
            }
            (5, _, Some(pool)) => {
                let units = UNITS_MIN + usize::from(input.byte()?);
                pool.set_budget(units * UNIT_BYTES).expect("a budget");
                self.largest_units = self.largest_units.max(units);
            }
            // Lanes outlive their pool.
            (6, ..) if operation >> 4 == 15 => self.pool = None,
            (6, Some(at), _) => {
                let (number, bytes) = (self.lanes[at].number(input), length(input));
                self.lanes[at].newest = self.lanes[at].newest.max(number);
                self.lanes[at].lane.seek(PacketNumber::new(number), bytes);
            }
            (7 | 8, ..) => {
                let steps = input.byte()?;
                self.now += Duration::from_millis(u64::from(steps));
                self.fill(usize::from(steps % 32));
            }
            (9, Some(at), _) => {
                let (number, bytes) = (self.lanes[at].number(input), length(input));
                self.lanes[at].peek(number, bytes);
            }
            (15, Some(at), _) => {
                let number = self.lanes[at].number(input);
                self.lanes[at].newest = self.lanes[at].newest.max(number);
                let (lane, number) = (&mut self.lanes[at].lane, PacketNumber::new(number));
                match operation >> 4 {
                    0..8 => lane.pass(number),
                    _ => lane.skip(number, length(input)),
                }
            }
            (_, Some(at), _) => {
                let (number, bytes) = (self.lanes[at].number(input), length(input));
                let least = if operation & 1 == 0 { 0 } else { bytes.saturating_sub(HEAD_BYTES) };
                self.lanes[at].take(number, bytes, least);
            }
            _ => {}
        }
        if let Some(pool) = &self.pool {
            let filled = pool.snapshot().filled_bytes;
            assert!(filled <= (self.largest_units * UNIT_BYTES) as u64, "{filled} bytes");
        }
        Some(())
    }

    /// Lets the filler take this many steps, or fewer, if it is done.
    fn fill(&mut self, steps: usize) -> Step {
        let mut last = Step::Idle;
        for _ in 0..steps {
            last = self.filler.step(self.now);
            if last != Step::Worked {
                break;
            }
        }
        last
    }
}

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(units) = input.byte().map(|more| UNITS_MIN + usize::from(more)) else { return };
    let settings = PoolSettings { budget_bytes: units * UNIT_BYTES };
    let (pool, filler) = Pool::with_filler(settings).expect("memory");
    let mut state = State {
        pool: Some(pool),
        filler,
        now: Duration::ZERO,
        allowance: PoolAllowance::new(PoolAllowance::UNLIMITED),
        lanes: Vec::new(),
        largest_units: units,
    };
    while let Some(operation) = input.byte() {
        if state.step(operation, &mut input).is_none() {
            break;
        }
    }
    state.lanes.clear();
    let mut last = state.fill(STEPS_MAX);
    if matches!(last, Step::Resting(_)) {
        // It looks again for more long packets, of which there are none now.
        last = state.fill(STEPS_MAX);
    }
    match state.pool.take() {
        Some(pool) => {
            assert_eq!(last, Step::Idle);
            assert_eq!(pool.snapshot().filled_bytes, 0, "memory stayed out");
            drop(pool);
            assert_eq!(state.fill(1), Step::Stopped);
        }
        None => assert_eq!(last, Step::Stopped),
    }
}
