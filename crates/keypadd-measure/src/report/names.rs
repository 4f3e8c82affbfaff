//! Names the files, links and CSS classes of a report. Files are named after the IDs of sections,
//! tables and plots, whatever these contain, and are unique.

use std::collections::HashSet;

use super::PAGES;
use crate::results::{Outcome, Results, Section};

/// Longer names are cut: file systems allow 255 bytes.
const NAME_MAX: usize = 100;

/// The names of all files, without folder and extension.
pub(super) struct Names {
    pub(super) sections: Vec<SectionNames>,
}

/// In the order of the section's tables and plots.
pub(super) struct SectionNames {
    /// The section's own name, as a URL fragment within the page.
    pub(super) anchor: String,
    pub(super) predictions: String,
    pub(super) tables: Vec<String>,
    pub(super) plots: Vec<String>,
    pub(super) surfaces: Vec<String>,
    /// The plot of ratios.
    pub(super) ratios: String,
}

/// The file of all verdicts.
pub(super) const VERDICTS: &str = "verdicts";

impl Names {
    pub(super) fn of(results: &Results) -> Self {
        let mut taken = HashSet::from([VERDICTS.to_owned()]);
        let sections = results.sections.iter().map(|section| {
            let anchor = unique(safe(&section.id), &mut taken);
            let mut name = |id: &str| unique(format!("{anchor}-{}", safe(id)), &mut taken);
            SectionNames {
                predictions: name("predictions"),
                tables: section.tables.iter().map(|table| name(&table.id)).collect(),
                plots: section.plots.iter().map(|plot| name(&plot.id)).collect(),
                surfaces: section.surfaces.iter().map(|it| name(&it.id)).collect(),
                ratios: name("ratios-of-claims"),
                anchor,
            }
        });
        Self { sections: sections.collect() }
    }
}

/// Lowercase letters, digits and `-`, not starting with `-`.
fn safe(id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = id.chars().take(NAME_MAX).map(plain).collect();
    match name.trim_matches('-') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}

fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name));
    let free = free.expect("there is always a next number");
    taken.insert(free.clone());
    free
}

/// Link to a section from the front page.
pub(super) fn address(section: &Section, names: &SectionNames) -> String {
    match section.own_page {
        true => format!("{PAGES}/{}.html", names.anchor),
        false => format!("#{}", names.anchor),
    }
}

/// The CSS class of an outcome.
pub(super) fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Holds => "holds",
        Outcome::DoesNotHold => "not",
        Outcome::CannotTell => "unsure",
        Outcome::CannotCompare | Outcome::NotRun => "none",
    }
}
