//! Generates the files of a report from [`Results`] standalone: page, pictures and data.
//!
//! `report.html` is self-contained: no network, no scripts. All text is escaped, since labels may
//! come from command lines and peers.

mod claims;
mod curve;
mod data;
mod frame;
mod mark;
mod names;
mod page;
mod palette;
mod plot;
mod ratios;
mod scale;
mod sheet;
mod surface;
mod table;

use maud::Markup;

use self::names::Names;
use self::sheet::{Size, Standalone};
use crate::results::{Results, Section};
use crate::text;

/// Colors of page and plots, and styles of curves.
const PLOT_STYLE: &str = include_str!("report/plot.css");

/// The folder of plots.
pub(crate) const PLOTS: &str = "plots";
/// The folder of data files.
pub(crate) const DATA: &str = "csv";
/// The folder of separate pages.
pub(crate) const PAGES: &str = "pages";
/// The page, or the first of several.
pub(crate) const PAGE: &str = "report.html";
/// The data that everything is generated from.
pub(crate) const RESULTS: &str = "results.json";

/// How to read the plot of ratios.
const RATIOS_CAPTION: &str = "Left of the dashed line the first named is less, right of it more. Where both marks lie on one side, \
     the paper's direction is today's.";

/// One file of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path within the report's directory: `plots/terminal-latencies.svg`.
    pub path: String,
    /// Its content.
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
        if section.own_page {
            let page = page::own_page(results, section, names).into_string();
            files.push(file(format!("{PAGES}/{}.html", names.anchor), text::legible(&page)));
        }
        let mut picture = |name: &str, picture: Markup| {
            let picture = text::legible(&picture.into_string());
            files.push(file(format!("{PLOTS}/{name}.svg"), picture));
        };
        let palette = palette::Palette::of(&section.plots);
        for (plot, name) in section.plots.iter().zip(&names.plots) {
            let standalone = standalone(results, section, &plot.title, &plot.words());
            picture(name, plot::draw(plot, &palette, Size::Wide, Some(&standalone)));
        }
        for (surface, name) in section.surfaces.iter().zip(&names.surfaces) {
            let standalone = standalone(results, section, &surface.title, &surface.caption);
            picture(name, surface::draw(surface, Size::Wide, Some(&standalone)));
        }
        if ratios::has_any(&section.verdicts) {
            let standalone = standalone(results, section, &section.title, RATIOS_CAPTION);
            picture(&names.ratios, ratios::draw(&section.verdicts, Size::Wide, Some(&standalone)));
        }
    }
    files.extend(data::files(results, &names));
    files
}

/// The frame around a plot in its own file.
fn standalone<'a>(
    results: &Results,
    section: &Section,
    head: &'a str,
    caption: &str,
) -> Standalone<'a> {
    let run = &results.run;
    let mut lines = Vec::new();
    lines.extend(text::emulated(run, section));
    lines.extend((!caption.is_empty()).then(|| caption.to_owned()));
    lines.push(format!(
        "{}, keypadd {}, seed {}, {}{}; {}",
        run.title,
        run.version,
        run.seed,
        run.started,
        if run.complete { "" } else { ", incomplete" },
        results.machine.cpu_and_cores(),
    ));
    Standalone { head, lines }
}

#[cfg(test)]
mod tests;
