//! Collects what is wrong with a file, each fault with its place. Does not know what the main file
//! is called.

use std::collections::BTreeSet;
use std::fmt;
use std::iter;
use std::mem;

use crate::quote::{one_line, shown};

/// Where in a configuration something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the file, unless it is the main one.
    pub part: Option<String>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            Some(part) => write!(f, "line {} of {}", self.line, shown(part)),
            None => write!(f, "line {} of the main file", self.line),
        }
    }
}

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it is.
    pub place: Place,
    /// What is wrong, with the value.
    pub cause: String,
    /// How to fix it.
    pub hint: Option<String>,
}

impl fmt::Display for Fault {
    /// `[FILE:]LINE:COLUMN: cause`, the hint on a second line; never a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { part, line, column } = &self.place;
        if let Some(part) = part {
            write!(f, "{}:", one_line(part))?;
        }
        write!(f, "{line}:{column}: {}", one_line(&self.cause))?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {}", one_line(hint)),
            None => Ok(()),
        }
    }
}

/// Most faults that are listed; more are counted.
const LISTED_MAX: usize = 100;

/// The faults of a text.
#[derive(Debug)]
pub(crate) struct Faults<'t> {
    /// The file's name, unless it is the main one.
    part: Option<&'t str>,
    text: &'t str,
    /// Where its lines start.
    lines: Vec<usize>,
    /// The first ones in the file's order: where, cause and hint.
    found: Vec<(usize, String, Option<String>)>,
    unlisted: usize,
    /// Lines that are not TOML; they are reported once.
    broken: BTreeSet<usize>,
}

impl<'t> Faults<'t> {
    pub(crate) fn of(part: Option<&'t str>, text: &'t str) -> Self {
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        let lines = iter::once(0).chain(newlines).collect();
        Self { part, text, lines, found: Vec::new(), unlisted: 0, broken: BTreeSet::new() }
    }

    /// Adds a fault at this byte, rounded down to the start of a character.
    pub(crate) fn add(&mut self, at: usize, cause: impl Into<String>, hint: Option<String>) {
        let after = self.found.partition_point(|(earlier, ..)| *earlier <= at);
        self.found.insert(after, (at, cause.into(), hint));
        if self.found.len() > LISTED_MAX {
            self.found.pop();
            self.unlisted += 1;
        }
    }

    /// Marks the line of this byte as not TOML. One mistake can cause several parse errors; the
    /// first is the useful one.
    pub(crate) fn add_broken(&mut self, at: usize, cause: &str) {
        if self.broken.insert(self.line(at)) {
            self.add(at, cause, None);
        }
    }

    /// Whether the line of this byte is not TOML.
    pub(crate) fn is_broken(&self, at: usize) -> bool {
        self.broken.contains(&self.line(at))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The faults listed in the file's order, and at the end how many are not.
    pub(crate) fn sorted(mut self) -> Vec<Fault> {
        let found = mem::take(&mut self.found).into_iter().map(|(at, cause, hint)| Fault {
            place: self.place(at),
            cause,
            hint,
        });
        let mut faults: Vec<_> = found.collect();
        if let (1.., Some(last)) = (self.unlisted, faults.last()) {
            let cause = format!("and {} more", self.unlisted);
            faults.push(Fault { place: last.place.clone(), cause, hint: None });
        }
        faults
    }

    /// The place of a byte.
    pub(crate) fn place(&self, at: usize) -> Place {
        let start = (0..=at.min(self.text.len())).rev().find(|at| self.text.is_char_boundary(*at));
        let (start, line) = (start.unwrap_or_default(), self.line(at));
        let column = self.text[self.lines[line - 1]..start].chars().count() + 1;
        Place { part: self.part.map(str::to_owned), line, column }
    }

    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }
}
