//! Limits how long a loop polls before it sleeps.
//!
//! Waking a sleeping thread costs 10-50 us, most of an idle round trip. So after work a loop polls
//! for a short time, in case an answer follows. Polls that find nothing are charged to a budget
//! that refills with time, which limits them to a share of a core; a poll that finds something
//! counts as work. If work comes often, but later than a short poll lasts, the loop polls for
//! longer. What a peer sends and what this host sends are followed by different things, one by an
//! answer and one by the next request perhaps, so each has its own times and its own budget. Knows
//! times only.

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

/// Most allowance that can accumulate, for each kind of work.
const SAVED_MAX: Duration = Duration::from_millis(10);

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

/// Where work comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Datagrams of peers, whatever else there was.
    FromPeers,
    /// Sockets, devices and tasks of this host.
    FromHere,
}

impl Work {
    const KINDS: usize = 2;
}

/// The polling state of a loop.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Of each kind of work.
    share: f64,
    /// What follows each kind of work.
    after: [Expected; Work::KINDS],
    worked: Work,
    worked_at: Instant,
    state: State,
    spent: Duration,
    /// Bytes of bulk data, and since when they are counted.
    bulk: (usize, Instant),
}

/// What follows one kind of work.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// Time left for fruitless polling after it; negative if the last poll took longer.
    allowance_seconds: f64,
    filled_at: Instant,
    /// The average time until the next work of any kind.
    interval: Duration,
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
        let after = Expected {
            allowance_seconds: SAVED_MAX.as_secs_f64(),
            filled_at: now,
            interval: INTERVAL_MAX,
        };
        Self {
            share: f64::from(share.0) / 100.0 / Work::KINDS as f64,
            after: [after; Work::KINDS],
            worked: Work::FromHere,
            worked_at: now,
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
    pub(crate) fn worked(&mut self, work: Work, now: Instant) {
        let interval = now.saturating_duration_since(self.worked_at).min(INTERVAL_MAX);
        let Expected { interval: average, .. } = self.expected();
        *average += interval / INTERVAL_WEIGHT;
        *average -= *average / INTERVAL_WEIGHT;
        (self.worked, self.worked_at) = (work, now);
        self.state = State::Working;
    }

    /// What follows the last work.
    fn expected(&mut self) -> &mut Expected {
        &mut self.after[self.worked as usize]
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
                let share = self.share;
                let expected = self.expected();
                expected.fill(share, now);
                let at_most = expected.time();
                let again = expected.allowance_seconds >= at_most.as_secs_f64();
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
                    self.expected().allowance_seconds -= price.as_secs_f64();
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

impl Expected {
    fn fill(&mut self, share: f64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.filled_at = now;
        self.allowance_seconds =
            (self.allowance_seconds + elapsed * share).min(SAVED_MAX.as_secs_f64());
    }

    /// How long to poll now: twice the average covers most. If even the longest poll does not cover
    /// the average, the short one remains, for immediate answers.
    fn time(&self) -> Duration {
        match self.interval > SPIN_TIME_MAX {
            true => SPIN_TIME,
            false => (self.interval * 2).clamp(SPIN_TIME, SPIN_TIME_MAX),
        }
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
        // The next request after 200 us, its answer after 20.
        for _ in 0..50 {
            for (wait, work) in [(200, Work::FromHere), (20, Work::FromPeers)] {
                now += Duration::from_micros(wait);
                spin.worked(work, now);
            }
        }
        let polled = spin_until_sleep(&mut spin, now) - now;
        assert!(polled >= Duration::from_micros(200) && polled <= SPIN_TIME_MAX, "{polled:?}");
        for _ in 0..30 {
            now += Duration::from_millis(5);
            spin.worked(Work::FromPeers, now);
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
        for (kinds, share) in [
            (&[Work::FromPeers][..], 0.01),
            (&[Work::FromHere], 0.01),
            (&[Work::FromPeers, Work::FromHere], 0.02),
        ] {
            let start = Instant::now();
            let mut spin = Spin::new(SpinShare::percent(2), start);
            let mut now = start;
            for work in kinds.iter().cycle() {
                if now - start > Duration::from_secs(2) {
                    break;
                }
                spin.worked(*work, now);
                now = spin_until_sleep(&mut spin, now) + Duration::from_micros(10);
            }
            let spent = spin.take_spent() - SAVED_MAX * kinds.len() as u32;
            let spent = spent.as_secs_f64() / (now - start).as_secs_f64();
            assert!((0.75 * share..=1.05 * share).contains(&spent), "{spent}");
        }
    }

    #[test]
    fn answers_are_polled_for_however_rare_requests_are() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(2), start);
        let (answer, pause) = (Duration::from_micros(110), Duration::from_millis(2));
        let mut asleep = 0;
        for request in 0..1_000 {
            let mut now = start + pause * request;
            let answered = now + answer;
            spin.worked(Work::FromHere, now);
            while now < answered && spin.again(now, false) {
                now += LOOK;
            }
            // The average is of eight.
            asleep += u32::from(request > 20 && now < answered);
            spin.worked(Work::FromPeers, answered);
            spin_until_sleep(&mut spin, answered);
        }
        assert_eq!(asleep, 0, "the polls between two requests use up their own allowance");
    }

    #[test]
    fn beside_bulk_data_nothing_is_polled() {
        let start = Instant::now();
        let mut spin = Spin::new(SpinShare::percent(100), start);
        assert!(spin.again(start, false));
        assert!(!spin.again(start + LOOK, true));
        assert!(!spin.again(start + LOOK, false), "until there is work");
        spin.worked(Work::FromPeers, start + LOOK);
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
