//! Drives controllers over random paths: they go through all of the table of `mode`, and through
//! nothing else.

use std::collections::{BTreeSet, VecDeque};

use fastrand::Rng;

use super::{mode::Dip, *};
use crate::{competition::Competition, constants::DIP_ROUNDS};

const MS: Duration = Duration::from_millis(1);
const MTU: u64 = 1_200;

/// The transitions of `mode`'s table, but for those of persistent congestion.
const TABLE: [(&str, &str); 12] = [
    ("start-up", "settle"),
    ("start-up", "cruise"),
    ("settle", "drain"),
    ("settle", "cruise"),
    ("cruise", "drain"),
    ("cruise", "compete"),
    ("cruise", "compete, drain"),
    ("drain", "cruise"),
    ("compete, drain", "compete"),
    ("compete", "test"),
    ("test", "cruise"),
    ("test", "compete"),
];

fn name(mode: &Mode) -> &'static str {
    match mode {
        Mode::StartUp { .. } => "start-up",
        Mode::Settle => "settle",
        Mode::Cruise => "cruise",
        Mode::Drain(_) => "drain",
        Mode::Compete(_) => "compete",
        Mode::CompeteDrain(..) => "compete, drain",
        Mode::Test(..) => "test",
    }
}

/// A packet on its way, and when it arrives; never if it is lost.
struct Flying {
    sent: Instant,
    arrives: Instant,
    lost: bool,
}

/// A controller on a path whose rate, losses, marks and other flows change at random times.
struct Path {
    rng: Rng,
    now: Instant,
    controller: RateController,
    seen: BTreeSet<(&'static str, &'static str)>,
    flying: VecDeque<Flying>,
    rtt: Duration,
    rate: f64,
    /// When the bottleneck has sent what it has.
    free: Instant,
    loss: f64,
    marks: f64,
    /// Delay of the queue that others keep.
    others: Duration,
    changes: Instant,
}

impl Path {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let now = Instant::now();
        Self {
            now,
            controller: RateController::new(MTU as u16),
            seen: BTreeSet::new(),
            flying: VecDeque::new(),
            rtt: MS * rng.choice([2, 20, 150]).expect("three"),
            rate: rng.choice([60e3, 250e3, 1e6]).expect("three"),
            free: now,
            loss: 0.0,
            marks: 0.0,
            others: Duration::ZERO,
            changes: now + MS * rng.u32(..3_000),
            rng,
        }
    }

    /// Tells the controller something.
    fn tell(&mut self, event: impl FnOnce(&mut RateController)) {
        let from = name(&self.controller.mode);
        event(&mut self.controller);
        let to = name(&self.controller.mode);
        if from != to {
            self.seen.insert((from, to));
        }
        assert!(self.controller.window() >= WINDOW_MIN_PACKETS * MTU);
    }

    fn chance(&mut self, share: f64) -> bool {
        self.rng.f64() < share
    }

    fn change(&mut self) {
        self.changes = self.now + MS * self.rng.u32(30..6_000);
        self.loss = self.rng.choice([0.0, 0.0, 0.0, 0.02, 0.3, 1.0]).expect("six");
        self.marks = self.rng.choice([0.0, 0.0, 0.05]).expect("three");
        self.others = MS * self.rng.choice([0, 0, 15, 60, 400]).expect("five");
    }

    /// Fills the window, and lets a moment go by.
    fn send(&mut self) {
        while (self.flying.len() as u64 + 1) * MTU <= self.controller.window() {
            self.free = self.free.max(self.now) + Duration::from_secs_f64(MTU as f64 / self.rate);
            let lost = self.chance(self.loss) || self.free > self.now + 300 * MS;
            let arrives = self.free + self.rtt + self.others;
            self.flying.push_back(Flying { sent: self.now, arrives, lost });
            let now = self.now;
            self.tell(|controller| controller.on_sent(now, MTU, 0));
        }
        self.now += Duration::from_micros(self.rng.u64(300..4_000));
    }

    /// Tells the controller what has arrived by now, and what has not.
    fn hear(&mut self) {
        let now = self.now;
        let known = self.flying.iter().take_while(|packet| packet.arrives <= now).count();
        let (lost, arrived): (Vec<_>, Vec<_>) =
            self.flying.drain(..known).partition(|packet| packet.lost);
        for packet in &arrived {
            self.tell(|controller| controller.acked(now, packet.sent, MTU, false));
        }
        let in_flight = self.flying.len() as u64 * MTU;
        if let Some(newest) = arrived.last() {
            self.tell(|controller| controller.on_end_acks(now, in_flight, false, None));
            if self.chance(self.marks) {
                self.tell(|controller| {
                    controller.on_congestion_event(now, newest.sent, false, 0);
                });
            }
        }
        if let Some(newest) = lost.last() {
            let persistent = self.loss == 1.0 && self.chance(0.3);
            let bytes = lost.len() as u64 * MTU;
            self.tell(|controller| {
                controller.on_congestion_event(now, newest.sent, persistent, bytes);
            });
        }
    }
}

#[test]
fn modes_follow_each_other_as_their_table_says_and_in_no_other_way() {
    let mut seen = BTreeSet::new();
    for seed in 0..150 {
        let mut path = Path::new(seed);
        let end = path.now + Duration::from_secs(40);
        while path.now < end {
            if path.now >= path.changes {
                path.change();
            }
            path.send();
            path.hear();
        }
        seen.extend(path.seen.into_iter().filter(|(_, to)| *to != "start-up"));
    }
    assert_eq!(seen, BTreeSet::from(TABLE));
}

/// Each mode, as at its beginning.
fn modes(now: Instant) -> [Mode; 7] {
    let dip = Dip { window: MTU, rounds: 0, falling: None };
    let competition = || Competition::new(now, 1e5, MTU);
    [
        Mode::StartUp { waits_since: Some(now) },
        Mode::Settle,
        Mode::Cruise,
        Mode::Drain(dip),
        Mode::Compete(competition()),
        Mode::CompeteDrain(competition(), dip),
        Mode::Test(competition(), dip),
    ]
}

#[test]
fn persistent_congestion_begins_start_up_in_any_mode_and_owes_nothing_to_the_one_before() {
    let now = Instant::now();
    for mode in modes(now) {
        let mut controller = RateController::new(MTU as u16);
        controller.mode = mode;
        controller.on_congestion_event(now, now, true, MTU);
        let begins = matches!(controller.mode, Mode::StartUp { waits_since: None });
        assert!(begins, "{:?}", controller.mode);
    }
}

#[test]
fn a_flow_empties_its_own_queue_after_start_up_and_in_a_dip() {
    let empties = modes(Instant::now()).map(|mode| mode.empties_own_queue());
    assert_eq!(empties, [false, true, false, true, false, true, true]);
}

#[test]
fn a_dip_ends_in_the_fourth_round_although_no_packet_was_sent_within_it() {
    let now = Instant::now();
    let mut controller = RateController::new(MTU as u16);
    controller.mode = Mode::Drain(Dip { window: MTU, rounds: 0, falling: None });
    controller.round = Some(Round::new(now));
    controller.path.sample(now, 20 * MS);
    for _ in 0..=DIP_ROUNDS {
        assert!(!controller.sample_dip(now, now, 9 * MTU, MS));
        controller.end_round(now);
    }
    assert!(controller.sample_dip(now, now, 9 * MTU, MS));
    assert!(matches!(controller.mode, Mode::Cruise), "{:?}", controller.mode);
}
