//! The controller that `quinn-proto` is given: its window never closes. Inside is the real one, whose window and rate
//! it reports to the gate.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use quinn_proto::{
    RttEstimator,
    congestion::{Controller, ControllerFactory, ControllerMetrics},
};

use crate::congestion::{RateController, Waits};

/// The window that `quinn-proto` sees: above `u32::MAX` it neither blocks nor paces.
pub(super) const OPEN_WINDOW: u64 = 1 << 40;

/// Shorter sends are not counted until an ACK reports what is in flight: they may be pure ACKs,
/// which are not acknowledged, and `quinn-proto` does not distinguish them.
pub(super) const COUNTED_BYTES: u64 = 600;

/// State that the controller and the loop share. One thread reads and writes it; `quinn-proto`
/// requires controllers to be `Sync`.
#[derive(Default)]
pub(super) struct ControllerState {
    pub(super) window: AtomicU64,
    /// Bytes per second; 0 if the controller sets no rate.
    pub(super) pacing_rate: AtomicU64,
    pub(super) in_flight: AtomicU64,
    /// Total bytes sent.
    pub(super) sent: AtomicU64,
    /// Total ACKs received.
    pub(super) acks: AtomicU64,
    /// The newest packet number sent, and the largest acknowledged.
    pub(super) newest: AtomicU64,
    pub(super) acked: AtomicU64,
    pub(super) mtu: AtomicU64,
    /// What the controller has yet to be told of both ways.
    waits: Mutex<Option<Waits>>,
    /// Whether data waits for the window, in which case the controller may let it grow.
    pub(super) held_back: AtomicBool,
    /// Whether start-up is over, so that the pacing rate is the path's.
    pub(super) is_rate_known: AtomicBool,
    /// Takes the controller's place at the next packet.
    successor: Mutex<Option<(Box<dyn Controller>, InFlightBefore)>>,
    has_successor: AtomicBool,
}

impl fmt::Debug for ControllerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerState").finish_non_exhaustive()
    }
}

impl ControllerState {
    /// Lets this one take the controller's place at the next packet.
    pub(super) fn set_successor(&self, controller: Box<dyn Controller>, before: InFlightBefore) {
        self.follow(&*controller);
        let mut successor = self.successor.lock().unwrap_or_else(PoisonError::into_inner);
        *successor = Some((controller, before));
        self.has_successor.store(true, Relaxed);
    }

    fn take_successor(&self) -> Option<(Box<dyn Controller>, InFlightBefore)> {
        match self.has_successor.swap(false, Relaxed) {
            true => self.successor.lock().unwrap_or_else(PoisonError::into_inner).take(),
            false => None,
        }
    }

    pub(super) fn waits(&self) -> MutexGuard<'_, Option<Waits>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, inner: &dyn Controller) {
        self.window.store(inner.window(), Relaxed);
        let metrics = inner.metrics();
        self.pacing_rate.store(metrics.pacing_rate.unwrap_or_default() / 8, Relaxed);
        self.is_rate_known.store(metrics.ssthresh.is_some_and(|most| most < u64::MAX), Relaxed);
    }
}

/// Wraps the controllers of another factory.
pub(super) struct UnlimitedFactory {
    pub(super) inner: Arc<dyn ControllerFactory + Send + Sync>,
    pub(super) shared: Arc<ControllerState>,
}

impl ControllerFactory for UnlimitedFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.inner).build(now, current_mtu);
        self.shared.follow(&*inner);
        // A new path begins with nothing in flight, and a successor knows the old one.
        self.shared.take_successor();
        *self.shared.waits() = None;
        self.shared.in_flight.store(0, Relaxed);
        self.shared.mtu.store(current_mtu.into(), Relaxed);
        let inner = Inner::of(inner);
        Box::new(UnlimitedController { inner, before: None, shared: Arc::clone(&self.shared) })
    }
}

/// A controller with a window that `quinn-proto` never fills; the real one is `inner`.
pub(super) struct UnlimitedController {
    inner: Inner,
    before: Option<InFlightBefore>,
    shared: Arc<ControllerState>,
}

/// What another connection had in flight when it handed its controller over. It has left the path when a packet
/// sent afterwards is acknowledged.
#[derive(Clone, Copy)]
pub(super) struct InFlightBefore {
    pub(super) at: Instant,
    pub(super) bytes: u64,
}

/// The controller of this crate, which can tell the two ways apart, or another.
enum Inner {
    Rate(Box<RateController>),
    Other(Box<dyn Controller>),
}

impl Inner {
    fn of(controller: Box<dyn Controller>) -> Self {
        let other = controller.clone_box();
        match controller.into_any().downcast() {
            Ok(rate) => Self::Rate(rate),
            Err(_) => Self::Other(other),
        }
    }

    fn into_box(self) -> Box<dyn Controller> {
        match self {
            Self::Rate(rate) => rate,
            Self::Other(other) => other,
        }
    }
}

impl std::ops::Deref for Inner {
    type Target = dyn Controller;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Rate(rate) => &**rate,
            Self::Other(other) => &**other,
        }
    }
}

impl std::ops::DerefMut for Inner {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Rate(rate) => &mut **rate,
            Self::Other(other) => &mut **other,
        }
    }
}

impl UnlimitedController {
    /// The real one.
    pub(super) fn into_inner(self) -> Box<dyn Controller> {
        self.inner.into_box()
    }

    /// Lets the successor continue, if there is one.
    fn succeed(&mut self) {
        if let Some((successor, before)) = self.shared.take_successor() {
            (self.inner, self.before) = (Inner::of(successor), Some(before));
        }
    }

    /// Records that a packet sent at this time has arrived.
    pub(super) fn acked(&mut self, sent: Instant) {
        self.succeed();
        self.before = self.before.filter(|before| sent < before.at);
    }
}

impl Controller for UnlimitedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.succeed();
        self.inner.on_sent(now, bytes, last_packet_number);
        self.shared.newest.store(last_packet_number, Relaxed);
        if bytes >= COUNTED_BYTES {
            self.shared.in_flight.fetch_add(bytes, Relaxed);
            self.shared.sent.fetch_add(bytes, Relaxed);
        }
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _: bool, rtt: &RttEstimator) {
        self.acked(sent);
        let app_limited = !self.shared.held_back.load(Relaxed);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _: bool, largest: Option<u64>) {
        self.succeed();
        let app_limited = !self.shared.held_back.load(Relaxed);
        if let Inner::Rate(rate) = &mut self.inner
            && let Some(waits) = self.shared.waits().take()
        {
            rate.set_waits(now, waits);
        }
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.shared.follow(&*self.inner);
        let before = self.before.map_or(0, |before| before.bytes);
        self.shared.in_flight.store(in_flight + before, Relaxed);
        self.shared.acks.fetch_add(1, Relaxed);
        if let Some(largest) = largest {
            self.shared.acked.store(largest, Relaxed);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.succeed();
        self.inner.on_congestion_event(now, sent, persistent, lost);
        self.shared.follow(&*self.inner);
        let left = self.shared.in_flight.load(Relaxed).saturating_sub(lost);
        self.shared.in_flight.store(left, Relaxed);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.succeed();
        self.inner.on_mtu_update(new_mtu);
        self.shared.follow(&*self.inner);
        self.shared.mtu.store(new_mtu.into(), Relaxed);
    }

    fn window(&self) -> u64 {
        OPEN_WINDOW
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: Inner::of(self.inner.clone_box()),
            before: self.before,
            shared: Arc::clone(&self.shared),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
