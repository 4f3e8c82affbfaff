//! Builds the report's section on paths: method, tables, notes. Pure.

use testbed::End;

use super::Paths;
use super::goals;
use super::lines::{lines, of_line};
use super::plots;
use super::sample::{BIN, Sample, Taken};
use crate::results::{Cell, Section, Table};
use crate::series::over_rounds;

/// A table's figure: its ID, name and unit, and its field in a sample.
type Figure = (&'static str, &'static str, &'static str, FigureOf);

/// Reads a figure from a sample, if present.
type FigureOf = fn(&Sample) -> Option<f64>;

const BULK: Figure = ("bulk", "Bulk in the steady state", "Mbit/s", |it| it.down_mbit);

const OTHERS: [Figure; 5] = [
    ("p99", "Small messages beside it, p99", "ms", |it| it.p99_ms),
    ("p50", "Small messages beside it, p50", "ms", |it| it.p50_ms),
    ("start-up", "Bulk in the start-up", "Mbit/s", |it| it.start_up_mbit),
    ("queue", "Wait for the bottleneck, mean", "ms", |it| it.queue_ms),
    ("cpu", "CPU of both ends", "% of a core", |it| it.cpu_percent),
];

pub(super) fn section(paths: &Paths, taken: &[Taken], left_out: &[String]) -> Section {
    let cases = paths.cases.iter();
    let mut start_ups: Vec<String> = cases
        .map(|case| format!("{} s at {} ms", case.start_up().as_secs_f64(), case.rtt.as_millis()))
        .collect();
    start_ups.sort();
    start_ups.dedup();
    let place = match paths.cases.first().map(|case| case.loss_place) {
        Some(testbed::line::LossPlace::AfterBottleneck) => "after",
        _ => "before",
    };
    let arms: Vec<String> = paths.arms.iter().map(super::PathArm::words).collect();
    let mut section = Section::of_page(
        "paths",
        include_str!("section.md"),
        &[
            ("mtu", &super::MTU),
            ("queue", &testbed::line::QUEUE_PACKETS),
            ("place", &place),
            ("rounds", &paths.rounds),
            ("arms", &arms.join("; ")),
            ("start_up", &start_ups.join(", ")),
            ("seconds", &paths.time.as_secs_f64()),
            ("interval", &BIN.as_millis()),
        ],
    );
    section.verdicts = goals::verdicts(paths, taken);
    for (nth, line) in lines(paths).iter().enumerate() {
        section.tables.push(bulk(paths, taken, line, nth));
        section.tables.extend(OTHERS.iter().map(|figure| table(paths, taken, line, nth, figure)));
        section.plots.extend(plots::over_losses(paths, taken, line, nth));
    }
    section.plots.extend(plots::over_time(paths, taken));
    section.notes.extend(left_out.iter().cloned());
    for one in taken {
        if let Some(failure) = &one.sample.failure {
            let (case, arm) = (&paths.cases[one.case], paths.arms[one.arm].name());
            section.notes.push(format!("round {}, {case}, {arm}: {failure}", one.round + 1));
        }
    }
    section
}

fn rows(paths: &Paths) -> impl Iterator<Item = (&str, usize)> {
    paths.arms.iter().enumerate().map(|(arm, of_arm)| (of_arm.name(), arm))
}

fn table(paths: &Paths, taken: &[Taken], line: &str, nth: usize, figure: &Figure) -> Table {
    let (id, name, unit, of) = figure;
    let (id, title) = (format!("{id}-{}", nth + 1), format!("{name}: {line}"));
    let mut table = Table::of(&id, &title, "arm", rows(paths));
    for (index, case) in of_line(paths, line) {
        table = table.column(&case.column(), unit, |arm| over_rounds(taken, index, *arm, of));
    }
    table.end()
}

/// Tabulates bulk, with the other direction if there is one, and what the line can deliver.
fn bulk(paths: &Paths, taken: &[Taken], line: &str, nth: usize) -> Table {
    let (id, name, unit, down) = BULK;
    let (id, title) = (format!("{id}-{}", nth + 1), format!("{name}: {line}"));
    let arms = rows(paths).map(|(name, arm)| (name, Some(arm)));
    let rows = std::iter::once(("what the line can deliver", None)).chain(arms);
    let mut table = Table::of(&id, &title, "arm", rows);
    for (index, case) in of_line(paths, line) {
        let cell = |from: End, of: FigureOf| {
            move |arm: &Option<usize>| match arm {
                None => Cell::from(case.deliverable_mbit(from)),
                Some(arm) => over_rounds(taken, index, *arm, of).into(),
            }
        };
        table = table.column(&case.column(), unit, cell(End::Far, down));
        if case.two_way {
            let name = format!("{}, to the far host", case.column());
            table = table.column(&name, unit, cell(End::Near, |sample| sample.up_mbit));
        }
    }
    table.end()
}

#[cfg(test)]
mod tests;
