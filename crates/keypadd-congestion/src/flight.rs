//! Records what is in flight, and how much was when each batch of packets left, to estimate the
//! delivery rate at the sender.
//!
//! A packet sent with `flight` bytes outstanding, itself included, and acknowledged after `rtt`
//! shows the rate at which the path takes what is sent: `flight / rtt`. It is the delivery rate of
//! draft-ietf-ccwg-bbr 4.1, counted at the sender, so that random loss does not shrink it and a
//! burst of delayed ACKs does not raise it. Knows bytes and times, no window.

use std::{collections::VecDeque, time::Instant};

use crate::constants::{ACKED_PACKETS, BATCHES_MAX, RTT_MIN};

/// The state in which a batch was sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Departure {
    pub(super) sent: Instant,
    /// Bytes in flight, including its first packets.
    pub(super) flight: u64,
    /// Bytes per second, as measured at that time.
    pub(super) rate: f64,
}

/// The packets in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Flight {
    bytes: u64,
    /// The delivery rate that the last sample showed, in bytes per second.
    pub(super) rate: f64,
    /// The states in which batches were sent, oldest first.
    batches: VecDeque<Departure>,
    /// Send time of the newest packet in the ACK being read.
    newest: Option<Instant>,
    /// Send time of the last sample.
    sampled: Option<Instant>,
}

impl Flight {
    /// Records a sent packet; packets of at most `mtu` bytes that are sent at the same instant are
    /// one batch, whose first call counts.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, mtu: u64) {
        // Including the two packets that the first ACK of a batch covers.
        let flight = self.bytes + bytes.min(ACKED_PACKETS * mtu);
        self.bytes += bytes;
        if self.batches.back().is_some_and(|last| last.sent >= now) {
            return;
        }
        if self.batches.len() == BATCHES_MAX {
            self.batches.pop_front();
        }
        self.batches.push_back(Departure { sent: now, flight, rate: self.rate });
    }

    /// Continues on another connection, while so many bytes are in flight.
    pub(super) fn continue_on_another(&mut self, bytes: u64) {
        *self = Self { bytes, rate: self.rate, ..Self::default() };
    }

    pub(super) fn acked(&mut self, sent: Instant) {
        self.newest = self.newest.max(Some(sent));
    }

    pub(super) fn lost(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Ends an ACK, which leaves `bytes` in flight. Takes the rate that the batch of its newest
    /// packet shows, and returns that batch; `None` if a packet sent no earlier has shown one.
    pub(super) fn end_acks(&mut self, now: Instant, bytes: u64) -> Option<Departure> {
        self.bytes = bytes;
        let sent = self.newest.take().filter(|sent| Some(*sent) > self.sampled)?;
        self.sampled = Some(sent);
        let departure = self.take(sent)?;
        let rtt = now.saturating_duration_since(sent);
        self.rate = departure.flight as f64 / rtt.as_secs_f64().max(RTT_MIN);
        Some(departure)
    }

    /// The state in which the batch of `sent` was sent. Forgets it and all older ones.
    fn take(&mut self, sent: Instant) -> Option<Departure> {
        while let Some(&departure) = self.batches.front() {
            if departure.sent > sent {
                return None;
            }
            self.batches.pop_front();
            if departure.sent == sent {
                return Some(departure);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_packet_of_a_train_counts_and_older_trains_are_forgotten() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut flight = Flight::default();
        for ms in [1, 1, 2, 3] {
            flight.sent(at(ms), 10, 10);
        }
        let mut take = |ms| flight.take(at(ms)).map(|departure| departure.flight);
        assert_eq!(take(1), Some(10));
        assert_eq!(take(1), None);
        assert_eq!(take(3), Some(40));
        assert_eq!(take(2), None);
    }

    #[test]
    fn what_another_connection_has_sent_is_in_flight_and_shows_no_rate() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut flight = Flight::default();
        flight.sent(at(0), 10_000, 1_000);
        flight.continue_on_another(4_000);
        flight.sent(at(1), 1_000, 1_000);
        flight.acked(at(0));
        assert_eq!(flight.end_acks(at(10), 5_000), None);
        flight.acked(at(1));
        assert_eq!(flight.end_acks(at(11), 0).map(|departure| departure.flight), Some(5_000));
    }

    #[test]
    fn a_sender_that_hears_nothing_remembers_a_bounded_number_of_trains() {
        let (start, mut flight) = (Instant::now(), Flight::default());
        for us in 0..2 * BATCHES_MAX as u64 {
            flight.sent(start + Duration::from_micros(us), 1, 1);
        }
        assert_eq!(flight.batches.len(), BATCHES_MAX);
    }
}
