//! Decides whether `--pool auto` uses the pool for one suite.
//!
//! Times the suite once, at its first use, and asks [`keypadd_provider::worth_pooling`]; once
//! packets are counted, their lengths decide. A suite that nobody uses needs no pool unless it is
//! the preferred one. Knows no pool and no session.

use keypadd_keystream::{CipherEngine, Protection, Suite};
use keypadd_provider::{SealTimes, seal_times, worth_pooling, worth_pooling_mix};

use crate::status::snapshot::{SealReport, SuiteReport};

/// Seconds that a pool outlives the last session of the suite it was made for.
const KEPT_SECONDS: u32 = 60;

/// What `auto` chose for one suite.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    protection: Protection,
    /// `None` for a suite without pads.
    times: Option<[SealTimes; 3]>,
    /// The choice and its reasons.
    pub(crate) report: SuiteReport,
    /// Whether this is the preferred suite, which sessions use if both ends can.
    is_first: bool,
    /// Seconds since a session used it.
    unused_seconds: u32,
}

/// The choices for these suites, the preferred one first. Times those that have not been timed yet.
/// Each is timed once, so that a reload on a busy machine does not turn the pool off.
pub(super) fn choose(suites: &[Suite], engine: CipherEngine, former: &[Choice]) -> Vec<Choice> {
    let choose = |(at, suite): (usize, &Suite)| {
        let suite = Protection::from(*suite);
        let known = former.iter().find(|choice| choice.protection == suite).cloned();
        let choice = known.unwrap_or_else(|| Choice::timed(suite, seal_times(suite, engine)));
        let mut choice = Choice { is_first: at == 0, ..choice };
        choice.report.in_use = choice.is_needed();
        choice
    };
    suites.iter().enumerate().map(choose).collect()
}

/// What `auto` would choose for these suites, each timed anew.
pub(crate) fn timed(suites: &[Suite], engine: CipherEngine) -> Vec<Choice> {
    choose(suites, engine, &[])
}

impl Choice {
    fn timed(protection: Protection, times: Option<[SealTimes; 3]>) -> Self {
        let pays = times.is_some_and(|times| worth_pooling(&times));
        let seals = times.into_iter().flatten().map(seal_time).collect();
        let suite = protection.name().to_owned();
        Self {
            protection,
            times,
            report: SuiteReport { suite, pays, in_use: false, seals },
            is_first: false,
            unused_seconds: KEPT_SECONDS,
        }
    }

    /// A choice without measurements.
    #[cfg(test)]
    pub(super) fn untimed(protection: Protection, pays: bool) -> Self {
        let mut choice = Self::timed(protection, None);
        choice.report.pays = pays;
        choice
    }

    /// A synthetic choice for ChaCha20-Poly1305: faster with a pool for short packets, slower for
    /// long ones.
    #[cfg(test)]
    pub(super) fn mixed() -> Self {
        let nanos = [(60, 170), (120, 240), (900, 700)];
        let times = std::array::from_fn(|at| {
            let (pooled, inline) = nanos[at];
            let [pooled, inline] = [pooled, inline].map(std::time::Duration::from_nanos);
            SealTimes { bytes: keypadd_provider::TIMED_BYTES[at], pooled, inline }
        });
        Self::timed(Suite::CHACHA20_POLY1305.into(), Some(times))
    }

    /// The suite.
    pub(super) fn protection(&self) -> Protection {
        self.protection
    }

    /// Whether sessions of this suite use the pool, if there is one.
    pub(super) fn is_worthwhile(&self) -> bool {
        self.report.pays
    }

    /// Whether sessions use this suite, or are likely to.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_first || self.unused_seconds < KEPT_SECONDS
    }

    /// Whether it needs a pool now.
    pub(super) fn wants_pool(&self) -> bool {
        self.is_worthwhile() && self.is_needed()
    }

    /// Accounts for another second: whether sessions use the suite and, if there were enough, how
    /// many packets had each length. Returns whether the choice has changed.
    pub(super) fn follow(&mut self, in_use: bool, packets: Option<[u64; 3]>) -> bool {
        let before = (self.is_worthwhile(), self.wants_pool());
        self.unused_seconds = if in_use { 0 } else { self.unused_seconds.saturating_add(1) };
        self.report.in_use = self.is_needed();
        if let (true, Some(times), Some(packets)) = (in_use, &self.times, packets) {
            self.report.pays = worth_pooling_mix(times, packets, self.report.pays);
        }
        before != (self.is_worthwhile(), self.wants_pool())
    }

    /// The times at the length where the pool gains most: if it does not pay off there, it pays off
    /// nowhere.
    pub(crate) fn best(&self) -> Option<(f64, f64)> {
        let gain = |seal: &&SealReport| seal.inline_seconds / seal.pooled_seconds;
        let best = self.report.seals.iter().max_by(|one, other| gain(one).total_cmp(&gain(other)));
        best.map(|seal| (seal.pooled_seconds, seal.inline_seconds))
    }
}

fn seal_time(times: SealTimes) -> SealReport {
    SealReport {
        payload_bytes: times.bytes,
        pooled_seconds: times.pooled.as_secs_f64(),
        inline_seconds: times.inline.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_lengths_switch_a_suite_while_sessions_use_it() {
        let mut choice = Choice::mixed();
        assert!(!choice.is_worthwhile(), "before a packet: worse at some length");
        assert!(choice.follow(true, Some([1000, 0, 0])) && choice.wants_pool());
        // A mix between the two bounds changes nothing.
        assert!(!choice.follow(true, Some([1000, 0, 500])) && choice.wants_pool());
        assert!(!choice.follow(true, None) && choice.wants_pool());
        assert!(choice.follow(true, Some([100, 0, 1000])) && !choice.wants_pool());
        assert!(!choice.follow(true, Some([1000, 0, 500])) && !choice.wants_pool());
        // Packets of other suites do not count for a suite without sessions.
        assert!(!choice.follow(false, Some([1000, 0, 0])) && !choice.wants_pool());
    }

    #[test]
    fn an_unused_suite_needs_no_pool_unless_it_is_preferred() {
        let mut choice = Choice::untimed(Suite::CHACHA20_POLY1305.into(), true);
        assert!(!choice.wants_pool());
        assert!(choice.follow(true, None) && choice.wants_pool());
        for second in 1..KEPT_SECONDS {
            assert!(!choice.follow(false, None) && choice.wants_pool(), "after {second} s");
        }
        assert!(choice.follow(false, None) && !choice.wants_pool());
        choice.is_first = true;
        assert!(choice.wants_pool());
    }

    #[test]
    fn a_suite_is_timed_once_and_the_first_of_a_list_counts_as_needed() {
        let engine = CipherEngine::default();
        let [one, other] = [Suite::AES_256_GCM, Suite::CHACHA20_POLY1305];
        let choices = choose(&[one, other], engine, &[Choice::untimed(one.into(), true)]);
        let needed: Vec<_> = choices.iter().map(|choice| choice.is_needed()).collect();
        assert_eq!(needed, [true, false]);
        assert!(choices[0].report.seals.is_empty() && choices[1].report.seals.len() == 3);
    }
}
