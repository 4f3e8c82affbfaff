//! Sets the congestion window and pacing rate of one path from round-trip times, losses and ECN
//! marks.
//!
//! The window is what the path carries in its shortest round trip, plus a short queue. It doubles
//! each round trip during start-up, and is lowered now and then (`dips`). `mode` says which of
//! these it is, `losses` whether a loss means congestion, `suspicion` whether others keep the queue
//! full. Knows bytes and times, no packets and no streams.

mod decisions;
mod dips;
mod growth;
mod mode;
mod path;
mod queues;
mod round;
mod start_up;
mod targets;
#[cfg(test)]
mod tests;

use std::{
    any::Any,
    time::{Duration, Instant},
};

use dips::Drains;
use growth::Growth;
use mode::Mode;
use path::Path;
pub use queues::Waits;
use quinn_proto::{
    RttEstimator,
    congestion::{Controller, ControllerMetrics},
};
use round::Round;

use crate::{
    constants::{
        ACKED_PACKETS, ACKED_PARTS, COMPETE_GAIN, COUNTED_BYTES, CRUISE_GAIN, ECN_BETA,
        EFFECT_ROUNDS, FLOOR_TIME, FULL_USE, HOLE_ROUNDS, HOLE_TRIPS, INITIAL_PACKETS,
        MAX_ACK_DELAY, NEAR, NEAR_GAIN, RATE_MIN, RESTART_PART, ROOM_PACKETS, ROUND_MIN, RTT_MIN,
        SAMPLED_USE, START_UP_GAIN, TRIAL, WINDOW_MIN_PACKETS,
    },
    flight::{Departure, Flight},
    losses::Losses,
    suspicion::Suspicion,
};

/// The controller of one path.
#[derive(Clone, Debug)]
pub struct RateController {
    mtu: u64,
    window: u64,
    mode: Mode,
    growth: Growth,
    flight: Flight,
    path: Path,
    round: Option<Round>,
    /// Of the last round with samples, in bytes per second.
    rate: f64,
    drains: Drains,
    losses: Losses,
    lost_at: Option<Instant>,
    /// Large packets lost since one was last acknowledged: when the first was sent, and their
    /// bytes.
    hole: Option<(Instant, u64)>,
    /// When the window was last reduced for an ECN mark.
    marked_at: Option<Instant>,
    suspicion: Suspicion,
}

impl RateController {
    pub(super) fn new(mtu: u16) -> Self {
        let mtu = u64::from(mtu);
        Self {
            mtu,
            window: INITIAL_PACKETS * mtu,
            mode: Mode::StartUp { waits_since: None },
            growth: Growth::new(),
            flight: Flight::default(),
            path: Path::new(),
            round: None,
            rate: 0.0,
            drains: Drains::default(),
            losses: Losses::default(),
            lost_at: None,
            hole: None,
            marked_at: None,
            suspicion: Suspicion::default(),
        }
    }

    /// Takes what the peer's clock says of both ways.
    pub fn set_waits(&mut self, now: Instant, waits: Waits) {
        // On a slow line the least window keeps a queue, which the round trip of `waits` contains.
        let own = (self.window_min() + self.mtu) as f64 / self.suspicion.rate();
        let own = Duration::try_from_secs_f64(own).unwrap_or(Duration::MAX);
        // Until start-up's queue is drained, the peer's clock has not shown the path without it.
        let shows_path = !self.mode.empties_own_queue() && !self.mode.competes();
        let least = shows_path.then(|| self.path.floor().max(own));
        self.path.queues.measure(now, waits, least);
        if let Some(round) = &mut self.round {
            round.forward_min = round.forward_min.min(self.path.queues.forward());
        }
    }

    /// Continues on another connection of the path: what this one has sent shows nothing more, and
    /// the time between both is no round trip.
    pub(crate) fn continue_on_another(&mut self, now: Instant, in_flight: u64) {
        self.flight.continue_on_another(in_flight);
        self.round = self.round.map(|_| Round::new(now));
        self.path.ack_bursts.interrupt();
    }

    fn window_min(&self) -> u64 {
        WINDOW_MIN_PACKETS * self.mtu
    }

    fn set_window(&mut self, window: f64) {
        self.window = (window as u64).max(self.window_min());
    }

    /// Takes CUBIC's window if it competes with others.
    fn follow_competition(&mut self) {
        if let Some(competition) = self.mode.competition_mut() {
            let window = competition.window();
            self.window = window.max(self.window_min());
        }
    }

    /// Records a loss; returns whether the path has delivered only small packets for a whole
    /// period, and begins another one if so.
    fn is_hole(&mut self, sent: Instant, lost: u64) -> bool {
        if lost < COUNTED_BYTES {
            return false;
        }
        let (since, bytes) = self.hole.unwrap_or((sent, 0));
        let time = HOLE_ROUNDS * (HOLE_TRIPS * self.path.smoothed + MAX_ACK_DELAY);
        let is_hole = bytes >= self.window_min() && sent.saturating_duration_since(since) > time;
        self.hole = Some(if is_hole { (sent, bytes) } else { (since, bytes + lost) });
        is_hole
    }

    /// Records the round trip of a batch that was sent in this state.
    fn sample(&mut self, now: Instant, departure: Departure) {
        let Departure { sent, flight, .. } = departure;
        let rtt = now.saturating_duration_since(sent);
        self.path.sample(now, rtt);
        let queued = rtt.saturating_sub(self.path.unqueued());
        if let Some(competition) = self.mode.competition_mut() {
            competition.sample(now, queued);
        }
        self.path.queues.expire(now);
        let delay = self.path.delay(rtt, self.path.queues.forward());
        if self.mode.dip().is_none() && rtt <= self.path.unqueued() + self.empty_delay(self.rate) {
            // The queue is empty, perhaps because another flow drains its own: do so together next
            // time.
            self.postpone_drain(now);
        }
        let began = self.round.get_or_insert_with(|| Round::new(now)).began;
        if self.sample_dip(now, sent, flight, delay) {
            return;
        }
        let window = self.window as f64;
        // Sends wait until there is room for a few packets.
        let used = (flight + ROOM_PACKETS * self.mtu) as f64;
        if let Some(round) = &mut self.round
            && (self.mode.is_start_up() || used > SAMPLED_USE * window)
        {
            round.sample(rtt, self.flight.rate);
            round.full |= used > FULL_USE * window;
        }
        if self.leaves_start_up_on_delay(now, rtt, departure.rate) {
            return;
        }
        if sent >= began && now.saturating_duration_since(began) >= ROUND_MIN {
            self.end_round(now);
        }
    }

    /// Records that a packet has arrived.
    fn acked(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool) {
        self.flight.acked(sent);
        self.losses.acked(bytes);
        if bytes >= COUNTED_BYTES {
            self.hole = None;
        }
        let part = self.path.floor() / ACKED_PARTS;
        if let Some(round) = &mut self.round {
            round.acked(now, bytes, part);
        }
        let waits_long = self.waits_long(now.saturating_duration_since(sent));
        if self.mode.is_start_up() && !app_limited && !self.growth.is_held() && !waits_long {
            self.window += bytes;
        }
    }

    /// In bytes per second; `None` before the first round trip is known.
    fn pacing_rate(&self) -> Option<f64> {
        let smoothed = self.path.smoothed;
        let window = self.window() as f64;
        if smoothed.is_zero() {
            return None;
        }
        let (gain, rtt) = match self.mode {
            Mode::StartUp { .. } => (START_UP_GAIN, smoothed),
            _ if self.path.floor() < NEAR => (NEAR_GAIN, smoothed),
            Mode::Compete(_) | Mode::CompeteDrain(..) | Mode::Test(..) => (COMPETE_GAIN, smoothed),
            // No slower than the window allows, so that the window is the limit.
            Mode::Settle | Mode::Cruise | Mode::Drain(_) => {
                (CRUISE_GAIN, smoothed.min(self.path.base() + self.queue_delay(self.rate)))
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
            self.flight.sent(now, bytes, self.mtu);
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
        if let Some(competition) = self.mode.competition_mut() {
            competition.acked(now, sent, bytes, app_limited, rtt);
        }
        self.acked(now, sent, bytes, app_limited);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, _: Option<u64>) {
        if !self.mode.is_start_up() && !limited {
            let two_packets = (ACKED_PACKETS * self.mtu) as f64 / self.rate.max(RATE_MIN);
            let usual_gap = Duration::try_from_secs_f64(two_packets).unwrap_or(FLOOR_TIME);
            self.path.ack_bursts.acked(now, usual_gap);
        } else {
            self.path.ack_bursts.interrupt();
        }
        if let Some(departure) = self.flight.end_acks(now, in_flight) {
            self.sample(now, departure);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.flight.lost(lost);
        self.losses.lost(lost);
        if lost > 0 {
            self.lost_at = Some(now);
        }
        let is_hole = self.is_hole(sent, lost);
        let persistent = persistent || is_hole;
        if let Some(competition) = self.mode.competition_mut()
            && competition.lost(now, sent, persistent, lost)
        {
            self.suspicion.lost(now);
        }
        if persistent {
            self.suspicion.reset();
            self.losses = Losses::default();
            self.mode = Mode::StartUp { waits_since: None };
            self.round = Some(Round::new(now));
            let packets = if is_hole { WINDOW_MIN_PACKETS } else { INITIAL_PACKETS };
            self.window = (self.window / RESTART_PART).max(packets * self.mtu);
        } else if lost == 0 && self.marked_at.is_none_or(|at| sent > at) {
            // What was sent before the last reduction does not show its effect (RFC 9002 7.3.2).
            self.marked_at = Some(now);
            if self.mode.is_start_up() {
                self.mode = Mode::Cruise;
            }
            self.growth.restart(EFFECT_ROUNDS);
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
        self.mode.dip().map_or(window, |dip| window.min(dip.window)).max(self.window_min())
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = self.pacing_rate().map(|rate| (8.0 * rate) as u64);
        metrics.ssthresh = (!self.mode.is_start_up()).then_some(self.window);
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
