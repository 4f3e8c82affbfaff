//! Lists every number that the controllers of this crate are set by: value, meaning and source.
//!
//! A source is an RFC or a draft, a paper, or the test of `tests/congestion` in keypadd-transport
//! that shows in virtual time what the value is for. A value without one was set by hand, and all
//! of those tests judge it. Shares and gains have no unit, sizes are in bytes unless a name says
//! packets, rates are in bytes per second. No other file of the crate has numbers of its own,
//! except those that a formula cannot do without (the mean of two, eight bits). Knows no state.

use std::{ops::Range, time::Duration};

// Windows and packets.

/// Initial window, in packets. RFC 9002 7.2.
pub(crate) const INITIAL_PACKETS: u64 = 10;
/// Least window, in packets. RFC 9002 7.2.
pub(crate) const WINDOW_MIN_PACKETS: u64 = 2;

/// Shorter sends are taken for pure ACKs, which are not acknowledged: quinn-proto does not tell
/// them apart.
pub(crate) const COUNTED_BYTES: u64 = 600;

/// Headers of IPv4 (RFC 791) and UDP (RFC 768).
pub(crate) const HEADER_BYTES: u64 = 28;

/// Packets that the first ACK of a batch covers: an ACK is asked for at the second one at the
/// latest (RFC 9000 13.2.2).
pub(crate) const ACKED_PACKETS: u64 = 2;

/// Most batches to remember as in flight. The oldest samples of a path with more are lost.
/// `flight_log` bounds its memory by this.
pub(crate) const BATCHES_MAX: usize = 1 << 14;

// Round trips.

/// Weight of a round trip in the smoothed one is one part in this many. RFC 9002 5.3.
pub(crate) const SMOOTHING: u32 = 8;

/// The shortest round trip is that of the last 10 to 20 s; drains keep it visible.
/// draft-ietf-ccwg-bbr (MinRTTFilterLen).
pub(crate) const FLOOR_TIME: Duration = Duration::from_secs(10);

/// Shorter round trips are those of one host or a LAN, where threads that wait for a core delay
/// packets by milliseconds and queues do not.
pub(crate) const NEAR: Duration = Duration::from_millis(1);

/// Round trips above this are those of a long path, which has few rounds in a second.
/// `a_fast_distant_line_is_full_three_seconds_after_the_start`.
pub const LONG_PATH: Duration = Duration::from_millis(50);

/// Shortest time between decisions.
pub(crate) const ROUND_MIN: Duration = Duration::from_millis(5);

/// The highest of fewer samples of the rate exceeds it by a packet or two, which is much of a slow
/// line's window: their mean counts.
/// `two_flows_of_ours_share_a_slow_line_and_keep_its_queue_short`.
pub(crate) const FEW_SAMPLES: u32 = 12;

/// Parts of the shortest round trip in each of which the rate of ACKs is measured.
pub(crate) const ACKED_PARTS: u32 = 2;
/// Share of the window in flight with which a packet's round trip shows what the path carries.
pub(crate) const SAMPLED_USE: f64 = 0.7;

/// Packets for which there is room before anything is sent: a window counts as used with so much
/// less in flight.
pub(crate) const ROOM_PACKETS: u64 = 2;

/// Share of the window in flight with which the window counts as used.
pub(crate) const FULL_USE: f64 = 0.88;

/// If ACKs are more than one part in this many of what is sent, the queue may be theirs.
/// `a_direction_does_not_slow_down_for_the_queue_of_the_other_one`.
pub(crate) const MANY_ACKS: u64 = 10;

// ACKs that a link holds and delivers in bursts (draft-ietf-ccwg-bbr 5.5.9).
// `acks_that_arrive_in_bursts_neither_starve_a_flow_nor_fill_the_queue`.

/// How long a receiver of bulk may wait before it acknowledges fewer packets than it was asked to.
/// draft-ietf-quic-ack-frequency;
/// `acks_of_bulk_take_a_third_of_a_way_back_that_is_fifty_times_slower`.
pub const ACK_DELAY: Duration = Duration::from_millis(2);

/// ACKs closer together than this belong to one burst.
pub(crate) const ACK_GAP_MIN: Duration = Duration::from_millis(1);
/// A longer burst is a steady stream of ACKs.
pub(crate) const ACK_BURST_MAX: Duration = Duration::from_millis(2);
/// Shorter waits are caused by threads and pacing.
pub(crate) const ACK_WAIT_MIN: Duration = Duration::from_millis(3);
/// Longer waits are allowed for up to this only.
pub(crate) const ACK_WAIT_MAX: Duration = Duration::from_millis(20);
/// A gap counts if there was none shorter for this long.
pub(crate) const ACK_GAP_TIME: Duration = Duration::from_millis(300);
/// Share of the ACKs' waiting time to allow for: the queue need not bridge all of it.
pub(crate) const ACK_WAIT_SHARE: f64 = 0.75;

// Start-up (HyStart++, RFC 9406).

/// Samples of a round that end start-up if all of them waited in a queue. RFC 9406 4.3
/// (N_RTT_SAMPLE).
pub(crate) const START_UP_SAMPLES: u32 = 8;

/// A rate that grew by this factor in one round trip of start-up is still growing. Start-up doubles
/// it; delayed ACKs look like a queue meanwhile.
pub(crate) const DOUBLING: f64 = 1.5;

/// Delay of a full queue, unless the shortest round trip is longer: start-up ends if packets wait
/// so long for this time.
/// `start_up_fills_the_queue_of_a_slow_line_with_little_more_than_its_first_flight`.
pub(crate) const FULL_DELAY: Duration = Duration::from_millis(20);

/// The share of packets that arrive is taken for no less than this when the rate at the end of
/// start-up is computed from what was acknowledged.
pub(crate) const ARRIVING_MIN: f64 = 0.5;

// The queue to keep.

/// Delay of the queue to keep at [`QUEUE_RATE`], in seconds. It falls with the fourth root of the
/// rate: a flow with less than its share accepts a longer queue than one with more, so that our
/// flows converge. `flows_of_ours_share_a_line_and_keep_its_queue_short`.
pub(crate) const QUEUE_DELAY: f64 = 0.002;

/// The rate at which the queue to keep has [`QUEUE_DELAY`]: 300 Mbit/s.
pub(crate) const QUEUE_RATE: f64 = 37.5e6;
/// Least delay of the queue to keep, in seconds.
pub(crate) const QUEUE_DELAY_MIN: f64 = 0.001;
/// Most delay of the queue to keep, in seconds, unless one packet takes longer.
pub(crate) const QUEUE_DELAY_MAX: f64 = 0.010;

/// Least delay of the queue to keep where threads that wait for a core look like a queue
/// ([`NEAR`]), in seconds.
pub(crate) const QUEUE_DELAY_NEAR: f64 = 0.004;

/// The longest time of a packet to allow for, in seconds; slower lines are of no use.
/// `on_a_slow_line_no_more_waits_than_the_least_window`.
pub(crate) const PACKET_TIME_MAX: f64 = 0.1;

/// Packets that a few flows may keep in flight on a slow line before each takes the others for some
/// that fill the queue.
/// `flows_of_ours_that_begin_one_after_the_other_share_a_slow_line_and_keep_its_queue_short`.
pub(crate) const FEW_FLOWS_PACKETS: u64 = 13;

/// An empty queue has at most one part in this many of the delay to keep.
pub(crate) const EMPTY_PART: u32 = 4;
/// The least round trip of a round varies by one part in this many without a queue.
pub(crate) const RTT_NOISE: u32 = 200;
/// Of the delay to keep, one part in this many is the most that variation may take.
pub(crate) const RTT_NOISE_PART: u32 = 2;
/// The mean of a round's round trips varies by this share of the shortest without a queue.
pub(crate) const MEAN_NOISE: f64 = 0.03;
/// A queue stands if its delay exceeds this many times the one to keep, and [`STANDS_MORE`].
pub(crate) const STANDS_TARGETS: u32 = 2;
/// Delay by which a queue must exceed multiples of the one to keep before it counts as standing.
pub(crate) const STANDS_MORE: Duration = Duration::from_millis(1);

// Growth in cruise.

/// Most factor by which a window grows in a round.
pub(crate) const GROWTH_MAX: f64 = 1.25;
/// Least factor by which a window shrinks in a round.
pub(crate) const SHRINKAGE_MAX: f64 = 0.5;
/// Factor between one step of growth and the next while there is room. draft-ietf-ccwg-bbr 5.3.3.4.
pub(crate) const STEP: f64 = 2.0;

/// Factor between steps on a long path, after the first one: it has few rounds.
/// `a_fast_distant_line_is_full_three_seconds_after_the_start`.
pub(crate) const LONG_STEP: f64 = 4.0;

/// Rounds without growth after a change of the window whose effect has to be seen: packets sent
/// before it do not show it.
pub(crate) const EFFECT_ROUNDS: u32 = 2;

/// Most rounds in which a window that loss has reduced does not grow.
pub(crate) const HOLD_ROUNDS: u32 = 16;

/// Time for which a window that loss has reduced does not grow, within [`EFFECT_ROUNDS`] and
/// [`HOLD_ROUNDS`].
pub(crate) const HOLD_TIME: Duration = Duration::from_secs(1);

// Pacing rate over window / round trip.

/// Gain in start-up, in which the window doubles each round trip. draft-ietf-ccwg-bbr has 2.77.
pub(crate) const START_UP_GAIN: f64 = 2.0;
/// Gain in cruise, so that the window is the limit.
pub(crate) const CRUISE_GAIN: f64 = 1.05;
/// Gain while competing with others. RFC 9002 7.7.
pub(crate) const COMPETE_GAIN: f64 = 1.25;
/// Gain on a path shorter than [`NEAR`].
pub(crate) const NEAR_GAIN: f64 = 2.0;

// Drains of this flow's queue (ProbeRTT of draft-ietf-ccwg-bbr 5.3.4, less deep and more often).

/// Interval of drains.
pub(crate) const DRAIN_INTERVAL: Duration = Duration::from_secs(2);
/// Least interval of drains, in the shortest round trip.
pub(crate) const DRAIN_TRIPS: u32 = 10;

/// The first intervals after start-up in milliseconds, on a path that is not long: as long as a
/// flow takes others' queue for a part of the path, they have too little.
/// `flows_of_ours_that_begin_one_after_the_other_share_a_slow_line_and_keep_its_queue_short`.
pub(crate) const EARLY_INTERVALS_MS: [u64; 4] = [125, 250, 500, 1_000];

/// The least of [`EARLY_INTERVALS_MS`] in the shortest round trip.
pub(crate) const EARLY_TRIPS: u32 = 5;
/// Depth of a drain: this many times what the queue to keep contains.
pub(crate) const DRAIN_DEPTH: f64 = 2.5;

/// Depth of a drain on a long path, where a deeper one would show: the bottleneck idles after its
/// queue is empty, and while the gap travels round the path, the queue is longer by as much.
pub(crate) const LONG_DRAIN_DEPTH: f64 = 1.25;

/// Depth of the drain at the end of start-up: others keep a queue too, whose delay must not be
/// taken for the path's. They take a while to give way, so this one lasts as long as the delay
/// falls.
pub(crate) const FIRST_DRAIN_DEPTH: f64 = 6.0;

/// A drain leaves at least one part in this many of the window.
pub(crate) const DRAIN_LEAST_PART: u64 = 2;
/// Rounds after which a packet counts as sent within a drain or a test whatever was in flight.
pub(crate) const DIP_ROUNDS: u32 = 3;

// Loss.

/// For this long after a loss, the highest sample of the rate counts even if there are few.
pub(crate) const LOSS_MEMORY: Duration = Duration::from_secs(5);
/// Least packets of known fate in an interval for its share of loss to mean something.
pub(crate) const LOSS_PACKETS_MIN: u64 = 64;

/// Smaller rises of the share of loss are never taken for congestion.
/// `random_loss_before_the_bottleneck_costs_nothing`.
pub(crate) const LOSS_RISE_MIN: f64 = 0.02;

/// Differences of two shares of loss within this many standard deviations count as chance: one in
/// 740 is larger by chance (normal distribution, one side).
pub(crate) const LOSS_DEVIATIONS: f64 = 3.0;

/// Weight of an interval's share of loss in the reference is one part in this many.
pub(crate) const LOSS_SMOOTHING: f64 = 4.0;
/// A rate higher than the reference by this factor explains a rise of loss.
pub(crate) const GROWN: f64 = 1.04;
/// At a rate higher by this factor, congestion would have shown.
pub(crate) const FAR_GROWN: f64 = 1.5;

/// The least share of the rate that a cut after start-up leaves: the rate has grown by a quarter at
/// most ([`GROWTH_MAX`]).
pub(crate) const CUT_MIN: f64 = 0.7;

/// The least share of the rate that any cut leaves, and the least share of packets that is taken to
/// arrive without congestion.
pub(crate) const CUT_LEAST: f64 = 0.1;

/// Share of the window that a trial leaves.
pub(crate) const TRIAL: f64 = 0.8;
/// No path is sent more than twice what it delivers for long, whatever the reason for its losses.
pub(crate) const LOSS_SHARE_MAX: f64 = 0.5;
/// Rounds after a change of the window whose losses still belong to the old one.
pub(crate) const SETTLING_ROUNDS: u32 = 2;
/// Window after an ECN mark. RFC 8511 3.
pub(crate) const ECN_BETA: f64 = 0.85;

/// Window after persistent congestion: one part in this many, which start-up doubles each round
/// trip. RFC 9002 7.6.2 begins at the least window.
/// `a_flow_outlives_blackouts_and_heavy_loss_and_is_back_within_two_seconds`.
pub(crate) const RESTART_PART: u64 = 4;

/// A path that delivers only small packets for this many times two round trips and
/// [`MAX_ACK_DELAY`] counts as persistently congested. RFC 9002 7.6.1
/// (kPersistentCongestionThreshold) does not see it, because the small packets are acknowledged.
/// `little_is_sent_over_a_path_that_has_come_to_carry_small_packets_only`.
pub(crate) const HOLE_ROUNDS: u32 = 3;

/// Round trips in each of [`HOLE_ROUNDS`].
pub(crate) const HOLE_TRIPS: u32 = 2;
/// The longest delay of ACKs. RFC 9000 18.2 (max_ack_delay).
pub(crate) const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

// Queues of the two ways, by the peer's clock.
// `a_direction_does_not_slow_down_for_the_queue_of_the_other_one`.

/// The longest queueing delay of the return path to allow for, above the least that the peer's
/// clock shows: a longer one may be caused by this flow's ACKs.
pub(crate) const BACK_VARYING_MAX: Duration = Duration::from_millis(10);

/// Delays of a queue of the return path that was there before this end asked, so that only a
/// shorter, earlier round trip shows it. A shorter delay may be that of the forward path, and a
/// longer one others'.
pub(crate) const BACK_STANDING: Range<Duration> =
    Duration::from_millis(7)..Duration::from_millis(60);

/// The longest standing delay of the return path to allow for.
pub(crate) const BACK_STANDING_MAX: Duration = Duration::from_millis(30);
/// What the peer's clock shows counts for this long.
pub(crate) const WAITS_TIME: Duration = Duration::from_secs(1);

// Competition with flows that keep the queue full. The switch between two modes is Copa's (NSDI
// 2018 section 4); the tests of `sharing` show it.

/// Rounds of standing delay despite a window that would let the queue drain, unless it has stood
/// for [`STANDS_TIME_MAX`]: rounds take seconds in a very long queue.
pub(crate) const STANDS_ROUNDS: u32 = 6;

/// Rounds of standing delay that a round with a short delay takes back.
pub(crate) const STANDS_LEAK: u32 = 2;

/// How long the delay stands at least, as a time and in round trips. A new flow of ours, which
/// takes the queue's delay for the path's, is done sooner.
pub(crate) const STANDS_TIME: (Duration, u32) = (Duration::from_millis(500), 24);

/// How long the delay stands at least for [`SUSPICION`] after competing.
pub(crate) const STANDS_TIME_AGAIN: (Duration, u32) = (Duration::from_millis(200), 6);
/// How long the delay stands at most.
pub(crate) const STANDS_TIME_MAX: Duration = Duration::from_secs(4);
/// Delay that counts, in that of this flow's own queue, and [`STANDS_MORE`] above it.
pub(crate) const STANDS: f64 = 1.5;
/// Delay that counts for [`SUSPICION`] after competing.
pub(crate) const STANDS_AGAIN: f64 = 1.25;
/// For this long after competing, less suffices to compete again.
pub(crate) const SUSPICION: Duration = Duration::from_secs(20);
/// How long the highest rate is remembered.
pub(crate) const RATE_TIME: Duration = Duration::from_secs(10);
/// Time between tests.
pub(crate) const TEST_INTERVAL: Duration = Duration::from_secs(6);
/// Least time between tests, in the shortest round trip.
pub(crate) const TEST_TRIPS: u32 = 24;
/// Time before a test that confirms another.
pub(crate) const CONFIRM_INTERVAL: Duration = Duration::from_secs(2);

/// A test joins another flow's no earlier than one part in this many of the interval before its
/// time.
pub(crate) const JOIN_PART: u32 = 2;

/// If the delay falls below this share in a round, without loss, another flow of ours may be
/// testing. A test lasts as long as the delay falls so.
/// `two_flows_of_ours_that_take_each_other_for_strangers_keep_the_queue_short_again_soon`.
pub(crate) const FALL: f64 = 0.88;

/// A loss is recent for this many round trips.
pub(crate) const RECENT_TRIPS: u32 = 3;

/// Tests in succession that must find the queue empty.
/// `beside_cubic_each_flow_gets_a_third_of_a_line_with_a_short_queue`.
pub(crate) const EMPTY_TESTS: u32 = 2;

/// A test that finds the queue empty leaves it so for this many of the shortest round trips.
pub(crate) const LINGER_TRIPS: u32 = 3;
/// Share of this flow's rate before the others came that it starts competing with.
pub(crate) const COMPETE_SHARE: f64 = 0.8;

/// Share of what the path carries in its shortest round trip that a test leaves in flight. Less
/// would empty a short queue that others fill.
pub(crate) const TEST_SHARE: f64 = 0.9;

/// A queue is empty below this share of the delay of this flow's own queue.
pub(crate) const EMPTY_SHARE: f64 = 0.5;
/// Time over which a full queue's delay is measured.
pub(crate) const PEAK_TIME: Duration = Duration::from_secs(5);
/// Losses at this share of the longest delay count: the queue may have overflowed.
pub(crate) const FULL_SHARE: f64 = 0.75;
/// CUBIC's window after a loss. RFC 9438 4.6.
pub(crate) const CUBIC_BETA: f64 = 0.7;

// What keeps a division from a divisor that is zero.

/// Least rate to divide by.
pub(crate) const RATE_MIN: f64 = 1.0;
/// Least round trip to divide by, in seconds.
pub(crate) const RTT_MIN: f64 = 1e-6;
/// Least round trip to divide [`HOLD_TIME`] by, in seconds.
pub(crate) const HOLD_RTT_MIN: f64 = 1e-3;
