//! Stands between quinn-proto and the controller of a path: quinn-proto is told of an endless
//! window, and the gate of the real one.
//!
//! Both ends of the report are used by one thread. quinn-proto requires controllers to be `Sync`,
//! so it is behind a lock, which nobody ever waits for. Knows bytes and times, no pacing.

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use keypadd_congestion::{Algorithm, Control, Waits};
use quinn_proto::{
    RttEstimator,
    congestion::{Controller, ControllerFactory, ControllerMetrics},
};

/// The window that quinn-proto sees: above `u32::MAX` it neither blocks nor paces.
pub(super) const OPEN_WINDOW: u64 = 1 << 40;

/// Shorter sends are not counted until an ACK reports what is in flight: they may be pure ACKs,
/// which are not acknowledged, and quinn-proto does not distinguish them.
pub(super) const COUNTED_BYTES: u64 = 600;

/// What a connection's controller and its gate tell each other.
#[derive(Default)]
pub(super) struct Report {
    /// Bytes that the controller lets be in flight.
    pub(super) window: u64,
    /// Bytes per second, if the controller sets a rate.
    pub(super) rate: Option<u64>,
    /// Whether start-up is over, so that the rate is the path's.
    pub(super) rate_known: bool,
    /// Bytes in flight.
    pub(super) in_flight: u64,
    /// Total bytes sent.
    pub(super) sent: u64,
    /// Total ACKs received.
    pub(super) acks: u64,
    /// The newest packet number sent.
    pub(super) newest: u64,
    /// The largest packet number acknowledged.
    pub(super) acked: u64,
    /// Bytes of a full packet.
    pub(super) mtu: u64,
    /// What the controller has yet to be told of both ways.
    pub(super) waits: Option<Waits>,
    /// Whether data waits for the window, in which case the controller may let it grow.
    pub(super) held_back: bool,
    /// Takes the controller's place at the next packet.
    successor: Option<Inherited>,
}

/// Another connection's controller of the same path, and what it had in flight.
struct Inherited {
    algorithm: Algorithm,
    before: InFlightBefore,
}

/// What another connection had in flight when it handed its controller over. It has left the path
/// when a packet sent afterwards is acknowledged.
#[derive(Clone, Copy)]
pub(super) struct InFlightBefore {
    pub(super) at: Instant,
    pub(super) bytes: u64,
}

impl Report {
    pub(super) fn lock(report: &Mutex<Self>) -> MutexGuard<'_, Self> {
        report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets another connection's controller continue here from the next packet on.
    pub(super) fn inherit(&mut self, algorithm: Algorithm, before: InFlightBefore) {
        let replaced = self.successor.take().map_or(0, |it| it.before.bytes);
        self.in_flight = self.in_flight.saturating_sub(replaced) + before.bytes;
        self.follow(&algorithm);
        self.successor = Some(Inherited { algorithm, before });
    }

    /// The controller that takes the place at the next packet, if there is one.
    pub(super) fn successor(&self) -> Option<Algorithm> {
        self.successor.as_ref().map(|it| it.algorithm.clone())
    }

    /// Begins on a new path with this controller: nothing is in flight there, and a successor knows
    /// the old one.
    fn begin(&mut self, algorithm: &Algorithm, mtu: u16) {
        self.follow(algorithm);
        (self.successor, self.waits) = (None, None);
        (self.in_flight, self.mtu) = (0, mtu.into());
    }

    fn follow(&mut self, algorithm: &Algorithm) {
        let controller = algorithm.controller();
        self.window = controller.window();
        let metrics = controller.metrics();
        self.rate = metrics.pacing_rate.map(|bits| bits / 8).filter(|rate| *rate > 0);
        self.rate_known = metrics.ssthresh.is_some_and(|most| most < u64::MAX);
    }
}

/// Builds the controllers of one connection, which share a report.
pub(super) struct TapFactory {
    pub(super) control: Control,
    pub(super) report: Arc<Mutex<Report>>,
}

impl ControllerFactory for TapFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let algorithm = self.control.build(now, current_mtu);
        Report::lock(&self.report).begin(&algorithm, current_mtu);
        Box::new(Tap { algorithm, before: None, report: Arc::clone(&self.report) })
    }
}

/// The controller that quinn-proto is given.
#[derive(Clone)]
pub(super) struct Tap {
    pub(super) algorithm: Algorithm,
    before: Option<InFlightBefore>,
    report: Arc<Mutex<Report>>,
}

impl Tap {
    /// Lets the successor continue, if there is one. Returns whether data waits for the window.
    fn update(&mut self) -> bool {
        let (successor, held_back) = {
            let mut report = Report::lock(&self.report);
            (report.successor.take(), report.held_back)
        };
        self.continue_with(successor);
        held_back
    }

    fn continue_with(&mut self, successor: Option<Inherited>) {
        if let Some(Inherited { algorithm, before }) = successor {
            (self.algorithm, self.before) = (algorithm, Some(before));
        }
    }

    /// Records that a packet sent at this time has arrived. Returns whether data waits for the
    /// window.
    pub(super) fn acked(&mut self, sent: Instant) -> bool {
        let held_back = self.update();
        self.before = self.before.filter(|before| sent < before.at);
        held_back
    }
}

impl Controller for Tap {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        // One lock for each packet.
        let successor = {
            let mut report = Report::lock(&self.report);
            report.newest = last_packet_number;
            if bytes >= COUNTED_BYTES {
                report.in_flight += bytes;
                report.sent += bytes;
            }
            report.successor.take()
        };
        self.continue_with(successor);
        self.algorithm.controller_mut().on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _: bool, rtt: &RttEstimator) {
        let app_limited = !self.acked(sent);
        self.algorithm.controller_mut().on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _: bool, largest: Option<u64>) {
        let app_limited = !self.update();
        let in_flight = in_flight + self.before.map_or(0, |before| before.bytes);
        let mut report = Report::lock(&self.report);
        if let Some(waits) = report.waits.take() {
            self.algorithm.set_waits(now, waits);
        }
        self.algorithm.controller_mut().on_end_acks(now, in_flight, app_limited, largest);
        report.follow(&self.algorithm);
        report.in_flight = in_flight;
        report.acks += 1;
        report.acked = largest.unwrap_or(report.acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.update();
        self.algorithm.controller_mut().on_congestion_event(now, sent, persistent, lost);
        let mut report = Report::lock(&self.report);
        report.follow(&self.algorithm);
        report.in_flight = report.in_flight.saturating_sub(lost);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.update();
        self.algorithm.controller_mut().on_mtu_update(new_mtu);
        let mut report = Report::lock(&self.report);
        report.follow(&self.algorithm);
        report.mtu = new_mtu.into();
    }

    fn window(&self) -> u64 {
        OPEN_WINDOW
    }

    fn metrics(&self) -> ControllerMetrics {
        self.algorithm.controller().metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.algorithm.controller().initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
