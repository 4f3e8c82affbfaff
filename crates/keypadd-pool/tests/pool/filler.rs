//! Tests the filler's thread: scheduling class, name, sleep, shutdown, faults, CPU limit.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{PacketNumber, SEGMENT_PACKETS, Suite};
use keypadd_pool::{
    Coverage, Direction, FillerFault, FillerHost, HEAD_BYTES, PAD_BYTES, Part, Pool, PoolSettings,
    Priority, Stage, Step, Traffic,
};

use crate::support::{key, poll_until, pool, seek};

/// `SCHED_IDLE` of sched(7).
const SCHED_IDLE: u32 = 5;

/// Equal readings in a row that count as sleep; a busy thread would run between two of them.
const READINGS: usize = 50;

/// Polls in vain after which a lane takes its packet again; more than it takes a filler to look
/// again.
const PATIENCE: usize = 1_000;

/// The filler's `/proc/self/task/<id>/`, see proc(5).
struct Task {
    directory: String,
}

impl Task {
    fn of(pool: &Pool) -> Self {
        poll_until("the filler runs", || pool.snapshot().filler_thread_id != 0);
        let id = pool.snapshot().filler_thread_id;
        Self { directory: format!("/proc/self/task/{id}") }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("{}/{file}", self.directory)).expect("the filler's thread")
    }

    /// A field of `stat` by its number in proc(5), from 3 on; the second may hold spaces.
    fn stat(&self, field: usize) -> String {
        let stat = self.read("stat");
        let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
        rest.split(' ').nth(field - 3).expect("a field").into()
    }

    fn is_asleep(&self) -> bool {
        self.stat(3) == "S"
    }

    /// CPU time and voluntary context switches.
    fn activity(&self) -> (String, String) {
        let status = self.read("status");
        let switches = status
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"))
            .expect("a count of context switches");
        let schedstat = self.read("schedstat");
        let cpu = schedstat.split(' ').next().expect("CPU time");
        (cpu.into(), switches.into())
    }

    /// Waits until the thread sleeps and stays asleep.
    fn await_rest(&self) {
        let (mut last, mut same) = (self.activity(), 0);
        poll_until("the filler sleeps", || {
            let now = self.activity();
            same = if self.is_asleep() && now == last { same + 1 } else { 0 };
            last = now;
            same >= READINGS
        });
    }
}

#[test]
fn the_filler_runs_in_sched_idle_under_its_own_name() {
    let pool = pool(1 << 20);
    let task = Task::of(&pool);
    poll_until("it is in its scheduling class", || pool.snapshot().filler_idle_class);
    assert_eq!(task.stat(41).parse(), Ok(SCHED_IDLE));
    assert_eq!(task.read("comm").trim_end(), "keypadd-fill");
}

#[test]
fn the_filler_of_a_program_that_began_with_a_niceness_runs_in_sched_idle() {
    // Of this thread, and of those that it starts. Without privileges it cannot be undone.
    rustix::process::setpriority_process(None, 5).expect("more is always allowed");
    let mut held = rustix::thread::capabilities(None).expect("this thread's");
    for set in [&mut held.effective, &mut held.permitted, &mut held.inheritable] {
        set.remove(rustix::thread::CapabilitySet::SYS_NICE);
    }
    rustix::thread::set_capabilities(None, held).expect("fewer are always allowed");
    let pool = pool(1 << 20);
    let task = Task::of(&pool);
    poll_until("it is in its scheduling class", || pool.snapshot().filler_idle_class);
    assert_eq!(task.stat(41).parse(), Ok(SCHED_IDLE));
}

#[test]
fn the_filler_sleeps_when_all_is_full_and_wakes_for_a_consumer() {
    let pool = pool(2 << 20);
    let task = Task::of(&pool);
    task.await_rest();
    let key = key(Suite::AES_256_GCM, 1);
    let mut lane = pool.open_lane(
        Arc::clone(&key),
        &Traffic::new(Direction::Send),
        PacketNumber::new(0),
        Stage::Active,
    );
    poll_until("the lane is served", || {
        seek(&mut lane, PacketNumber::new(0), PAD_BYTES) == Coverage::Hit
    });
    // Not for a moment, to look again. A lane obeys a recall, which the first packets may cause, at
    // its next packet.
    let mut polls = 0;
    poll_until("all is full", || {
        polls += 1;
        if polls % PATIENCE == 0 {
            seek(&mut lane, PacketNumber::new(0), PAD_BYTES);
        }
        pool.snapshot().is_settled
    });
    task.await_rest();
    let full = Part::ALL.map(|part| lane.level(part));
    let made = pool.snapshot().fill_bytes_total;
    assert!(full.iter().all(|level| level.packets > 0));

    // Using up segments down to the low-water mark wakes it again.
    for segment in 1..8 {
        let number = PacketNumber::new(segment * SEGMENT_PACKETS as u64);
        assert_eq!(seek(&mut lane, number, PAD_BYTES), Coverage::Hit, "{segment}");
    }
    poll_until("the filler has continued", || pool.snapshot().fill_bytes_total > made);
    task.await_rest();
    let snapshot = pool.snapshot();
    assert!(snapshot.fill_bytes_total > made && !snapshot.fill_cpu.is_zero());
}

#[test]
fn the_filler_ends_with_the_last_handle() {
    let pool = pool(1 << 20);
    let task = Task::of(&pool);
    let clone = pool.clone();
    drop(pool);
    let key = key(Suite::AES_256_GCM, 2);
    let lane =
        clone.open_lane(key, &Traffic::new(Direction::Send), PacketNumber::new(0), Stage::Active);
    poll_until("a clone is served", || lane.level(Part::Head).packets > 0);
    drop(clone);
    poll_until("the thread is gone", || fs::metadata(&task.directory).is_err());
}

#[test]
fn a_filler_without_a_thread_works_only_when_stepped() {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: 1 << 20 }).expect("ok");
    let key = key(Suite::AES_256_GCM, 3);
    let mut lane =
        pool.open_lane(key, &Traffic::new(Direction::Send), PacketNumber::new(0), Stage::Active);
    assert_eq!(seek(&mut lane, PacketNumber::new(0), PAD_BYTES), Coverage::Miss);
    assert_eq!(filler.step(Duration::ZERO), Step::Worked);
    assert_eq!(lane.level(Part::Head).packets, SEGMENT_PACKETS as u64, "one chunk a step");
    while filler.step(Duration::ZERO) == Step::Worked {}
    assert_eq!(filler.step(Duration::ZERO), Step::Idle);
    assert_eq!(seek(&mut lane, PacketNumber::new(0), PAD_BYTES), Coverage::Hit);
    assert!(!pool.snapshot().filler_alive, "no thread was started");
    drop(pool);
    assert_eq!(filler.step(Duration::ZERO), Step::Stopped);
}

/// A host that grants only this priority, and whose clock fails after this many readings.
struct Faulty {
    priority: Priority,
    readings: u32,
}

impl FillerHost for Faulty {
    fn lower_priority(&mut self) -> Priority {
        self.priority
    }

    fn cpu_time(&mut self) -> Duration {
        self.readings = self.readings.checked_sub(1).expect("a reading left");
        Duration::ZERO
    }

    fn now(&mut self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn a_failed_filler_leaves_dry_lanes_and_reports_why() {
    for (priority, readings, fault) in [
        (Priority::Low, 3, FillerFault::Failed),
        (Priority::Idle, 0, FillerFault::Failed),
        (Priority::Ordinary, u32::MAX, FillerFault::NotIdle),
    ] {
        let settings = PoolSettings { budget_bytes: 2 << 20 };
        let pool = Pool::with_host(settings, Faulty { priority, readings }).expect("a pool");
        let key = key(Suite::AES_128_GCM, 4);
        let traffic = Traffic::new(Direction::Send);
        let mut lane =
            pool.open_lane(Arc::clone(&key), &traffic, PacketNumber::new(0), Stage::Active);
        // What it generated is used up; then every packet misses.
        let mut number = 0;
        poll_until("it has ended and the lane is dry", || {
            number += SEGMENT_PACKETS as u64;
            let coverage = seek(&mut lane, PacketNumber::new(number), PAD_BYTES);
            !pool.snapshot().filler_alive && coverage == Coverage::Miss
        });
        let snapshot = pool.snapshot();
        assert_eq!((snapshot.filler_fault, snapshot.filler_alive), (Some(fault), false));
        pool.set_budget(4 << 20).expect_err("the filler has ended");
        let late = pool.open_lane(key, &traffic, PacketNumber::new(0), Stage::Active);
        assert_eq!(late.level(Part::Head).packets, 0);
    }
}

/// Steps a filler through `millis` of bulk that needs four times as many pads as it makes; a chunk
/// takes a millisecond, of which it has the CPU for `micros`. Returns the chunks that it made.
fn outrun(suite: Suite, micros: u64, millis: u64) -> u64 {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: 8 << 20 }).expect("ok");
    let traffic = Traffic::new(Direction::Send);
    let mut lane = pool.open_lane(key(suite, 5), &traffic, PacketNumber::new(0), Stage::Active);
    let (mut numbers, mut chunks) = (0.., 0);
    for millis in 0..millis {
        filler.spent(Duration::from_micros(chunks * micros));
        match filler.step(Duration::from_millis(millis)) {
            Step::Worked => chunks += 1,
            Step::Resting(_) | Step::Idle => {}
            Step::Stopped => panic!("the pool is there"),
        }
        for number in numbers.by_ref().take(4 * SEGMENT_PACKETS) {
            lane.seek(PacketNumber::new(number), PAD_BYTES);
        }
    }
    chunks
}

#[test]
fn a_filler_that_bulk_outruns_on_busy_cpus_rests_unless_its_cipher_is_slow() {
    let chacha = Suite::CHACHA20_POLY1305;
    assert_eq!(outrun(chacha, 200, 30), 30, "a burst");
    let made = outrun(chacha, 200, 11_000) - 30;
    assert!((30..200).contains(&made), "{made}");
    for (suite, micros) in [(chacha, 900), (Suite::TRIPLE_DES_CTR_HMAC_SHA1, 200)] {
        assert_eq!(outrun(suite, micros, 10_000), 10_000, "{suite}");
    }
}

#[test]
fn a_filler_that_spent_its_cpu_share_rests_until_it_earned_more() {
    let (pool, mut filler) = Pool::with_filler(PoolSettings { budget_bytes: 8 << 20 }).expect("ok");
    pool.set_max_fill_cpu(20);
    let key = key(Suite::AES_128_GCM, 5);
    let traffic = Traffic::new(Direction::Send);
    let mut lane = pool.open_lane(key, &traffic, PacketNumber::new(0), Stage::Active);
    let (mut now, mut spent, mut rested) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut number = 0;
    while now < Duration::from_secs(20) {
        filler.spent(spent);
        match filler.step(now) {
            // A chunk takes a millisecond, and there is always more work.
            Step::Worked => {
                spent += Duration::from_millis(1);
                now += Duration::from_millis(1);
                number += 4 * SEGMENT_PACKETS as u64;
                lane.seek(PacketNumber::new(number), PAD_BYTES);
            }
            Step::Resting(rest) => {
                rested += rest;
                now += rest;
            }
            step => panic!("{step:?} after {now:?}"),
        }
    }
    let share = spent.as_secs_f64() / now.as_secs_f64();
    assert!((0.19..0.21).contains(&share), "{share}");
    assert!(rested.as_secs_f64() > 15.0, "{rested:?}");
    // Lifting the limit takes effect at once.
    pool.set_max_fill_cpu(100);
    assert_eq!(filler.step(now), Step::Worked);
    drop(pool);
    assert_eq!(filler.step(now), Step::Stopped);
}

#[test]
fn idle_sessions_with_a_full_pool_never_wake_the_filler() {
    let pool = pool(4 << 20);
    let task = Task::of(&pool);
    let key = key(Suite::AES_128_GCM, 6);
    let mut lanes: Vec<_> = [Direction::Send, Direction::Receive]
        .map(|direction| {
            let traffic = Traffic::new(direction);
            pool.open_lane(Arc::clone(&key), &traffic, PacketNumber::new(0), Stage::Active)
        })
        .into();
    poll_until("the pool is full", || lanes.iter().all(|lane| lane.level(Part::Body).packets > 0));
    task.await_rest();
    let before = task.activity();
    // Keystrokes and keep-alives, less than a quarter of what is available.
    for number in 0..150 {
        for lane in &mut lanes {
            assert_eq!(seek(lane, PacketNumber::new(number), 40), Coverage::Hit);
        }
    }
    task.await_rest();
    assert_eq!(task.activity(), before);
}

#[test]
fn long_packets_that_find_only_heads_wake_the_filler() {
    // Room for heads but not for a body.
    let pool = pool(96 << 10);
    let task = Task::of(&pool);
    let traffic = Traffic::new(Direction::Send);
    let key = key(Suite::AES_128_GCM, 7);
    let mut lane = pool.open_lane(key, &traffic, PacketNumber::new(0), Stage::Active);
    poll_until("heads are available", || lane.level(Part::Head).packets > 0);
    task.await_rest();
    let next_segment = PacketNumber::new(SEGMENT_PACKETS as u64);
    let (_, before) = task.activity();
    assert_eq!(seek(&mut lane, next_segment, HEAD_BYTES), Coverage::Hit);
    task.await_rest();
    assert_eq!(task.activity().1, before, "keystrokes do not wake the filler");
    let next_segment = PacketNumber::new(2 * SEGMENT_PACKETS as u64);
    assert_eq!(seek(&mut lane, next_segment, PAD_BYTES), Coverage::Partial);
    poll_until("the filler wakes", || task.activity().1 != before);
}
