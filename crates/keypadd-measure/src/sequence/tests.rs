//! Tests how often runs are decided wrongly, and how soon rightly, on simulated machines.

use std::f64::consts::PI;

use super::*;

/// Runs per test.
const RUNS: u64 = 4000;
/// Rounds of a run that nothing decides: eight looks.
const ROUNDS: usize = 37;

/// What disturbs the figures of a simulated machine.
#[derive(Clone, Copy)]
struct Noise {
    /// Deviation of the logarithm of a figure.
    deviation: f64,
    /// Part of the figures that have a heavy tail, without a mean.
    heavy: f64,
    /// Mean time between stalls, and the longest, seconds; what runs meanwhile takes many times as
    /// long.
    stalls_every: f64,
    stall: f64,
    /// Change of the logarithm of all figures in a second: steadily, and at random.
    drift: f64,
}

const QUIET: Noise =
    Noise { deviation: 0.03, heavy: 0.0, stalls_every: f64::INFINITY, stall: 0.0, drift: 0.0 };
const ROUGH: Noise =
    Noise { deviation: 0.03, heavy: 0.1, stalls_every: 20.0, stall: 6.0, drift: 0.02 };

/// Seconds of a turn.
const TURN: f64 = 0.5;

/// A machine on which two arms take turns, in an order drawn for each round.
struct Machine {
    noise: Noise,
    random: fastrand::Rng,
    level: f64,
    stalled_until: f64,
    next_stall: f64,
    now: f64,
}

impl Machine {
    fn new(noise: Noise, seed: u64) -> Self {
        let mut machine = Self {
            noise,
            random: fastrand::Rng::with_seed(seed),
            level: 0.0,
            stalled_until: 0.0,
            next_stall: 0.0,
            now: 0.0,
        };
        machine.next_stall = machine.until_stall();
        machine
    }

    fn until_stall(&mut self) -> f64 {
        -(1.0 - self.random.f64()).ln() * self.noise.stalls_every
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.random.f64(), self.random.f64());
        (-2.0 * radius.ln()).sqrt() * (2.0 * PI * angle).cos()
    }

    /// The time that one turn measures.
    fn turn(&mut self) -> f64 {
        self.now += TURN;
        self.level += self.noise.drift * TURN * (1.0 + self.normal());
        if self.now > self.next_stall {
            self.stalled_until = self.now + self.noise.stall * self.random.f64();
            self.next_stall = self.stalled_until + self.until_stall();
        }
        let mut logarithm = self.level + self.noise.deviation * self.normal();
        if self.now < self.stalled_until {
            logarithm += 1.0 + 3.0 * self.random.f64();
        }
        if self.random.f64() < self.noise.heavy {
            logarithm += self.noise.deviation * (PI * self.random.f64()).tan().abs();
        }
        logarithm.min(300.0).exp()
    }

    /// Rounds of an arm that takes `ratio` times as long as its base, and of the base.
    fn rounds(&mut self, ratio: f64) -> [Vec<f64>; 2] {
        let [mut figures, mut base] = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let is_first = self.random.bool();
            let [one, other] = [self.turn(), self.turn()];
            let [own, of_base] = if is_first { [one, other] } else { [other, one] };
            figures.push(own * ratio);
            base.push(of_base);
        }
        [figures, base]
    }
}

fn is_clear(estimate: Option<Estimate>) -> bool {
    let interval = estimate.unwrap().interval;
    interval.is_some_and(|[low, high]| !(low..=high).contains(&1.0))
}

/// Counts the runs of an arm against itself that are decided, though there is nothing to decide.
fn wrong(noise: Noise, is_decided: impl Fn(&[f64], &[f64]) -> bool) -> u64 {
    let runs = (0..RUNS).map(|seed| Machine::new(noise, seed).rounds(1.0));
    runs.filter(|[figures, base]| is_decided(figures, base)).count() as u64
}

#[test]
fn an_arm_against_itself_is_decided_in_at_most_one_run_of_twenty_however_often_it_is_looked_at() {
    for noise in [QUIET, ROUGH] {
        // Intervals only narrow: what was clear at any look is clear at the end.
        let wrong = wrong(noise, |figures, base| is_clear(ratio(figures, base)));
        assert!(wrong <= RUNS / 20, "{wrong} of {RUNS}");
        assert!(wrong >= RUNS / 100, "{wrong} of {RUNS}: it decides next to nothing");
    }
    // Student's interval, looked at after each round, pays for no look.
    let unpaid = wrong(QUIET, |figures, base| {
        let student = |rounds| crate::statistics::ratio(&figures[..rounds], &base[..rounds]);
        (3..=ROUNDS).any(|rounds| is_clear(student(rounds)))
    });
    assert!(unpaid > RUNS / 5, "{unpaid} of {RUNS}: the simulation shows no error");
}

/// Rounds until nine runs of ten are decided, by an interval below or above the limit; `None` if
/// fewer are by the last round.
fn decided_after(noise: Noise, truth: f64, limit: f64) -> Option<usize> {
    let runs: Vec<_> = (0..400).map(|seed| Machine::new(noise, seed).rounds(truth)).collect();
    let looks = looks().map(|look| look.rounds).take_while(|rounds| *rounds <= ROUNDS);
    looks.into_iter().find(|&rounds| {
        let decided = runs.iter().filter(|[figures, base]| {
            let [low, high] = ratio(&figures[..rounds], &base[..rounds]).unwrap().interval.unwrap();
            if truth < limit { high <= limit } else { low > limit }
        });
        decided.count() >= 360
    })
}

#[test]
fn a_true_ratio_beyond_its_limit_is_decided_the_sooner_the_further_it_is() {
    let quiet = [(1.5, 1.02), (1.1, 1.02), (1.05, 1.02), (1.0, 1.05), (1.0, 1.02), (1.0, 1.0)]
        .map(|(truth, limit)| decided_after(QUIET, truth, limit));
    assert_eq!(quiet, [Some(6), Some(11), None, Some(29), None, None]);
    let rough = [(3.0, 1.02), (1.5, 1.02), (1.15, 1.02)]
        .map(|(truth, limit)| decided_after(ROUGH, truth, limit));
    assert_eq!(rough, [Some(18), Some(29), None]);
}

#[test]
fn looks_spend_no_more_than_the_error_and_the_first_all_that_six_rounds_need() {
    let first: Vec<Look> = looks().take(100).collect();
    assert_eq!(first[..4].iter().map(|it| it.rounds).collect::<Vec<_>>(), [6, 8, 11, 14]);
    assert!(first.iter().map(|it| it.error).sum::<f64>() <= ERROR);
    assert_eq!(outside(first[0]), 0);
    // One sum of ranks each of 0, 1 and 2 in 2^11: on both sides 6 of 2048.
    assert_eq!(outside(first[2]), 2);
}

#[test]
fn the_first_look_is_from_the_least_to_the_greatest_and_a_stall_does_not_move_the_estimate() {
    let calm = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0];
    assert_eq!(center(&calm[..5]).unwrap().interval, None);
    let estimate = center(&calm).unwrap();
    assert!((estimate.value - 1.0).abs() < 1e-3, "{estimate}");
    assert_eq!(estimate.interval, Some([0.98, 1.02]));
    let stalled = center(&[1.0, 1.01, 0.99, 50.0, 0.98, 1.0]).unwrap();
    assert!((stalled.value - 1.0).abs() < 0.02, "{stalled}");
}

#[test]
fn an_interval_never_widens_and_what_was_decided_stays_decided() {
    let mut rounds = vec![2.0, 2.1, 1.9, 2.0, 2.05, 1.95];
    let decided = center(&rounds).unwrap().interval;
    rounds.extend([0.5; 60]);
    let estimate = center(&rounds).unwrap();
    let ([low, high], [least, most]) = (estimate.interval.unwrap(), decided.unwrap());
    assert!(least <= low && high <= most, "{estimate}");
    assert!((low..=high).contains(&estimate.value), "{estimate}");
}

#[test]
fn rounds_that_lack_a_figure_do_not_count() {
    let [figures, base] = [[2.0, 0.0, f64::NAN, 2.0], [1.0, 1.0, 1.0, f64::NAN]];
    assert_eq!(ratio(&figures, &base).unwrap().samples, [2.0]);
    assert_eq!(ratio(&[0.0], &[1.0]), None);
    assert_eq!(center(&[]), None);
    assert_eq!(center(&[f64::NAN]), None);
    let failed = center(&[f64::INFINITY; 6]).unwrap();
    assert_eq!(failed.interval, Some([f64::INFINITY; 2]));
}

#[test]
fn what_is_twice_as_near_takes_four_times_the_rounds() {
    let estimate = |rounds: usize| Estimate {
        value: 1.0,
        interval: Some([0.96, 1.04]),
        samples: vec![1.0; rounds],
    };
    assert_eq!(more_rounds(&estimate(11), 0.02), Some(47 - 11));
    assert_eq!(more_rounds(&estimate(11), 0.04), Some(14 - 11));
    assert_eq!(more_rounds(&estimate(11), 0.0), None);
    assert_eq!(more_rounds(&Estimate { interval: None, ..estimate(2) }, 0.02), Some(4));
}
