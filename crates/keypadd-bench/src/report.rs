//! The files of a report, each made from [`Results`] alone: a page, its pictures, its figures.
//!
//! `report.html` is one file that asks the network for nothing and runs no script. All text in it is
//! text: labels may come from command lines and peers.

mod curve;
mod data;
mod mark;
mod names;
mod page;
mod plot;
mod scale;
mod table;

use self::names::Names;
use crate::results::{Plot, Results, Section};
use crate::text;

/// Colours of page and pictures, and what curves look like.
const PLOT_STYLE: &str = include_str!("report/plot.css");

/// The folder of pictures.
pub(crate) const PLOTS: &str = "plots";
/// The folder of figures.
pub(crate) const DATA: &str = "csv";
/// The page.
pub(crate) const PAGE: &str = "report.html";
/// What all of it is made from.
pub(crate) const RESULTS: &str = "results.json";

/// One file of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it stands in the report's directory, as `plots/terminal-latencies.svg`.
    pub path: String,
    /// What is in it.
    pub contents: String,
}

/// All files of a report, `results.json` first.
pub fn files(results: &Results) -> Vec<File> {
    let file = |path: String, contents: String| File { path, contents };
    let names = Names::of(results);
    let mut files = vec![
        file(RESULTS.to_owned(), results.to_json()),
        file(PAGE.to_owned(), text::legible(&page::page(results, &names).into_string())),
    ];
    for (section, names) in results.sections.iter().zip(&names.sections) {
        let palette = plot::Palette::of(&section.plots);
        for (plot, name) in section.plots.iter().zip(&names.plots) {
            let picture = picture(results, section, plot, &palette);
            files.push(file(format!("{PLOTS}/{name}.svg"), picture));
        }
    }
    files.extend(data::files(results, &names));
    files
}

/// A plot as a file of its own.
fn picture(results: &Results, section: &Section, plot: &Plot, palette: &plot::Palette) -> String {
    let run = &results.run;
    let mut lines = Vec::new();
    lines.extend(text::emulated(run, section));
    lines.extend((!plot.caption.is_empty()).then(|| plot.caption.clone()));
    lines.push(format!(
        "{}, keypadd {}, seed {}, {}{}; {}",
        run.title,
        run.version,
        run.seed,
        run.started,
        if run.complete { "" } else { ", incomplete" },
        results.machine.cpu_and_cores(),
    ));
    let alone = plot::Alone { head: &plot.title, lines };
    text::legible(&plot::draw(plot, palette, plot::Size::Wide, Some(&alone)).into_string())
}

#[cfg(test)]
mod tests;
