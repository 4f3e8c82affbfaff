//! Measures what a filler takes from CPU-bound programs: a hog on every core runs beside a pool
//! that is never full, and without a pool, in alternation.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use keypadd_keystream::{CipherBackend, PacketNumber, Protection, Suite, SuiteKey};
use keypadd_measure::results::Outcome;
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::verdict::Rule;
use keypadd_pool::{Direction, Lane, Pool, PoolSettings, PoolSnapshot, Stage, Traffic};

use crate::SUITES;
use crate::exchange::HANG;

/// Number of alternations.
const PAIRS: usize = 150;

/// Length of one slice. Many short slices measure better than a few long ones: background load
/// comes in bursts.
const TURN: Duration = Duration::from_millis(150);

/// Minimum share of their work that the hogs keep.
const KEPT: f64 = 0.98;

/// Far more than the slowest cipher can fill in one slice: the filler never runs out of work.
const BUDGET_BYTES: usize = 64 << 20;

/// Steps of a hog between two clock reads: some tens of microseconds.
const STEPS: u64 = 1 << 16;

/// A pool that is filled until this is dropped.
struct Filling {
    pool: Pool,
    _lane: Lane,
}

impl Filling {
    /// Triple DES, one block at a time: takes seconds to fill the share of one lane.
    fn start() -> Self {
        let pool = Pool::new(PoolSettings { budget_bytes: BUDGET_BYTES }).unwrap();
        let engine = CipherBackend::DesCrate.engine().unwrap();
        let suite: Protection = SUITES[2].parse::<Suite>().unwrap().into();
        let key = SuiteKey::derive_with(suite, &[7; 32][..suite.key_bytes()], &[9; 12], engine);
        let traffic = Traffic::new(Direction::Send);
        let keystream = key.keystream.unwrap();
        let lane = pool.open_lane(keystream, &traffic, PacketNumber::new(0), Stage::Active);
        let filling = Self { pool, _lane: lane };
        // The filler sets its scheduling class before anything else.
        filling.until("a running filler", |now| now.fill_bytes_total > 0);
        assert!(
            filling.pool.snapshot().filler_idle_class,
            "SCHED_IDLE is refused here, and there is no claim for a filler in another class"
        );
        filling
    }

    fn until(&self, what: &str, is_so: impl Fn(&PoolSnapshot) -> bool) {
        let deadline = Instant::now() + HANG;
        while !is_so(&self.pool.snapshot()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.pool.snapshot());
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn filler(&self) -> PathBuf {
        format!("/proc/self/task/{}", self.pool.snapshot().filler_thread_id).into()
    }

    /// Whether the filler has work left: it sleeps when it has none (proc(5)).
    fn has_work(&self) -> bool {
        fs::read_to_string(self.filler().join("stat")).is_ok_and(|stat| stat.contains(") R "))
    }

    /// CPU time used by the filler so far (proc(5), schedstat).
    fn cpu_time(&self) -> Duration {
        let text = fs::read_to_string(self.filler().join("schedstat")).unwrap();
        Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Returns when the filler thread is gone.
    fn end(self) {
        let filler = self.filler();
        drop(self);
        let deadline = Instant::now() + HANG;
        while filler.exists() {
            assert!(Instant::now() < deadline, "the filler does not exit");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Work of a hog on every core during one slice, in steps per second.
fn work() -> f64 {
    let hogs = available_parallelism().map_or(1, usize::from);
    let together = Barrier::new(hogs);
    let hog = || {
        together.wait();
        let (start, mut steps, mut state) = (Instant::now(), 0, 1_u64);
        loop {
            for _ in 0..STEPS {
                // xorshift64 (Marsaglia, 2003): each step waits for the one before it.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
            }
            state = black_box(state);
            steps += STEPS;
            let elapsed = start.elapsed();
            if elapsed >= TURN {
                return steps as f64 / elapsed.as_secs_f64();
            }
        }
    };
    thread::scope(|scope| {
        let hogs: Vec<_> = (0..hogs).map(|_| scope.spawn(hog)).collect();
        hogs.into_iter().map(|hog| hog.join().unwrap()).sum()
    })
}

/// Prints the filler's own CPU share beside the verdict: the part of the loss that no other program
/// can have caused.
#[test]
#[ignore = "a long proof: minutes, on a machine that is idle"]
fn programs_that_want_every_core_lose_at_most_2_percent_to_a_filler() {
    let filling = Filling::start();
    let before = filling.pool.snapshot();
    filling.until("a lone filler at work", |now| {
        now.fill_bytes_total > before.fill_bytes_total && now.fill_cpu > before.fill_cpu
    });
    filling.end();

    let (mut beside, mut alone, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..PAIRS {
        for place in [turn % 2, 1 - turn % 2] {
            if place == 0 {
                alone.push(work());
                continue;
            }
            let filling = Filling::start();
            let before = filling.cpu_time();
            beside.push(work());
            assert!(filling.has_work(), "nothing left to fill: {:?}", filling.pool.snapshot());
            taken.push((filling.cpu_time() - before).as_secs_f64() / TURN.as_secs_f64());
            filling.end();
        }
    }
    let taken = mean(&taken).unwrap();
    println!("the filler had {:.4} of a core, {:.4?}", taken.value, taken.interval);
    assert!(taken.value > 0.0, "the filler never ran");
    let kept = ratio(&beside, &alone);
    let verdict = Rule::AtLeast(KEPT).judge("", "work beside it over work alone", kept.as_ref());
    println!("hogs: {}: {:?}", verdict.because, verdict.outcome);
    assert_eq!(verdict.outcome, Outcome::Holds, "{}", verdict.because);
}
