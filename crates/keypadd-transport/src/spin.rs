//! Limits how long a loop polls before it sleeps.
//!
//! Waking a sleeping thread costs 10-50 us, most of an idle round trip. So after work a loop polls
//! for a short time, in case an answer follows. Polls that find nothing are charged to a budget
//! that refills with time, which limits them to a share of a core; a poll that finds something
//! counts as work. If work comes often, but later than a short poll lasts, the loop polls for
//! longer. Knows times only.

use std::{
    fmt, mem,
    str::FromStr,
    time::{Duration, Instant},
};

use thiserror::Error;

/// How long polling continues at least after the last event.
const SPIN_TIME: Duration = Duration::from_micros(80);

/// How long polling continues at most after the last event, if work comes often enough for that
/// to pay off.
const SPIN_TIME_MAX: Duration = Duration::from_micros(300);

/// The weight of one interval in the average time between work: 1 in 8.
const INTERVAL_WEIGHT: u32 = 8;

/// Longer intervals only show that the loop was idle.
const INTERVAL_MAX: Duration = Duration::from_millis(1);

/// Most allowance that can accumulate.
const SAVED_MAX: Duration = Duration::from_millis(20);

/// Each poll first yields the core. A program that answers runs for less than this, and is what the
/// poll waits for; one that runs longer has other work.
const GAP_MAX: Duration = Duration::from_micros(200);

/// A loop carries bulk data if it carries this many bytes of it within [`BULK_TIME`], 26 Mbit/s.
/// More slowly, packets come too rarely to be polled for.
const BULK_BYTES: usize = 16 << 10;
const BULK_TIME: Duration = Duration::from_millis(5);

/// Such a gap is charged this many times: on busy cores, a share of 2 % polls again after 500 gaps,
/// some 1.5 s. A thread that yields goes to the end of the run queue, while one that sleeps is
/// scheduled soon after it wakes.
const GAP_PRICE: u32 = 10;

/// The share of its core that a loop may spend on fruitless polling, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinShare(u8);

impl SpinShare {
    /// A share in percent, at most 100.
    pub const fn percent(percent: u8) -> Self {
        Self(if percent > 100 { 100 } else { percent })
    }
}

impl Default for SpinShare {
    fn default() -> Self {
        Self(2)
    }
}

/// Not a whole percentage from 0 to 100.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a percentage from 0 to 100")]
pub struct SpinShareError(String);

impl FromStr for SpinShare {
    type Err = SpinShareError;

    /// A whole number, with or without `%`.
    fn from_str(text: &str) -> Result<Self, SpinShareError> {
        match text.strip_suffix('%').unwrap_or(text).parse() {
            Ok(percent @ 0..=100) => Ok(Self(percent)),
            _ => Err(SpinShareError(text.into())),
        }
    }
}

impl fmt::Display for SpinShare {
    /// The percentage without a sign.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The polling state of a loop.
#[derive(Debug)]
pub(crate) struct Spin {
    share: f64,
    /// Time left for fruitless polling; negative if the last poll took longer.
    allowance_seconds: f64,
    filled_at: Instant,
    worked_at: Instant,
    /// The average time from work to work.
    interval: Duration,
    state: State,
    spent: Duration,
    /// Bytes of bulk data, and since when they are counted.
    bulk: (usize, Instant),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Working,
    Polling {
        since: Instant,
        last: Instant,
        at_most: Duration,
    },
    /// The poll was fruitless; wait for the next work.
    Resting,
}

impl Spin {
    pub(crate) fn new(share: SpinShare, now: Instant) -> Self {
        let share = f64::from(share.0) / 100.0;
        let allowance_seconds = SAVED_MAX.as_secs_f64();
        Self {
            share,
            allowance_seconds,
            filled_at: now,
            worked_at: now,
            interval: INTERVAL_MAX,
            state: State::Working,
            spent: Duration::ZERO,
            bulk: (0, now),
        }
    }

    /// Records the bulk data of a round, sent and received; returns whether the loop carries bulk.
    pub(crate) fn carried_bulk(&mut self, bytes: usize, now: Instant) -> bool {
        if bytes == 0 {
            return false;
        }
        let (counted, since) = &mut self.bulk;
        if now.saturating_duration_since(*since) > BULK_TIME {
            (*counted, *since) = (0, now);
        }
        *counted += bytes;
        *counted >= BULK_BYTES
    }

    /// Records work: if the loop was polling, the poll was answered.
    pub(crate) fn worked(&mut self, now: Instant) {
        let interval = now.saturating_duration_since(self.worked_at).min(INTERVAL_MAX);
        self.worked_at = now;
        self.interval += interval / INTERVAL_WEIGHT;
        self.interval -= self.interval / INTERVAL_WEIGHT;
        self.state = State::Working;
    }

    /// How long to poll now. A request and its answer are two intervals, a short one and a long
    /// one: twice the average covers either. If even the longest poll would not, the short one
    /// remains, for immediate answers.
    fn time(&self) -> Duration {
        let both = self.interval * 2;
        if both > SPIN_TIME_MAX { SPIN_TIME } else { both.max(SPIN_TIME) }
    }

    /// Whether to poll again rather than sleep, with nothing to do now. Never while bulk data is
    /// carried: the cores are in use, and the kernel schedules a thread that has slept sooner than
    /// one that has polled.
    pub(crate) fn again(&mut self, now: Instant, beside_bulk: bool) -> bool {
        if self.share == 0.0 {
            return false;
        }
        if beside_bulk {
            self.state = State::Resting;
            return false;
        }
        match self.state {
            State::Working => {
                let elapsed = now.saturating_duration_since(self.filled_at).as_secs_f64();
                self.filled_at = now;
                self.allowance_seconds =
                    (self.allowance_seconds + elapsed * self.share).min(SAVED_MAX.as_secs_f64());
                let at_most = self.time();
                let again = self.allowance_seconds >= at_most.as_secs_f64();
                self.state = if again {
                    State::Polling { since: now, last: now, at_most }
                } else {
                    State::Resting
                };
                again
            }
            State::Polling { since, last, at_most } => {
                let gap = now.saturating_duration_since(last);
                let polled = now.saturating_duration_since(since);
                self.spent += gap;
                let again = polled < at_most && gap <= GAP_MAX;
                self.state = State::Polling { since, last: now, at_most };
                if !again {
                    let price = if gap > GAP_MAX { gap * GAP_PRICE } else { polled };
                    self.allowance_seconds -= price.as_secs_f64();
                    self.state = State::Resting;
                }
                again
            }
            State::Resting => false,
        }
    }

    /// Takes the time spent since the last call.
    pub(crate) fn take_spent(&mut self) -> Duration {
        mem::take(&mut self.spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_micros(5);

    /// Polls from `now` on for as long as allowed; returns when that ends.
    fn spin_until_sleep(spin: &mut Spin, mut now: Instant) -> Instant {
        while spin.again(now, false) {
            now += LOOK;
        }
        now
    }

    #[test]
    fn polling_ends_after_its_time() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(100), start);
        let end = spin_until_sleep(&mut spin, start);
        assert_eq!(end - start, SPIN_TIME);
    }

    #[test]
    fn polling_takes_longer_where_work_comes_often() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(100), start);
        let mut now = start;
        // An answer after 20 us, the next request after 200: both within the poll.
        for _ in 0..30 {
            for wait in [20, 200].map(Duration::from_micros) {
                now += wait;
                spin.worked(now);
            }
        }
        let polled = spin_until_sleep(&mut spin, now) - now;
        assert!(polled >= Duration::from_micros(200) && polled <= SPIN_TIME_MAX, "{polled:?}");
        for _ in 0..30 {
            now += Duration::from_millis(5);
            spin.worked(now);
        }
        assert_eq!(spin_until_sleep(&mut spin, now) - now, SPIN_TIME, "work is rare");
    }

    #[test]
    fn without_a_share_nothing_is_polled() {
        let start = Instant::now();
        assert!(!Spin::new(SpinShare::percent(0), start).again(start, false));
    }

    #[test]
    fn polling_stays_within_its_share() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(2), start);
        let mut now = start;
        while now - start < Duration::from_secs(2) {
            spin.worked(now);
            now = spin_until_sleep(&mut spin, now) + Duration::from_micros(10);
        }
        let share = (spin.take_spent() - SAVED_MAX).as_secs_f64() / (now - start).as_secs_f64();
        assert!((0.015..=0.021).contains(&share), "{share}");
    }

    #[test]
    fn beside_bulk_data_nothing_is_polled() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(100), start);
        assert!(spin.again(start, false));
        assert!(!spin.again(start + LOOK, true));
        assert!(!spin.again(start + LOOK, false), "until there is work");
        spin.worked(start + LOOK);
        assert!(spin.again(start + LOOK, false));
    }

    #[test]
    fn slow_bulk_and_messages_are_polled_for() {
        let carries_bulk = |bytes, interval| {
            let mut now = Instant::now();
            let mut spin = Spin::new(SpinShare::default(), now);
            (0..1000).any(|_| {
                now += interval;
                spin.carried_bulk(bytes, now)
            })
        };
        assert!(carries_bulk(1400, Duration::from_micros(50)), "a packet at a time, 224 Mbit/s");
        assert!(!carries_bulk(1400, Duration::from_micros(1000)), "11 Mbit/s");
        assert!(!carries_bulk(0, Duration::from_micros(50)), "messages");
    }

    #[test]
    fn time_spent_is_handed_out_once() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(100), start);
        spin_until_sleep(&mut spin, start);
        assert_eq!(spin.take_spent(), SPIN_TIME);
        assert_eq!(spin.take_spent(), Duration::ZERO);
    }

    #[test]
    fn a_share_is_read_as_shown() {
        for share in [0, 2, 100].map(SpinShare::percent) {
            assert_eq!(share.to_string().parse(), Ok(share));
            assert_eq!(format!("{share}%").parse(), Ok(share));
        }
        for unusable in ["", "%", "101", "256", "-1", "1.5", "2 %", "much"] {
            assert!(unusable.parse::<SpinShare>().is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_core_that_others_want_is_left_at_once() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(100), start);
        assert!(spin.again(start, false));
        assert!(!spin.again(start + GAP_MAX + LOOK, false));
    }
}
