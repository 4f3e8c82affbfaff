//! Applies congestion control and pacing outside `quinn-proto`.
//!
//! `quinn-proto` sends no ACK while stream data waits for its congestion window, because the packet
//! would be ack-eliciting. So it is told of an endless window (`tap`), and the loop gives it no
//! more stream data than the real controller allows: no new data waits inside. Its retransmissions
//! are paced as they are sent. Knows bytes and times, no sockets and no streams.

mod tap;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use keypadd_congestion::{Control, Waits};
use quinn_proto::congestion::{Controller, ControllerFactory};

use self::tap::{COUNTED_BYTES, InFlightBefore, Report, Tap, TapFactory};
use crate::{
    flight::Flight,
    handed_controller::{HandedController, NetworkPath},
    owed::{OWED_PACKETS_MAX, Owed},
    pacer::Pacer,
    rate_cap::RateCap,
};

/// After this long without an ACK, and at this interval from then on, a little may be sent whatever
/// is in flight: the count may be wrong, and an ACK corrects it.
const STALE: Duration = Duration::from_secs(1);

/// Packets to send then, as after a probe timeout (RFC 9002 6.2.4).
const STALE_PACKETS: u64 = 2;

/// The least datagram size of any path (RFC 9000 14.1).
const BASE_MTU: u64 = 1_200;

/// Pacing rate over window / RTT, if the controller sets none (RFC 9002 7.7).
const PACING_GAIN: f64 = 1.25;

/// A connection that uses less than one part in this many of its window leaves it to its sibling.
const UNUSED: u64 = 4;

/// Bytes that all sparse streams together may have in flight beyond the congestion window, and the
/// time of the path that they may take, in seconds.
const RESERVE_MIN: u64 = 8 << 10;
const RESERVE_MAX: u64 = 64 << 10;
const RESERVE_TIME: f64 = 0.02;

/// What the stream that moves may itself have in flight: twice its window on the sparse connection.
const MOVING_BYTES: u64 = 128 << 10;

/// The shortest wait.
const TICK: Duration = Duration::from_micros(1);

/// Decides how much a connection may send now.
pub(crate) struct CongestionGate {
    report: Arc<Mutex<Report>>,
    /// Most bytes in flight, whatever the controller allows: this end keeps them in memory.
    flight: Flight,
    pacer: Pacer,
    sent_seen: u64,
    acks_seen: u64,
    progress_at: Instant,
    /// When an ACK was last noticed.
    acked_at: Instant,
    owed: Owed,
    cap: Option<RateCap>,
    /// What the cap allowed when it was asked last; 0 if it held something back.
    cap_left: u64,
}

impl CongestionGate {
    /// A gate, and the factory of controllers that report to it; for one connection.
    pub(crate) fn new(
        control: Control,
        flight: Flight,
        now: Instant,
    ) -> (Self, Arc<dyn ControllerFactory + Send + Sync>) {
        let report = Arc::<Mutex<Report>>::default();
        let factory = TapFactory { control, report: Arc::clone(&report) };
        let gate = Self {
            report,
            flight,
            pacer: Pacer::new(now, BASE_MTU),
            sent_seen: 0,
            acks_seen: 0,
            progress_at: now,
            acked_at: now,
            owed: Owed::default(),
            cap: None,
            cap_left: u64::MAX,
        };
        (gate, Arc::new(factory))
    }

    /// Whether no more streams than the one that moves use the window, so that a sibling may
    /// continue with the controller.
    pub(crate) fn leaves_window(&self) -> bool {
        let in_flight = self.report().in_flight;
        in_flight.saturating_sub(MOVING_BYTES) < self.window() / UNUSED
    }

    /// The controller inside this one, which reports here, to continue on another connection of
    /// this path, whose round trip takes so long; `None` if nothing has been acknowledged of late:
    /// the path may be lost.
    pub(crate) fn hand_over(
        &self,
        reporting: &dyn Controller,
        (path, rtt): (NetworkPath, Duration),
        now: Instant,
    ) -> Option<HandedController> {
        let report = self.report();
        let silence = now.saturating_duration_since(self.acked_at);
        if report.acks == self.acks_seen && silence > STALE + rtt {
            return None;
        }
        let (in_flight, successor) = (report.in_flight, report.successor());
        drop(report);
        // quinn-proto keeps it, and shows what it keeps in no other way.
        let tap = reporting.clone_box().into_any().downcast::<Tap>().ok()?;
        let algorithm = successor.unwrap_or(tap.algorithm);
        Some(HandedController { algorithm, path, at: now, in_flight, rtt })
    }

    /// Continues with the controller of another connection of the same path. What is in flight on
    /// that counts until a packet sent from now on is acknowledged.
    pub(crate) fn take_over(&mut self, mut handed: HandedController, now: Instant) {
        let before = InFlightBefore { at: now, bytes: handed.in_flight_at(now) };
        handed.algorithm.continue_on_another(now, before.bytes, self.mtu() as u16);
        self.report().inherit(handed.algorithm, before);
        // The path has had the burst that a new one is allowed.
        self.pacer = Pacer::empty(now);
    }

    /// Sends no more to the peer than this, together with its other connections.
    pub(crate) fn set_cap(&mut self, cap: RateCap) {
        self.cap = Some(cap);
    }

    /// Begins to pace as on a new path. Its controller is new, too.
    pub(crate) fn start_afresh(&mut self, now: Instant) {
        self.pacer = Pacer::new(now, self.mtu());
    }

    /// Bytes that may be in flight now.
    pub(crate) fn window(&self) -> u64 {
        self.report().window.min(self.flight.most())
    }

    /// Fits what may be in flight to the controller's window; returns it if it changes.
    pub(crate) fn fit_flight(&mut self) -> Option<u64> {
        if !self.flight.varies() {
            return None;
        }
        let window = self.report().window;
        self.flight.follow(window).then(|| self.flight.most())
    }

    fn report(&self) -> MutexGuard<'_, Report> {
        Report::lock(&self.report)
    }

    fn mtu(&self) -> u64 {
        self.report().mtu.max(BASE_MTU)
    }

    /// Bytes that may be sent now on top of what is in flight, ignoring pacing.
    pub(crate) fn room(&mut self, now: Instant) -> u64 {
        let Report { acks, in_flight, .. } = *self.report();
        let room = if self.is_owed_much() { 0 } else { self.window().saturating_sub(in_flight) };
        if acks != self.acks_seen {
            (self.acks_seen, self.progress_at, self.acked_at) = (acks, now, now);
        } else if now.saturating_duration_since(self.progress_at) > STALE {
            self.progress_at = now;
            return room.max(STALE_PACKETS * self.mtu());
        }
        room
    }

    /// Records the total frames sent that ask for an ACK, and the total packets.
    pub(crate) fn sent(&mut self, frames: u64, packets: u64) {
        self.owed.sent(frames, packets);
    }

    /// Whether the peer has not acknowledged so many packets that it gets only a few now and then,
    /// not even answers.
    pub(crate) fn is_owed_much(&mut self) -> bool {
        let Report { newest, acked, .. } = *self.report();
        let packets = self.owed.packets(newest, acked);
        packets > OWED_PACKETS_MAX + 2 * self.window() / COUNTED_BYTES
    }

    /// ACKs so far that have acknowledged something new.
    pub(crate) fn acks(&self) -> u64 {
        self.report().acks
    }

    /// The newest packet sent, by number.
    pub(crate) fn newest(&self) -> u64 {
        self.report().newest
    }

    /// The largest number of a packet that the peer has acknowledged.
    pub(crate) fn acked(&self) -> u64 {
        self.report().acked
    }

    /// Whether anything is in flight.
    pub(crate) fn waits(&self) -> bool {
        self.report().in_flight > 0
    }

    /// Bytes that sparse streams may send now. They may exceed the window, by no more than the path
    /// carries in [`RESERVE_TIME`] where that is known.
    pub(crate) fn sparse_room(&mut self, now: Instant, rtt: Duration) -> u64 {
        if self.is_owed_much() {
            return self.room(now);
        }
        let Report { rate_known, in_flight, .. } = *self.report();
        let reserve = if rate_known { (self.rate(rtt) * RESERVE_TIME) as u64 } else { RESERVE_MAX };
        let excess = in_flight.saturating_sub(self.window());
        self.room(now) + reserve.clamp(RESERVE_MIN, RESERVE_MAX).saturating_sub(excess)
    }

    /// The pacing rate, in bytes per second.
    fn rate(&self, rtt: Duration) -> f64 {
        let rate = self.report().rate;
        match rate {
            None => PACING_GAIN * self.window() as f64 / rtt.as_secs_f64().max(1e-6),
            Some(rate) => rate as f64,
        }
    }

    /// Bytes that pacing allows now; negative in debt.
    fn tokens(&mut self, now: Instant, rate: f64) -> f64 {
        let sent = self.report().sent;
        let mtu = self.mtu();
        self.pacer.tokens(now, rate, mtu);
        self.pacer.spend(sent - self.sent_seen, rate, mtu);
        if let Some(cap) = &self.cap {
            let _ = cap.take(sent - self.sent_seen, 0, now, mtu);
        }
        self.sent_seen = sent;
        self.pacer.tokens(now, rate, mtu)
    }

    /// The size of a burst.
    pub(crate) fn burst(&self, rtt: Duration) -> u64 {
        Pacer::burst(self.rate(rtt), self.mtu()) as u64
    }

    /// How many of `bytes` pacing allows now; else when the next burst may go.
    pub(crate) fn paced(
        &mut self,
        now: Instant,
        rtt: Duration,
        bytes: u64,
    ) -> Result<u64, Instant> {
        let rate = self.rate(rtt);
        let tokens = self.tokens(now, rate);
        let wanted = (bytes as f64).min(Pacer::burst(rate, self.mtu()));
        if tokens >= wanted {
            self.within_cap(now, bytes.min(tokens as u64))
        } else {
            // A wait too short for the clock would set no timer.
            Err(self.pacer.time_of(wanted, rate).max(now + TICK))
        }
    }

    /// How many of `bytes` the peer's cap allows now; else when the next packet may go.
    fn within_cap(&mut self, now: Instant, bytes: u64) -> Result<u64, Instant> {
        let Some(cap) = &self.cap else { return Ok(bytes) };
        let allowed = cap.take(0, bytes, now, self.mtu());
        self.cap_left = match allowed {
            Ok(left) if cap.rate().is_some() => left,
            Ok(_) => u64::MAX,
            Err(_) => 0,
        };
        allowed.map_err(|until| until.max(now + TICK))
    }

    /// Whether the peer's cap lets a packet go now that is not paced; else when.
    pub(crate) fn may_go(&mut self, now: Instant, rtt: Duration) -> Result<(), Instant> {
        if self.cap.as_ref().is_none_or(|cap| cap.rate().is_none()) {
            return Ok(());
        }
        let rate = self.rate(rtt);
        self.tokens(now, rate);
        self.within_cap(now, self.mtu()).map(drop)
    }

    /// Bytes that pacing and the cap allowed at the last call.
    pub(crate) fn tokens_left(&self) -> u64 {
        (self.pacer.left() as u64).min(self.cap_left)
    }

    /// Records how long packets wait on each way.
    pub(crate) fn set_waits(&self, waits: Waits) {
        self.report().waits = Some(waits);
    }

    /// Records whether data waits for the window.
    pub(crate) fn set_held_back(&self, held_back: bool) {
        // The cap says nothing about the path.
        self.report().held_back = held_back && self.cap_left > 0;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use quinn_proto::congestion::CubicConfig;

    use super::{tap::OPEN_WINDOW, *};

    const PATH: NetworkPath = (None, IpAddr::V4(Ipv4Addr::LOCALHOST));
    const RTT: Duration = Duration::from_millis(100);

    fn cubic(config: CubicConfig) -> Control {
        Control::Other(Arc::new(config))
    }

    fn flight() -> Flight {
        Flight::new(1 << 20, 1 << 20, Arc::default())
    }

    /// A gate whose controller allows 512 KiB in flight.
    fn gate_of_known_path(now: Instant) -> (CongestionGate, Box<dyn Controller>) {
        let mut config = CubicConfig::default();
        config.initial_window(1 << 19);
        let (gate, factory) = CongestionGate::new(cubic(config), flight(), now);
        (gate, factory.build(now, 1_200))
    }

    fn gate() -> (CongestionGate, Box<dyn Controller>, Instant) {
        let now = Instant::now();
        let (gate, factory) = CongestionGate::new(cubic(CubicConfig::default()), flight(), now);
        let controller = factory.build(now, 1200);
        (gate, controller, now)
    }

    #[test]
    fn what_is_in_flight_is_taken_from_the_window() {
        let (mut gate, mut controller, now) = gate();
        let window = gate.window();
        controller.on_sent(now, 5_000, 1);
        assert_eq!(gate.room(now), window - 5_000);
        controller.on_end_acks(now, 1_000, true, Some(1));
        assert_eq!(gate.room(now), gate.window() - 1_000);
    }

    #[test]
    fn sparse_data_exceeds_the_window_by_what_the_path_carries_in_a_moment() {
        let (mut gate, mut controller, now) = gate();
        let rtt = Duration::from_millis(20);
        let beyond = |gate: &mut CongestionGate| gate.sparse_room(now, rtt) - gate.room(now);
        assert_eq!(beyond(&mut gate), RESERVE_MAX, "nothing is known of the path");
        controller.on_sent(now, gate.window() + 1_000, 1);
        assert_eq!(gate.sparse_room(now, rtt), RESERVE_MAX - 1_000);
        // CUBIC leaves slow start.
        controller.on_congestion_event(now, now, false, 1_200);
        controller.on_end_acks(now, 0, true, Some(1));
        let carried = PACING_GAIN * gate.window() as f64 * RESERVE_TIME / rtt.as_secs_f64();
        assert_eq!(beyond(&mut gate), (carried as u64).max(RESERVE_MIN));
    }

    #[test]
    fn acks_alone_never_close_the_gate() {
        let (mut gate, mut controller, now) = gate();
        for number in 0..100_000 {
            controller.on_sent(now, 40, number);
        }
        assert_eq!(gate.room(now), gate.window());
    }

    #[test]
    fn a_count_that_nothing_confirms_lets_two_packets_out_a_second() {
        let (mut gate, mut controller, now) = gate();
        controller.on_sent(now, 1 << 30, 1);
        assert_eq!(gate.room(now), 0);
        let later = now + STALE + STALE;
        assert_eq!(gate.room(later), STALE_PACKETS * BASE_MTU);
        assert_eq!(gate.room(later), 0, "once");
    }

    #[test]
    fn quinn_sees_a_window_that_never_closes() {
        let (_, mut controller, now) = gate();
        controller.on_congestion_event(now, now, true, 1 << 20);
        assert_eq!(controller.window(), OPEN_WINDOW);
    }

    #[test]
    fn another_connections_controller_continues_here_without_a_burst() {
        let (mut gate, controller, now) = gate();
        let (from, mut known) = gate_of_known_path(now);
        known.on_sent(now, 1_500, 1);
        let handed = from.hand_over(&*known, (PATH, RTT), now).expect("it is known");
        gate.take_over(handed, now);
        assert_eq!(gate.window(), 1 << 19);
        assert_eq!(gate.room(now), (1 << 19) - 1_500, "the rest is on the other connection");
        assert!(gate.paced(now, RTT, 1_200).is_err(), "the path has had its first burst");
        let mut controller = controller.into_any().downcast::<Tap>().expect("it");
        controller.acked(now - RTT);
        controller.on_end_acks(now, 0, true, Some(1));
        assert_eq!(gate.room(now), (1 << 19) - 1_500, "what was sent earlier shows nothing");
        controller.acked(now);
        controller.on_end_acks(now, 0, true, Some(2));
        assert_eq!(gate.room(now), 1 << 19, "ACKs go to the new controller");
        controller.on_congestion_event(now, now, true, 1_200);
        assert!(gate.window() < 1 << 19);
    }

    #[test]
    fn a_connection_hands_over_its_controller_unless_it_uses_the_window_itself() {
        let (gate, mut controller, now) = gate();
        let window = gate.window();
        controller.on_sent(now, MOVING_BYTES + window / UNUSED, 1);
        assert!(!gate.leaves_window());
        controller.on_congestion_event(now, now, false, 1_200);
        assert!(gate.leaves_window(), "it uses less");
        let handed = gate.hand_over(&*controller, (PATH, RTT), now).expect("known").algorithm;
        assert_eq!(handed.controller().window(), gate.window(), "the real one");
        assert!(handed.controller().window() < window, "it knows of the loss");
        let other = Arc::new(CubicConfig::default()).build(now, 1_200);
        assert!(gate.hand_over(&*other, (PATH, RTT), now).is_none(), "another kind");
    }

    #[test]
    fn what_was_in_flight_leaves_the_path_over_a_round_trip() {
        let (gate, mut controller, now) = gate();
        controller.on_sent(now, 10_000, 1);
        let handed = gate.hand_over(&*controller, (PATH, RTT), now).expect("it is known");
        for (elapsed, left) in [(0, 10_000), (50, 5_000), (100, 0), (1_000, 0)] {
            assert_eq!(handed.in_flight_at(now + Duration::from_millis(elapsed)), left);
        }
    }

    #[test]
    fn the_controller_of_a_path_that_may_be_lost_is_not_handed_over() {
        let (mut gate, mut controller, now) = gate();
        let may_go = |gate: &CongestionGate, controller: &dyn Controller, at| {
            gate.hand_over(controller, (PATH, RTT), at).is_some()
        };
        controller.on_sent(now, 1 << 30, 1);
        assert!(may_go(&gate, &*controller, now + STALE));
        let mut later = now;
        for _ in 0..30 {
            later += STALE / 10;
            // Lets a little out each second, which answers nothing.
            gate.room(later);
        }
        assert!(!may_go(&gate, &*controller, later));
        controller.on_end_acks(later, 5_000, true, Some(1));
        assert!(may_go(&gate, &*controller, later), "it was answered since");
    }

    #[test]
    fn a_controller_goes_on_to_the_next_connection_before_a_packet_was_sent() {
        let (mut gate, controller, now) = gate();
        let (from, known) = gate_of_known_path(now);
        for _ in 0..2 {
            let handed = from.hand_over(&*known, (PATH, RTT), now).expect("it is known");
            gate.take_over(HandedController { in_flight: 1_500, ..handed }, now);
        }
        assert_eq!(gate.room(now), (1 << 19) - 1_500, "once");
        let handed = gate.hand_over(&*controller, (PATH, RTT), now).expect("it is known");
        assert_eq!(handed.algorithm.controller().window(), 1 << 19);
    }

    #[test]
    fn what_pacing_holds_back_always_has_a_later_time_to_leave() {
        // A rate controller knows no rate before the first round trip.
        let now = Instant::now();
        let (mut gate, factory) = CongestionGate::new(Control::Rate, flight(), now);
        let mut controller = factory.build(now, 1_200);
        let mut sent = 0;
        let until = loop {
            match gate.paced(now, Duration::from_millis(100), 1_200) {
                Ok(bytes) => {
                    controller.on_sent(now, bytes, sent);
                    sent += bytes;
                }
                Err(until) => break until,
            }
        };
        assert_eq!(sent, gate.window(), "the first window leaves at once, and no more");
        assert!(until > now);
        assert!(gate.paced(until, Duration::from_millis(100), 1_200).is_ok());
    }

    #[test]
    fn connections_to_a_peer_share_its_cap_however_much_their_windows_allow() {
        let start = Instant::now();
        let cap = RateCap::new(Some(1_000_000));
        let mut ends = [(); 2].map(|()| {
            let (mut gate, factory) = CongestionGate::new(cubic(<_>::default()), flight(), start);
            gate.set_cap(cap.clone());
            (gate, factory.build(start, 1_200))
        });
        let (mut now, mut sent, rtt) = (start, 0, Duration::from_millis(1));
        while now < start + Duration::from_secs(5) {
            let mut next = now + rtt;
            for (gate, controller) in &mut ends {
                match gate.paced(now, rtt, 12_000) {
                    Ok(bytes) => {
                        controller.on_sent(now, bytes, 0);
                        sent += bytes;
                        next = now;
                    }
                    Err(until) => next = next.min(until),
                }
            }
            now = next;
        }
        let rate = sent as f64 / (now - start).as_secs_f64();
        assert!((980_000.0..=1_010_000.0).contains(&rate), "{rate}");
        let (gate, controller) = &mut ends[0];
        while gate.may_go(now, rtt).is_ok() {
            controller.on_sent(now, 1_200, 0);
        }
        let until = gate.may_go(now, rtt).unwrap_err();
        assert!(until > now, "what is not paced waits for the cap, too");
        cap.set(None);
        assert_eq!(gate.may_go(now, rtt), Ok(()));
    }

    #[test]
    fn paced_data_takes_four_fifths_of_a_round_trip_per_window() {
        let (mut gate, mut controller, start) = gate();
        let rtt = Duration::from_millis(100);
        let (mut now, mut sent) = (start, 0);
        while sent < 10 * gate.window() {
            match gate.paced(now, rtt, 1_200) {
                Ok(bytes) => {
                    controller.on_sent(now, bytes, 0);
                    sent += bytes;
                }
                Err(then) => now = then,
            }
        }
        let windows = (now - start).as_secs_f64() / 0.08;
        assert!((7.5..=10.5).contains(&windows), "{windows}");
    }
}
