//! Draws the demo: a table that is redrawn in place on a terminal, plain lines elsewhere. Measures
//! nothing.

use console::style;
use tokio::sync::watch;

use super::arm::{Board, Stage};
use super::measured::{ARMS, Arm, Measured};
use crate::verbs::demo::page::Page;
use crate::verbs::demo::traffic::Typed;

/// Heads of the columns, as [`columns`] sets them.
const HEADS: [&str; 12] = [
    "suite", "pool", "p50", "p99", "fits", "beyond", "hit", "part", "miss", "pool", "inline",
    "CPUs",
];

/// Shows the board until its sender is dropped; the table stays on the page.
pub(super) async fn follow(mut page: Page, mut board: watch::Receiver<Board>) -> Page {
    let mut said = None;
    loop {
        let shown = board.borrow_and_update().clone();
        if page.is_live() {
            let mut lines = table(&shown.rows, shown.now.map(|(arm, _)| arm));
            lines.extend(shown.now.map(|(arm, stage)| format!("{arm}: {stage}")));
            page.draw(lines);
        } else if let Some((arm, stage)) = shown.now.filter(|now| said != Some(*now)) {
            said = shown.now;
            if matches!(stage, Stage::Connecting | Stage::Typing | Stage::Beyond) {
                page.line(&format!("{arm}: {stage}"));
            }
        }
        if board.changed().await.is_err() {
            break;
        }
    }
    let lines = table(&board.borrow().rows, None);
    page.keep(lines);
    page
}

/// Two lines of heads and one for each arm, which is emphasized while it runs.
fn table(rows: &[Measured; ARMS.len()], running: Option<Arm>) -> Vec<String> {
    let groups = format!(
        "{:>35}{:>13}{:>14}{:>13}{:>5}",
        "typing, us", "bulk, Mbit/s", "packets, %", "pads, MB", "fill"
    );
    let heads = [groups, columns(HEADS.map(str::to_owned))];
    let heads = heads.map(|head| style(head).dim().to_string());
    let row = |(arm, measured): (Arm, &Measured)| {
        let line = columns(row(arm, measured));
        if running == Some(arm) { style(line).bold().to_string() } else { line }
    };
    heads.into_iter().chain(ARMS.into_iter().zip(rows).map(row)).collect()
}

/// Formats a line of the table, 80 characters wide.
fn columns(cells: [String; 12]) -> String {
    let [suite, pool, p50, p99, fits, beyond, hit, partial, miss, pooled, inline, cpu] = cells;
    format!(
        "{suite:<18} {pool:<4}{p50:>6}{p99:>6}{fits:>6}{beyond:>7}{hit:>4}{partial:>5}{miss:>5}\
         {pooled:>6}{inline:>7}{cpu:>5}"
    )
}

fn row(arm: Arm, measured: &Measured) -> [String; 12] {
    let Measured { keystrokes, burst_mbit, beyond_mbit, traffic, filler_cpu, .. } = measured;
    let shares = traffic.percentages();
    let share = |nth: usize| whole(shares.map(|shares| shares[nth]));
    let megabytes = |bytes: u64| tenths(shares.map(|_| bytes as f64 / 1e6));
    [
        arm.suite.to_string(),
        arm.pool_label().to_owned(),
        whole(keystrokes.map(|Typed { p50_us, .. }| p50_us)),
        whole(keystrokes.map(|Typed { p99_us, .. }| p99_us)),
        whole(*burst_mbit),
        whole(*beyond_mbit),
        share(0),
        share(1),
        share(2),
        megabytes(traffic.pool_bytes),
        megabytes(traffic.inline_bytes),
        tenths(shares.map(|_| filler_cpu.as_secs_f64())),
    ]
}

/// A whole number, or a dash where there is none.
fn whole(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.0}"))
}

/// A number with one decimal, or a dash where there is none.
fn tenths(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keypadd_traffic::Counts;

    use super::*;

    #[test]
    fn the_table_fits_eighty_columns_with_large_figures() {
        let measured = Measured {
            keystrokes: Some(Typed { count: 300, p50_us: 9_999.0, p99_us: 99_999.0 }),
            burst_mbit: Some(19_999.0),
            beyond_mbit: Some(19_999.0),
            traffic: Counts {
                hit: 1,
                partial: 0,
                miss: 0,
                pool_bytes: 999_900_000,
                inline_bytes: 999_900_000,
            },
            filler_cpu: Duration::from_millis(12_340),
            ..Measured::default()
        };
        for rows in [Default::default(), [(); 3].map(|()| measured.clone())] {
            for line in table(&rows, None) {
                assert!(console::measure_text_width(&line) <= 80, "{line}");
            }
        }
    }
}
