//! Groups cases by their line, and summarizes a figure over rounds. Pure.

use super::Paths;
use super::cases::PathCase;
use super::sample::{Sample, Taken};
use crate::results::Estimate;

/// The lines of the cases, each once.
pub(super) fn lines(paths: &Paths) -> Vec<String> {
    let mut lines: Vec<String> = paths.cases.iter().map(PathCase::line).collect();
    lines.dedup();
    lines
}

/// The cases of a line.
pub(super) fn of_line<'a>(
    paths: &'a Paths,
    line: &'a str,
) -> impl Iterator<Item = (usize, &'a PathCase)> {
    paths.cases.iter().enumerate().filter(move |(_, case)| case.line() == line)
}

/// Median and range of a figure over rounds.
pub(super) fn over_rounds(
    taken: &[Taken],
    case: usize,
    arm: usize,
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Option<Estimate> {
    let of = taken.iter().filter(|it| it.case == case && it.arm == arm);
    Estimate::of_rounds(of.filter_map(|it| figure(&it.sample)).collect())
}
