//! Meters what a connection gives quinn-proto, and what that sends, by the congestion window and by
//! pacing. Knows bytes and times, no streams.

use std::time::{Duration, Instant};

use super::BATCHES_PER_DRIVE;
use crate::{gate::CongestionGate, receive_buffers::BATCH_BYTES, socket::SPARSE_BYTES};

/// Datagrams per drive that ignore pacing and the window.
const FREE_DATAGRAMS: usize = 1;

/// The largest read from a socket. Several batches: the kernel lets a source get as far ahead as
/// the largest read it has seen (dynamic right-sizing, tcp_rmem in tcp(7)), and a source that is
/// only one batch ahead runs empty whenever it is not scheduled in time. Only one stream of a
/// connection at a time reads this far ahead, so that a thousand stalled ones hold no more than a
/// batch each.
const READ_BYTES: u64 = (BATCHES_PER_DRIVE * BATCH_BYTES) as u64;

/// A path, as metering sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathParameters {
    pub(super) rtt: Duration,
    pub(super) mtu: u16,
}

/// What bulk streams may be given now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) bytes: usize,
    /// What may be sent soon, and is worth reading.
    pub(super) ahead: usize,
}

/// What may be sent now.
pub(super) struct Meter {
    pub(super) gate: CongestionGate,
    /// When pacing allows more to be sent.
    paced_until: Option<Instant>,
    /// Stream bytes given to quinn-proto that may not have been sent.
    handed_over: usize,
    /// Whether quinn-proto may have more to send than it was allowed.
    repairs_wait: bool,
    /// Datagrams that this drive may send regardless of pacing.
    free_datagrams: usize,
}

impl Meter {
    pub(super) fn new(gate: CongestionGate) -> Self {
        Self { gate, paced_until: None, handed_over: 0, repairs_wait: false, free_datagrams: 0 }
    }

    /// Begins to send.
    pub(super) fn begin(&mut self) {
        self.paced_until = None;
        self.free_datagrams = if self.gate.is_owed_much() { 0 } else { FREE_DATAGRAMS };
    }

    /// Whether quinn-proto has sent all that it was given.
    pub(super) fn is_settled(&self) -> bool {
        self.handed_over == 0
    }

    /// Whether quinn-proto has something to retransmit that had to wait: it goes before new data.
    pub(super) fn repairs_wait(&self) -> bool {
        self.repairs_wait
    }

    /// Bytes that a sparse stream may be given now, if it is a packet.
    pub(super) fn sparse_bytes(&mut self, now: Instant, path: PathParameters) -> Option<usize> {
        let room = self.gate.sparse_room(now, path.rtt);
        if let Err(until) = self.gate.may_go(now, path.rtt) {
            self.paced_until = Some(until);
            return None;
        }
        (room >= path.mtu.into()).then(|| SPARSE_BYTES.min(room as usize))
    }

    /// Bytes of datagrams that flows may be given now, no more than `batch`.
    pub(super) fn flow_bytes(
        &mut self,
        now: Instant,
        path: PathParameters,
        batch: usize,
    ) -> Option<usize> {
        let room = self.gate.room(now);
        if room == 0 {
            return None;
        }
        self.paced(now, path, path.mtu.into())?;
        Some(room.min(self.gate.tokens_left()).min(batch as u64) as usize)
    }

    /// What bulk streams may be given now, no more than `batch`.
    pub(super) fn bulk_bytes(
        &mut self,
        now: Instant,
        path: PathParameters,
        batch: usize,
    ) -> Option<Allowed> {
        let room = self.gate.room(now);
        // Send full batches, or a quarter of a window that holds only a few: small batches cost as
        // much as large ones.
        let least = (batch as u64).min(self.gate.window() / 4).min(self.gate.burst(path.rtt));
        if room < least {
            return None;
        }
        let bytes = self.paced(now, path, room.min(batch as u64))? as usize;
        let ahead = room.min(self.gate.tokens_left()).min(READ_BYTES) as usize;
        Some(Allowed { bytes, ahead })
    }

    /// How many of `bytes` pacing allows now; else notes when the next burst may go.
    fn paced(&mut self, now: Instant, path: PathParameters, bytes: u64) -> Option<u64> {
        match self.gate.paced(now, path.rtt, bytes) {
            Ok(bytes) => Some(bytes),
            Err(until) => {
                self.paced_until = Some(until);
                None
            }
        }
    }

    /// quinn-proto was given this much.
    pub(super) fn given(&mut self, bytes: usize) {
        self.handed_over += bytes;
    }

    /// Datagrams that quinn-proto may send now. New data was metered before; retransmissions are
    /// paced here, except for one datagram per drive for what cannot wait: ACKs, probes, the
    /// connection's close.
    pub(super) fn datagrams(&mut self, now: Instant, path: PathParameters) -> Option<usize> {
        let room = self.gate.room(now);
        let paced = self.gate.paced(now, path.rtt, path.mtu.into());
        let allowed = match paced {
            Ok(_) => self.gate.tokens_left().min(room),
            Err(_) => 0,
        };
        match (allowed as usize + self.handed_over).div_ceil(usize::from(path.mtu)) {
            0 if self.free_datagrams > 0 => {
                self.free_datagrams -= 1;
                Some(1)
            }
            0 => {
                self.repairs_wait = true;
                self.paced_until = paced.err();
                None
            }
            datagrams => Some(datagrams),
        }
    }

    /// quinn-proto has sent this much.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.handed_over = self.handed_over.saturating_sub(bytes);
    }

    /// quinn-proto has nothing more to send, but what it may not send to an unproved address.
    pub(super) fn sent_all(&mut self, peer_is_proved: bool) {
        self.repairs_wait = false;
        if peer_is_proved {
            self.handed_over = 0;
        }
    }

    /// When pacing allows more.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.paced_until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use keypadd_congestion::Control;
    use quinn_proto::congestion::{Controller, CubicConfig};

    use super::*;
    use crate::{flight::Flight, rate_cap::RateCap};

    const PATH: PathParameters = PathParameters { rtt: Duration::from_millis(100), mtu: 1_200 };

    /// A meter whose window is full except for `room` bytes.
    fn meter(room: u64) -> (Meter, Box<dyn Controller>, Instant) {
        let now = Instant::now();
        let control = Control::Other(Arc::new(CubicConfig::default()));
        let flight = Flight::new(1 << 20, 1 << 20, Arc::default());
        let (gate, factory) = CongestionGate::new(control, flight, now);
        let mut controller = factory.build(now, PATH.mtu);
        controller.on_sent(now, gate.window() - room, 1);
        (Meter::new(gate), controller, now)
    }

    #[test]
    fn a_full_window_leaves_sparse_streams_a_reserve_and_others_nothing() {
        let (mut meter, _controller, now) = meter(0);
        meter.begin();
        assert_eq!(meter.sparse_bytes(now, PATH), Some(SPARSE_BYTES));
        assert_eq!(meter.bulk_bytes(now, PATH, 1_000), None);
        assert_eq!(meter.flow_bytes(now, PATH, 1_000), None);
        assert_eq!(meter.deadline(now), None, "it does not wait for pacing");
    }

    #[test]
    fn a_cap_holds_sparse_data_back_until_a_later_time() {
        let (mut meter, mut controller, now) = meter(0);
        meter.gate.set_cap(RateCap::new(Some(10_000)));
        meter.begin();
        while meter.sparse_bytes(now, PATH).is_some() {
            controller.on_sent(now, 1_200, 2);
        }
        let until = meter.deadline(now).expect("a time to go on");
        assert!(until > now);
        meter.begin();
        assert!(meter.sparse_bytes(until + PATH.rtt, PATH).is_some());
    }

    #[test]
    fn bulk_waits_for_a_batch_that_is_worth_sending_and_a_datagram_does_not() {
        let (mut meter, _controller, now) = meter(999);
        assert_eq!(meter.flow_bytes(now, PATH, 1_000), None, "the first burst has left");
        assert!(meter.deadline(now).is_some_and(|until| until > now));
        let later = now + 5 * PATH.rtt;
        assert_eq!(meter.bulk_bytes(later, PATH, 1_000), None);
        assert_eq!(meter.flow_bytes(later, PATH, 1_000), Some(999));
        assert_eq!(meter.flow_bytes(later, PATH, 500), Some(500));
        let allowed = meter.bulk_bytes(later, PATH, 900);
        assert_eq!(allowed, Some(Allowed { bytes: 900, ahead: 999 }));
        meter.begin();
        assert_eq!(meter.deadline(now), None);
    }

    #[test]
    fn one_datagram_leaves_whatever_the_window_and_then_repairs_wait() {
        let (mut meter, _controller, now) = meter(0);
        meter.begin();
        assert_eq!(meter.datagrams(now, PATH), Some(1));
        assert!(!meter.repairs_wait());
        assert_eq!(meter.datagrams(now, PATH), None);
        assert!(meter.repairs_wait());
        meter.sent_all(true);
        assert!(!meter.repairs_wait());
    }

    #[test]
    fn what_quinn_was_given_may_leave() {
        let (mut meter, _controller, now) = meter(0);
        assert!(meter.is_settled());
        meter.given(2_401);
        assert_eq!(meter.datagrams(now, PATH), Some(3));
        meter.sent(1_200);
        assert_eq!(meter.datagrams(now, PATH), Some(2));
        meter.sent_all(false);
        assert!(!meter.is_settled(), "the rest waits for the address to be proved");
        meter.sent_all(true);
        assert!(meter.is_settled());
        meter.given(100);
        meter.sent(1_200);
        assert!(meter.is_settled());
    }
}
