//! Tabulates medians per arm, and ratios and verdicts per keypadd arm.
//!
//! Medians stand beside the range of their rounds.

use keypadd_measure::results::Table;
use keypadd_measure::sequence::MIN_ROUNDS;
use keypadd_measure::text::write_table;
use keypadd_measure::verdict::Rule;

use crate::figures::*;
use crate::goals::GOALS;

/// Columns of a line.
const WIDTH: usize = 110;

/// Tables of medians: a title and columns.
const TABLES: [(&str, &[(&str, Figure)]); 7] = [
    (
        "Bulk, one TCP stream, Gbit/s",
        &[("download", BULK_DOWN), ("upload", BULK_UP), ("mean", BULK_MEAN)],
    ),
    (
        "CPU of both tunnel ends, seconds per GB; idle: % of a core; others: % of all cores",
        &[
            ("download", CPU_DOWN),
            ("upload", CPU_UP),
            ("both", CPU_BOTH),
            ("idle", IDLE_CPU),
            ("others", OTHERS),
        ],
    ),
    (
        "Idle round trips, us",
        &[
            ("128 B p50", SMALL_P50),
            ("128 B p99", SMALL_P99),
            ("1 KiB p50", LARGE_P50),
            ("1 KiB p99", LARGE_P99),
        ],
    ),
    (
        "Round trips of 128 B beside a download, us; rate that the download keeps",
        &[
            ("p50", BESIDE_DOWN_P50),
            ("p99", BESIDE_DOWN_P99),
            ("max", BESIDE_DOWN_MAX),
            ("kept", KEPT_DOWN),
        ],
    ),
    (
        "Round trips of 128 B beside an upload, us; rate that the upload keeps",
        &[
            ("p50", BESIDE_UP_P50),
            ("p99", BESIDE_UP_P99),
            ("max", BESIDE_UP_MAX),
            ("kept", KEPT_UP),
        ],
    ),
    (
        "The same beside a download, at most 1,000 a second",
        &[("p50", PACED_DOWN_P50), ("p99", PACED_DOWN_P99), ("kept", KEPT_PACED_DOWN)],
    ),
    (
        "The same beside an upload, at most 1,000 a second",
        &[("p50", PACED_UP_P50), ("p99", PACED_UP_P99), ("kept", KEPT_PACED_UP)],
    ),
];

/// Figures whose ratios are printed.
const RATIOS: [Figure; 20] = [
    BULK_DOWN,
    BULK_UP,
    BULK_MEAN,
    CPU_DOWN,
    CPU_UP,
    CPU_BOTH,
    SMALL_P50,
    LARGE_P50,
    BESIDE_DOWN_P50,
    BESIDE_DOWN_P99,
    BESIDE_UP_P50,
    BESIDE_UP_P99,
    KEPT_DOWN,
    KEPT_UP,
    PACED_DOWN_P50,
    PACED_DOWN_P99,
    PACED_UP_P50,
    PACED_UP_P99,
    KEPT_PACED_DOWN,
    KEPT_PACED_UP,
];

/// Figures that are also divided by the arm's own idle round trip.
const OVER_IDLE: [Figure; 4] = [BESIDE_DOWN_P50, BESIDE_DOWN_P99, BESIDE_UP_P50, BESIDE_UP_P99];

/// The whole report. `arms` in the order of the tables; `judged` are the keypadd arms among them.
pub(crate) fn text(rounds: &[Round], arms: &[&str], judged: &[&str]) -> String {
    let mut tables = Vec::new();
    for (title, columns) in TABLES {
        let mut table = Table::of("medians", title, "arm", arms.iter().map(|arm| (arm, *arm)));
        for (name, figure) in columns {
            table = table.column(name, "", |arm| median(rounds, arm, *figure));
        }
        tables.push(table.end());
    }
    for arm in judged {
        // Variants are also compared with the first keypadd arm.
        let first = judged.first().copied().filter(|first| first != arm);
        tables.push(ratios_of(rounds, arm, first));
    }
    tables.extend(judged.iter().map(|arm| verdicts(rounds, arm)));
    let count = rounds.len();
    let mut text =
        format!("\nRounds: {count}. Figures: median, and least to most of the rounds.\n");
    tables.iter().for_each(|table| text += &format!("\n{}", write_table(table, WIDTH)));
    if count < MIN_ROUNDS {
        text += &format!("\nNo verdicts from fewer than {MIN_ROUNDS} rounds.\n");
    }
    text
}

fn ratios_of(rounds: &[Round], arm: &str, first: Option<&str>) -> Table {
    let [ssh, stunnel] = PEERS;
    let title = format!("Ratios of {arm}, round by round");
    let over = |figure: &Figure, base: Base<'_>| ratio(rounds, arm, *figure, base);
    let is_over_idle = |figure: &Figure| OVER_IDLE.iter().any(|it| it.name == figure.name);
    let rows = RATIOS.map(|figure| (figure.name, figure));
    let table = Table::of("ratios", &title, "figure", rows)
        .column("over ssh", "", |figure| over(figure, Base::Arm(ssh)))
        .column("over stunnel", "", |figure| over(figure, Base::Arm(stunnel)))
        .column("over the better", "", |figure| over(figure, Base::BetterPeer))
        .column("over own idle p50", "", |figure| {
            is_over_idle(figure).then(|| over(figure, Base::OwnIdle))
        });
    match first {
        Some(first) => table
            .column(&format!("over {first}"), "", |figure| over(figure, Base::Arm(first)))
            .end(),
        None => table.end(),
    }
}

fn verdicts(rounds: &[Round], arm: &str) -> Table {
    let rows = GOALS.map(|goal| (goal.name, (goal.limit, goal.judge(rounds, arm))));
    Table::of("goals", &format!("Goals, {arm}"), "goal", rows)
        .column("limit", "", |(limit, _)| match limit {
            Rule::AtLeast(limit) => format!(">= {limit}"),
            Rule::AtMost(limit) => format!("<= {limit}"),
            Rule::Within(least, most) => format!("{least} to {most}"),
        })
        .column("ratio, 95 % interval", "", |(_, (ratio, _))| ratio.clone())
        .column("verdict", "", |(_, (_, outcome))| outcome.name().to_uppercase())
        .end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::round;

    #[test]
    fn report_names_every_arm_and_judges_keypadd_arms_only() {
        let all = [("ssh", 1.0, 100.0), ("stunnel", 2.0, 80.0), ("keypadd", 4.0, 40.0)];
        let rounds = vec![round(&all); 6];
        let text = text(&rounds, &["ssh", "stunnel", "keypadd"], &["keypadd"]);
        for part in ["Goals, keypadd\n", "HOLDS", "DOES NOT HOLD", "2 ± 0"] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains("Goals, ssh"));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn variants_are_compared_with_the_first_keypadd_arm() {
        let rounds = [round(&[("keypadd", 4.0, 40.0), ("variant", 12.0, 20.0)])];
        let text = text(&rounds, &["keypadd", "variant"], &["keypadd", "variant"]);
        assert_eq!(text.matches("over keypadd").count(), 1);
        let mut bulk =
            text.lines().filter(|it| it.contains("bulk download") && !it.contains("faster"));
        assert!(bulk.next_back().unwrap().trim_end().ends_with('3'), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let rounds = [round(&[("keypadd", 4.0, 40.0)])];
        let text = text(&rounds, &["keypadd"], &["keypadd"]);
        let line = text.lines().find(|it| it.contains("/ faster of ssh")).unwrap();
        assert!(line.contains("–  INCONCLUSIVE"), "{line}");
        assert!(text.contains("No verdicts"));
    }
}
