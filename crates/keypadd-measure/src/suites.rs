//! Measures the cost of sealing a packet with each suite: inline, from hot and cold pads, and on a
//! miss. Judges whether the pool pays off on this machine. Works in memory; opens no socket.

use std::future::Future;
use std::time::Duration;

use keypadd_keystream::{CipherEngine, Protection, has_aes_gcm};
use keypadd_provider::{SealCosts, TIMED_BYTES, seal_costs};

use crate::interleave::{INTERRUPTED, OnProgress, Progress};
use crate::results::{Outcome, Section, SectionRun, Table, Verdict};
use crate::statistics::{mean, ratio};

/// Seals in a round trip: each of two packets is sealed and opened, and opening costs as much.
const SEALS_IN_A_ROUND_TRIP: f64 = 4.0;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Suites {
    /// The suites.
    pub suites: Vec<Protection>,
    /// How their ciphers are computed.
    pub engine: CipherEngine,
    /// Memory of the pool that cold pads come from.
    pub pool_bytes: usize,
    /// Rounds in which every suite has one turn.
    pub rounds: u32,
    /// The round trip that costs are compared with.
    pub round_trip: Duration,
}

/// All rounds of one suite.
struct Measured {
    suite: Protection,
    rounds: Vec<[SealCosts; 3]>,
}

impl Suites {
    /// Runs until everything is measured or `stop` resolves; keeps what was measured by then.
    pub async fn run(&self, tell: OnProgress<'_>, stop: impl Future<Output = ()>) -> SectionRun {
        let empty = |&suite| Measured { suite, rounds: Vec::new() };
        let mut measured: Vec<_> = self.suites.iter().map(empty).collect();
        let ended_by = tokio::select! {
            () = self.all(tell, &mut measured) => None,
            () = stop => Some(INTERRUPTED.into()),
        };
        SectionRun { section: self.section(&measured), ended_by }
    }

    async fn all(&self, tell: OnProgress<'_>, measured: &mut [Measured]) {
        for round in 0..self.rounds {
            for of_suite in &mut *measured {
                let suite = of_suite.suite;
                tell(&Progress::Doing(format!("round {} of {}: {suite}", round + 1, self.rounds)));
                of_suite.rounds.extend(seal_costs(suite, self.engine, self.pool_bytes));
                // Lets Ctrl-C be noticed.
                tokio::task::yield_now().await;
            }
        }
    }

    fn section(&self, measured: &[Measured]) -> Section {
        let mut section = Section::of_page(
            "suites",
            include_str!("suites.md"),
            &[
                ("rounds", &self.rounds),
                ("lengths", &TIMED_BYTES.map(|bytes| bytes.to_string()).join(", ")),
                ("pool", &(self.pool_bytes >> 20)),
                ("aes", &if has_aes_gcm() { "in use" } else { "absent or not used" }),
                ("round_trip", &self.round_trip.as_micros()),
                ("seals", &SEALS_IN_A_ROUND_TRIP),
            ],
        );
        section.verdicts = measured.iter().map(verdict).collect();
        section.tables = (0..TIMED_BYTES.len()).map(|at| self.table(at, measured)).collect();
        section
    }

    fn table(&self, at: usize, measured: &[Measured]) -> Table {
        type Cost = fn(&SealCosts) -> Option<Duration>;
        let (inline, cold): (Cost, Cost) = (|it| Some(it.inline), |it| it.cold);
        let nanos = |it: &&Measured, of: Cost| -> Vec<f64> {
            let rounds = it.rounds.iter().filter_map(|round| of(&round[at]));
            rounds.map(|time| time.as_secs_f64() * 1e9).collect()
        };
        let share = SEALS_IN_A_ROUND_TRIP * 100.0 / self.round_trip.as_nanos() as f64;
        let saved = |it: &&Measured| {
            let pairs = nanos(it, inline).into_iter().zip(nanos(it, cold));
            pairs.map(|(inline, cold)| (inline - cold) * share).collect::<Vec<f64>>()
        };
        let (id, title) =
            (format!("seals-{}", TIMED_BYTES[at]), format!("Sealing {} bytes", TIMED_BYTES[at]));
        let rows = measured.iter().map(|it| (it.suite.name(), it));
        Table::of(&id, &title, "suite", rows)
            .column("inline", "ns", |it| mean(&nanos(it, inline)))
            .column("hit, hot", "ns", |it| mean(&nanos(it, |costs| Some(costs.hot))))
            .column("hit, cold", "ns", |it| mean(&nanos(it, cold)))
            .column("miss", "ns", |it| mean(&nanos(it, |costs| Some(costs.miss))))
            .column("cold over inline", "", |it| ratio(&nanos(it, cold), &nanos(it, inline)))
            .column("saved of a round trip", "%", |it| mean(&saved(it)))
            .end()
    }
}

/// Whether `--pool auto` would use a full pool for the suite, in every round.
fn verdict(measured: &Measured) -> Verdict {
    let pays = measured.rounds.iter().filter(|round| SealCosts::worth_pooling(&round[..])).count();
    let outcome = match (pays, measured.rounds.len()) {
        (_, 0) => Outcome::CannotTell,
        (pays, all) if pays == all => Outcome::Holds,
        (0, _) => Outcome::DoesNotHold,
        _ => Outcome::CannotTell,
    };
    Verdict::new(
        format!("The pool pays for {} on this machine.", measured.suite),
        "Holds if in every round a hit from the full pool takes a tenth less than inline at some length \
         and a tenth more at none; does not hold if in no round.",
        outcome,
        format!("{pays} of {} rounds", measured.rounds.len()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(cold_nanos: u64) -> [SealCosts; 3] {
        TIMED_BYTES.map(|bytes| SealCosts {
            bytes,
            inline: Duration::from_nanos(1000),
            hot: Duration::from_nanos(100),
            cold: Some(Duration::from_nanos(cold_nanos)),
            miss: Duration::from_nanos(1100),
        })
    }

    fn measured(cold_nanos: &[u64]) -> Measured {
        let rounds = cold_nanos.iter().map(|nanos| round(*nanos)).collect();
        Measured { suite: keypadd_keystream::Suite::CHACHA20_POLY1305.into(), rounds }
    }

    #[test]
    fn a_verdict_needs_the_same_outcome_in_every_round() {
        for (cold, outcome) in [
            (&[400, 500][..], Outcome::Holds),
            (&[1000, 1050], Outcome::DoesNotHold),
            (&[400, 1000], Outcome::CannotTell),
            (&[], Outcome::CannotTell),
        ] {
            assert_eq!(verdict(&measured(cold)).outcome, outcome, "{cold:?}");
        }
    }

    #[test]
    fn what_is_saved_is_four_seals_of_the_round_trip() {
        let suites = Suites {
            suites: Vec::new(),
            engine: CipherEngine::default(),
            pool_bytes: 64 << 20,
            rounds: 1,
            round_trip: Duration::from_micros(60),
        };
        let table = suites.table(0, &[measured(&[400, 400, 400])]);
        let saved = table.rows[0].cells.last().unwrap().figure().unwrap();
        assert!((saved.value - 4.0).abs() < 1e-9, "{saved}");
    }
}
