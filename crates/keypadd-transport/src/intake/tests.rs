use std::{cell::Cell, net::IpAddr};

use super::*;

const MICROSECOND: Duration = Duration::from_micros(1);
const A: Key = Key { handle: 0, serial: 0 };
const B: Key = Key { handle: 1, serial: 1 };

thread_local! {
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static EPOCH: Instant = Instant::now();
}

fn clock() -> Instant {
    EPOCH.with(|epoch| *epoch + PASSED.get())
}

fn pass(time: Duration) {
    PASSED.set(PASSED.get() + time);
}

#[derive(Default)]
struct Fake {
    is_stranger: bool,
    is_bulk: bool,
    frames: u64,
    account: Account,
}

impl Holder for Fake {
    fn is_stranger(&self) -> bool {
        self.is_stranger
    }

    fn is_bulk(&self) -> bool {
        self.is_bulk
    }

    fn frames_received(&self) -> u64 {
        self.frames
    }

    fn opening_cost(&self) -> Duration {
        Duration::ZERO
    }

    fn account(&mut self) -> &mut Account {
        &mut self.account
    }
}

/// An intake whose connections are all measured.
fn intake() -> Intake<u32, u32> {
    let mut intake = Intake::new();
    let until = clock() + Duration::from_secs(60);
    let costs = CostMeter::new(|| PASSED.get(), Some(until));
    intake.clocks = Some(Clocks { costs, shares: clock });
    intake.begin_round();
    intake
}

/// How long `peer` may handle datagrams that have just been read, one in so many microseconds.
fn handles_for(intake: &mut Intake<u32, u32>, key: Key, holder: &mut Fake) -> Duration {
    let mut share = intake.begin(key, holder, clock());
    let began = PASSED.get();
    while intake.turn(&share, 0, 1_200) == Turn::Now(0) {
        // The clock is read after eight of them.
        pass(10 * MICROSECOND / 8);
        share.is_used_up();
    }
    intake.backlog.pop(key);
    intake.end(&share, holder, clock());
    PASSED.get() - began
}

#[test]
fn connections_divide_the_time_of_a_round_in_the_order_of_their_datagrams() {
    let (mut intake, [mut a, mut b]) = (intake(), [(); 2].map(|()| Fake::default()));
    assert_eq!(handles_for(&mut intake, A, &mut a), Step::Handle.time());
    assert_eq!(handles_for(&mut intake, B, &mut b), Step::Handle.time() / 2);
    assert_eq!(handles_for(&mut intake, A, &mut a), Duration::ZERO, "it has had its share");
    intake.begin_round();
    assert_eq!(handles_for(&mut intake, B, &mut b), Step::Handle.time());
}

#[test]
fn a_connection_goes_on_with_what_is_left_of_its_share() {
    let (mut intake, mut holder) = (intake(), Fake::default());
    let share = intake.begin(A, &mut holder, clock());
    pass(300 * MICROSECOND);
    intake.end(&share, &mut holder, clock());
    assert_eq!(handles_for(&mut intake, A, &mut holder), 700 * MICROSECOND);
}

#[test]
fn what_a_connection_handles_of_its_backlog_is_not_of_its_share() {
    let (mut intake, mut holder) = (intake(), Fake::default());
    let share = intake.begin_waiting(A, Some(&mut holder), Step::Backlog.time(), clock());
    pass(Step::Backlog.time());
    intake.end(&share, &mut holder, clock());
    assert_eq!(handles_for(&mut intake, A, &mut holder), Step::Handle.time());
}

#[test]
fn datagrams_wait_behind_those_of_their_connection() {
    let (mut intake, mut holder) = (intake(), Fake::default());
    assert!(intake.backlog.is_empty());
    handles_for(&mut intake, A, &mut holder);
    let share = intake.begin(A, &mut holder, clock());
    assert_eq!(intake.turn(&share, 1, 1_200), Turn::Later);
    assert!(!intake.backlog.is_empty());
    intake.begin_round();
    let share = intake.begin(A, &mut holder, clock());
    assert_eq!(intake.turn(&share, 2, 1_200), Turn::Later, "although it has a share again");
    assert_eq!((intake.backlog.connections(), intake.backlog.next_connection()), (1, Some(A)));
    assert_eq!([(); 3].map(|()| intake.backlog.pop(A)), [Some(1), Some(2), None]);
    let share = intake.begin(A, &mut holder, clock());
    assert_eq!(intake.turn(&share, 3, 1_200), Turn::Now(3));
}

#[test]
fn too_many_that_wait_are_dropped() {
    let (mut intake, mut holder) = (intake(), Fake { is_stranger: true, ..Fake::default() });
    let share = intake.begin(A, &mut holder, clock());
    let turns = [(); 2].map(|()| intake.turn(&share, 0, 1_500_000));
    assert_eq!(turns, [Turn::Later, Turn::Dropped]);
}

#[test]
fn a_strangers_datagrams_wait_for_the_step_of_strangers() {
    let (mut intake, mut stranger) = (intake(), Fake { is_stranger: true, ..Fake::default() });
    assert!(!intake.has_strangers());
    let share = intake.begin(A, &mut stranger, clock());
    assert_eq!(intake.turn(&share, 1, 1_200), Turn::Later);
    assert!(intake.has_strangers() && intake.backlog.is_empty());
    assert_eq!(intake.strangers.pop_next(), Some((A, 1)));
    assert_eq!(intake.strangers.pop_next(), None);
    assert!(!intake.has_strangers());
    // Strangers take no part of the others' time.
    assert_eq!(handles_for(&mut intake, B, &mut Fake::default()), Step::Handle.time());
}

#[test]
fn newcomers_wait_until_one_of_the_least_busy_network_is_next() {
    let mut intake = intake();
    let [busy, idle] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
    for (newcomer, address) in [(1, busy), (2, idle)] {
        assert_eq!(intake.newcomers.push(newcomer, address, [0; 3]), None);
    }
    assert!(intake.has_strangers());
    let load = |address| [usize::from(address == busy), 0, 0];
    assert_eq!([(); 3].map(|()| intake.newcomers.pop(load)), [Some(2), Some(1), None]);
}

#[test]
fn a_connection_whose_datagrams_cost_too_much_is_warned_of_once() {
    let (mut intake, mut holder) = (intake(), Fake::default());
    let mut cost = |time| {
        let mut share = intake.begin_waiting(A, Some(&mut holder), time, clock());
        share.is_used_up();
        holder.frames += 1;
        pass(time);
        let warns = intake.end(&share, &mut holder, clock());
        (warns, holder.account.excess.is_too_high(clock()))
    };
    assert_eq!(cost(100 * MICROSECOND), (false, false), "that is usual");
    assert_eq!(cost(100_000 * MICROSECOND), (true, true));
    assert_eq!(cost(100_000 * MICROSECOND), (false, true));
}

#[test]
fn bulk_may_take_longer_before_it_is_measured() {
    for is_bulk in [false, true] {
        let mut intake = Intake::<u32, u32>::new();
        let costs = CostMeter::new(|| PASSED.get(), None);
        intake.clocks = Some(Clocks { costs, shares: clock });
        let mut holder = Fake { is_bulk, ..Fake::default() };
        let mut share = intake.begin_waiting(A, Some(&mut holder), MICROSECOND, clock());
        share.is_used_up();
        pass(300 * MICROSECOND);
        intake.end(&share, &mut holder, clock());
        let next = intake.begin_waiting(A, Some(&mut holder), MICROSECOND, clock());
        assert_eq!(next.reading.is_none(), is_bulk);
    }
}

#[test]
fn frames_are_those_of_the_share() {
    let (mut intake, mut holder) = (intake(), Fake { frames: 1_000, ..Fake::default() });
    // A microsecond is the shortest. Ninety are usual, but not for as many as a hundred frames.
    for (frames, took, is_too_high) in [(10, 1, false), (10, 90, false), (100, 90, true)] {
        let mut share = intake.begin_waiting(A, Some(&mut holder), MICROSECOND, clock());
        share.is_used_up();
        holder.frames += frames;
        holder.account = Account::default();
        holder.account.excess.charge(handling_cost::ADVANCE, clock());
        pass(took * MICROSECOND);
        intake.end(&share, &mut holder, clock());
        assert_eq!(holder.account.excess.is_too_high(clock()), is_too_high);
    }
}

#[test]
fn without_a_clock_everything_is_handled_at_once() {
    let mut intake = Intake::<u32, u32>::new();
    let mut holder = Fake::default();
    let mut share = intake.begin(A, &mut holder, clock());
    for datagram in 0..100 {
        assert_eq!(intake.turn(&share, datagram, 1_200), Turn::Now(datagram));
        assert!(!share.is_used_up());
    }
    assert!(!intake.end(&share, &mut holder, clock()));
    let [mut one] = intake.shares([Step::Backlog]);
    assert!(!one.is_used_up_by_now());
}

#[test]
fn the_shares_of_steps_begin_together() {
    let intake = intake();
    let [mut strangers, mut newcomers] = intake.shares([Step::Strangers, Step::Newcomers]);
    for (passes, over) in
        [(124, [false; 2]), (1, [true, false]), (124, [true, false]), (1, [true; 2])]
    {
        pass(passes * MICROSECOND);
        let is_over = [&mut strangers, &mut newcomers].map(|share| share.is_used_up_by_now());
        assert_eq!(is_over, over);
    }
    let mut later = intake.share(MICROSECOND);
    pass(MICROSECOND);
    assert!(!later.is_used_up_by_now(), "it begins with the first look");
}
