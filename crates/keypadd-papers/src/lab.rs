//! Runs the parts of a paper, each once and within its time limit, and records each when it
//! completes. Says which parts the next round needs.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use keypadd_measure::path::PathError;
use keypadd_measure::results::Estimate;
use keypadd_measure::sequence::{center, ratio};
use keypadd_measure::{CpuBaseline, OTHERS_MAX, OnProgress, Progress, may_repeat};
use keypadd_traffic::{Broken, Void};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::claim::Claim;
use super::{Effort, Notebook, Paper, Reproduction};

/// One paper's part of a run.
pub(crate) struct Lab<'a> {
    notebook: &'a Notebook<'a>,
    paper: Paper,
    tell: OnProgress<'a>,
    mode: Mode,
    /// Parts that were repeated, and those that were not.
    repeated: AtomicU32,
    counting: AtomicU32,
    /// How thorough the run is.
    pub(crate) effort: Effort,
    /// Seed of the traffic and of the order of arms.
    pub(crate) seed: u64,
}

/// What to do about a part that is not recorded.
#[derive(Clone, Copy)]
enum Mode {
    /// Nothing: pages use what there is.
    Read,
    /// Measure it, until this time if given.
    Measure(Option<Instant>),
}

/// Results of a part, or why there are none.
pub(crate) type Part<T> = Result<T, Missed>;

/// What a claim is judged by: today's ratio, and why it is missing or has fewer rounds than
/// intended.
pub(crate) type Today = (Option<Estimate>, Option<Missed>);

/// Why a part was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The run was stopped before, or it was not requested.
    NotReached,
    /// A quick run's time for this paper was up.
    OutOfTime,
    /// A quick run skips it.
    NotInQuick,
    /// The machine or this program lacks something; in words.
    Lacking(String),
    /// An end took the other's packets for an attack, again and again.
    Void,
    /// The experiment was tried and failed; in words.
    Failed(String),
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReached => f.write_str("the run did not come to it"),
            Self::OutOfTime => f.write_str("a quick run's time was over before"),
            Self::NotInQuick => f.write_str("a quick run leaves it out"),
            Self::Lacking(what) => f.write_str(what),
            Self::Void => write!(f, "it failed: {Void}"),
            Self::Failed(cause) => write!(f, "it failed: {cause}"),
        }
    }
}

impl From<String> for Missed {
    fn from(cause: String) -> Self {
        Self::Failed(cause)
    }
}

impl From<io::Error> for Missed {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<PathError> for Missed {
    fn from(error: PathError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Void> for Missed {
    fn from(_: Void) -> Self {
        Self::Void
    }
}

impl From<Broken> for Missed {
    fn from(error: Broken) -> Self {
        Self::Failed(error.to_string())
    }
}

impl<'a> Lab<'a> {
    /// Measures what is not recorded, until `end` if given.
    pub(super) fn measuring(
        notebook: &'a Notebook<'a>,
        paper: Paper,
        run: &Reproduction,
        tell: OnProgress<'a>,
        end: Option<Instant>,
    ) -> Self {
        let Reproduction { effort, seed, .. } = *run;
        let (repeated, counting) = (AtomicU32::new(0), AtomicU32::new(0));
        let mode = Mode::Measure(end);
        Self { notebook, paper, tell, mode, repeated, counting, effort, seed }
    }

    /// Measures nothing.
    pub(super) fn reading(
        notebook: &'a Notebook<'a>,
        paper: Paper,
        run: &Reproduction,
        tell: OnProgress<'a>,
    ) -> Self {
        Self { mode: Mode::Read, ..Self::measuring(notebook, paper, run, tell, None) }
    }

    /// The tasks that the claims need in this round, from 0: of every claim while a full run repeats
    /// what the paper repeated, then of those that are not decided; `None` if that is all. A claim
    /// that lacks a part waits for no other.
    pub(crate) fn needed<F, T: Copy + Ord>(
        &self,
        claims: &[Claim<F, T>],
        figures: &F,
        round: u32,
    ) -> Option<Vec<T>> {
        let [least, most] = self.effort.rounds();
        let waiting = claims.iter().filter(|it| it.is_open(figures, round < least));
        let mut needed: Vec<T> = waiting.flat_map(|it| it.needs.iter().copied()).collect();
        needed.sort_unstable();
        needed.dedup();
        (round < most && !needed.is_empty()).then_some(needed)
    }

    /// Results of a part: the recorded ones, or those of `work`, which are then recorded. `name`
    /// identifies the part within its paper and says what is measured: `throughput, round 3`. Drops
    /// work that is incomplete when time is up. Repeats it once if it is void, or if other programs took
    /// CPU meanwhile and not too many parts were repeated.
    pub(crate) async fn part<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        work: impl AsyncFn() -> Part<T>,
    ) -> Part<T> {
        let name = format!("{}: {name}", self.paper);
        if let Some(recorded) = self.notebook.read(&name) {
            return Ok(recorded);
        }
        let Mode::Measure(end) = self.mode else { return Err(self.notebook.why_missed(&name)) };
        let is_over = |end: Option<Instant>| end.is_some_and(|end| end <= Instant::now());
        let measured = if self.notebook.fault().is_some() {
            Err(Missed::NotReached)
        } else if is_over(end) {
            Err(Missed::OutOfTime)
        } else {
            (self.tell)(&Progress::Doing(match end.map(|it| it - Instant::now()) {
                None => name.clone(),
                Some(left) => format!("{} s left: {name}", left.as_secs()),
            }));
            let undisturbed = self.undisturbed(&work);
            match end {
                None => undisturbed.await,
                Some(end) => tokio::time::timeout_at(end.into(), undisturbed)
                    .await
                    .unwrap_or(Err(Missed::OutOfTime)),
            }
        };
        match &measured {
            Ok(figures) => self.notebook.record(&name, figures),
            Err(missed) => self.notebook.record_missed(&name, missed),
        }
        measured
    }

    /// Results of work, repeated once if the first is void, or disturbed and not too many were.
    async fn undisturbed<T>(&self, work: impl AsyncFn() -> Part<T>) -> Part<T> {
        let others = CpuBaseline::now();
        let measured = work().await;
        let is_disturbed = others.cores_of_others().is_some_and(|cores| cores > OTHERS_MAX);
        let may_repeat = may_repeat(self.repeated.load(Relaxed), self.counting.load(Relaxed));
        self.counting.fetch_add(1, Relaxed);
        match measured {
            Ok(_) if !is_disturbed || !may_repeat => measured,
            Ok(_) | Err(Missed::Void) => {
                self.repeated.fetch_add(1, Relaxed);
                work().await.or(measured)
            }
            Err(_) => measured,
        }
    }
}

/// The measured rounds of an experiment, up to the first missing one.
#[derive(Clone, Debug)]
pub(crate) struct Rounds<T> {
    /// In order.
    pub(crate) all: Vec<T>,
    /// Why there are no more; `None` if complete.
    pub(crate) missed: Option<Missed>,
}

impl<T> Default for Rounds<T> {
    fn default() -> Self {
        Self { all: Vec::new(), missed: None }
    }
}

impl<T> Rounds<T> {
    /// Measures a round, from 0, as a part whose name says `what`.
    pub(crate) async fn measure(
        &mut self,
        lab: &Lab<'_>,
        what: &str,
        round: u32,
        work: impl AsyncFn() -> Part<T>,
    ) where
        T: Serialize + DeserializeOwned,
    {
        self.push(lab.part(&format!("{what}, round {}", round + 1), work).await);
    }

    /// Adds a round, unless an earlier one is missing.
    pub(crate) fn push(&mut self, round: Part<T>) {
        match round {
            Ok(figures) if self.missed.is_none() => self.all.push(figures),
            Ok(_) => {}
            Err(missed) => {
                self.missed.get_or_insert(missed);
            }
        }
    }

    /// Ratio of two figures, round by round.
    pub(crate) fn ratio(&self, figure: impl Fn(&T) -> f64, base: impl Fn(&T) -> f64) -> Today {
        (ratio(&self.figures(figure), &self.figures(base)), self.missed.clone())
    }

    /// The center of a figure over the rounds that have it.
    pub(crate) fn center(&self, figure: impl Fn(&T) -> f64) -> Today {
        let there = self.figures(figure).into_iter().filter(|it| !it.is_nan());
        (center(&there.collect::<Vec<f64>>()), self.missed.clone())
    }

    /// A figure, one value per round; not a number where a round left its arm out.
    pub(crate) fn figures(&self, figure: impl Fn(&T) -> f64) -> Vec<f64> {
        self.all.iter().map(figure).collect()
    }
}
