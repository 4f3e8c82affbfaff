//! Tests key updates: lanes of coming phases, late packets of past ones, and memory that comes
//! back.

use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{PacketNumber, Protection, SEGMENT_PACKETS, Suite, SuiteKey};
use keypadd_pool::{Coverage, Direction, Lane, Part, Pool, PoolSettings, Stage, Step};

use super::support::{
    Receiver, Sender, material, new_pool, open, payload, poll_until, seal, with_pads,
};
use crate::limits::{IMMINENT_PACKETS, KeyLimits, STANDBY_PACKETS};
use crate::open::OpenKey;
use crate::phases::{NewestPhase, Phases};
use crate::seal::SealKey;

const HEADER: &[u8] = b"header";
/// A keystroke: a head covers its pad in every suite.
const PAYLOAD_BYTES: usize = 50;
/// Ten keystrokes per second.
const BETWEEN_KEYS: Duration = Duration::from_millis(100);
/// Packets of a phase before its successor's lane is opened.
const BEFORE_STANDBY: u64 = 200;

/// Both ends of one direction, with the keys that quinn would hold.
struct Link {
    suite: Protection,
    sender: Sender,
    receiver: Receiver,
    seals: Vec<SealKey>,
    opens: Vec<Option<OpenKey>>,
    next_number: u64,
}

impl Link {
    /// A link right after the handshake: quinn holds the keys of phases 0 and 1.
    fn new(suite: Protection, pool: &Pool) -> Self {
        let full = KeyLimits::of(suite);
        let limits = KeyLimits {
            // Phases end early.
            reported: full.reported - full.phase_packets() + STANDBY_PACKETS + BEFORE_STANDBY,
            ..full
        };
        let mut link = Self {
            suite,
            sender: Sender::limited(suite, limits),
            receiver: Receiver::limited(suite, limits),
            seals: Vec::new(),
            opens: Vec::new(),
            next_number: 0,
        };
        link.add_phase();
        link.add_phase();
        link.sender.sending().phases.use_pool(Some(pool.clone()));
        link.receiver.receiving().phases.use_pool(Some(pool.clone()));
        link
    }

    fn add_phase(&mut self) {
        let phase = self.opens.len() as u64;
        let material = material(self.suite, phase as u8);
        self.seals.push(self.sender.key(phase, &material));
        self.opens.push(Some(self.receiver.key(phase, &material)));
    }

    /// Updates the keys as quinn does: uses the newest phase, derives another, drops the sending
    /// key of the old phase.
    fn update(&mut self) {
        self.add_phase();
        let in_use = self.opens.len() - 2;
        self.sender.sending().phases.retire_before(in_use as u64);
        self.seals.drain(..self.seals.len() - 2);
    }

    fn phase_in_use(&self) -> usize {
        self.opens.len() - 2
    }

    /// Seals the next packet; its number and bytes.
    fn seal(&mut self) -> (u64, Vec<u8>) {
        let (number, key) = (self.next_number, &self.seals[self.seals.len() - 2]);
        self.next_number += 1;
        (number, seal(key, number, HEADER, &payload(PAYLOAD_BYTES)))
    }

    fn opens(&self, phase: usize, (number, sealed): &(u64, Vec<u8>)) -> bool {
        let key = self.opens[phase].as_ref().expect("not yet dropped");
        open(key, *number, HEADER, sealed) == Some(payload(PAYLOAD_BYTES))
    }

    fn carry(&mut self, packets: u64) {
        for _ in 0..packets {
            let packet = self.seal();
            assert!(self.opens(self.phase_in_use(), &packet), "{}", self.suite);
        }
    }

    /// Runs `check` on the phases of both directions.
    fn each_direction(&self, mut check: impl FnMut(&mut Phases)) {
        check(&mut self.sender.sending().phases);
        check(&mut self.receiver.receiving().phases);
    }
}

fn stage(phases: &mut Phases, phase: u64) -> Option<Stage> {
    phases.lane(phase).map(Lane::stage)
}

fn packets_at_hand(phases: &mut Phases, phase: u64, part: Part) -> u64 {
    phases.lane(phase).map_or(0, |lane| lane.level(part).packets)
}

#[test]
fn each_phase_has_its_lane_before_it_is_needed() {
    let pool = new_pool(4 << 20);
    for suite in with_pads() {
        let mut link = Link::new(suite, &pool);
        link.each_direction(|phases| {
            assert_eq!(stage(phases, 0), Some(Stage::Brief));
            assert_eq!(stage(phases, 1), Some(Stage::Active));
        });
        link.carry(100);

        link.update();
        link.carry(1);
        link.each_direction(|phases| {
            assert!(matches!(stage(phases, 0), None | Some(Stage::Dormant)));
            assert_eq!(stage(phases, 1), Some(Stage::Active));
            assert_eq!(stage(phases, 2), None, "{suite}: far from its use");
        });
        link.carry(BEFORE_STANDBY - 2);
        link.each_direction(|phases| assert_eq!(stage(phases, 2), None, "{suite}"));
        link.carry(1);
        link.each_direction(|phases| {
            assert_eq!(stage(phases, 2), Some(Stage::Standby), "{suite}");
            poll_until("the next phase has heads", || packets_at_hand(phases, 2, Part::Head) > 0);
        });

        // These are for the packets after the phase's last one.
        link.carry(STANDBY_PACKETS);
        link.update();
        let hits = |link: &Link| {
            let sent = link.sender.meters.packets(Direction::Send, Coverage::Hit);
            (sent, link.receiver.meters.packets(Direction::Receive, Coverage::Hit))
        };
        let (sent, received) = hits(&link);
        link.carry(1);
        assert_eq!(hits(&link), (sent + 1, received + 1), "{suite}: a warm start");
        link.each_direction(|phases| {
            assert!(matches!(stage(phases, 1), None | Some(Stage::Dormant)));
            assert_eq!(stage(phases, 2), Some(Stage::Active), "{suite}");
        });
    }
}

#[test]
fn a_rekey_under_steady_terminal_traffic_causes_no_miss() {
    for suite in with_pads() {
        let settings = PoolSettings { budget_bytes: 1 << 20 };
        let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
        let mut link = Link::new(suite, &pool);
        // The filler has all the time it needs between two keystrokes.
        let mut now = Duration::ZERO;
        let mut keystrokes = |link: &mut Link, count: u64| {
            for _ in 0..count {
                now += BETWEEN_KEYS;
                while filler.step(now) == Step::Worked {}
                link.carry(1);
            }
        };
        keystrokes(&mut link, 70);
        // By time long before the end, by time after pads were made for it, and at the end.
        let spans = [80, BEFORE_STANDBY + 300, BEFORE_STANDBY + STANDBY_PACKETS];
        for span in spans.into_iter().cycle().take(2 * spans.len()) {
            link.update();
            // quinn keeps the past phase's key for three probe timeouts.
            keystrokes(&mut link, 10);
            let in_use = link.phase_in_use();
            link.opens[..in_use].fill_with(|| None);
            keystrokes(&mut link, span - 11);
            if span < BEFORE_STANDBY + STANDBY_PACKETS {
                link.each_direction(|phases| phases.expect_update());
            }
            keystrokes(&mut link, 1);
        }
        link.update();
        keystrokes(&mut link, 70);
        for (meters, direction) in
            [(&link.sender.meters, Direction::Send), (&link.receiver.meters, Direction::Receive)]
        {
            let [hits, partial, misses] = [Coverage::Hit, Coverage::Partial, Coverage::Miss]
                .map(|coverage| meters.packets(direction, coverage));
            assert_eq!((partial, misses), (0, 0), "{suite}, {direction:?}, {hits} hits");
        }
    }
}

/// The last packet of a phase in [`two_directions`].
const LAST: u64 = STANDBY_PACKETS + 9;

/// The pads of both directions of a connection, in phase 1, after its packet 0.
fn two_directions(pool: &Pool) -> [Phases; 2] {
    let ahead = NewestPhase::default();
    let keystream = || SuiteKey::derive(Suite::AES_128_GCM, &[1; 16], &[2; 12]).keystream;
    [Direction::Send, Direction::Receive].map(|direction| {
        let mut phases = Phases::new(direction, LAST + 1, ahead.clone(), &Arc::default());
        (0..3).for_each(|phase| phases.add(phase, keystream()));
        phases.use_pool(Some(pool.clone()));
        phases.follow(1, PacketNumber::new(0));
        phases
    })
}

/// Whether a direction's pads of phase 2 are for packets further on than this one.
fn begins_after(phases: &Phases, number: u64) -> Option<bool> {
    phases.lane(2).map(|lane| lane.begins_after(PacketNumber::new(number)))
}

#[test]
fn a_phase_that_ends_in_one_direction_is_prepared_in_both() {
    let [mut busy, mut quiet] = two_directions(&new_pool(4 << 20));
    for number in 1..20 {
        busy.follow(1, PacketNumber::new(number));
    }
    assert_eq!(stage(&mut busy, 2), Some(Stage::Standby));
    quiet.follow(1, PacketNumber::new(1));
    assert_eq!(stage(&mut quiet, 2), None, "too early");
    busy.follow(1, PacketNumber::new(LAST + 1 - IMMINENT_PACKETS));
    assert_eq!(stage(&mut quiet, 2), None, "no packet of its own has come");
    quiet.follow(1, PacketNumber::new(2));
    assert_eq!(stage(&mut quiet, 2), Some(Stage::Imminent), "it gives up what it passes");
    // The busy direction uses the next key after its last packet, the quiet one at any time.
    assert_eq!(begins_after(&busy, 1000), Some(true));
    assert_eq!(begins_after(&quiet, 1000), Some(false));
}

/// Takes the pad of a full packet; whether the pool had all of it.
fn is_hit(phases: &mut Phases, phase: u64, number: u64) -> bool {
    let data = &mut [0; 1400][..];
    let number = PacketNumber::new(number);
    phases.apply(phase, number, (&mut [], data), 1, || ()) == Some(Coverage::Hit)
}

#[test]
fn a_key_update_takes_no_pads_from_a_stream_without_pause() {
    const PHASE_PACKETS: u64 = 10_010;
    let settings = PoolSettings { budget_bytes: 8 << 20 };
    let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
    let mut phases =
        Phases::new(Direction::Send, PHASE_PACKETS, NewestPhase::default(), &Arc::default());
    let key = |phase| SuiteKey::derive(Suite::AES_128_GCM, &[phase; 16], &[2; 12]).keystream;
    (0..4).for_each(|phase| phases.add(u64::from(phase), key(phase)));
    phases.use_pool(Some(pool.clone()));
    let (mut number, mut now) = (0, Duration::ZERO);
    for phase in 1..3 {
        phases.retire_before(phase);
        for nth in 0..PHASE_PACKETS {
            let is_first = (phase, nth / SEGMENT_PACKETS as u64) == (1, 0);
            assert!(is_hit(&mut phases, phase, number) || is_first, "{number}");
            number += 1;
            now += Duration::from_micros(100);
            while filler.step(now) == Step::Worked {}
        }
        // As many as in the middle of a phase.
        assert!(packets_at_hand(&mut phases, phase + 1, Part::Body) > 3_500);
    }
    // Of the first phase, and of segments in which phases end.
    assert!(pool.snapshot().pads_wasted_total < 2_500, "{:?}", pool.snapshot());
    let at_hand = packets_at_hand(&mut phases, 3, Part::Body);
    let end = number + at_hand - SEGMENT_PACKETS as u64;
    assert!((number..end).all(|number| is_hit(&mut phases, 3, number)));
}

#[test]
fn a_receiver_that_lost_the_first_packets_of_a_phase_has_pads_for_the_next_one() {
    const PHASE_PACKETS: u64 = 2_000;
    const LOST: u64 = 300;
    let settings = PoolSettings { budget_bytes: 8 << 20 };
    let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
    let mut phases =
        Phases::new(Direction::Receive, PHASE_PACKETS, NewestPhase::default(), &Arc::default());
    let key = |phase| SuiteKey::derive(Suite::AES_128_GCM, &[phase; 16], &[2; 12]).keystream;
    (0..3).for_each(|phase| phases.add(u64::from(phase), key(phase)));
    phases.use_pool(Some(pool));
    for number in LOST..PHASE_PACKETS {
        phases.skip(1, PacketNumber::new(number), 1400);
        while filler.step(Duration::from_micros(100 * number)) == Step::Worked {}
    }
    let hits = (PHASE_PACKETS..2 * PHASE_PACKETS).filter(|&number| is_hit(&mut phases, 2, number));
    let expected = PHASE_PACKETS - LOST - SEGMENT_PACKETS as u64;
    assert!(hits.count() as u64 >= expected);
}

#[test]
fn pads_after_the_expected_end_of_a_phase_are_made_once_it_is_past() {
    let pool = new_pool(4 << 20);
    let [mut phases, _] = two_directions(&pool);
    let last_segment = PacketNumber::new(LAST + 1).segment().next();
    for number in 1..=last_segment.next().first().value() {
        phases.skip(1, PacketNumber::new(number), 1400);
    }
    poll_until("it has more", || packets_at_hand(&mut phases, 1, Part::Body) > 0);
}

#[test]
fn a_direction_near_its_end_is_prepared_for_an_earlier_one_of_the_other() {
    let [mut slow, mut fast] = two_directions(&new_pool(4 << 20));
    slow.follow(1, PacketNumber::new(20));
    assert_eq!(begins_after(&slow, 20), Some(true));
    fast.follow(1, PacketNumber::new(LAST));
    slow.follow(1, PacketNumber::new(21));
    assert_eq!(begins_after(&slow, 21), Some(false));
}

#[test]
fn pads_for_the_end_of_a_phase_are_kept_until_the_peer_is_past_it() {
    let [mut phases, _] = two_directions(&new_pool(4 << 20));
    for number in 1..=LAST {
        phases.follow(1, PacketNumber::new(number));
    }
    assert_eq!(stage(&mut phases, 2), Some(Stage::Standby));
    for number in (LAST..).take(4 * SEGMENT_PACKETS) {
        phases.follow(1, PacketNumber::new(number));
    }
    assert_eq!(stage(&mut phases, 2), Some(Stage::Imminent));
}

#[test]
fn a_pool_that_comes_back_after_the_end_of_a_phase_makes_pads_for_packets_to_come() {
    let pool = new_pool(4 << 20);
    let [mut phases, _] = two_directions(&pool);
    phases.use_pool(None);
    let number = PacketNumber::new(LAST + 1000);
    phases.follow(1, number);
    phases.use_pool(Some(pool));
    phases.follow(1, number);
    assert_eq!(stage(&mut phases, 2), Some(Stage::Imminent), "not those for the end");
}

#[test]
fn a_phase_that_begins_before_the_packets_its_pads_are_for_is_served_all_the_same() {
    let pool = new_pool(4 << 20);
    for suite in with_pads() {
        let mut link = Link::new(suite, &pool);
        link.update();
        link.carry(BEFORE_STANDBY + 10);
        // The peer's keys end first.
        link.update();
        link.carry(1);
        link.each_direction(|phases| {
            // This segment and the two that follow.
            let enough = 3 * SEGMENT_PACKETS as u64;
            poll_until("it has pads", || packets_at_hand(phases, 2, Part::Head) >= enough);
        });
        let hits = |link: &Link| link.sender.meters.packets(Direction::Send, Coverage::Hit);
        let before = hits(&link);
        // A segment may have begun without pads.
        link.carry(2 * SEGMENT_PACKETS as u64);
        assert!(hits(&link) - before >= SEGMENT_PACKETS as u64, "{suite}");
    }
}

#[test]
fn a_direction_without_packets_gives_back_what_another_needs_once_it_is_asked() {
    let pool = new_pool(4 << 20);
    let [mut idle, mut other] = two_directions(&pool);
    other.use_pool(None);
    let is_full = || pool.snapshot().is_settled && pool.snapshot().filled_bytes > 3 << 20;
    poll_until("one has all of the pool", is_full);
    other.use_pool(Some(pool.clone()));
    other.follow(1, PacketNumber::new(1));
    poll_until("it is to give back", || idle.lane(1).is_some_and(Lane::is_recalled));
    poll_until("the pool waits for that", || !pool.snapshot().is_settled);
    idle.give_back();
    poll_until("both have their part", || pool.snapshot().is_settled);
    let [one, two] = [idle, other].map(|phases| phases.level(Part::Body).packets);
    assert!(one > 0 && one.abs_diff(two) <= one / 4, "{one} {two}");
}

#[test]
fn late_packets_of_a_past_phase_open_until_its_key_is_dropped() {
    let pool = new_pool(4 << 20);
    for suite in with_pads() {
        let mut link = Link::new(suite, &pool);
        link.carry(10);
        let (late, later) = (link.seal(), link.seal());
        link.update();
        link.carry(10);
        assert!(link.opens(0, &late), "{suite}");
        let stale = link.opens[0].take().expect("phase 0");
        link.receiver.receiving().phases.retire(0);
        assert_eq!(open(&stale, later.0, HEADER, &later.1), None, "{suite}");
        link.carry(10);
        assert_eq!(link.receiver.meters.replays() + link.receiver.meters.open_failures(), 0);
    }
}

#[test]
fn memory_of_retired_phases_and_dropped_keys_comes_back() {
    let pool = new_pool(4 << 20);
    let is_home = || pool.snapshot().filled_bytes == 0;
    for suite in with_pads() {
        let mut link = Link::new(suite, &pool);
        for _ in 0..4 {
            link.carry(BEFORE_STANDBY + 10);
            // A filler without CPU time would refuse the lanes of later phases.
            poll_until("the filler has come to this phase", || {
                let mut packets = Vec::new();
                link.each_direction(|phases| packets.push(phases.level(Part::Head).packets));
                packets.iter().all(|&packets| packets > 0)
            });
            link.update();
            let in_use = link.phase_in_use();
            link.each_direction(|phases| {
                let has_heads = || packets_at_hand(phases, in_use as u64, Part::Head) > 0;
                poll_until("the pool serves the link", has_heads);
            });
            for past in &mut link.opens[..in_use] {
                *past = None;
            }
            link.each_direction(|phases| {
                assert!(phases.lane(in_use as u64 - 1).is_none(), "{suite}: retired");
            });
        }
        poll_until("the filler has counted its memory", || !is_home());
        drop((link.seals, link.opens));
        poll_until("all memory is home", is_home);
    }
}

#[test]
fn a_live_connection_leaves_its_pool_and_comes_back_to_it() {
    let pool = new_pool(4 << 20);
    let hits = |link: &Link| link.sender.meters.packets(Direction::Send, Coverage::Hit);
    for suite in with_pads() {
        let mut link = Link::new(suite, &pool);
        for _ in 0..2 {
            for is_used in [true, false] {
                let using = is_used.then(|| pool.clone());
                link.each_direction(|phases| phases.use_pool(using.clone()));
                poll_until("the pool has followed", || {
                    let level = link.sender.sending().phases.level(Part::Head);
                    (level.packets > 0) == is_used && (pool.snapshot().filled_bytes > 0) == is_used
                });
                let before = hits(&link);
                link.carry(1);
                assert_eq!(hits(&link) - before, u64::from(is_used), "{suite}");
                link.carry(20);
            }
            link.update();
        }
    }
}
