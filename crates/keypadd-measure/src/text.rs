//! Prints results on a terminal: the verdicts and tables of the page, without the plots.
//!
//! Splits tables that are too wide, repeating their labels. Removes control and bidirectional
//! characters from labels, as pages do.

use crate::agreement::Agreement;
use crate::figure;
use crate::figure::AlignedFigure;
use crate::results::{
    Cell, Outcome, PaperComparison, Prediction, Results, Run, Section, Table, Verdict,
};

/// Indentation of a verdict's text.
const INDENT: usize = 16;

/// The whole report; lines have at most `width` characters where possible.
pub fn write(results: &Results, width: usize) -> String {
    let run = &results.run;
    let mut lines = vec![
        format!("{}: keypadd {}, seed {}", run.title, run.version, run.seed),
        results.machine.summary(),
    ];
    lines.extend(ending(run));
    let lines: Vec<_> = lines.iter().flat_map(|line| wrap(line, width)).collect();
    let mut head = lines.join("\n") + "\n";
    if let Some(claims) = claims(&results.sections) {
        head = head + "\n" + &write_table(&claims, width);
    }
    let sections = results.sections.iter().map(|section| write_section(section, run, width));
    legible(&sections.fold(head, |text, section| text + "\n" + &section))
}

/// One experiment of it.
pub fn write_section(section: &Section, run: &Run, width: usize) -> String {
    let mut parts = vec![format!("{}\n{}\n", section.title, "=".repeat(letters(&section.title)))];
    parts[0].push_str(&paragraph(&section.question, width));
    let emulated = emulated(run, section).map(|words| paragraph(&words, width));
    let emulated = emulated.unwrap_or_default();
    parts[0].push_str(&emulated);
    parts.extend(section.verdicts.iter().map(|verdict| write_verdict(verdict, width)));
    let predictions = predictions(&section.predictions);
    for table in predictions.iter().chain(&section.tables) {
        parts.push(write_table(table, width) + &emulated);
    }
    parts.extend(section.notes.iter().map(|note| paragraph(note, width)));
    legible(&parts.join("\n"))
}

fn paragraph(words: &str, width: usize) -> String {
    wrap(words, width).iter().fold(String::new(), |text, line| text + line + "\n")
}

/// What a reader must know first about an incomplete run; `None` if complete.
pub(crate) fn ending(run: &Run) -> Option<String> {
    if run.complete {
        return None;
    }
    let why = match (&run.ended_by, &run.ended) {
        (Some(why), _) => why.as_str(),
        (None, Some(_)) => "it ended early",
        (None, None) => "it still runs, or was killed",
    };
    Some(format!("INCOMPLETE: {why}. What follows was measured before that."))
}

/// Emulations to name on every table and plot of a section.
pub(crate) fn emulated(run: &Run, section: &Section) -> Option<String> {
    let all: Vec<&str> = run.emulated.iter().chain(&section.emulated).map(String::as_str).collect();
    (!all.is_empty()).then(|| format!("Emulated: {}", all.join("; ")))
}

/// Predictions as a table; `None` if there are none.
pub(crate) fn predictions(predictions: &[Prediction]) -> Option<Table> {
    let rows = predictions
        .iter()
        .map(|prediction| (with_unit(&prediction.name, &prediction.unit), prediction));
    let table = Table::of("predictions", "Predicted before the run", "figure", rows)
        .column("predicted", "", |it| it.predicted)
        .column("measured", "", |it| it.measured.clone())
        .column("error", "%", |it| {
            let error = it.error_percent.filter(|error| error.is_finite());
            // More decimals would overstate the precision of these errors.
            error.map(|error| format!("{error:+.1}").replace('-', "−"))
        })
        .end();
    (!table.rows.is_empty()).then_some(table)
}

impl Outcome {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::CannotTell => "inconclusive",
            Self::CannotCompare => "not testable",
            Self::NotRun => "not run",
        }
    }
}

/// The paper's side of a claim: `L1: bytes a second, 1,024 over 128 bytes: 7.25 in the paper (page
/// 2)`.
pub(crate) fn of_paper(beside: &PaperComparison) -> String {
    let PaperComparison { name, ratio, paper, source, .. } = beside;
    match paper {
        Some(paper) => {
            let paper = figure::brief(*paper);
            format!("{name}: {ratio}: {paper} in the paper ({source})")
        }
        None => format!("{name}: {ratio}: no figure in the paper"),
    }
}

/// All claims of papers in one table, to be read first; `None` if there are none.
pub(crate) fn claims(sections: &[Section]) -> Option<Table> {
    let rows = sections.iter().flat_map(|section| {
        section.verdicts.iter().filter_map(|verdict| {
            let beside = verdict.beside.as_ref()?;
            let label = format!("{} {}", section.id, beside.name);
            Some((label, (verdict, beside, Agreement::of(beside))))
        })
    });
    let table = Table::of("claims", "What the papers claim", "claim", rows)
        .column("of", "", |(_, beside, _)| beside.ratio.as_str())
        .column("paper", "", |(_, beside, _)| beside.paper)
        .column("today", "", |(_, beside, _)| beside.today.clone())
        .column("direction", "", |(.., agreement)| agreement.direction)
        .column("size", "", |(.., agreement)| agreement.size)
        .column("verdict", "", |(verdict, ..)| verdict.outcome.name())
        .end();
    (!table.rows.is_empty()).then_some(table)
}

fn write_verdict(verdict: &Verdict, width: usize) -> String {
    let mut parts = vec![(verdict.outcome.name().to_uppercase(), verdict.claim.clone())];
    parts.extend(verdict.beside.iter().map(|beside| (String::new(), of_paper(beside))));
    parts.push((String::new(), verdict.because.clone()));
    parts.push((String::new(), format!("Rule: {}", verdict.rule)));
    let mut text = String::new();
    for (outcome, words) in parts {
        for (index, line) in wrap(&words, width.saturating_sub(INDENT)).iter().enumerate() {
            let head = if index == 0 { outcome.as_str() } else { "" };
            text.push_str(&format!("{head:<INDENT$}{line}\n"));
        }
    }
    text
}

/// One column as printed: its heading and its cells, all of one width.
struct Printed {
    heads: [String; 2],
    cells: Vec<String>,
    width: usize,
    /// Whether it is left-aligned text; figures are right-aligned.
    words: bool,
}

/// A table, split into as many pieces as the width requires.
pub fn write_table(table: &Table, width: usize) -> String {
    let label_width = table.rows.iter().map(|row| letters(&row.label)).max().unwrap_or(0);
    let label_width = label_width.max(letters(&table.rows_are));
    let columns: Vec<_> = (0..table.columns.len()).map(|index| print(table, index)).collect();
    let mut text = format!("{}\n", table.title);
    let mut rest = columns.as_slice();
    loop {
        let mut room = width.saturating_sub(label_width);
        let fitting = rest.iter().take_while(|column| {
            let fits = room >= column.width + 2;
            room = room.saturating_sub(column.width + 2);
            fits
        });
        let (piece, later) = rest.split_at(fitting.count().max(1).min(rest.len()));
        text.push_str(&write_piece(table, piece, label_width));
        if later.is_empty() {
            return legible(&text);
        }
        rest = later;
        text.push('\n');
    }
}

fn write_piece(table: &Table, piece: &[Printed], label_width: usize) -> String {
    let mut lines = Vec::new();
    for index in 0..2 {
        let label = if index == 0 { table.rows_are.as_str() } else { "" };
        let cells = piece.iter().map(|column| (column.heads[index].as_str(), column));
        lines.push(write_line(label, label_width, cells));
    }
    let rule = label_width + piece.iter().map(|column| column.width + 2).sum::<usize>();
    lines.retain(|line| !line.is_empty());
    lines.push("-".repeat(rule));
    for (index, row) in table.rows.iter().enumerate() {
        let cells = piece.iter().map(|column| (column.cells[index].as_str(), column));
        lines.push(write_line(&row.label, label_width, cells));
    }
    lines.join("\n") + "\n"
}

fn write_line<'a>(
    label: &str,
    label_width: usize,
    cells: impl Iterator<Item = (&'a str, &'a Printed)>,
) -> String {
    let mut line = format!("{label:<label_width$}");
    for (cell, column) in cells {
        let width = column.width;
        line.push_str(&match column.words {
            true => format!("  {cell:<width$}"),
            false => format!("  {cell:>width$}"),
        });
    }
    line.truncate(line.trim_end().len());
    line
}

fn print(table: &Table, index: usize) -> Printed {
    let column = &table.columns[index];
    let cells = || table.rows.iter().map(|row| row.cells.get(index).unwrap_or(&Cell::Missing));
    let figures: Vec<_> = cells().map(Cell::figure).collect();
    let written = figure::write_column(&figures);
    let interval_width =
        written.iter().flatten().map(|figure| letters(&figure.interval)).max().unwrap_or(0);
    let texts = cells().zip(written).map(|(cell, written)| match (cell, written) {
        (_, Some(figure)) => beside(&figure, interval_width),
        (Cell::Text(text), None) => text.clone(),
        (_, None) => figure::NONE.to_owned(),
    });
    let texts: Vec<_> = texts.collect();
    let heads = [column.name.clone(), column.unit.clone()];
    let width = texts.iter().chain(&heads).map(|text| letters(text)).max().unwrap_or(0);
    Printed { heads, cells: texts, width, words: figures.iter().all(Option::is_none) }
}

fn beside(figure: &AlignedFigure, interval_width: usize) -> String {
    let padding = figure.padding.digits + usize::from(figure.padding.point);
    let value = format!("{}{}", figure.value, " ".repeat(padding));
    match interval_width {
        0 => value,
        _ => format!("{value} {:<interval_width$}", figure.interval),
    }
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

/// A name and its unit, if it has one.
pub(crate) fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name} ({unit})") }
}

/// Wraps at spaces into lines of at most `width` characters; a longer word gets its own line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if letters(line) + 1 + letters(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Strips characters that a reader cannot see: those that move a cursor, color a terminal, change
/// the writing direction, or are invalid in XML.
pub(crate) fn legible(text: &str) -> String {
    let strange = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    text.chars().map(|c| if strange(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests;
