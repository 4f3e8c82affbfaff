//! Sets the congestion window and pacing rate of one path from round-trip times, losses and ECN
//! marks.
//!
//! The window is what the path carries in its shortest round trip, plus a short queue. It doubles
//! each round trip during start-up, and is lowered now and then (`dips`). `losses` decides whether
//! a loss means congestion, `crowd` whether others keep the queue full. Knows bytes and times.

mod dips;
mod queues;
mod round;
mod start_up;
mod targets;

use std::{
    any::Any,
    time::{Duration, Instant},
};

use dips::Dip;
use queues::Queues;
pub use queues::Waits;
use quinn_proto::{
    RttEstimator,
    congestion::{Controller, ControllerMetrics},
};
use round::Round;

use crate::{
    ack_bursts::AckBursts,
    constants::{
        ACK_WAIT_SHARE, ACKED_PACKETS, ACKED_PARTS, ARRIVING_MIN, COMPETE_GAIN, COUNTED_BYTES,
        CRUISE_GAIN, ECN_BETA, EFFECT_ROUNDS, FLOOR_TIME, FULL_USE, GROWTH_MAX, HOLD_ROUNDS,
        HOLD_RTT_MIN, HOLD_TIME, HOLE_ROUNDS, HOLE_TRIPS, INITIAL_PACKETS, LONG_PATH, LONG_STEP,
        LOSS_MEMORY, MAX_ACK_DELAY, NEAR, NEAR_GAIN, RATE_MIN, RESTART_PART, ROOM_PACKETS,
        ROUND_MIN, RTT_MIN, SAMPLED_USE, SHRINKAGE_MAX, SMOOTHING, STANDS_MORE, STANDS_TARGETS,
        START_UP_GAIN, STEP, TRIAL, WINDOW_MIN_PACKETS,
    },
    crowd::Crowd,
    extremes::Windowed,
    flight_log::{Departure, FlightLog},
    losses::{Losses, Verdict},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The window doubles each round trip.
    StartUp,
    Cruise,
}

/// The controller of one path.
#[derive(Clone, Debug)]
pub struct RateController {
    mtu: u64,
    window: u64,
    phase: Phase,
    flight: u64,
    log: FlightLog,
    floor: Windowed,
    ack_bursts: AckBursts,
    /// Send time of the newest packet in the ACK being read.
    newest: Option<Instant>,
    sampled: Option<Instant>,
    smoothed: Duration,
    round: Option<Round>,
    /// Increase of the window in a round without a queue, over the one that keeps the queue.
    boost: f64,
    /// Of the last round with samples, and of the last sample; bytes per second.
    rate: f64,
    latest_rate: f64,
    dip: Option<Dip>,
    drain_at: Option<Instant>,
    /// Drains since the one at the end of start-up.
    drains: usize,
    /// Rounds left without growth.
    hold: u32,
    /// Whether start-up has just filled the path: in this round ACKs arrive as fast as it carries.
    /// The rate at which start-up sent is higher.
    filled: bool,
    /// In start-up: since when every packet has waited long (`start_up`).
    waits_since: Option<Instant>,
    losses: Losses,
    lost_at: Option<Instant>,
    /// Large packets lost since one was last acknowledged: when the first was sent, and their
    /// bytes.
    hole: Option<(Instant, u64)>,
    /// When the window was last reduced for an ECN mark.
    marked_at: Option<Instant>,
    crowd: Crowd,
    queues: Queues,
}

impl RateController {
    pub(super) fn new(mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: INITIAL_PACKETS * mtu,
            phase: Phase::StartUp,
            flight: 0,
            log: FlightLog::default(),
            floor: Windowed::min(FLOOR_TIME),
            ack_bursts: AckBursts::new(),
            newest: None,
            sampled: None,
            smoothed: Duration::ZERO,
            round: None,
            boost: 1.0,
            rate: 0.0,
            latest_rate: 0.0,
            dip: None,
            drain_at: None,
            drains: 0,
            hold: 0,
            filled: false,
            waits_since: None,
            losses: Losses::default(),
            lost_at: None,
            hole: None,
            marked_at: None,
            crowd: Crowd::new(),
            queues: Queues::new(),
        }
    }

    /// The shortest round trip.
    fn floor(&self) -> Duration {
        self.floor.get()
    }

    fn is_long(&self) -> bool {
        self.floor() > LONG_PATH
    }

    /// Takes what the peer's clock says of both ways.
    pub fn set_waits(&mut self, now: Instant, waits: Waits) {
        // On a slow line the least window keeps a queue, which the round trip of `waits` contains.
        let own = (self.window_min() + self.mtu) as f64 / self.crowd.rate();
        let own = Duration::try_from_secs_f64(own).unwrap_or(Duration::MAX);
        // Until start-up's queue is drained, the peer's clock has not shown the path without it.
        let is_own = self.filled || self.dip.is_some();
        let least = (!is_own && !self.crowd.is_found()).then(|| self.floor().max(own));
        self.queues.measure(now, waits, least);
        if let Some(round) = &mut self.round {
            round.forward_min = round.forward_min.min(self.queues.forward());
        }
    }

    /// The round trip without a queue on the forward path.
    fn unqueued(&self) -> Duration {
        self.floor() + self.queues.back()
    }

    /// The same of packets whose ACKs wait longest.
    fn base(&self) -> Duration {
        let floor = self.floor();
        self.unqueued() + self.ack_bursts.wait().mul_f64(ACK_WAIT_SHARE).min(floor)
    }

    /// The queueing delay of packets with this round trip, of which `forward` was on the forward
    /// path.
    fn delay(&self, rtt: Duration, forward: Duration) -> Duration {
        self.queues.counted(rtt.saturating_sub(self.base()), forward)
    }

    fn window_min(&self) -> u64 {
        WINDOW_MIN_PACKETS * self.mtu
    }

    fn set_window(&mut self, window: f64) {
        self.window = (window as u64).max(self.window_min());
    }

    /// Takes the window for competing with others.
    fn follow_crowd(&mut self) {
        self.window = self.crowd.window().max(self.window_min());
    }

    /// Records a loss; returns whether the path has delivered only small packets for a whole
    /// period, and begins another one if so.
    fn is_hole(&mut self, sent: Instant, lost: u64) -> bool {
        if lost < COUNTED_BYTES {
            return false;
        }
        let (since, bytes) = self.hole.unwrap_or((sent, 0));
        let time = HOLE_ROUNDS * (HOLE_TRIPS * self.smoothed + MAX_ACK_DELAY);
        let is_hole = bytes >= self.window_min() && sent.saturating_duration_since(since) > time;
        self.hole = Some(if is_hole { (sent, bytes) } else { (since, bytes + lost) });
        is_hole
    }

    /// Records the round trip of a batch that was sent in this state.
    fn sample(&mut self, now: Instant, sent: Instant, departure: Departure) {
        let (rtt, flight) = (now.saturating_duration_since(sent), departure.flight);
        self.floor.insert(now, rtt);
        self.smoothed = match self.smoothed {
            Duration::ZERO => rtt,
            smoothed => ((SMOOTHING - 1) * smoothed + rtt) / SMOOTHING,
        };
        self.crowd.sample(now, rtt.saturating_sub(self.unqueued()));
        self.queues.expire(now);
        let delay = self.delay(rtt, self.queues.forward());
        if self.dip.is_none() && rtt <= self.unqueued() + self.empty_delay(self.rate) {
            // The queue is empty, perhaps because another flow drains its own: do so together next
            // time.
            self.postpone_drain(now);
        }
        self.latest_rate = flight as f64 / rtt.as_secs_f64().max(RTT_MIN);
        let began = self.round.get_or_insert_with(|| Round::new(now)).began;
        if self.sample_dip(now, sent, flight, delay) {
            return;
        }
        let window = self.window as f64;
        // Sends wait until there is room for a few packets.
        let used = (flight + ROOM_PACKETS * self.mtu) as f64;
        if let Some(round) = &mut self.round
            && (self.phase == Phase::StartUp || used > SAMPLED_USE * window)
        {
            round.sample(rtt, self.latest_rate);
            round.full |= used > FULL_USE * window;
        }
        if self.phase == Phase::StartUp && self.leaves_start_up_on_delay(now, rtt, departure.rate) {
            return;
        }
        if sent >= began && now.saturating_duration_since(began) >= ROUND_MIN {
            self.end_round(now);
        }
    }

    fn end_round(&mut self, now: Instant) {
        let Some(mut round) = self.round.replace(Round::new(now)) else { return };
        self.hold = self.hold.saturating_sub(1);
        if let Some(dip) = &mut self.dip {
            dip.rounds += 1;
            return;
        }
        if round.samples == 0 {
            return;
        }
        let loses = self.lost_at.is_some_and(|at| now.saturating_duration_since(at) < LOSS_MEMORY);
        if self.phase == Phase::Cruise && !loses {
            round.settle_rate();
        }
        let delay = self.delay(round.rtt_min, round.forward_min);
        let target = self.queue_delay(round.rate);
        let former_rate = std::mem::replace(&mut self.rate, round.rate);
        if std::mem::take(&mut self.filled) && round.full && round.acked_rate > 0.0 {
            self.rate = round.acked_rate / (1.0 - self.losses.random_share()).max(ARRIVING_MIN);
            self.set_window(self.window_at(self.rate));
            self.hold = self.hold.min(EFFECT_ROUNDS);
            // A policer keeps no queue.
            if delay > self.empty_delay(self.rate) {
                self.first_drain(now);
            }
            self.losses.settle();
            return;
        }
        if self.crowd.is_found() {
            self.losses.forget();
            self.follow_crowd();
            if self.crowd.is_test_due(now, self.floor(), delay) {
                // While another tests, this flow has more than its share.
                self.test(now, self.rate.min(former_rate), delay);
            }
            return;
        }
        let mut stands = delay > STANDS_TARGETS * target + STANDS_MORE;
        if self.phase == Phase::Cruise {
            let reference = self.crowd.reference_rate(now, round.rate);
            let usual = self.queue_delay(reference);
            let mut avoidable = self.avoidable(delay.min(round.forward_min));
            if round.has_many_acks(self.mtu) {
                avoidable = Duration::ZERO;
            }
            stands &= !avoidable.is_zero();
            self.crowd.round(now, (round.rate, round.rtt_min), (avoidable, usual), self.mtu);
        }
        if stands {
            self.losses.forget();
        } else if let Verdict::Cut { rate, share } =
            self.losses.round(round.rate, self.mtu, self.phase == Phase::StartUp)
        {
            let mut window = self.window as f64 * share;
            if self.phase == Phase::StartUp {
                // It has doubled since what was lost was sent.
                window = window.min(self.window_at(rate));
                self.phase = Phase::Cruise;
                self.filled = true;
            }
            self.set_window(window);
            let rounds = HOLD_TIME.as_secs_f64() / self.smoothed.as_secs_f64().max(HOLD_RTT_MIN);
            (self.hold, self.boost) = ((rounds as u32).clamp(EFFECT_ROUNDS, HOLD_ROUNDS), 1.0);
            return;
        }
        if self.phase == Phase::Cruise {
            self.follow(&round, delay, target, loses);
            self.drain_if_due(now);
        }
    }

    /// Follows the window that the round's rate and delay ask for.
    fn follow(&mut self, round: &Round, delay: Duration, target: Duration, loses: bool) {
        let window = self.window as f64;
        let carried = self.carried_bytes(round.rate);
        let queue = self.queue_bytes(round.rate);
        let is_quiet =
            delay <= self.empty_delay(round.rate) && !self.is_mostly_queued(round, target);
        if !is_quiet {
            self.boost = 1.0;
        }
        let mut next = carried + queue * self.boost;
        next = next.clamp(SHRINKAGE_MAX * window, GROWTH_MAX * window);
        if is_quiet && round.full && self.hold == 0 {
            // There is room: the next step is twice as large (as in BBR, draft-ietf-ccwg-bbr
            // 5.3.3.4); on a long path, whose rounds are few, every step after the first is four
            // times as large. A queue on the return path makes the rate, and `carried`, look too
            // low, so the limit is that of the window. Not while packets are lost: the window may
            // be too large.
            let step =
                if loses { (GROWTH_MAX - 1.0) * window } else { GROWTH_MAX * window - carried };
            let boost_max = step / queue;
            let factor = if self.is_long() && self.boost > 1.0 { LONG_STEP } else { STEP };
            self.boost = (factor * self.boost).min(boost_max).max(1.0);
        }
        let shrinks = next < window;
        if (shrinks && delay <= target) || (!shrinks && (!round.full || self.hold > 0)) {
            return;
        }
        if is_quiet && next > window && self.is_long() {
            // Packets sent before this step do not show its effect.
            self.hold = EFFECT_ROUNDS;
        }
        self.set_window(next);
    }

    /// In bytes per second; `None` before the first round trip is known.
    fn pacing_rate(&self) -> Option<f64> {
        let floor = self.floor();
        let window = self.window() as f64;
        if self.smoothed.is_zero() {
            return None;
        }
        let (gain, rtt) = match self.phase {
            Phase::StartUp => (START_UP_GAIN, self.smoothed),
            Phase::Cruise if floor < NEAR => (NEAR_GAIN, self.smoothed),
            Phase::Cruise if self.crowd.is_found() => (COMPETE_GAIN, self.smoothed),
            // No slower than the window allows, so that the window is the limit.
            Phase::Cruise => {
                (CRUISE_GAIN, self.smoothed.min(self.base() + self.queue_delay(self.rate)))
            }
        };
        Some(gain * window / rtt.as_secs_f64().max(RTT_MIN))
    }
}

impl Controller for RateController {
    fn on_sent(&mut self, now: Instant, bytes: u64, _: u64) {
        let is_counted = bytes >= COUNTED_BYTES;
        if let Some(round) = &mut self.round {
            round.sent(bytes, is_counted);
        }
        if is_counted {
            // Including the two packets that the first ACK of a batch covers.
            let flight = self.flight + bytes.min(ACKED_PACKETS * self.mtu);
            self.log.sent(now, Departure { flight, rate: self.latest_rate });
            self.flight += bytes;
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.newest = self.newest.max(Some(sent));
        self.losses.acked(bytes);
        if bytes >= COUNTED_BYTES {
            self.hole = None;
        }
        let part = self.floor() / ACKED_PARTS;
        if let Some(round) = &mut self.round {
            round.acked(now, bytes, part);
        }
        self.crowd.acked(now, sent, bytes, app_limited, rtt);
        let waits_long = self.waits_long(now.saturating_duration_since(sent));
        if self.phase == Phase::StartUp && !app_limited && self.hold == 0 && !waits_long {
            self.window += bytes;
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, _: Option<u64>) {
        self.flight = in_flight;
        if self.phase == Phase::Cruise && !limited {
            let two_packets = (ACKED_PACKETS * self.mtu) as f64 / self.rate.max(RATE_MIN);
            let usual_gap = Duration::try_from_secs_f64(two_packets).unwrap_or(FLOOR_TIME);
            self.ack_bursts.acked(now, usual_gap);
        } else {
            self.ack_bursts.interrupt();
        }
        let Some(sent) = self.newest.take() else { return };
        if self.sampled.is_some_and(|sampled| sent <= sampled) {
            return;
        }
        self.sampled = Some(sent);
        if let Some(departure) = self.log.take(sent) {
            self.sample(now, sent, departure);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.flight = self.flight.saturating_sub(lost);
        self.losses.lost(lost);
        if lost > 0 {
            self.lost_at = Some(now);
        }
        let is_hole = self.is_hole(sent, lost);
        let persistent = persistent || is_hole;
        self.crowd.lost(now, sent, persistent, lost);
        if persistent {
            self.crowd.leave();
            self.losses = Losses::default();
            (self.dip, self.filled, self.waits_since) = (None, false, None);
            self.phase = Phase::StartUp;
            self.round = Some(Round::new(now));
            let packets = if is_hole { WINDOW_MIN_PACKETS } else { INITIAL_PACKETS };
            self.window = (self.window / RESTART_PART).max(packets * self.mtu);
        } else if lost == 0 && self.marked_at.is_none_or(|at| sent > at) {
            // What was sent before the last reduction does not show its effect (RFC 9002 7.3.2).
            self.marked_at = Some(now);
            self.phase = Phase::Cruise;
            (self.hold, self.boost) = (EFFECT_ROUNDS, 1.0);
            self.set_window(self.window as f64 * ECN_BETA);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.window = self.window.max(self.window_min());
    }

    fn window(&self) -> u64 {
        let window = match self.losses.is_trial() {
            true => (self.window as f64 * TRIAL) as u64,
            false => self.window,
        };
        self.dip.map_or(window, |dip| window.min(dip.window)).max(self.window_min())
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = self.pacing_rate().map(|rate| (8.0 * rate) as u64);
        metrics.ssthresh = (self.phase == Phase::Cruise).then_some(self.window);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_up_that_begins_again_owes_nothing_to_the_one_before() {
        let now = Instant::now();
        let mut controller = RateController::new(1_200);
        (controller.filled, controller.waits_since) = (true, Some(now));
        controller.on_congestion_event(now, now, true, 1_200);
        assert!(!controller.filled, "no round of the former start-up is left to judge");
        assert!(controller.waits_since.is_none(), "no packet has waited since the path came back");
    }
}
