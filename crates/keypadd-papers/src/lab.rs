//! Runs the parts of a paper, each once and within its time limit, and records each when it
//! completes.

use std::fmt;
use std::future::Future;
use std::time::Instant;

use keypadd_measure::path::PathError;
use keypadd_measure::results::Estimate;
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::{OnProgress, Progress};
use keypadd_traffic::{Broken, Void};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Effort, Notebook, Paper, Reproduction};

/// One paper's part of a run.
pub(crate) struct Lab<'a> {
    notebook: &'a Notebook<'a>,
    paper: Paper,
    tell: OnProgress<'a>,
    mode: Mode,
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
            Self::Failed(cause) => write!(f, "it failed: {cause}"),
        }
    }
}

impl From<String> for Missed {
    fn from(cause: String) -> Self {
        Self::Failed(cause)
    }
}

impl From<PathError> for Missed {
    fn from(error: PathError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Void> for Missed {
    fn from(void: Void) -> Self {
        Self::Failed(void.to_string())
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
        Self { notebook, paper, tell, mode: Mode::Measure(end), effort, seed }
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

    /// Results of a part: the recorded ones, or those of `work`, which are then recorded. `name`
    /// identifies the part within its paper and says what is measured: `throughput, round 3`. Drops
    /// work that is incomplete when time is up.
    pub(crate) async fn part<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        work: impl Future<Output = Part<T>>,
    ) -> Part<T> {
        let name = format!("{}: {name}", self.paper);
        if let Some(recorded) = self.notebook.read(&name) {
            return Ok(recorded);
        }
        let Mode::Measure(end) = self.mode else {
            return Err(self.notebook.why_missed(&name));
        };
        let is_over = |end: Option<Instant>| end.is_some_and(|end| end <= Instant::now());
        let measured = if self.notebook.fault().is_some() {
            Err(Missed::NotReached)
        } else if is_over(end) {
            Err(Missed::OutOfTime)
        } else {
            (self.tell)(&Progress::Doing(name.clone()));
            match end {
                None => work.await,
                Some(end) => tokio::time::timeout_at(end.into(), work)
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

    /// Mean of a figure.
    pub(crate) fn mean(&self, figure: impl Fn(&T) -> f64) -> Today {
        (mean(&self.figures(figure)), self.missed.clone())
    }

    /// A figure, one value per round.
    pub(crate) fn figures(&self, figure: impl Fn(&T) -> f64) -> Vec<f64> {
        self.all.iter().map(figure).collect()
    }
}
