//! Writes figures for other programs as CSV (RFC 4180): one file for every table, for the curves of
//! every plot, for predictions and for verdicts, with all digits.

use super::DATA;
use super::File;
use super::names::{Names, VERDICTS};
use super::ratios;
use crate::agreement::Agreement;
use crate::results::{
    Axis, Cell, MarkPosition, PaperComparison, Plot, Results, Section, Surface, Table,
};
use crate::text::{self, with_unit};

pub(super) fn files(results: &Results, names: &Names) -> Vec<File> {
    let mut files = vec![file(VERDICTS, verdicts(results))];
    for (section, names) in results.sections.iter().zip(&names.sections) {
        let emulated = text::emulated(&results.run, section);
        let emulated = emulated.as_deref();
        if !section.predictions.is_empty() {
            files.push(file(&names.predictions, predictions(section, emulated)));
        }
        for (content, name) in section.tables.iter().zip(&names.tables) {
            files.push(file(name, table(content, emulated)));
        }
        for (plot, name) in section.plots.iter().zip(&names.plots) {
            files.push(file(name, curves(plot, emulated)));
        }
        if ratios::has_any(&section.verdicts) {
            files.push(file(&names.ratios, ratios_of(section, emulated)));
        }
        for (content, name) in section.surfaces.iter().zip(&names.surfaces) {
            files.push(file(name, surface(content, emulated)));
        }
    }
    files
}

fn file(name: &str, rows: Vec<Vec<String>>) -> File {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows {
        writer.write_record(&row).expect("memory takes what is written");
    }
    let bytes = writer.into_inner().expect("memory takes what is written");
    let contents = String::from_utf8(bytes).expect("text and commas are text");
    File { path: format!("{DATA}/{name}.csv"), contents }
}

fn verdicts(results: &Results) -> Vec<Vec<String>> {
    let mut rows = vec![words(["section", "claim", "outcome", "because", "rule"])];
    for section in &results.sections {
        for verdict in &section.verdicts {
            let outcome = verdict.outcome.name();
            let (because, rule) = (&verdict.because, &verdict.rule);
            rows.push(words([&section.title, &verdict.claim, outcome, because, rule]));
        }
    }
    rows
}

fn predictions(section: &Section, emulated: Option<&str>) -> Vec<Vec<String>> {
    let heads = ["figure", "unit", "predicted", "measured", "low", "high", "error %", "from"];
    let mut rows = vec![words(heads)];
    for prediction in &section.predictions {
        let measured = prediction.measured.as_ref();
        let interval = measured.and_then(|measured| measured.interval);
        let mut row = words([&prediction.name, &prediction.unit]);
        row.push(figure(Some(prediction.predicted)));
        row.push(figure(measured.map(|measured| measured.value)));
        row.extend(ends(interval));
        row.push(figure(prediction.error_percent));
        row.push(word(&prediction.from));
        rows.push(row);
    }
    said(rows, emulated)
}

fn table(table: &Table, emulated: Option<&str>) -> Vec<Vec<String>> {
    let mut heads = words([&table.rows_are]);
    let mut rows: Vec<Vec<String>> = table.rows.iter().map(|row| words([&row.label])).collect();
    for (index, column) in table.columns.iter().enumerate() {
        let head = with_unit(&column.name, &column.unit);
        let cell = |row: usize| table.rows[row].cells.get(index).unwrap_or(&Cell::Missing);
        let interval = |row: usize| cell(row).figure().and_then(|estimate| estimate.interval);
        let uncertain = (0..rows.len()).any(|row| interval(row).is_some());
        heads.push(word(&head));
        if uncertain {
            heads.extend(words([&format!("{head}, low"), &format!("{head}, high")]));
        }
        for (row, values) in rows.iter_mut().enumerate() {
            values.push(match cell(row) {
                Cell::Figure(estimate) => figure(Some(estimate.value)),
                Cell::Text(text) => word(text),
                Cell::Missing => String::new(),
            });
            if uncertain {
                values.extend(ends(interval(row)));
            }
        }
    }
    rows.insert(0, heads);
    said(rows, emulated)
}

/// One row per point, and one per mark.
fn curves(plot: &Plot, emulated: Option<&str>) -> Vec<Vec<String>> {
    let axis = |axis: &Axis| with_unit(&axis.name, &axis.unit);
    let mut rows = vec![words(["curve", &axis(&plot.x), &axis(&plot.y), "low", "high"])];
    for curve in &plot.curves {
        for (index, [x, y]) in curve.points.iter().enumerate() {
            let interval = curve.band.as_ref().and_then(|band| band.get(index));
            let mut row = words([&curve.label]);
            row.extend([figure(Some(*x)), figure(Some(*y))]);
            row.extend(ends(interval.copied()));
            rows.push(row);
        }
    }
    for mark in &plot.marks {
        let mut row = words([&format!("mark: {}", mark.label)]);
        row.extend([figure(MarkPosition::x(mark.at)), figure(MarkPosition::y(mark.at))]);
        row.extend([String::new(), String::new()]);
        rows.push(row);
    }
    said(rows, emulated)
}

/// One row per claim that has a ratio.
fn ratios_of(section: &Section, emulated: Option<&str>) -> Vec<Vec<String>> {
    let mut rows = vec![words(["claim", "ratio", "paper", "where", "today", "low", "high"])];
    rows[0].extend(words(["direction", "size"]));
    for beside in ratios::rows(&section.verdicts) {
        let PaperComparison { name, ratio, paper, source, today } = beside;
        let Agreement { direction, size } = Agreement::of(beside);
        let today = today.as_ref();
        let interval = today.and_then(|today| today.interval);
        let mut row = words([name, ratio]);
        row.extend([figure(*paper), word(source), figure(today.map(|today| today.value))]);
        row.extend(ends(interval));
        row.extend(words([direction, size]));
        rows.push(row);
    }
    said(rows, emulated)
}

/// One row per pair of the two factors.
fn surface(surface: &Surface, emulated: Option<&str>) -> Vec<Vec<String>> {
    let axis = |axis: &Axis| with_unit(&axis.name, &axis.unit);
    let heads = [axis(&surface.x), axis(&surface.y), axis(&surface.z)];
    let mut rows = vec![heads.iter().map(|head| word(head)).collect::<Vec<_>>()];
    rows[0].extend(words(["low", "high"]));
    for (y, cells) in surface.rows.iter().zip(&surface.cells) {
        for (x, cell) in surface.columns.iter().zip(cells) {
            let interval = cell.as_ref().and_then(|cell| cell.interval);
            let z = cell.as_ref().map(|cell| cell.value);
            let mut row = [Some(*x), Some(*y), z].map(figure).to_vec();
            row.extend(ends(interval));
            rows.push(row);
        }
    }
    said(rows, emulated)
}

/// Adds a column that says what is emulated, if anything is.
fn said(mut rows: Vec<Vec<String>>, emulated: Option<&str>) -> Vec<Vec<String>> {
    if let Some(emulated) = emulated {
        for (index, row) in rows.iter_mut().enumerate() {
            row.push(word(if index == 0 { "emulated" } else { emulated }));
        }
    }
    rows
}

/// All digits; empty for a value that is not finite or missing.
fn figure(figure: Option<f64>) -> String {
    figure.filter(|figure| figure.is_finite()).map_or_else(String::new, |figure| figure.to_string())
}

/// Both ends of an interval, likewise.
fn ends(interval: Option<[f64; 2]>) -> [String; 2] {
    [0, 1].map(|end| figure(interval.map(|ends| ends[end])))
}

/// Text that no spreadsheet interprets as a formula.
fn word(text: &str) -> String {
    let text = text::legible(text);
    if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text }
}

fn words<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(word).to_vec()
}
