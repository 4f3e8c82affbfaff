//! Groups cases by their line. Pure.

use super::Paths;
use super::cases::PathCase;

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
