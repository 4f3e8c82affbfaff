//! Tests rate, delay, queue and impairments of a line in simulated time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const MANY: usize = 10_000;

fn rate(bits_per_second: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(bits_per_second)
}

/// 1,000 bytes a second.
fn slow() -> LineSettings {
    LineSettings { bits_per_second: rate(8_000), ..<_>::default() }
}

fn everything() -> LineSettings {
    LineSettings {
        loss: 0.2,
        corrupt: 0.01,
        duplicate: 0.05,
        reorder: 0.1,
        hold: 7 * MILLISECOND,
        delay: 20 * MILLISECOND,
        jitter: 3 * MILLISECOND,
        ..<_>::default()
    }
}

/// Outcomes of `MANY` packets that enter at the same time.
fn offered(
    settings: LineSettings,
    seed: u64,
) -> (Instant, Vec<Result<Arrivals, Loss>>, LineCounts) {
    let (mut line, now) = (Line::new(settings, seed), Instant::now());
    let all = (0..MANY).map(|_| line.offer(now, 1_200)).collect();
    (now, all, line.counts())
}

/// Arrival time of a packet that is not lost.
fn arrives(line: &mut Line, now: Instant, bytes: usize) -> Instant {
    line.offer(now, bytes).unwrap().packet.at
}

#[test]
fn a_line_is_busy_for_as_long_as_its_rate_says_and_arrival_is_later_by_the_delay() {
    let delay = 300 * MILLISECOND;
    let (mut line, now) = (Line::new(LineSettings { delay, ..slow() }, 0), Instant::now());
    assert_eq!(arrives(&mut line, now, 100), now + delay + SECOND / 10);
    assert_eq!(arrives(&mut line, now, 100), now + delay + SECOND / 5);
    assert_eq!(line.queue(now), Queued { packets: 2, bytes: 200, wait: SECOND / 5 });
    assert_eq!(line.queue(now + SECOND / 10), Queued { packets: 1, bytes: 100, wait: SECOND / 10 });
    let later = now + 10 * SECOND;
    assert_eq!(line.queue(later), Queued::default());
    assert_eq!(arrives(&mut line, later, 1_000), later + delay + SECOND);
}

#[test]
fn without_a_rate_there_is_only_the_delay() {
    let (mut line, now) =
        (Line::new(LineSettings { delay: SECOND, ..<_>::default() }, 0), Instant::now());
    for _ in 0..MANY {
        assert_eq!(arrives(&mut line, now, 1 << 20), now + SECOND);
    }
}

#[test]
fn a_queue_is_bounded_in_packets_bytes_and_time_and_has_room_again_when_some_have_left() {
    let bounds = [
        QueueBound { packets: 3, ..QueueBound::UNBOUNDED },
        QueueBound { bytes: 3_000, ..QueueBound::UNBOUNDED },
        QueueBound { wait: 2 * SECOND, ..QueueBound::UNBOUNDED },
    ];
    for queue in bounds {
        let (mut line, now) = (Line::new(LineSettings { queue, ..slow() }, 0), Instant::now());
        for _ in 0..3 {
            line.offer(now, 1_000).unwrap();
        }
        assert_eq!(line.offer(now, 1_000), Err(Loss::QueueFull), "{queue:?}");
        let early = now + SECOND - MILLISECOND;
        assert_eq!(line.offer(early, 1_000), Err(Loss::QueueFull), "{queue:?}");
        assert_eq!(arrives(&mut line, now + SECOND, 1_000), now + 4 * SECOND, "{queue:?}");
        assert_eq!((line.counts().arriving, line.counts().queue_full), (4, 2));
    }
}

#[test]
fn the_default_queue_holds_a_thousand_packets() {
    let (mut line, now) = (Line::new(slow(), 0), Instant::now());
    let taken = (0..2 * QUEUE_PACKETS).filter(|_| line.offer(now, 1).is_ok()).count();
    assert_eq!(taken, 1_000);
}

#[test]
fn a_packet_longer_than_the_queue_enters_when_it_is_empty() {
    let queue = QueueBound { bytes: 500, ..QueueBound::UNBOUNDED };
    let (mut line, now) = (Line::new(LineSettings { queue, ..slow() }, 0), Instant::now());
    assert!(line.offer(now, 1_000).is_ok());
    assert_eq!(line.offer(now, 1_000), Err(Loss::QueueFull));
}

#[test]
fn a_new_rate_holds_for_what_enters_from_then_on() {
    let (mut line, now) = (Line::new(slow(), 0), Instant::now());
    assert_eq!(arrives(&mut line, now, 1_000), now + SECOND);
    line.set(LineSettings { bits_per_second: rate(16_000), ..slow() });
    assert_eq!(arrives(&mut line, now, 1_000), now + SECOND + SECOND / 2);
    // Even without a rate nothing overtakes packets queued at an earlier rate.
    line.set(LineSettings::default());
    assert_eq!(arrives(&mut line, now, 1_000), now + SECOND + SECOND / 2);
}

#[test]
fn loss_before_the_bottleneck_costs_nothing_of_its_rate_and_loss_after_it_does() {
    for (loss_place, used) in
        [(LossPlace::BeforeBottleneck, 0.8), (LossPlace::AfterBottleneck, 1.0)]
    {
        let queue = QueueBound::UNBOUNDED;
        let (mut line, now) =
            (Line::new(LineSettings { loss: 0.2, loss_place, queue, ..slow() }, 1), Instant::now());
        let lost = (0..MANY).filter(|_| line.offer(now, 1_000) == Err(Loss::Random)).count();
        let share = lost as f64 / MANY as f64;
        assert!((0.19..0.21).contains(&share), "{share}");
        let seconds = line.queue(now).wait.as_secs_f64() / MANY as f64;
        assert!((seconds - used).abs() < 0.01, "{loss_place:?}: {seconds}");
    }
}

#[test]
fn the_same_seed_decides_the_same_and_another_does_not() {
    let fates = |seed| {
        let (start, all, _) = offered(everything(), seed);
        let relative =
            |arrivals: Arrivals| arrivals.into_iter().map(|one| one.at - start).collect::<Vec<_>>();
        all.into_iter().map(|one| one.map(relative)).collect::<Vec<_>>()
    };
    assert_eq!(fates(7), fates(7));
    assert_ne!(fates(7), fates(8));
}

#[test]
fn each_impairment_meets_as_many_as_it_says_and_is_counted() {
    let (start, all, counts) = offered(everything(), 1);
    let share = |count: u64| count as f64 * 100.0 / MANY as f64;
    assert_eq!(counts.packets, MANY as u64);
    assert_eq!(counts.bytes, 1_200 * counts.packets);
    assert_eq!(counts.arriving_bytes, 1_200 * counts.arriving);
    assert_eq!(counts.arriving + counts.random, counts.packets);
    assert!((19.0..21.0).contains(&share(counts.random)), "{counts:?}");
    // Of the 80 % that arrive.
    assert!((0.5..1.1).contains(&share(counts.corrupted)), "{counts:?}");
    assert!((3.4..4.6).contains(&share(counts.duplicated)), "{counts:?}");
    assert!((7.2..8.8).contains(&share(counts.held)), "{counts:?}");

    let arriving: Vec<Arrivals> = all.into_iter().filter_map(Result::ok).collect();
    let count =
        |is: &dyn Fn(&Arrivals) -> bool| arriving.iter().filter(|one| is(one)).count() as u64;
    assert_eq!(count(&|one| one.copy.is_some()), counts.duplicated);
    assert_eq!(count(&|one| one.packet.flipped.is_some()), counts.corrupted);
    assert_eq!(count(&|one| one.packet.at - start >= 27 * MILLISECOND), counts.held);
}

#[test]
fn delay_jitter_and_hold_add_up() {
    let set = everything();
    let (start, all, _) = offered(set, 2);
    let mut latest = Duration::ZERO;
    for Arrivals { packet, copy } in all.into_iter().flatten() {
        let after = packet.at - start - set.delay;
        assert!(
            after <= set.jitter || (set.hold..=set.hold + set.jitter).contains(&after),
            "{after:?}"
        );
        let copy = copy.map_or(Duration::ZERO, |copy| copy.at - start - set.delay);
        assert!(copy <= set.jitter, "{copy:?}");
        latest = latest.max(copy);
    }
    assert!(latest > set.jitter.mul_f64(0.9), "jitter is not spread: {latest:?}");
}

#[test]
fn what_is_lost_does_not_depend_on_the_other_impairments() {
    let lost = |set| offered(set, 3).1.iter().map(Result::is_err).collect::<Vec<_>>();
    assert_eq!(lost(everything()), lost(LineSettings { loss: 0.2, ..<_>::default() }));
}

#[test]
fn what_is_too_long_is_lost_and_nothing_else() {
    let set = LineSettings { bytes_max: Some(1_400), ..<_>::default() };
    let (mut line, now) = (Line::new(set, 0), Instant::now());
    assert_eq!(line.offer(now, 1_401), Err(Loss::TooLong));
    assert_eq!(arrives(&mut line, now, 1_400), now);
    assert_eq!((line.counts().too_long, line.counts().arriving), (1, 1));
}

#[test]
fn a_cut_line_passes_nothing_until_it_is_whole_again() {
    let (mut line, now) = (Line::new(slow(), 0), Instant::now());
    line.set(LineSettings { cut: true, ..slow() });
    assert_eq!(line.offer(now, 1_000), Err(Loss::Cut));
    line.set(slow());
    assert_eq!(arrives(&mut line, now, 1_000), now + SECOND);
    assert_eq!(line.counts().cut, 1);
}

#[test]
fn packets_that_wait_longer_than_the_threshold_are_marked() {
    let set = LineSettings { mark_above: Some(SECOND), ..slow() };
    let (mut line, now) = (Line::new(set, 0), Instant::now());
    let marked = [(); 4].map(|()| line.offer(now, 1_000).unwrap().packet.marked);
    assert_eq!(marked, [false, false, true, true]);
    assert_eq!(line.counts().marked, 2);
}

#[test]
fn a_policer_passes_its_burst_then_its_rate_and_keeps_no_queue() {
    let policer = Policer { bits_per_second: NonZeroU64::new(8_000).unwrap(), burst_bytes: 3_000 };
    let (mut line, now) =
        (Line::new(LineSettings { policer: Some(policer), ..<_>::default() }, 0), Instant::now());
    for _ in 0..3 {
        assert_eq!(arrives(&mut line, now, 1_000), now);
    }
    assert_eq!(line.offer(now, 1_000), Err(Loss::Policed));
    // Twice the rate: half of it passes.
    let passed =
        (1..=200).filter(|half| line.offer(now + *half * SECOND / 2, 1_000).is_ok()).count();
    assert_eq!(passed, 100);
    assert_eq!(line.counts().policed, 101);
}

#[test]
fn every_bit_may_be_flipped_and_none_beyond_the_end() {
    let set = LineSettings { corrupt: 1.0, ..<_>::default() };
    let (mut line, now) = (Line::new(set, 4), Instant::now());
    let mut seen = [false; 24];
    for _ in 0..MANY {
        seen[line.offer(now, 3).unwrap().packet.flipped.unwrap()] = true;
    }
    assert_eq!(seen, [true; 24]);
    assert_eq!(line.offer(now, 0).unwrap().packet.flipped, None);
}

#[test]
fn time_does_not_run_backwards() {
    let (mut line, now) = (Line::new(slow(), 0), Instant::now());
    let later = now + SECOND;
    assert_eq!(arrives(&mut line, later, 1_000), later + SECOND);
    assert_eq!(arrives(&mut line, now, 1_000), later + 2 * SECOND);
}
