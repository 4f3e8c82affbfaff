//! Defines the results of a run as plain data: `results.json`, and everything a report is generated from.
//!
//! Generic: an experiment is a [`Section`] of verdicts, tables, plots and predictions, so every experiment is saved,
//! printed and drawn by the same code. Knows no experiment, file or picture. Computes nothing but
//! [`Prediction::compare`]: figures and verdicts arrive finished.
//!
//! Non-finite figures (such as a share of nothing) are `null` in JSON, and NaN when read back.

mod build;
mod number;
mod surface;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;

pub use surface::Surface;

/// What [`Results::schema`] says of results that this code writes.
pub const SCHEMA: u32 = 1;

/// One run: who measured what, where, and what came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The form of this file, [`SCHEMA`].
    pub schema: u32,
    /// The run itself.
    pub run: Run,
    /// What it ran on.
    pub machine: Machine,
    /// One for each experiment, in the order in which a person reads them.
    pub sections: Vec<Section>,
}

/// How a run was started and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// What was run, the head of the report: `keypadd bench terminal`.
    pub title: String,
    /// The version of keypadd that measured.
    pub version: String,
    /// The command line that repeats it.
    pub command_line: String,
    /// What all offered traffic follows from.
    pub seed: u64,
    /// When it began (RFC 3339, UTC).
    pub started: String,
    /// When it ended (RFC 3339, UTC); `None` while it runs, and if it was killed.
    pub ended: Option<String>,
    /// Whether everything that was asked for has been measured.
    pub complete: bool,
    /// What ended a run that is not complete: `Ctrl-C`, `the peer was lost: ...`.
    pub ended_by: Option<String>,
    /// What is not as it is in use, named on every table and picture:
    /// `3des-ctr-hmac-sha1: keystream slowed to 940 B/s`.
    pub emulated: Vec<String>,
}

/// One experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Names its files: lower-case letters, digits and `-`, once in a run.
    pub id: String,
    /// Its head.
    pub title: String,
    /// What was asked, in one sentence.
    pub question: String,
    /// What was done, a paragraph each.
    pub method: Vec<String>,
    /// What is emulated here, beside what [`Run::emulated`] names.
    #[serde(default)]
    pub emulated: Vec<String>,
    /// What came out, judged.
    pub verdicts: Vec<Verdict>,
    /// What was predicted before the run, beside what was measured.
    pub predictions: Vec<Prediction>,
    /// Figures as figures.
    pub tables: Vec<Table>,
    /// Figures as pictures.
    pub plots: Vec<Plot>,
    /// Figures over two factors, as pictures.
    #[serde(default)]
    pub surfaces: Vec<Surface>,
    /// What a reader must know to trust or doubt this.
    pub notes: Vec<String>,
    /// Whether it is long enough for a page of its own, with its verdicts alone on the front page.
    #[serde(default)]
    pub own_page: bool,
}

/// A claim and whether the figures bear it out. Computed, never typed in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What is claimed, as a sentence.
    pub claim: String,
    /// When it holds and when not: fixed before the run.
    pub rule: String,
    /// What the rule says of the figures.
    pub outcome: Outcome,
    /// The figures that it says so for, with intervals; or why it cannot be told.
    pub because: String,
    /// What a paper says of it beside what came out, if the claim is a paper's.
    #[serde(default)]
    pub beside: Option<PaperComparison>,
}

/// A paper's ratio beside today's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PaperComparison {
    /// Names the claim within its paper: `L4`. Several verdicts may share it.
    pub name: String,
    /// What the ratio is of: `time of a key exchange, modp-1024 over secp384r1`.
    pub ratio: String,
    /// As the paper's figures have it; `None` where it has no figure for it.
    #[serde(with = "number")]
    pub paper: Option<f64>,
    /// Where it has it: `Table 1`.
    pub source: String,
    /// As it came out.
    pub today: Option<Estimate>,
}

/// What a rule can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The figures bear the claim out.
    Holds,
    /// The figures contradict it.
    DoesNotHold,
    /// The figures are too few or too uncertain, or were not measured.
    CannotTell,
    /// This machine, or this program, lacks what the claim is about.
    CannotCompare,
    /// Its figures were to be measured and were not.
    NotRun,
}

impl Outcome {
    /// All of them, the surest first.
    pub const ALL: [Self; 5] =
        [Self::Holds, Self::DoesNotHold, Self::CannotTell, Self::CannotCompare, Self::NotRun];
}

/// A figure, how sure it is, and what it was made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The figure, in the unit that its place names.
    #[serde(with = "number")]
    pub value: f64,
    /// The 95 % interval, lower end first; `None` for what was counted or measured once.
    #[serde(with = "number")]
    pub interval: Option<[f64; 2]>,
    /// One for each repetition; empty where there were none.
    #[serde(with = "number")]
    pub samples: Vec<f64>,
}

/// Rows of figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Names its file, once in its section: lower-case letters, digits and `-`.
    pub id: String,
    /// Its head.
    pub title: String,
    /// What rows are, the head of their labels: `arm`.
    pub rows_are: String,
    /// What each cell of a row is.
    pub columns: Vec<Column>,
    /// Each with as many cells as there are columns.
    pub rows: Vec<Row>,
}

/// What the cells below it are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its head.
    pub name: String,
    /// The unit of its figures: `µs`, `Mbit/s`; empty where there is none.
    pub unit: String,
}

/// One line of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What the figures are of.
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
    /// What was not measured.
    Missing,
}

/// A picture of curves over one pair of axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Names its file, once in its section: lower-case letters, digits and `-`.
    pub id: String,
    /// Its head.
    pub title: String,
    /// How to read it, in a sentence or two; may be empty.
    pub caption: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// In the order of the legend. A label has one color in all plots of a section.
    pub curves: Vec<Curve>,
    /// Lines across, such as a predicted threshold.
    pub marks: Vec<Mark>,
}

/// One axis of a plot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows.
    pub name: String,
    /// In which unit; empty where there is none.
    pub unit: String,
    /// How places follow from figures.
    pub scale: Scale,
}

/// How places on an axis follow from figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// By powers; what is not above zero has no place on it and is left out of the picture.
    Log,
}

/// One series of a plot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What the legend calls it.
    pub label: String,
    /// How points are joined.
    pub style: Style,
    /// `[x, y]`, in the order of x. One that is not finite is a gap.
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
    /// By steps: a figure holds until the next.
    Steps,
    /// Not at all.
    Points,
}

/// A line across a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Where.
    pub at: MarkPosition,
    /// What it says, briefly: `T* predicted`.
    pub label: String,
}

/// Where a mark crosses its axis.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkPosition {
    /// An upright line at this x.
    X(#[serde(with = "number")] f64),
    /// A level line at this y.
    Y(#[serde(with = "number")] f64),
}

/// A figure that was written down before it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// What is predicted: `T*, 3des-ctr-hmac-sha1, pool 64 MiB`.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The figure that the calibration gave.
    #[serde(with = "number")]
    pub predicted: f64,
    /// The formula and the figures that it was made from.
    pub from: String,
    /// What the run then showed.
    pub measured: Option<Estimate>,
    /// How far the prediction lay off, in percent of what was measured; above zero if too high.
    #[serde(with = "number")]
    pub error_percent: Option<f64>,
}

impl Results {
    /// Results with nothing measured yet.
    pub fn new(run: Run, machine: Machine) -> Self {
        Self { schema: SCHEMA, run, machine, sections: Vec::new() }
    }

    /// `results.json`: one line, because there may be a hundred thousand figures.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string(self).expect("no map with keys that are not text");
        json + "\n"
    }

    /// Whether a file is a `results.json` of any version of this program.
    pub fn is_of_a_run(json: &str) -> bool {
        /// What every version has.
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

    /// Reads `results.json`.
    ///
    /// # Errors
    ///
    /// If it is none, or of another [`SCHEMA`] and unlike this one.
    pub fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }
}

impl Run {
    /// A run that begins now.
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

    /// It ends now, with all measured.
    pub fn end(&mut self) {
        self.ended = Some(now());
        self.complete = true;
        self.ended_by = None;
    }

    /// It ends now, before all was measured, and why.
    pub fn end_early(&mut self, why: &str) {
        self.ended = Some(now());
        self.complete = false;
        self.ended_by = Some(why.to_owned());
    }
}

/// The time as results have it.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests;
