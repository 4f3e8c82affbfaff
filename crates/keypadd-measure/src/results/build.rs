//! Constructs results, and computes the few values derived from their parts.

use std::fmt;

use super::{
    Axis, Cell, Column, Curve, Estimate, Mark, MarkPosition, Outcome, Plot, Prediction, Row, Scale,
    Section, Style, Table, Verdict,
};
use crate::figure;
use crate::statistics::median;

impl Section {
    /// A section without figures.
    pub fn new(id: &str, title: &str, question: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            question: question.to_owned(),
            ..Self::default()
        }
    }
}

impl Verdict {
    /// A verdict that is not a paper's.
    pub fn new(
        claim: impl Into<String>,
        rule: impl Into<String>,
        outcome: Outcome,
        because: impl Into<String>,
    ) -> Self {
        let (claim, rule, because) = (claim.into(), rule.into(), because.into());
        Self { claim, rule, outcome, because, beside: None }
    }
}

impl Outcome {
    /// The outcome of a claim that is to hold in all cases, and holds in so many of them.
    pub fn of_cases(bearing_out: usize, all: usize) -> Self {
        match all {
            0 => Self::CannotTell,
            all if bearing_out == all => Self::Holds,
            _ => Self::DoesNotHold,
        }
    }
}

impl Estimate {
    /// A count or a single measurement.
    pub fn single(value: f64) -> Self {
        Self { value, interval: None, samples: Vec::new() }
    }

    /// Median and range of the rounds; `None` if there are none.
    pub fn of_rounds(samples: Vec<f64>) -> Option<Self> {
        let value = median(&samples)?;
        let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let interval = (samples.len() > 1).then_some([least, most]);
        Some(Self { value, interval, samples })
    }
}

/// With the digits that its interval allows: `1.25 ± 0.12`, `1.01 (1.00–1.03)`.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&figure::write(self))
    }
}

/// A table that is filled column by column, so that a heading stands beside what it is about.
#[derive(Debug)]
pub struct Columns<R> {
    table: Table,
    rows: Vec<R>,
}

impl<R> Columns<R> {
    /// Adds a column on the right: its heading, its unit, and the cell of each row.
    #[must_use]
    pub fn column<C: Into<Cell>>(mut self, name: &str, unit: &str, cell: impl Fn(&R) -> C) -> Self {
        self.table = self.table.column(name, unit);
        for (row, of) in self.table.rows.iter_mut().zip(&self.rows) {
            row.cells.push(cell(of).into());
        }
        self
    }

    /// The table.
    pub fn end(self) -> Table {
        self.table
    }
}

impl Table {
    /// A table of these rows and their labels, without columns.
    pub fn of<R>(
        id: &str,
        title: &str,
        rows_are: &str,
        rows: impl IntoIterator<Item = (impl ToString, R)>,
    ) -> Columns<R> {
        let mut table = Self::new(id, title, rows_are);
        let row = |(label, row): (_, R)| {
            table.push(&ToString::to_string(&label), Vec::new());
            row
        };
        let rows = rows.into_iter().map(row).collect();
        Columns { table, rows }
    }

    /// A table without columns and rows.
    pub fn new(id: &str, title: &str, rows_are: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            rows_are: rows_are.to_owned(),
            ..Self::default()
        }
    }

    /// Adds a column on the right.
    pub fn column(mut self, name: &str, unit: &str) -> Self {
        self.columns.push(Column { name: name.to_owned(), unit: unit.to_owned() });
        self
    }

    /// Adds a row at the bottom, with one cell per column.
    pub fn push(&mut self, label: &str, cells: Vec<Cell>) {
        self.rows.push(Row { label: label.to_owned(), cells });
    }
}

impl Plot {
    /// A plot without curves.
    pub fn new(id: &str, title: &str, x: Axis, y: Axis) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            caption: String::new(),
            x,
            y,
            curves: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// The caption; says what gaps are, if a curve has one.
    pub fn words(&self) -> String {
        let is_drawn = |[x, y]: &[f64; 2]| {
            let is_on =
                |axis: &Axis, at: f64| at.is_finite() && (axis.scale != Scale::Log || at > 0.0);
            is_on(&self.x, *x) && is_on(&self.y, *y)
        };
        let has_gap = |curve: &Curve| !curve.points.iter().all(is_drawn);
        let zero = match self.y.scale {
            Scale::Log => ", or it was 0, for which the axis has no place",
            Scale::Linear => "",
        };
        let gaps = format!("In gaps nothing was measured{zero}.");
        let gaps = self.curves.iter().any(has_gap).then_some(gaps);
        let parts = [self.caption.clone()].into_iter().chain(gaps);
        parts.filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

impl Axis {
    /// A linear axis.
    pub fn linear(name: &str, unit: &str) -> Self {
        Self { name: name.to_owned(), unit: unit.to_owned(), scale: Scale::Linear }
    }

    /// A logarithmic axis.
    pub fn log(name: &str, unit: &str) -> Self {
        Self { name: name.to_owned(), unit: unit.to_owned(), scale: Scale::Log }
    }
}

impl Curve {
    /// A curve without a band.
    pub fn new(label: &str, style: Style, points: Vec<[f64; 2]>) -> Self {
        Self { label: label.to_owned(), style, points, band: None }
    }

    /// A curve through the estimates that there are, at positions x; their intervals form its band
    /// if each has one.
    pub fn of_estimates(
        label: &str,
        style: Style,
        estimates: impl IntoIterator<Item = (f64, impl Into<Option<Estimate>>)>,
    ) -> Self {
        let there = estimates.into_iter().filter_map(|(x, it)| Some((x, it.into()?)));
        let (points, band): (Vec<_>, Vec<_>) =
            there.map(|(x, it)| ([x, it.value], it.interval)).unzip();
        Self { band: band.into_iter().collect(), ..Self::new(label, style, points) }
    }
}

impl Mark {
    /// A vertical line.
    pub fn at_x(x: f64, label: &str) -> Self {
        Self { at: MarkPosition::X(x), label: label.to_owned() }
    }

    /// A horizontal line.
    pub fn at_y(y: f64, label: &str) -> Self {
        Self { at: MarkPosition::Y(y), label: label.to_owned() }
    }
}

impl MarkPosition {
    /// The position of a vertical line.
    pub fn x(self) -> Option<f64> {
        match self {
            Self::X(x) => Some(x),
            Self::Y(_) => None,
        }
    }

    /// The position of a horizontal line.
    pub fn y(self) -> Option<f64> {
        match self {
            Self::X(_) => None,
            Self::Y(y) => Some(y),
        }
    }
}

impl Prediction {
    /// A prediction recorded before the run: its value, and the formula with its inputs.
    pub fn new(name: &str, unit: &str, predicted: f64, from: &str) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            predicted,
            from: from.to_owned(),
            measured: None,
            error_percent: None,
        }
    }

    /// Adds the measured value.
    pub fn compare(&mut self, measured: Estimate) {
        self.error_percent = Some((self.predicted / measured.value - 1.0) * 100.0);
        self.measured = Some(measured);
    }
}

impl Cell {
    /// The figure, if it is one.
    pub fn figure(&self) -> Option<&Estimate> {
        match self {
            Self::Figure(estimate) => Some(estimate),
            Self::Text(_) | Self::Missing => None,
        }
    }
}

impl From<Estimate> for Cell {
    fn from(estimate: Estimate) -> Self {
        Self::Figure(estimate)
    }
}

impl<T> From<Option<T>> for Cell
where
    Self: From<T>,
{
    fn from(content: Option<T>) -> Self {
        content.map_or(Self::Missing, Self::from)
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Figure(Estimate::single(value))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
