//! Defines [`Workload`] and runs it on every arm once per round, in a seeded random order, so that
//! drift affects all arms alike and rounds can be compared pairwise.
//!
//! Each run has a fresh path and is the only one active; effects of ports, memory layout and thread
//! placement thus appear as spread between rounds. A run starts with full pools, or records that
//! they were not. Stopping keeps completed runs.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use keypadd_traffic::{Broken, Counts, Due, Path};
use rustix::time::{ClockId, clock_gettime};

use crate::arm::Arm;
use crate::path::{self, PathError, PathSettings};
use crate::results::Section;

/// Pause before each turn, with or without a pool to wait for.
const SILENCE: Duration = Duration::from_millis(100);

/// Time limit for filling a pool before a turn.
const FILL_TIME: Duration = Duration::from_secs(20);

/// Reason given by a run that was stopped.
pub const INTERRUPTED: &str = "it was interrupted";

/// Something that can be measured on any path.
pub trait Workload: Sync {
    /// The result of one turn.
    type Measured;

    /// Runs once. The same round generates the same traffic on every path.
    fn once(
        &self,
        path: &Path,
        round: u32,
    ) -> impl Future<Output = Result<Self::Measured, Broken>> + Send;

    /// The traffic offered in a turn, where that does not depend on throughput.
    fn offered(&self) -> Vec<Due>;

    /// The section for a run, complete or partial.
    fn section(&self, runs: &Runs<Self::Measured>) -> Section;
}

/// One turn of one arm.
#[derive(Clone, Debug)]
pub struct Turn<M> {
    /// What the workload measured.
    pub measured: M,
    /// Pad sources in that time, at the ends that run here.
    pub counts: Counts,
    /// CPU time of fillers.
    pub filler_cpu: Duration,
    /// CPU time of this process: ends, fillers and traffic.
    pub cpu: Duration,
    /// Duration.
    pub time: Duration,
    /// Whether the pools were full at the start.
    pub was_full: bool,
}

/// Results at the end of a run.
#[derive(Clone, Debug)]
pub struct Runs<M> {
    /// Arms in the requested order, each with its complete turns, by round.
    pub arms: Vec<(Arm, Vec<Turn<M>>)>,
    /// Why it ended early; `None` if it did not.
    pub ended_by: Option<String>,
}

impl<M> Runs<M> {
    /// The turns of the arms that have any, cut to the rounds that all of those have, for
    /// comparison in pairs.
    pub fn paired(&self) -> Vec<(Arm, &[Turn<M>])> {
        let with_any = self.arms.iter().filter(|(_, turns)| !turns.is_empty());
        let rounds = with_any.clone().map(|(_, turns)| turns.len()).min().unwrap_or(0);
        with_any.map(|(arm, turns)| (*arm, &turns[..rounds])).collect()
    }
}

/// Progress of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// An arm is being started.
    Opening(Arm),
    /// Waiting for a pool to fill.
    Filling(Arm),
    /// An arm is being measured.
    Turn {
        /// The arm.
        arm: Arm,
        /// The round, from 1.
        round: u32,
        /// Number of rounds.
        rounds: u32,
    },
    /// Anything else, in words.
    Doing(String),
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening(arm) => write!(f, "{arm}: connecting, warming up"),
            Self::Filling(arm) => write!(f, "{arm}: waiting for a full pool"),
            Self::Turn { arm, round, rounds } => write!(f, "round {round} of {rounds}: {arm}"),
            Self::Doing(what) => f.write_str(what),
        }
    }
}

/// Callback for each step; it may only be slow between turns.
pub type OnProgress<'a> = &'a (dyn Fn(&Progress) + Sync);

/// Starts every arm and stops it again, to find what cannot be measured before measuring anything.
///
/// # Errors
/// The path cannot be opened.
pub async fn try_out(
    arms: &[Arm],
    settings: &PathSettings,
    tell: OnProgress<'_>,
) -> Result<(), PathError> {
    for &arm in arms {
        tell(&Progress::Opening(arm));
        let path = path::open(arm, settings).await?;
        path.close().await.map_err(|void| PathError { arm: arm.into(), cause: void.into() })?;
    }
    Ok(())
}

/// Rounds, seed and progress callback.
#[derive(Clone, Copy)]
pub struct Rounds<'a> {
    /// Number of rounds.
    pub rounds: u32,
    /// Seed of the order of turns.
    pub seed: u64,
    /// Called for each step.
    pub tell: OnProgress<'a>,
}

/// Measures `workload` on each arm in each round, until `stop` resolves. `keep` gets the results
/// after each round, so that a killed run leaves something.
pub async fn take_turns<W: Workload>(
    workload: &W,
    arms: &[Arm],
    settings: &PathSettings,
    rounds: Rounds<'_>,
    mut keep: impl FnMut(&Runs<W::Measured>),
    stop: impl Future<Output = ()>,
) -> Runs<W::Measured> {
    let mut runs =
        Runs { arms: arms.iter().map(|&arm| (arm, Vec::new())).collect(), ended_by: None };
    let ended_by = tokio::select! {
        ended_by = all_rounds(workload, settings, rounds, &mut keep, &mut runs) => ended_by.err(),
        () = stop => Some(INTERRUPTED.into()),
    };
    runs.ended_by = ended_by;
    runs
}

async fn all_rounds<W: Workload>(
    workload: &W,
    settings: &PathSettings,
    Rounds { rounds, seed, tell }: Rounds<'_>,
    keep: &mut impl FnMut(&Runs<W::Measured>),
    runs: &mut Runs<W::Measured>,
) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..runs.arms.len()).collect();
        random.shuffle(&mut order);
        for nth in order {
            let arm = runs.arms[nth].0;
            tell(&Progress::Opening(arm));
            let path = path::open(arm, settings).await.map_err(|error| error.to_string())?;
            tokio::time::sleep(SILENCE).await;
            if arm.has_pool() {
                tell(&Progress::Filling(arm));
            }
            let was_full = path.rest(FILL_TIME).await;
            tell(&Progress::Turn { arm, round: round + 1, rounds });
            let turn = turn(workload, &path, round, was_full).await;
            let has_faults = path.has_faults();
            path.close().await.map_err(|void| format!("{arm}: {void}"))?;
            runs.arms[nth].1.push(turn.map_err(|error| format!("{arm}: {error}"))?);
            if has_faults {
                return Err(format!("{arm}: packets did not verify"));
            }
        }
        keep(runs);
    }
    Ok(())
}

async fn turn<W: Workload>(
    workload: &W,
    path: &Path,
    round: u32,
    was_full: bool,
) -> Result<Turn<W::Measured>, Broken> {
    let gauges = path.gauges();
    let (counts, filler_cpu, cpu) = (gauges.counts(), gauges.filler_cpu(), process_cpu());
    let start = Instant::now();
    let measured = workload.once(path, round).await?;
    Ok(Turn {
        measured,
        time: start.elapsed(),
        counts: gauges.counts().since(counts),
        filler_cpu: gauges.filler_cpu().saturating_sub(filler_cpu),
        cpu: process_cpu().saturating_sub(cpu),
        was_full,
    })
}

/// CPU time used by this process.
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
