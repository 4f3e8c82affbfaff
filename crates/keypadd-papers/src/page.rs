//! Builds the page of any paper: its text, judged claims and figures. Knows no paper: each supplies
//! its parts.

use keypadd_measure::results::{Curve, Estimate, Plot, Section, Style, Surface, Table};

use super::Effort;
use super::claim::Claim;
use super::effort::Amount;

/// The parts of a paper's page. `F` is everything that its experiments measure.
pub(crate) struct Page<F, T> {
    /// Its heading.
    pub(crate) title: &'static str,
    /// The question, in one sentence.
    pub(crate) question: &'static str,
    /// The method, one paragraph each; the difference between quick and full runs follows.
    pub(crate) method: Vec<String>,
    /// Their differences besides the rounds.
    pub(crate) amounts: Vec<Amount>,
    /// What is emulated.
    pub(crate) emulated: Vec<String>,
    /// The table of its claims.
    pub(crate) claims: Vec<Claim<F, T>>,
    /// Figures as tables.
    pub(crate) tables: Vec<Table>,
    /// Figures as plots.
    pub(crate) plots: Vec<Plot>,
    /// Figures over two factors.
    pub(crate) surfaces: Vec<Surface>,
    /// Caveats that a reader needs.
    pub(crate) notes: Vec<String>,
}

impl<F, T> Page<F, T> {
    /// Builds the page from these results.
    pub(crate) fn of(self, figures: &F, effort: Effort) -> Section {
        let Self { title, question, mut method, emulated, tables, plots, surfaces, notes, .. } =
            self;
        method.push(effort.compared(&self.amounts));
        let verdicts = self.claims.iter().map(|claim| claim.judge(figures)).collect();
        Section {
            title: title.to_owned(),
            question: question.to_owned(),
            method,
            emulated,
            verdicts,
            tables,
            plots,
            surfaces,
            notes,
            own_page: true,
            ..Section::default()
        }
    }
}

/// A curve of the available estimates, by place.
pub(crate) fn curve(
    label: &str,
    style: Style,
    points: impl IntoIterator<Item = (f64, Option<Estimate>)>,
) -> Curve {
    let there = points.into_iter().filter_map(|(x, estimate)| Some((x, estimate?)));
    let there: Vec<(f64, Estimate)> = there.collect();
    Curve::of_estimates(label, style, there.iter().map(|(x, estimate)| (*x, estimate)))
}
