//! Remembers how much was in flight when each train of packets left.
//!
//! A packet that finds `flight` bytes ahead of it and itself, and is acknowledged after `rtt`, shows the rate
//! at which the path takes what is sent: `flight / rtt`. It is the delivery rate of
//! draft-ietf-ccwg-bbr 4.1, counted at the sender, so that random loss does not shrink it and a burst of
//! delayed ACKs does not raise it.

use std::{collections::VecDeque, time::Instant};

/// Trains remembered at most; a path with more of them in flight loses the oldest samples.
const TRAINS_MAX: usize = 1 << 14;

/// What was in flight as trains left, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct FlightLog {
    trains: VecDeque<(Instant, u64)>,
}

impl FlightLog {
    /// A packet leaves; with those sent at the same instant it is one train, whose first one counts.
    pub(super) fn sent(&mut self, now: Instant, flight: u64) {
        if self.trains.back().is_some_and(|(at, _)| *at >= now) {
            return;
        }
        if self.trains.len() == TRAINS_MAX {
            self.trains.pop_front();
        }
        self.trains.push_back((now, flight));
    }

    /// What was in flight at `sent`. Forgets that train and all before it.
    pub(super) fn take(&mut self, sent: Instant) -> Option<u64> {
        while let Some(&(at, flight)) = self.trains.front() {
            if at > sent {
                return None;
            }
            self.trains.pop_front();
            if at == sent {
                return Some(flight);
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
            log.sent(at(ms), flight);
        }
        assert_eq!(log.take(at(1)), Some(10));
        assert_eq!(log.take(at(1)), None);
        assert_eq!(log.take(at(3)), Some(40));
        assert_eq!(log.take(at(2)), None);
    }

    #[test]
    fn a_sender_that_hears_nothing_remembers_a_bounded_number_of_trains() {
        let (start, mut log) = (Instant::now(), FlightLog::default());
        for us in 0..2 * TRAINS_MAX as u64 {
            log.sent(start + Duration::from_micros(us), us);
        }
        assert_eq!(log.trains.len(), TRAINS_MAX);
    }
}
