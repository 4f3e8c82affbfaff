//! Writes the demo to standard output: lines that stay, and on a terminal lines at the end that are
//! drawn again while something runs. Measures nothing.

use console::{Style, Term};

/// What a part has shown, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Whether it speaks for keypadd.
    pub(super) speaks_for_us: bool,
    /// One sentence or two, a line of at most 74 characters each.
    pub(super) lines: Vec<String>,
}

/// Standard output, or nothing at all.
#[derive(Debug)]
pub(super) struct Page {
    term: Option<Term>,
    is_live: bool,
    /// Lines at the end that are drawn again.
    drawn: usize,
}

impl Page {
    /// Standard output.
    pub(super) fn new() -> Self {
        let term = Term::buffered_stdout();
        let is_live = term.is_term() && !console::is_dumb();
        Self { term: Some(term), is_live, drawn: 0 }
    }

    /// A page that is not written.
    pub(super) fn silent() -> Self {
        Self { term: None, is_live: false, drawn: 0 }
    }

    /// Whether lines can be drawn again.
    pub(super) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Writes a line that stays.
    pub(super) fn line(&mut self, line: &str) {
        self.keep([line]);
    }

    /// Writes the heading of a part.
    pub(super) fn heading(&mut self, heading: &str) {
        self.keep([String::new(), Style::new().bold().apply_to(heading).to_string()]);
    }

    /// Shows lines until others take their place. Does nothing where they cannot.
    pub(super) fn draw<L: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = L>) {
        if self.is_live {
            let width = self.term.as_ref().map_or(0, |term| usize::from(term.size().1));
            // A line that the terminal wraps would leave the cursor too low for the next drawing.
            let cut = |line: L| console::truncate_str(line.as_ref(), width, "").into_owned();
            self.drawn = self.replace(lines.into_iter().map(cut));
        }
    }

    /// Writes lines that stay in the place of those that were drawn.
    pub(super) fn keep<L: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = L>) {
        self.replace(lines);
        self.drawn = 0;
    }

    /// Writes what a part has found.
    pub(super) fn conclude(&mut self, found: Vec<String>, verdict: &Verdict) {
        let color = Style::new().bold();
        let color = if verdict.speaks_for_us { color.green() } else { color.yellow() };
        let marks = std::iter::once("   => ").chain(std::iter::repeat("      "));
        let verdict = verdict.lines.iter().zip(marks);
        let verdict =
            verdict.map(|(line, mark)| color.apply_to(format!("{mark}{line}")).to_string());
        self.keep(found.into_iter().chain(verdict));
    }

    /// Writes lines over those drawn before; returns how many. If the reader has gone away, as
    /// `head` does, the demo continues.
    fn replace<L: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = L>) -> usize {
        let Some(term) = &self.term else { return 0 };
        if self.is_live {
            let _ = term.move_cursor_up(self.drawn);
            let _ = term.clear_to_end_of_screen();
        }
        let mut written = 0;
        for line in lines {
            let _ = term.write_line(line.as_ref());
            written += 1;
        }
        let _ = term.flush();
        written
    }
}
