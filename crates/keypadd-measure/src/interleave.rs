//! Defines [`Workload`] and runs it on its arms round by round, until every claim is decided.
//!
//! A round runs each arm that an undecided claim needs once, in a random order in which the arms of
//! a claim follow each other, so that drift and stalls affect both alike and a round's figures can
//! be compared. Each turn has a fresh path and is the only one active; effects of ports, memory
//! layout and thread placement thus appear as spread between rounds.
//!
//! A round is void if other programs took CPU, a pool was not full at the start of a turn, or an
//! end took the other for an attacker. It is repeated, unless that is already a fifth of the work: a
//! machine that is never idle is measured as it is. Stopping keeps complete rounds.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use fastrand::Rng;
use keypadd_traffic::{Broken, Counts, Due, Path, PathFault, Void};
use rustix::time::{ClockId, clock_gettime};

use crate::arm::Arm;
use crate::others::CpuBaseline;
use crate::path::{self, PathError, PathSettings};
use crate::results::{Outcome, Section};
use crate::sequence::MIN_ROUNDS;
use crate::workload::{Figure, judge};

/// Pause before each turn, with or without a pool to wait for.
const SILENCE: Duration = Duration::from_millis(100);

/// Time limit for filling a pool before a turn.
const FILL_TIME: Duration = Duration::from_secs(20);

/// Cores that other programs may take during a round.
pub const OTHERS_MAX: f64 = 0.2;

/// Rounds that count, for each that was void and repeated.
const COUNTING_FOR_REPEATED: u32 = 4;

/// Rounds without a result, because an end protects itself, that are tried again.
const REFUSED_MAX: u32 = 10;

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

    /// The figures that claims are about.
    fn figures(&self) -> Vec<Figure<Self::Measured>>;

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
    /// Arms in the requested order, each with its turns: one in each round, until no claim needed
    /// the arm any more.
    pub arms: Vec<(Arm, Vec<Turn<M>>)>,
    /// Void rounds, which were repeated.
    pub repeated: u32,
    /// Void rounds that were not.
    pub disturbed: u32,
    /// Why it ended early; `None` if it did not.
    pub ended_by: Option<String>,
}

impl<M> Runs<M> {
    /// The arms that have turns.
    pub fn measured(&self) -> Vec<(Arm, &[Turn<M>])> {
        let with_any = self.arms.iter().filter(|(_, turns)| !turns.is_empty());
        with_any.map(|(arm, turns)| (*arm, &turns[..])).collect()
    }

    /// Caveats about void rounds.
    pub(crate) fn notes(&self) -> Vec<String> {
        let because =
            "other programs took CPU, a pool was not full, or an end was protecting itself";
        let note = |(count, what): (u32, &str)| {
            (count > 0).then(|| format!("{count} void rounds {what}: {because}."))
        };
        [(self.repeated, "were repeated"), (self.disturbed, "count all the same")]
            .into_iter()
            .filter_map(note)
            .collect()
    }
}

/// Progress of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// An arm is being started.
    Opening(Arm),
    /// An arm is being measured.
    Turn {
        /// The arm.
        arm: Arm,
        /// The round, from 1.
        round: u32,
        /// Claims that are not decided yet.
        open: usize,
        /// Time left; `None` without a limit.
        left: Option<Duration>,
    },
    /// Anything else, in words.
    Doing(String),
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening(arm) => write!(f, "{arm}: connecting, warming up"),
            Self::Turn { arm, round, open, left } => {
                write!(f, "round {round}, {open} verdicts open")?;
                left.map_or(Ok(()), |left| write!(f, ", {} s left", left.as_secs()))?;
                write!(f, ": {arm}")
            }
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

/// How long to measure, seed and progress callback.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// Most rounds.
    pub rounds: u32,
    /// Most time; `None` for no limit.
    pub time: Option<Duration>,
    /// Seed of the order of turns.
    pub seed: u64,
    /// Called for each step.
    pub tell: OnProgress<'a>,
}

/// Measures `workload` on the arms until every claim is decided, rounds or time are over, or `stop`
/// resolves. `keep` gets the results after each round, so that a killed run leaves something.
pub async fn take_turns<W: Workload>(
    workload: &W,
    arms: &[Arm],
    settings: &PathSettings,
    plan: Plan<'_>,
    mut keep: impl FnMut(&Runs<W::Measured>),
    stop: impl Future<Output = ()>,
) -> Runs<W::Measured> {
    let arms = arms.iter().map(|&arm| (arm, Vec::new())).collect();
    let mut runs = Runs { arms, repeated: 0, disturbed: 0, ended_by: None };
    let ended_by = tokio::select! {
        ended_by = all_rounds(workload, settings, plan, &mut keep, &mut runs) => ended_by.err(),
        () = stop => Some(INTERRUPTED.into()),
    };
    runs.ended_by = ended_by;
    runs
}

async fn all_rounds<W: Workload>(
    workload: &W,
    settings: &PathSettings,
    plan: Plan<'_>,
    keep: &mut impl FnMut(&Runs<W::Measured>),
    runs: &mut Runs<W::Measured>,
) -> Result<(), String> {
    let (figures, start) = (workload.figures(), Instant::now());
    let mut random = Rng::with_seed(plan.seed);
    let (mut round, mut took) = (0, Duration::ZERO);
    while round < plan.rounds {
        let judged = judge(&figures, runs);
        let open = judged.iter().filter(|it| it.verdict.outcome == Outcome::CannotTell);
        let open: Vec<[usize; 2]> = open.map(|it| it.arms).collect();
        let left = plan.time.map(|time| time.saturating_sub(start.elapsed()));
        if (open.is_empty() && !judged.is_empty()) || left.is_some_and(|left| left <= took) {
            break;
        }
        let is_needed = |arm: &usize| {
            judged.is_empty()
                || (round as usize) < MIN_ROUNDS
                || open.iter().any(|pair| pair.contains(arm))
        };
        let needed: Vec<usize> = (0..runs.arms.len()).filter(is_needed).collect();
        let (began, others) = (Instant::now(), CpuBaseline::now());
        let mut turns = Vec::new();
        for nth in order(&needed, &open, &mut random) {
            let arm = runs.arms[nth].0;
            let turn = Progress::Turn { arm, round: round + 1, open: open.len(), left };
            turns.push((nth, take_turn(workload, arm, settings, round, plan.tell, &turn).await?));
        }
        took = began.elapsed();
        let is_void = others.cores_of_others().is_some_and(|cores| cores > OTHERS_MAX)
            || turns.iter().any(|(nth, turn)| match turn {
                Some(turn) => runs.arms[*nth].0.has_pool() && !turn.was_full,
                None => true,
            });
        let turns: Option<Vec<_>> =
            turns.into_iter().map(|(nth, turn)| Some((nth, turn?))).collect();
        match turns {
            Some(turns) if !is_void || !may_repeat(runs.repeated, round) => {
                runs.disturbed += u32::from(is_void);
                turns.into_iter().for_each(|(nth, turn)| runs.arms[nth].1.push(turn));
                round += 1;
                keep(runs);
            }
            None if runs.repeated > round + REFUSED_MAX => return Err(Void.to_string()),
            _ => runs.repeated += 1,
        }
    }
    Ok(())
}

/// Whether one more void round may be repeated, after so many that were and so many that count.
pub fn may_repeat(repeated: u32, counting: u32) -> bool {
    repeated * COUNTING_FOR_REPEATED <= counting
}

/// The order of a round's arms: at random, but an arm of a pair follows the other where it can, so
/// that little happens between them.
pub fn order(arms: &[usize], pairs: &[[usize; 2]], random: &mut Rng) -> Vec<usize> {
    let mut left = arms.to_vec();
    random.shuffle(&mut left);
    let mut order: Vec<usize> = Vec::new();
    while !left.is_empty() {
        let last = order.last();
        let is_paired = |arm: &usize| {
            let both = |last: &usize| pairs.iter().any(|it| it.contains(arm) && it.contains(last));
            last.is_some_and(both)
        };
        let next = left.iter().position(is_paired).unwrap_or(0);
        order.push(left.remove(next));
    }
    // Walking away from a pair's common arm, it would come before the others more often than not.
    if random.bool() {
        order.reverse();
    }
    order
}

/// One turn on a fresh path; `None` if it is void.
async fn take_turn<W: Workload>(
    workload: &W,
    arm: Arm,
    settings: &PathSettings,
    round: u32,
    tell: OnProgress<'_>,
    progress: &Progress,
) -> Result<Option<Turn<W::Measured>>, String> {
    tell(progress);
    let path = match path::open(arm, settings).await {
        Ok(path) => path,
        Err(PathError { cause: PathFault::Void(_), .. }) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let (was_full, ()) = tokio::join!(path.rest(FILL_TIME), tokio::time::sleep(SILENCE));
    let turn = turn(workload, &path, round, was_full).await;
    let has_faults = path.has_faults();
    let is_valid = path.close().await.is_ok();
    if has_faults {
        return Err(format!("{arm}: packets did not verify"));
    }
    // An end that protects itself may also break what runs through it.
    if !is_valid {
        return Ok(None);
    }
    turn.map(Some).map_err(|error| format!("{arm}: {error}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_of_a_pair_follow_each_other_and_either_is_as_often_the_first() {
        // Two suites, each with a pool beside one without, and beside the same unencrypted arm.
        let pairs = [[1, 5], [1, 2], [3, 5], [3, 4]];
        let mut random = Rng::with_seed(1);
        let (mut apart, mut first) = (0, [0; 4]);
        for _ in 0..1000 {
            let order = order(&[0, 1, 2, 3, 4, 5], &pairs, &mut random);
            let place = |arm: usize| order.iter().position(|it| *it == arm).unwrap();
            for (pair, first) in pairs.iter().zip(&mut first) {
                let [one, other] = pair.map(place);
                *first += u32::from(one < other);
                apart += one.abs_diff(other) - 1;
            }
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        }
        assert!(first.iter().all(|it| (440..560).contains(it)), "{first:?}");
        // In a shuffled order of six there are 1.33 others between two.
        assert!(f64::from(apart as u32) / 4000.0 < 0.9, "{apart}");
    }
}
