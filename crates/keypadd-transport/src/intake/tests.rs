//! Tests which datagrams are handled, and who is charged for that, by a clock that tests move.

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

impl Metered for Fake {
    fn is_stranger(&self) -> bool {
        self.is_stranger
    }

    fn is_bulk(&self) -> bool {
        self.is_bulk
    }

    fn frames_received(&self) -> u64 {
        self.frames
    }

    fn acknowledged(&self) -> u64 {
        0
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
    let mut intake = Intake::new(backlog::BYTES_MAX);
    let until = clock() + Duration::from_secs(60);
    let costs = CostMeter::new(|| PASSED.get(), Some(until));
    intake.clocks = Some(Clocks { costs, shares: clock });
    intake.begin_round();
    intake
}

/// How long a connection may handle datagrams that have just been read.
fn handles_for(intake: &mut Intake<u32, u32>, key: Key, connection: &mut Fake) -> Duration {
    let mut share = intake.begin(key, connection, clock());
    let began = PASSED.get();
    while intake.decide(&share, 0, 1_200) == Decision::Now(0) {
        // The clock is read after eight of them.
        pass(10 * MICROSECOND / 8);
        share.is_used_up(1_200);
    }
    intake.backlog.pop(key);
    intake.end(&share, connection, clock());
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
    let (mut intake, mut connection) = (intake(), Fake::default());
    let share = intake.begin(A, &mut connection, clock());
    pass(300 * MICROSECOND);
    intake.end(&share, &mut connection, clock());
    assert_eq!(handles_for(&mut intake, A, &mut connection), 700 * MICROSECOND);
}

#[test]
fn what_a_connection_handles_of_its_backlog_is_not_of_its_share() {
    let (mut intake, mut connection) = (intake(), Fake::default());
    let share = intake.begin_waiting(A, Some(&mut connection), Step::Backlog.time(), clock());
    pass(Step::Backlog.time());
    intake.end(&share, &mut connection, clock());
    assert_eq!(handles_for(&mut intake, A, &mut connection), Step::Handle.time());
}

#[test]
fn datagrams_wait_behind_those_of_their_connection() {
    let (mut intake, mut connection) = (intake(), Fake::default());
    assert!(intake.backlog.is_empty());
    handles_for(&mut intake, A, &mut connection);
    let share = intake.begin(A, &mut connection, clock());
    assert_eq!(intake.decide(&share, 1, 1_200), Decision::Later);
    assert!(!intake.backlog.is_empty());
    intake.begin_round();
    let share = intake.begin(A, &mut connection, clock());
    assert_eq!(intake.decide(&share, 2, 1_200), Decision::Later, "although it has a share again");
    assert_eq!((intake.backlog.connections(), intake.backlog.next_connection()), (1, Some(A)));
    assert_eq!([(); 3].map(|()| intake.backlog.pop(A)), [Some((1, 1_200)), Some((2, 1_200)), None]);
    let share = intake.begin(A, &mut connection, clock());
    assert_eq!(intake.decide(&share, 3, 1_200), Decision::Now(3));
}

#[test]
fn too_many_that_wait_are_dropped() {
    let (mut intake, mut connection) = (intake(), Fake { is_stranger: true, ..Fake::default() });
    let share = intake.begin(A, &mut connection, clock());
    let decisions = [(); 2].map(|()| intake.decide(&share, 0, 1_500_000));
    assert_eq!(decisions, [Decision::Later, Decision::Dropped]);
}

#[test]
fn a_strangers_datagrams_wait_for_the_step_of_strangers() {
    let (mut intake, mut stranger) = (intake(), Fake { is_stranger: true, ..Fake::default() });
    assert!(!intake.has_strangers());
    let share = intake.begin(A, &mut stranger, clock());
    assert_eq!(intake.decide(&share, 1, 1_200), Decision::Later);
    assert!(intake.has_strangers() && intake.backlog.is_empty());
    assert_eq!(intake.strangers.pop_next(), Some((A, 1, 1_200)));
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
    let (mut intake, mut connection) = (intake(), Fake::default());
    let mut cost = |time| {
        let mut share = intake.begin_waiting(A, Some(&mut connection), time, clock());
        share.is_used_up(1_200);
        connection.frames += 1;
        pass(time);
        let warns = intake.end(&share, &mut connection, clock());
        (warns, connection.account.excess.is_too_high(clock()))
    };
    assert_eq!(cost(100 * MICROSECOND), (false, false), "that is usual");
    assert_eq!(cost(100_000 * MICROSECOND), (true, true));
    assert_eq!(cost(100_000 * MICROSECOND), (false, true));
}

#[test]
fn bulk_may_take_longer_before_it_is_measured() {
    for is_bulk in [false, true] {
        let mut intake = Intake::<u32, u32>::new(backlog::BYTES_MAX);
        let costs = CostMeter::new(|| PASSED.get(), None);
        intake.clocks = Some(Clocks { costs, shares: clock });
        let mut connection = Fake { is_bulk, ..Fake::default() };
        let mut share = intake.begin_waiting(A, Some(&mut connection), MICROSECOND, clock());
        share.is_used_up(1_200);
        pass(300 * MICROSECOND);
        intake.end(&share, &mut connection, clock());
        let next = intake.begin_waiting(A, Some(&mut connection), MICROSECOND, clock());
        assert_eq!(next.reading.is_none(), is_bulk);
    }
}

#[test]
fn frames_are_those_of_the_share() {
    let (mut intake, mut connection) = (intake(), Fake { frames: 1_000, ..Fake::default() });
    // A microsecond is the shortest. Ninety are usual, but not for as many as a hundred frames.
    for (frames, took, is_too_high) in [(10, 1, false), (10, 90, false), (100, 90, true)] {
        let mut share = intake.begin_waiting(A, Some(&mut connection), MICROSECOND, clock());
        share.is_used_up(1_200);
        connection.frames += frames;
        connection.account = Account::default();
        connection.account.excess.charge(handling_cost::ADVANCE, clock());
        pass(took * MICROSECOND);
        intake.end(&share, &mut connection, clock());
        assert_eq!(connection.account.excess.is_too_high(clock()), is_too_high);
    }
}

#[test]
fn without_a_clock_everything_is_handled_at_once() {
    let mut intake = Intake::<u32, u32>::new(backlog::BYTES_MAX);
    let mut connection = Fake::default();
    let mut share = intake.begin(A, &mut connection, clock());
    for datagram in 0..100 {
        assert_eq!(intake.decide(&share, datagram, 1_200), Decision::Now(datagram));
        assert!(!share.is_used_up(1_200));
    }
    assert!(!intake.end(&share, &mut connection, clock()));
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
