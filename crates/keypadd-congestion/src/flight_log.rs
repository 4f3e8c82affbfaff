//! Records how much was in flight when each batch of packets left, to estimate the delivery rate at
//! the sender.
//!
//! A packet sent with `flight` bytes outstanding, itself included, and acknowledged after `rtt`
//! shows the rate at which the path takes what is sent: `flight / rtt`. It is the delivery rate of
//! draft-ietf-ccwg-bbr 4.1, counted at the sender, so that random loss does not shrink it and a
//! burst of delayed ACKs does not raise it.

use std::{collections::VecDeque, time::Instant};

use crate::constants::BATCHES_MAX;

/// The state in which a batch was sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Departure {
    /// Bytes in flight, including its first packets.
    pub(super) flight: u64,
    /// Bytes per second, as measured at that time.
    pub(super) rate: f64,
}

/// The states in which batches were sent, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct FlightLog {
    batches: VecDeque<(Instant, Departure)>,
}

impl FlightLog {
    /// Records a sent packet; packets sent at the same instant are one batch, whose first call
    /// counts.
    pub(super) fn sent(&mut self, now: Instant, departure: Departure) {
        if self.batches.back().is_some_and(|(at, _)| *at >= now) {
            return;
        }
        if self.batches.len() == BATCHES_MAX {
            self.batches.pop_front();
        }
        self.batches.push_back((now, departure));
    }

    /// The state in which the batch of `sent` was sent. Forgets it and all older ones.
    pub(super) fn take(&mut self, sent: Instant) -> Option<Departure> {
        while let Some(&(at, departure)) = self.batches.front() {
            if at > sent {
                return None;
            }
            self.batches.pop_front();
            if at == sent {
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
        let mut log = FlightLog::default();
        for (ms, flight) in [(1, 10), (1, 20), (2, 30), (3, 40)] {
            log.sent(at(ms), Departure { flight, rate: 0.0 });
        }
        let mut take = |ms| log.take(at(ms)).map(|departure| departure.flight);
        assert_eq!(take(1), Some(10));
        assert_eq!(take(1), None);
        assert_eq!(take(3), Some(40));
        assert_eq!(take(2), None);
    }

    #[test]
    fn a_sender_that_hears_nothing_remembers_a_bounded_number_of_trains() {
        let (start, mut log) = (Instant::now(), FlightLog::default());
        for us in 0..2 * BATCHES_MAX as u64 {
            let departure = Departure { flight: us, rate: 0.0 };
            log.sent(start + Duration::from_micros(us), departure);
        }
        assert_eq!(log.batches.len(), BATCHES_MAX);
    }
}
