//! Draws the demo: a table that is redrawn in place on a terminal, plain lines elsewhere. Measures
//! nothing.

use console::{Term, style};
use tokio::sync::watch;

use super::arm::{Board, Stage};
use super::measured::{ARMS, Arm, Keystrokes, Measured};

/// Heads of the columns, as [`columns`] sets them.
const HEADS: [&str; 12] = [
    "suite", "pool", "p50", "p99", "fits", "beyond", "hit", "part", "miss", "pool", "inline",
    "CPUs",
];

/// Standard output.
#[derive(Debug)]
pub(super) struct Screen {
    term: Term,
    live: bool,
    /// Lines of the table currently on the terminal.
    drawn: usize,
}

impl Screen {
    pub(super) fn new() -> Self {
        let term = Term::buffered_stdout();
        let live = term.is_term() && !console::is_dumb();
        Self { term, live, drawn: 0 }
    }

    /// Prints a line. If the reader has gone away, as `head` does, the demo continues.
    pub(super) fn line(&self, line: &str) {
        let _ = self.term.write_line(line);
        let _ = self.term.flush();
    }

    /// Shows the board until its sender is dropped; the table stays on the terminal.
    pub(super) async fn follow(mut self, mut board: watch::Receiver<Board>) -> Self {
        let mut said = None;
        loop {
            let shown = board.borrow_and_update().clone();
            if self.live {
                self.redraw(&shown);
            } else if let Some((arm, stage)) = shown.now.filter(|now| said != Some(*now)) {
                said = shown.now;
                if matches!(stage, Stage::Connecting | Stage::Typing | Stage::Beyond) {
                    self.line(&format!("{arm}: {stage}"));
                }
            }
            if board.changed().await.is_err() {
                break;
            }
        }
        let last = Board { now: None, ..board.borrow().clone() };
        self.redraw(&last);
        self
    }

    fn redraw(&mut self, board: &Board) {
        let width = usize::from(self.term.size().1);
        let mut lines = table(&board.rows, board.now.map(|(arm, _)| arm));
        if let Some((arm, stage)) = board.now {
            lines.push(format!("{arm}: {stage}"));
        }
        let _ = self.term.move_cursor_up(self.drawn);
        if self.live {
            let _ = self.term.clear_to_end_of_screen();
        }
        for line in &lines {
            // A line that the terminal wraps would leave the cursor too low for the next drawing.
            let fits = self.live && board.now.is_some();
            let line = if fits { console::truncate_str(line, width, "") } else { line.into() };
            let _ = self.term.write_line(&line);
        }
        let _ = self.term.flush();
        self.drawn = lines.len();
    }
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
        whole(keystrokes.map(|Keystrokes { p50_us, .. }| p50_us)),
        whole(keystrokes.map(|Keystrokes { p99_us, .. }| p99_us)),
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
            keystrokes: Some(Keystrokes { count: 300, p50_us: 9_999.0, p99_us: 99_999.0 }),
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
