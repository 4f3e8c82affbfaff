//! Tests the layout of results on a terminal.

use super::*;
use crate::results::{Estimate, Run};
use crate::synthetic;

#[test]
fn a_run_is_printed_within_80_columns() {
    let text = write(&synthetic::results(), 80);
    let long: Vec<_> = text.lines().filter(|line| letters(line) > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn every_verdict_and_every_figure_is_printed() {
    let results = synthetic::results();
    let text = write(&results, 80);
    for section in &results.sections {
        assert!(text.contains(&section.title));
        for verdict in &section.verdicts {
            assert!(text.contains(&verdict.outcome.name().to_uppercase()));
        }
        for table in &section.tables {
            for column in &table.columns {
                assert!(text.contains(&column.name), "{} is missing", column.name);
            }
        }
    }
    assert!(text.contains("2610   ± 34"), "{text}");
}

#[test]
fn what_is_emulated_stands_below_every_table() {
    let results = synthetic::results();
    let section = results.sections.iter().find(|it| it.id == "exhaustion").unwrap();
    let text = write_section(section, &results.run, 80);
    let tables = section.tables.len() + 1; // of predictions
    assert_eq!(text.matches("Emulated: 3des-ctr-hmac-sha1").count(), tables + 1, "{text}");
}

#[test]
fn figures_align_in_their_column() {
    let mut table = Table::new("t", "A table", "arm").column("p50", "µs").column("note", "");
    let sure = Estimate { interval: Some([9.1, 9.5]), ..Estimate::single(9.3) };
    table.push("a", vec![sure.into(), "none".into()]);
    table.push("longer", vec![120.0.into(), Cell::Missing]);
    let printed = write_table(&table, 80);
    let expected = "\
A table
arm               p50  note
                   µs
---------------------------
a         9.30 ± 0.20  none
longer  120            –
";
    assert_eq!(printed, expected);
}

#[test]
fn a_wide_table_goes_on_below_with_its_labels() {
    let mut table = Table::new("t", "A table", "arm");
    for index in 0..12 {
        table = table.column(&format!("column {index}"), "Mbit/s");
    }
    table.push("the only arm", (0..12).map(|n| Cell::from(f64::from(n))).collect());
    let printed = write_table(&table, 60);
    assert!(printed.lines().all(|line| letters(line) <= 60), "{printed}");
    assert_eq!(printed.matches("the only arm").count(), 3, "{printed}");
    assert!(printed.contains("column 11"));
}

#[test]
fn a_label_cannot_move_the_cursor() {
    let mut table = Table::new("t", "\u{1b}[2Jgone", "arm").column("c\r", "");
    table.push("\u{202e}evil\u{7}", vec!["\u{9b}31m".into()]);
    let printed = write_table(&table, 80);
    let strange = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!printed.contains(strange), "{printed:?}");
}

#[test]
fn only_a_run_that_is_not_complete_says_so() {
    let mut run = Run::begin("t", "", 0);
    assert!(ending(&run).unwrap().contains("INCOMPLETE"));
    run.end_early("Ctrl-C");
    assert!(ending(&run).unwrap().contains("Ctrl-C"));
    run.end();
    assert_eq!(ending(&run), None);
}
