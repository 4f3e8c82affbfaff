//! Measures keystrokes: the time from when a key is due until its whole echo has arrived.

use std::fmt;
use std::time::{Duration, Instant};

use keypadd_traffic::{Answered, Broken, Due, Latencies, Path, Requester, Requests};

use crate::arm::Arm;
use crate::interleave::{Runs, Turn, Workload};
use crate::results::{Axis, Cell, Curve, Estimate, Plot, Section, Style, Table};
use crate::schedule::{Typing, typing};
use crate::statistics;
use crate::workload::{Claims, Figure, Ratio, costs, ratios, samples, verdicts};

/// The quantiles of tables.
pub(crate) const QUANTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// Keystrokes that must exceed a quantile of a round for it to count as that round's figure.
const BEYOND_MIN: f64 = 5.0;

/// Delay of the first key after the threads are told to start.
pub const LEAD: Duration = Duration::from_millis(20);

/// Typing.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Typing model.
    pub typing: Typing,
    /// Duration of each turn.
    pub time: Duration,
    /// Seed of the schedules.
    pub seed: u64,
}

impl Workload for Terminal {
    type Measured = Latencies;

    async fn once(&self, path: &Path, round: u32) -> Result<Latencies, Broken> {
        let requester = Requester::open(path.address()).await?;
        let start = Instant::now() + LEAD;
        type_keys(requester, self.keys(round), start).await
    }

    fn offered(&self) -> Vec<Due> {
        self.keys(0)
    }

    fn figures(&self) -> Vec<Figure<Latencies>> {
        vec![Figure {
            of: "A keystroke",
            claims: Claims::Ratio(Ratio { name: "ratio of medians", less_is_better: true }),
            value: Box::new(|latencies| latencies.quantile_us(0.5)),
        }]
    }

    fn section(&self, runs: &Runs<Latencies>) -> Section {
        let arms = runs.measured();
        let words = &[("typing", &self.words() as &dyn fmt::Display)];
        let mut section = Section::of_page("terminal", include_str!("terminal.md"), words);
        let medians = samples(&arms, |latencies| latencies.quantile_us(0.5));
        section.verdicts = verdicts(&self.figures(), runs);
        section.notes = runs.notes();
        section.tables = vec![
            quantiles("latency", "From key to echo", &arms, |latencies| latencies),
            ratios("ratios", "Median over that of the base lines, round by round", &medians),
            costs(&arms),
        ];
        section.plots = vec![distributions("From key to echo", &arms, |latencies| latencies)];
        section
    }
}

/// Types on an open connection.
pub(crate) async fn type_keys(
    requester: Requester,
    keys: Vec<Due>,
    start: Instant,
) -> Result<Latencies, Broken> {
    let record =
        |latencies: &mut Latencies, answered: Answered| latencies.record(answered.latency());
    let keys = Requests::At(keys);
    let (_, latencies) = requester.run(keys, start, Latencies::default(), record).await?;
    Ok(latencies)
}

impl Terminal {
    /// The schedule of one round, the same for every arm.
    pub fn keys(&self, round: u32) -> Vec<Due> {
        typing(self.typing, self.time, self.seed.wrapping_add(u64::from(round)))
    }

    pub(crate) fn words(&self) -> String {
        let seconds = self.time.as_secs_f64();
        match self.typing {
            Typing::Human { typists } => format!(
                "{typists} typists at a human pace (gaps as in Dhakal et al., CHI 2018) share a \
                 connection for {seconds} s a turn: 64 bytes go and 64 come back, 1,024 for one key in \
                 sixteen."
            ),
            Typing::Fixed { per_second, bytes } => format!(
                "{per_second} keys a second, evenly, for {seconds} s a turn: {bytes} bytes go and \
                 {bytes} come back."
            ),
        }
    }
}

/// A row of quantiles per arm, and the longest latency of all rounds.
pub(crate) fn quantiles<M>(
    id: &str,
    title: &str,
    arms: &[(Arm, &[Turn<M>])],
    latencies: impl Fn(&M) -> &Latencies,
) -> Table {
    let rows = arms.iter().map(|(arm, turns)| {
        let each: Vec<&Latencies> = turns.iter().map(|turn| latencies(&turn.measured)).collect();
        (arm, (together(&each), each))
    });
    let mut table = Table::of(id, title, "arm", rows).column("count", "", |it| it.0.count() as f64);
    for (name, wanted) in QUANTILES {
        table = table.column(name, "µs", |it| quantile(&it.1, wanted));
    }
    table.column("max", "µs", |it| it.0.max_us()).end()
}

/// One quantile: the mean of rounds. If a round has too few latencies beyond it, that of all rounds
/// together, without an interval; if these have none beyond it, the number needed: it would be the
/// longest.
pub(crate) fn quantile(rounds: &[&Latencies], wanted: f64) -> Cell {
    let all = together(rounds);
    let beyond = |latencies: &Latencies| latencies.count() as f64 * (1.0 - wanted);
    if rounds.iter().all(|latencies| beyond(latencies) >= BEYOND_MIN) {
        let each: Vec<f64> = rounds.iter().filter_map(|round| round.quantile_us(wanted)).collect();
        return statistics::mean(&each).into();
    }
    // 0.9 is not exact in binary.
    match all.count() == 0 || beyond(&all) > 1.0 - 1e-9 {
        true => all.quantile_us(wanted).map(Estimate::single).into(),
        false => Cell::Text(format!("needs {:.0}", 1.0 / (1.0 - wanted))),
    }
}

/// One curve per arm, of all rounds together.
pub(crate) fn distributions<M>(
    title: &str,
    arms: &[(Arm, &[Turn<M>])],
    latencies: impl Fn(&M) -> &Latencies,
) -> Plot {
    let latency = Axis::log("latency", "µs");
    let mut plot =
        Plot::new("distribution", title, latency, Axis::linear("took no longer", "% of all"));
    plot.caption =
        "All rounds together. The further left, the faster; the steeper, the steadier.".into();
    for (arm, turns) in arms {
        let each: Vec<&Latencies> = turns.iter().map(|turn| latencies(&turn.measured)).collect();
        let points = together(&each).distribution();
        let points = points.into_iter().map(|[us, part]| [us, part * 100.0]).collect();
        plot.curves.push(Curve::new(&arm.to_string(), Style::Steps, points));
    }
    plot
}

fn together(each: &[&Latencies]) -> Latencies {
    let mut all = Latencies::default();
    each.iter().for_each(|latencies| all.add(latencies));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(count: u64) -> Latencies {
        let mut latencies = Latencies::default();
        (1..=count).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        latencies
    }

    #[test]
    fn a_quantile_beyond_the_sample_says_how_many_it_takes() {
        let needs = |count: u64| Cell::Text(format!("needs {count}"));
        let few = latencies(9);
        assert_eq!(quantile(&[&few], 0.9), needs(10));
        assert_eq!(quantile(&[&few], 0.999), needs(1000));
        let enough = latencies(10);
        assert!(matches!(quantile(&[&enough], 0.9), Cell::Figure(_)));
        assert_eq!(quantile(&[&enough], 0.99), needs(100));
        // Rounds add up.
        assert!(matches!(quantile(&[&latencies(60), &latencies(40)], 0.99), Cell::Figure(_)));
        assert_eq!(quantile(&[&Latencies::default()], 0.5), Cell::Missing);
    }
}
