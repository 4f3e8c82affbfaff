//! Formats the report: medians per arm, ratios and verdicts per keypadd arm.
//!
//! Returns text; computes nothing but its layout. A cell is `median [min-max]` over rounds.

use keypadd_measure::results::Outcome;
use keypadd_measure::sequence::MIN_ROUNDS;
use keypadd_measure::verdict::Rule;

use crate::figures::{Base, Figure, PEERS, Round, Span, ratio, span};
use crate::goals::GOALS;

/// Tables of medians: a title and columns.
const TABLES: [(&str, &[(&str, Figure)]); 7] = [
    (
        "Bulk, one TCP stream, Gbit/s",
        &[("download", Figure::BulkDown), ("upload", Figure::BulkUp), ("mean", Figure::BulkMean)],
    ),
    (
        "CPU of both tunnel ends, seconds per GB; idle: % of a core; others: % of all cores",
        &[
            ("download", Figure::CpuDown),
            ("upload", Figure::CpuUp),
            ("both", Figure::CpuMean),
            ("idle", Figure::IdleCpu),
            ("others", Figure::Others),
        ],
    ),
    (
        "Idle round trips, us",
        &[
            ("128 B p50", Figure::SmallP50),
            ("128 B p99", Figure::SmallP99),
            ("1 KiB p50", Figure::LargeP50),
            ("1 KiB p99", Figure::LargeP99),
        ],
    ),
    (
        "Round trips of 128 B beside a download, us; rate that the download keeps",
        &[
            ("p50", Figure::BesideDownP50),
            ("p99", Figure::BesideDownP99),
            ("max", Figure::BesideDownMax),
            ("kept", Figure::KeptDown),
        ],
    ),
    (
        "Round trips of 128 B beside an upload, us; rate that the upload keeps",
        &[
            ("p50", Figure::BesideUpP50),
            ("p99", Figure::BesideUpP99),
            ("max", Figure::BesideUpMax),
            ("kept", Figure::KeptUp),
        ],
    ),
    (
        "The same beside a download, at most 1,000 a second",
        &[
            ("p50", Figure::PacedDownP50),
            ("p99", Figure::PacedDownP99),
            ("kept", Figure::KeptPacedDown),
        ],
    ),
    (
        "The same beside an upload, at most 1,000 a second",
        &[("p50", Figure::PacedUpP50), ("p99", Figure::PacedUpP99), ("kept", Figure::KeptPacedUp)],
    ),
];

/// Figures whose ratios are printed.
const RATIOS: [Figure; 20] = [
    Figure::BulkDown,
    Figure::BulkUp,
    Figure::BulkMean,
    Figure::CpuDown,
    Figure::CpuUp,
    Figure::CpuMean,
    Figure::SmallP50,
    Figure::LargeP50,
    Figure::BesideDownP50,
    Figure::BesideDownP99,
    Figure::BesideUpP50,
    Figure::BesideUpP99,
    Figure::KeptDown,
    Figure::KeptUp,
    Figure::PacedDownP50,
    Figure::PacedDownP99,
    Figure::PacedUpP50,
    Figure::PacedUpP99,
    Figure::KeptPacedDown,
    Figure::KeptPacedUp,
];

/// Figures that are also divided by the arm's own idle round trip.
const OVER_IDLE: [Figure; 4] =
    [Figure::BesideDownP50, Figure::BesideDownP99, Figure::BesideUpP50, Figure::BesideUpP99];

/// The whole report. `arms` in the order of the tables; `judged` are the keypadd arms among them.
pub(crate) fn text(rounds: &[Round], arms: &[&str], judged: &[&str]) -> String {
    let count = rounds.len();
    let mut text = format!("\nRounds: {count}. Cells: median [min-max] over rounds.\n");
    for (title, columns) in TABLES {
        let mut rows = vec![header("arm", columns.iter().map(|(name, _)| *name))];
        for arm in arms {
            let cells = columns.iter().map(|(_, figure)| cell(span(rounds, arm, *figure)));
            rows.push(std::iter::once((*arm).to_owned()).chain(cells).collect());
        }
        text += &format!("\n{title}\n{}", table(&rows));
    }
    for arm in judged {
        // Variants are also compared with the first keypadd arm.
        let first = judged.first().copied().filter(|first| first != arm);
        text += &format!("\nRatios of {arm}, round by round\n{}", ratios(rounds, arm, first));
    }
    for arm in judged {
        text += &format!("\nGoals, {arm}\n{}", verdicts(rounds, arm));
    }
    if count < MIN_ROUNDS {
        text += &format!("\nNo verdicts from fewer than {MIN_ROUNDS} rounds.\n");
    }
    text
}

fn ratios(rounds: &[Round], arm: &str, first: Option<&str>) -> String {
    let [ssh, stunnel] = PEERS;
    let over = ["over ssh", "over stunnel", "over the better", "over own idle p50"];
    let mut rows = vec![header("figure", over)];
    for figure in RATIOS {
        let over = |base: Base<'_>| cell(ratio(rounds, arm, figure, base));
        let idle = if OVER_IDLE.contains(&figure) { over(Base::OwnIdle) } else { String::new() };
        let better = over(Base::BetterPeer);
        let name = figure.name().to_owned();
        rows.push(vec![name, over(Base::Arm(ssh)), over(Base::Arm(stunnel)), better, idle]);
    }
    if let Some(first) = first {
        let cells = RATIOS.map(|figure| cell(ratio(rounds, arm, figure, Base::Arm(first))));
        let column = std::iter::once(format!("over {first}")).chain(cells);
        rows.iter_mut().zip(column).for_each(|(row, cell)| row.push(cell));
    }
    table(&rows)
}

fn verdicts(rounds: &[Round], arm: &str) -> String {
    let mut rows = vec![header("goal", ["limit", "ratio [95 % interval]", "verdict"])];
    for goal in GOALS {
        let (ratio, verdict) = goal.judge(rounds, arm);
        let ratio = ratio.map(|it| {
            let [min, max] = it.interval.unwrap_or([it.value; 2]);
            Span { median: it.value, min, max }
        });
        let verdict = word(verdict).to_owned();
        rows.push(vec![goal.name.to_owned(), limit(goal.limit), cell(ratio), verdict]);
    }
    table(&rows)
}

fn limit(rule: Rule) -> String {
    match rule {
        Rule::AtLeast(limit) => format!(">= {limit}"),
        Rule::AtMost(limit) => format!("<= {limit}"),
        Rule::Within(least, most) => format!("{least} to {most}"),
    }
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Holds => "HOLDS",
        Outcome::DoesNotHold => "FAILS",
        Outcome::CannotTell | Outcome::CannotCompare | Outcome::NotRun => "INCONCLUSIVE",
    }
}

fn header<'a>(first: &'a str, others: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    std::iter::once(first).chain(others).map(str::to_owned).collect()
}

fn cell(span: Option<Span>) -> String {
    span.map_or_else(
        || "-".to_owned(),
        |it| format!("{} [{}-{}]", number(it.median), number(it.min), number(it.max)),
    )
}

/// Three significant digits, without an exponent.
fn number(value: f64) -> String {
    match value.abs() {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The first column left-aligned, the others right-aligned.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            line += &match column {
                0 => format!("  {cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::round;

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0, 0.004, 9.994, 9.996, 12.34, 99.96, 1234.5].map(number);
        assert_eq!(numbers, ["0.00", "0.00", "9.99", "10.0", "12.3", "100", "1234"]);
    }

    #[test]
    fn report_names_every_arm_and_judges_keypadd_arms_only() {
        let all = [("ssh", 1.0, 100.0), ("stunnel", 2.0, 80.0), ("keypadd", 4.0, 40.0)];
        let rounds = vec![round(&all); 6];
        let text = text(&rounds, &["ssh", "stunnel", "keypadd"], &["keypadd"]);
        for part in ["Goals, keypadd\n", "HOLDS", "FAILS", "2.00 [2.00-2.00]"] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains("Goals, ssh"));
        assert!(text.lines().all(|line| line.len() < 110), "{text}");
    }

    #[test]
    fn variants_are_compared_with_the_first_keypadd_arm() {
        let rounds = [round(&[("keypadd", 4.0, 40.0), ("variant", 12.0, 20.0)])];
        let text = text(&rounds, &["keypadd", "variant"], &["keypadd", "variant"]);
        assert_eq!(text.matches("over keypadd").count(), 1);
        let mut bulk =
            text.lines().filter(|it| it.contains("bulk download") && !it.contains("faster"));
        assert!(bulk.next_back().unwrap().ends_with("3.00 [3.00-3.00]"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let rounds = [round(&[("keypadd", 4.0, 40.0)])];
        let text = text(&rounds, &["keypadd"], &["keypadd"]);
        let line = text.lines().find(|it| it.contains("/ faster of ssh")).unwrap();
        assert!(line.ends_with("-  INCONCLUSIVE"), "{line}");
        assert!(text.contains("No verdicts"));
    }
}
