//! Prints figures with their goals, and remembers whether all were met.

use crate::Outcome;

/// One figure.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    figure: String,
    /// The goal in words, and whether it was met.
    goal: Option<(String, bool)>,
}

impl Row {
    /// A figure without a goal.
    pub(crate) fn stated(name: impl Into<String>, figure: impl Into<String>) -> Self {
        Self { name: name.into(), figure: figure.into(), goal: None }
    }

    /// A figure that has a goal.
    pub(crate) fn judged(
        name: impl Into<String>,
        figure: impl Into<String>,
        goal: impl Into<String>,
        met: bool,
    ) -> Self {
        Self { name: name.into(), figure: figure.into(), goal: Some((goal.into(), met)) }
    }

    fn line(&self) -> String {
        let Self { name, figure, goal } = self;
        match goal {
            None => format!("  {name:<44} {figure}"),
            Some((goal, met)) => {
                let verdict = if *met { "HOLDS" } else { "FAILS" };
                format!("  {name:<44} {figure:<34} {verdict} ({goal})")
            }
        }
    }
}

/// All sections so far.
#[derive(Debug, Default)]
pub(crate) struct Table {
    failed: bool,
}

impl Table {
    /// Prints a section.
    pub(crate) fn section(&mut self, title: &str, rows: Outcome<Vec<Row>>) {
        println!("\n{title}");
        match rows {
            Ok(rows) => {
                for row in rows {
                    println!("{}", row.line());
                    self.failed |= row.goal.is_some_and(|(_, met)| !met);
                }
            }
            Err(error) => {
                println!("  FAILS: {error}");
                self.failed = true;
            }
        }
    }

    /// Whether every goal was met.
    pub(crate) fn holds(&self) -> bool {
        !self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_that_is_missed_or_a_claim_that_cannot_be_measured_fails_the_run() {
        let mut table = Table::default();
        table.section(
            "one",
            Ok(vec![Row::stated("x", "1"), Row::judged("y", "2", "under 3", true)]),
        );
        assert!(table.holds());
        table.section("two", Ok(vec![Row::judged("y", "4", "under 3", false)]));
        assert!(!table.holds());
        let mut table = Table::default();
        table.section("three", Err("no such program".into()));
        assert!(!table.holds());
    }
}
