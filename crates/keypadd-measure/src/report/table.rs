//! Renders a table: figures aligned at the decimal point, intervals beside them, in a box that
//! scrolls sideways on narrow pages.

use maud::Markup;
use maud::html;

use crate::figure;
use crate::figure::AlignedFigure;
use crate::results::{Cell, Table};

/// Spaces as wide as a digit and as a point, where all digits have one width.
const FIGURE_SPACE: &str = "\u{2007}";
const POINT_SPACE: &str = "\u{2008}";

/// Letters that fit on a line on a phone.
const BRIEF: usize = 32;

/// Letters of a heading that fit above a figure.
const BRIEF_HEAD: usize = 12;

/// One column, formatted.
struct FormattedColumn {
    written: Vec<Option<AlignedFigure>>,
    /// Whether any figure has one; the column is then two.
    intervals: bool,
    figures: bool,
}

pub(super) fn table(table: &Table) -> Markup {
    let cell =
        |row: usize, index: usize| table.rows[row].cells.get(index).unwrap_or(&Cell::Missing);
    let set: Vec<FormattedColumn> = (0..table.columns.len())
        .map(|index| {
            let rows = 0..table.rows.len();
            let figures: Vec<_> = rows.map(|row| cell(row, index).figure()).collect();
            let written = figure::write_column(&figures);
            let intervals = written.iter().flatten().any(|figure| !figure.interval.is_empty());
            FormattedColumn { figures: figures.iter().any(Option::is_some), written, intervals }
        })
        .collect();
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(table.title) {
            table {
                thead {
                    tr {
                        th scope="col" { (table.rows_are) }
                        @for (column, set) in table.columns.iter().zip(&set) {
                            th scope="col" class=(head(&column.name, set.figures)) colspan=[set.intervals.then_some(2)] {
                                (column.name)
                                @if !column.unit.is_empty() { " " span class="unit" { (column.unit) } }
                            }
                        }
                    }
                }
                tbody {
                    @for (row, label) in table.rows.iter().map(|row| &row.label).enumerate() {
                        tr {
                            th scope="row" { (label) }
                            @for (index, set) in set.iter().enumerate() {
                                (cells(cell(row, index), set.written[row].as_ref(), set))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The CSS class of a heading: long ones get room for a few words per line.
fn head(name: &str, of_figures: bool) -> &'static str {
    match (of_figures, name.chars().count() <= BRIEF_HEAD) {
        (true, true) => "figure",
        (true, false) => "figure long",
        (false, true) => "brief",
        (false, false) => "long",
    }
}

/// The CSS class of text: aligned like figures among them; short text stays on one line.
fn words(text: &str, among_figures: bool) -> &'static str {
    match (among_figures, text.chars().count() <= BRIEF) {
        (true, _) => "figure",
        (false, true) => "brief",
        (false, false) => "long",
    }
}

fn cells(cell: &Cell, written: Option<&AlignedFigure>, set: &FormattedColumn) -> Markup {
    match (cell, written) {
        (_, Some(figure)) => {
            let point = if figure.padding.point { POINT_SPACE } else { "" };
            let digits = FIGURE_SPACE.repeat(figure.padding.digits);
            html! {
                td class="figure" { (figure.value) (point) (digits) }
                @if set.intervals { td class="interval" { (figure.interval) } }
            }
        }
        (Cell::Text(text), None) => html! {
            td class=(words(text, set.figures)) colspan=[set.intervals.then_some(2)] { (text) }
        },
        (_, None) => html! {
            td class={ "missing" @if set.figures { " figure" } } colspan=[set.intervals.then_some(2)] title="not measured" {
                (figure::NONE)
            }
        },
    }
}
