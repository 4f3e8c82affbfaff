//! Applies congestion control and pacing outside `quinn-proto`, to stream data only.
//!
//! `quinn-proto` sends no ACK while stream data waits for its congestion window, because the packet
//! would be ack-eliciting. So it is shown a window without end, and the loop hands it no more stream
//! data than the real controller allows. Nothing waits inside; ACKs, credit and repairs leave at
//! once. New data is paced (RFC 9002 7.7). Knows bytes and times, no sockets and no streams.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use quinn_proto::{
    RttEstimator,
    congestion::{Controller, ControllerFactory, ControllerMetrics},
};

/// The window `quinn-proto` sees: above `u32::MAX`, where it neither blocks nor paces.
const OPEN_WINDOW: u64 = 1 << 40;

/// Sends below this many bytes are not counted until an ACK says what is in flight: they may be
/// ACKs alone, which nobody acknowledges, and `quinn-proto` reports both kinds alike.
const COUNTED_BYTES: u64 = 600;

/// Without an ACK for this long the count starts over; probes find out what is lost meanwhile.
const STALE: Duration = Duration::from_secs(1);

/// Pacing rate over window / RTT (RFC 9002 7.7).
const PACING_GAIN: f64 = 1.25;

/// Bytes that may leave at once however low the rate is: ten packets (RFC 9002 7.7).
const BURST_BYTES_MIN: f64 = 10.0 * 1_452.0;

/// A paced burst lasts this long at the pacing rate, where that is more than the minimum.
const BURST_TIME: f64 = 0.002;

/// What the controller and the loop share. One thread writes and reads it; `quinn-proto` asks
/// controllers to be `Sync`.
#[derive(Debug, Default)]
struct ControllerState {
    window: AtomicU64,
    in_flight: AtomicU64,
    /// Sends are counted in one after the other.
    acked_at_sends: AtomicU64,
    sends: AtomicU64,
    /// Whether data waits for the window, so that the controller may let it grow.
    held_back: AtomicBool,
}

impl ControllerState {
    fn set_window(&self, inner: &dyn Controller) {
        self.window.store(inner.window(), Relaxed);
    }
}

/// Builds [`UnlimitedController`] controllers around those of another factory.
struct UnlimitedFactory {
    inner: Arc<dyn ControllerFactory + Send + Sync>,
    shared: Arc<ControllerState>,
}

impl ControllerFactory for UnlimitedFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.inner).build(now, current_mtu);
        self.shared.set_window(&*inner);
        // A new path begins with nothing in flight.
        self.shared.in_flight.store(0, Relaxed);
        Box::new(UnlimitedController { inner, shared: Arc::clone(&self.shared) })
    }
}

/// A controller whose window `quinn-proto` never fills; the real one is `inner`.
struct UnlimitedController {
    inner: Box<dyn Controller>,
    shared: Arc<ControllerState>,
}

impl Controller for UnlimitedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
        if bytes >= COUNTED_BYTES {
            self.shared.in_flight.fetch_add(bytes, Relaxed);
            self.shared.sends.fetch_add(1, Relaxed);
        }
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _: bool, rtt: &RttEstimator) {
        let app_limited = !self.shared.held_back.load(Relaxed);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _: bool, largest: Option<u64>) {
        let app_limited = !self.shared.held_back.load(Relaxed);
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.shared.set_window(&*self.inner);
        self.shared.in_flight.store(in_flight, Relaxed);
        self.shared.acked_at_sends.store(self.shared.sends.load(Relaxed), Relaxed);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.inner.on_congestion_event(now, sent, persistent, lost);
        self.shared.set_window(&*self.inner);
        let left = self.shared.in_flight.load(Relaxed).saturating_sub(lost);
        self.shared.in_flight.store(left, Relaxed);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
        self.shared.set_window(&*self.inner);
    }

    fn window(&self) -> u64 {
        OPEN_WINDOW
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), shared: Arc::clone(&self.shared) })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// How much stream data a connection may send now.
#[derive(Debug)]
pub(crate) struct CongestionGate {
    shared: Arc<ControllerState>,
    /// Bytes in flight at most, whatever the controller says: they are held in memory here.
    flight_max: u64,
    tokens: f64,
    filled_at: Instant,
    sends_seen: u64,
    progress_at: Instant,
}

impl CongestionGate {
    /// A gate, and the factory of the controllers that report to it. One connection each.
    pub(crate) fn new(
        inner: Arc<dyn ControllerFactory + Send + Sync>,
        flight_max: u64,
        now: Instant,
    ) -> (Self, Arc<dyn ControllerFactory + Send + Sync>) {
        let shared = Arc::<ControllerState>::default();
        let factory = UnlimitedFactory { inner, shared: Arc::clone(&shared) };
        let gate = Self {
            shared,
            flight_max,
            tokens: BURST_BYTES_MIN,
            filled_at: now,
            sends_seen: 0,
            progress_at: now,
        };
        (gate, Arc::new(factory))
    }

    /// Bytes in flight that are allowed now.
    pub(crate) fn window(&self) -> u64 {
        self.shared.window.load(Relaxed).min(self.flight_max)
    }

    /// Stream bytes that may be handed over now beside what is in flight, pacing aside.
    pub(crate) fn room(&mut self, now: Instant) -> u64 {
        let acked = self.shared.acked_at_sends.load(Relaxed);
        if acked != self.sends_seen {
            (self.sends_seen, self.progress_at) = (acked, now);
        } else if now.saturating_duration_since(self.progress_at) > STALE {
            self.shared.in_flight.store(0, Relaxed);
            self.progress_at = now;
        }
        self.window().saturating_sub(self.shared.in_flight.load(Relaxed))
    }

    /// Bytes in flight beyond the window.
    pub(crate) fn excess(&self) -> u64 {
        self.shared.in_flight.load(Relaxed).saturating_sub(self.window())
    }

    /// Of `bytes`, those that pacing allows now, or when the next burst may go.
    pub(crate) fn paced(
        &mut self,
        now: Instant,
        rtt: Duration,
        bytes: u64,
    ) -> Result<u64, Instant> {
        let rate = PACING_GAIN * self.window() as f64 / rtt.as_secs_f64().max(1e-6);
        let burst = (rate * BURST_TIME).max(BURST_BYTES_MIN);
        let elapsed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * rate).min(burst);
        self.filled_at = now;
        let wanted = (bytes as f64).min(burst / 2.0);
        if self.tokens >= wanted {
            Ok(bytes.min(self.tokens as u64))
        } else {
            Err(now + Duration::from_secs_f64((wanted - self.tokens) / rate))
        }
    }

    /// These bytes were handed over.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.tokens -= bytes as f64;
    }

    /// Whether data waits for the window.
    pub(crate) fn set_held_back(&self, held_back: bool) {
        self.shared.held_back.store(held_back, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use quinn_proto::congestion::CubicConfig;

    use super::*;

    fn gate() -> (CongestionGate, Box<dyn Controller>, Instant) {
        let now = Instant::now();
        let (gate, factory) = CongestionGate::new(Arc::new(CubicConfig::default()), 1 << 20, now);
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
    fn acks_alone_never_close_the_gate() {
        let (mut gate, mut controller, now) = gate();
        for number in 0..100_000 {
            controller.on_sent(now, 40, number);
        }
        assert_eq!(gate.room(now), gate.window());
    }

    #[test]
    fn a_count_that_nothing_confirms_is_dropped() {
        let (mut gate, mut controller, now) = gate();
        controller.on_sent(now, 1 << 30, 1);
        assert_eq!(gate.room(now), 0);
        assert_eq!(gate.room(now + STALE + STALE), gate.window());
    }

    #[test]
    fn quinn_sees_a_window_that_never_closes() {
        let (_, mut controller, now) = gate();
        controller.on_congestion_event(now, now, true, 1 << 20);
        assert_eq!(controller.window(), OPEN_WINDOW);
    }

    #[test]
    fn paced_data_takes_four_fifths_of_a_round_trip_per_window() {
        let (mut gate, _controller, start) = gate();
        let rtt = Duration::from_millis(100);
        let (mut now, mut sent) = (start, 0);
        while sent < 10 * gate.window() {
            match gate.paced(now, rtt, 1_200) {
                Ok(bytes) => {
                    gate.spend(bytes);
                    sent += bytes;
                }
                Err(then) => now = then,
            }
        }
        let windows = (now - start).as_secs_f64() / 0.08;
        assert!((8.0..=10.5).contains(&windows), "{windows}");
    }
}
