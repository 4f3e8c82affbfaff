//! Collects what is wrong with a file, each fault with its line and column. Knows no file names.

use std::collections::BTreeSet;
use std::fmt;

use crate::quote::one_line;

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong, with the value.
    pub cause: String,
    /// How to fix it.
    pub hint: Option<String>,
}

impl fmt::Display for Fault {
    /// `LINE:COLUMN: cause`, the hint on a second line; never a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, one_line(&self.cause))?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {}", one_line(hint)),
            None => Ok(()),
        }
    }
}

/// The faults of a text.
#[derive(Debug)]
pub(crate) struct Faults<'t> {
    text: &'t str,
    found: Vec<(usize, Fault)>,
    /// Lines that are not TOML; they are reported once.
    broken: BTreeSet<usize>,
}

impl<'t> Faults<'t> {
    pub(crate) fn of(text: &'t str) -> Self {
        Self { text, found: Vec::new(), broken: BTreeSet::new() }
    }

    /// Adds a fault at this byte, rounded down to the start of a character.
    pub(crate) fn add(&mut self, at: usize, cause: impl Into<String>, hint: Option<String>) {
        let (line, column) = self.place(at);
        self.found.push((at, Fault { line, column, cause: cause.into(), hint }));
    }

    /// Marks the line of this byte as not TOML. One mistake can cause several parse errors; the
    /// first is the useful one.
    pub(crate) fn add_broken(&mut self, at: usize, cause: &str) {
        if self.broken.insert(self.place(at).0) {
            self.add(at, cause, None);
        }
    }

    /// Whether the line of this byte is not TOML.
    pub(crate) fn is_broken(&self, at: usize) -> bool {
        self.broken.contains(&self.place(at).0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All of them in the file's order.
    pub(crate) fn sorted(mut self) -> Vec<Fault> {
        self.found.sort_by_key(|(at, _)| *at);
        self.found.into_iter().map(|(_, fault)| fault).collect()
    }

    /// The line and the column of a byte, from 1.
    pub(crate) fn place(&self, at: usize) -> (usize, usize) {
        let start = (0..=at.min(self.text.len())).rev().find(|at| self.text.is_char_boundary(*at));
        let before = &self.text[..start.unwrap_or_default()];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let lines = before.bytes().filter(|byte| *byte == b'\n').count();
        (lines + 1, before[line_start..].chars().count() + 1)
    }
}
