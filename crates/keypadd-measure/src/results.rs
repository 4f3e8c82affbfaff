//! Defines the results of a run as plain data: `results.json`, and everything a report is generated
//! from.
//!
//! Generic: an experiment is a [`Section`] of verdicts, tables, plots and predictions, so every
//! experiment is saved, printed and drawn by the same code. Knows no experiment, file or picture.
//! Computes nothing but [`Prediction::compare`]: figures and verdicts arrive finished.
//!
//! Non-finite figures (such as a share of nothing) are `null` in JSON, and NaN when read back.

mod build;
mod number;
mod prose;
mod surface;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

pub use build::Columns;
pub use surface::Surface;

/// The [`Results::schema`] that this code writes.
pub const SCHEMA: u32 = 1;

/// One run: its settings, its machine and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Format of this file, [`SCHEMA`].
    pub schema: u32,
    /// The run itself.
    pub run: Run,
    /// The machine.
    pub machine: Machine,
    /// One per experiment, in reading order.
    pub sections: Vec<Section>,
}

/// How a run was started and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Title of the report: `keypadd bench terminal`.
    pub title: String,
    /// Version of the keypadd that measured.
    pub version: String,
    /// The command line that repeats it.
    pub command_line: String,
    /// Seed of all offered traffic.
    pub seed: u64,
    /// When it started (RFC 3339, UTC).
    pub started: String,
    /// When it ended (RFC 3339, UTC); `None` while it runs, and if it was killed.
    pub ended: Option<String>,
    /// Whether everything requested has been measured.
    pub complete: bool,
    /// What ended a run that is not complete: `Ctrl-C`, `the peer was lost: ...`.
    pub ended_by: Option<String>,
    /// What differs from real use, named on every table and plot:
    /// `3des-ctr-hmac-sha1: keystream slowed to 940 B/s`.
    pub emulated: Vec<String>,
}

/// One experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Base name of its files: lowercase letters, digits and `-`; unique in a run.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// The question, in one sentence.
    pub question: String,
    /// The method, one paragraph each.
    pub method: Vec<String>,
    /// What is emulated here, beside what [`Run::emulated`] names.
    #[serde(default)]
    pub emulated: Vec<String>,
    /// Judged claims.
    pub verdicts: Vec<Verdict>,
    /// Predictions made before the run, beside the results.
    pub predictions: Vec<Prediction>,
    /// Figures as tables.
    pub tables: Vec<Table>,
    /// Figures as plots.
    pub plots: Vec<Plot>,
    /// Figures over two factors, as heat maps.
    #[serde(default)]
    pub surfaces: Vec<Surface>,
    /// Caveats that a reader needs.
    pub notes: Vec<String>,
    /// Whether it is long enough for a separate page, with only its verdicts on the front page.
    #[serde(default)]
    pub own_page: bool,
}

/// The result of a run of one experiment.
#[derive(Debug)]
pub struct SectionRun {
    /// All that was measured.
    pub section: Section,
    /// Why it ended early; `None` if it did not.
    pub ended_by: Option<String>,
}

/// A claim and whether the results support it. Computed, never written by hand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim, as a sentence.
    pub claim: String,
    /// When it holds and when not: fixed before the run.
    pub rule: String,
    /// The outcome of the rule.
    pub outcome: Outcome,
    /// The figures behind the outcome, with intervals; or why it is inconclusive.
    pub because: String,
    /// The paper's ratio beside today's, if the claim is a paper's.
    #[serde(default)]
    pub beside: Option<PaperComparison>,
}

/// A paper's ratio beside today's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PaperComparison {
    /// Identifies the claim within its paper: `L4`. Several verdicts may share it.
    pub name: String,
    /// The ratio in words: `time of a key exchange, modp-1024 over secp384r1`.
    pub ratio: String,
    /// From the paper's figures; `None` where it has none.
    #[serde(with = "number")]
    pub paper: Option<f64>,
    /// Where in the paper: `Table 1`.
    pub source: String,
    /// As measured.
    pub today: Option<Estimate>,
}

/// Outcomes of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The figures support the claim.
    Holds,
    /// The figures contradict it.
    DoesNotHold,
    /// The figures are too few or too uncertain, or were not measured.
    CannotTell,
    /// This machine or program lacks what the claim is about.
    CannotCompare,
    /// Its figures were to be measured but were not.
    NotRun,
}

impl Outcome {
    /// All outcomes, the most certain first.
    pub const ALL: [Self; 5] =
        [Self::Holds, Self::DoesNotHold, Self::CannotTell, Self::CannotCompare, Self::NotRun];
}

/// A figure, its uncertainty and its samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The figure, in the unit given where it is used.
    #[serde(with = "number")]
    pub value: f64,
    /// The 95 % interval, lower end first; `None` for a count or a single measurement.
    #[serde(with = "number")]
    pub interval: Option<[f64; 2]>,
    /// One sample per repetition; may be empty.
    #[serde(with = "number")]
    pub samples: Vec<f64>,
}

/// Rows of figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Base name of its file, unique in its section: lowercase letters, digits and `-`.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// Heading of the row labels: `arm`.
    pub rows_are: String,
    /// Headings of a row's cells.
    pub columns: Vec<Column>,
    /// Each has as many cells as there are columns.
    pub rows: Vec<Row>,
}

/// Heading of a column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its heading.
    pub name: String,
    /// The unit of its figures: `µs`, `Mbit/s`; empty for none.
    pub unit: String,
}

/// One row of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The row's label.
    pub label: String,
    /// In the order of [`Table::columns`].
    pub cells: Vec<Cell>,
}

/// One cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// A figure in the column's unit.
    Figure(Estimate),
    /// Words.
    Text(String),
    /// Not measured.
    Missing,
}

/// Curves over one pair of axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Base name of its file, unique in its section: lowercase letters, digits and `-`.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// How to read it, in a sentence or two; may be empty.
    pub caption: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// In the order of the legend. A label has one color in all plots of a section.
    pub curves: Vec<Curve>,
    /// Lines across, such as a predicted threshold.
    pub marks: Vec<Mark>,
}

/// One axis of a plot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The quantity.
    pub name: String,
    /// Its unit; empty for none.
    pub unit: String,
    /// Its scale.
    pub scale: Scale,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Linear.
    #[default]
    Linear,
    /// Logarithmic; omits values that are not above zero.
    Log,
}

/// One series of a plot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Its name in the legend.
    pub label: String,
    /// How its points are joined.
    pub style: Style,
    /// `[x, y]`, sorted by x. A point that is not finite is a gap.
    #[serde(with = "number")]
    pub points: Vec<[f64; 2]>,
    /// `[low, high]` in y for each point: the interval, drawn as an area, or as whiskers of points.
    #[serde(with = "number")]
    pub band: Option<Vec<[f64; 2]>>,
}

/// How the points of a curve are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// By straight lines.
    #[default]
    Line,
    /// By steps: a value holds until the next.
    Steps,
    /// Not at all.
    Points,
}

/// A line across a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Its position.
    pub at: MarkPosition,
    /// A short label: `T* predicted`.
    pub label: String,
}

/// Position of a mark on its axis.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkPosition {
    /// A vertical line at this x.
    X(#[serde(with = "number")] f64),
    /// A horizontal line at this y.
    Y(#[serde(with = "number")] f64),
}

/// A figure recorded before it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The predicted quantity: `T*, 3des-ctr-hmac-sha1, pool 64 MiB`.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The value from the calibration.
    #[serde(with = "number")]
    pub predicted: f64,
    /// The formula and its inputs.
    pub from: String,
    /// The measured value.
    pub measured: Option<Estimate>,
    /// Error in percent of the measured value; positive if the prediction is too high.
    #[serde(with = "number")]
    pub error_percent: Option<f64>,
}

impl Results {
    /// Results with nothing measured yet.
    pub fn new(run: Run, machine: Machine) -> Self {
        Self { schema: SCHEMA, run, machine, sections: Vec::new() }
    }

    /// Serializes to `results.json`: one line, because there may be a hundred thousand figures.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string(self).expect("no map with keys that are not text");
        json + "\n"
    }

    /// Whether a file is a `results.json` of any version of this program.
    pub fn is_of_a_run(json: &str) -> bool {
        /// Fields that every version has.
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "read to see that it is there")]
        struct ResultsHeader {
            schema: u32,
            run: RunHeader,
        }
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "read to see that it is there")]
        struct RunHeader {
            version: String,
            seed: u64,
        }
        serde_json::from_str::<ResultsHeader>(json).is_ok()
    }

    /// Parses `results.json`.
    ///
    /// # Errors
    ///
    /// If it is invalid, or has another, incompatible [`SCHEMA`].
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }
}

impl Run {
    /// A run that starts now.
    pub fn begin(title: &str, command_line: &str, seed: u64) -> Self {
        Self {
            title: title.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command_line: command_line.to_owned(),
            seed,
            started: now(),
            ended: None,
            complete: false,
            ended_by: None,
            emulated: Vec::new(),
        }
    }

    /// Ends the run now, complete.
    pub fn end(&mut self) {
        self.ended = Some(now());
        self.complete = true;
        self.ended_by = None;
    }

    /// Ends the run now, incomplete, with the reason.
    pub fn end_early(&mut self, why: &str) {
        self.ended = Some(now());
        self.complete = false;
        self.ended_by = Some(why.to_owned());
    }
}

/// The current time in the format of results.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests;
