//! Runs a series of rounds of other programs' tunnels: in each round every arm has every case once,
//! in an order drawn from the seed. Knows neither arms nor cases.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fastrand::Rng;

use crate::interleave::{INTERRUPTED, OnProgress, Progress};
use crate::results::Estimate;

/// How much to measure, and whom to tell.
pub struct Series<'a> {
    /// Rounds.
    pub rounds: u32,
    /// Cases, each of which is one block of a round.
    pub cases: usize,
    /// The arms by their numbers.
    pub arms: &'a [usize],
    /// Determines the order of arms and what [`Turn::seed`] does.
    pub seed: u64,
    /// Called before each turn.
    pub tell: OnProgress<'a>,
    /// Ends the series once it is set.
    pub stop: &'a AtomicBool,
}

/// One arm's turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Its number in the series, from 0.
    pub nth: usize,
    /// Its round, from 0.
    pub round: u32,
    /// Its case.
    pub case: usize,
    /// Its arm.
    pub arm: usize,
    /// The seed of its randomness: all arms of a case have the same in a round.
    pub seed: u64,
}

/// One sample and where it belongs.
#[derive(Clone, Debug)]
pub struct Taken<S> {
    /// Its case.
    pub case: usize,
    /// Its arm.
    pub arm: usize,
    /// Its round, from 0.
    pub round: u32,
    /// The sample.
    pub sample: S,
}

impl Series<'_> {
    /// Runs until everything is taken or `stop` is set. `name` says what a turn measures; `keep` gets
    /// all samples after each round.
    ///
    /// # Errors
    /// In words: the series was stopped, or a turn failed.
    pub fn run<S>(
        &self,
        taken: &mut Vec<Taken<S>>,
        name: impl Fn(&Turn) -> String,
        mut take: impl FnMut(&Turn) -> Result<S, String>,
        mut keep: impl FnMut(&[Taken<S>]) -> Result<(), String>,
    ) -> Result<(), String> {
        let all = self.rounds as usize * self.cases * self.arms.len();
        let (mut random, mut nth) = (Rng::with_seed(self.seed), 0);
        for round in 0..self.rounds {
            for case in 0..self.cases {
                let mut order = self.arms.to_vec();
                random.shuffle(&mut order);
                let seed = random.u64(..);
                for arm in order {
                    let turn = Turn { nth, round, case, arm, seed };
                    nth += 1;
                    let what = format!("{nth} of {all}: round {}, {}", round + 1, name(&turn));
                    (self.tell)(&Progress::Doing(what));
                    let sample = take(&turn)?;
                    // What was cut short is not a failure of the arm.
                    if self.stop.load(Relaxed) {
                        return Err(INTERRUPTED.into());
                    }
                    taken.push(Taken { case, arm, round, sample });
                }
            }
            keep(taken)?;
        }
        Ok(())
    }
}

/// Median and range of a figure of an arm in a case, over the rounds that have it.
pub(crate) fn over_rounds<S>(
    taken: &[Taken<S>],
    case: usize,
    arm: usize,
    figure: impl Fn(&S) -> Option<f64>,
) -> Option<Estimate> {
    let of = taken.iter().filter(|it| it.case == case && it.arm == arm);
    Estimate::of_rounds(of.filter_map(|it| figure(&it.sample)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_has_every_case_once_a_round_and_a_stop_keeps_whole_turns() {
        let stop = AtomicBool::new(false);
        let (arms, tell) = ([0, 2], &|_: &Progress| ());
        let series = Series { rounds: 2, cases: 3, arms: &arms, seed: 1, tell, stop: &stop };
        let (mut taken, mut kept) = (Vec::new(), Vec::new());
        let name = |turn: &Turn| turn.arm.to_string();
        let keep = |taken: &[Taken<u64>]| {
            kept.push(taken.len());
            Ok(())
        };
        series.run(&mut taken, name, |turn| Ok(turn.seed), keep).unwrap();
        assert_eq!(kept, [6, 12]);
        for pair in taken.chunks(2) {
            let [one, other] = pair else { panic!("two arms") };
            assert_eq!((one.round, one.case, one.sample), (other.round, other.case, other.sample));
            assert_eq!(one.arm + other.arm, 2);
        }
        let mut some = Vec::new();
        let take = |turn: &Turn| {
            stop.store(turn.nth == 3, Relaxed);
            Ok(())
        };
        assert_eq!(series.run(&mut some, name, take, |_| Ok(())), Err(INTERRUPTED.into()));
        assert_eq!(some.len(), 3);
    }
}
