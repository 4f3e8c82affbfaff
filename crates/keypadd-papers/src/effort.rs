//! Defines quick and full runs, and describes how much weaker a quick one is.

use std::fmt;

use keypadd_measure::statistics::relative_margin;
use serde::{Deserialize, Serialize};

/// How thorough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effort {
    /// All papers in less than five minutes; skips what is not reached by then.
    Quick,
    /// As often as the papers did it, and long enough for a verdict; may take hours.
    Full,
}

/// An amount that differs: its name, then its quick and full values.
pub(crate) type Amount = (&'static str, [String; 2]);

impl Effort {
    /// Rounds per experiment: as many as an interval needs, or ten as in the papers.
    pub(crate) fn rounds(self) -> u32 {
        self.pick(3, 10)
    }

    /// Picks the value for this effort.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }

    /// Quick and full values in words.
    pub(crate) fn both<T: ToString>(of: impl Fn(Self) -> T) -> [String; 2] {
        [Self::Quick, Self::Full].map(|effort| of(effort).to_string())
    }

    /// How much weaker quick runs are: a paragraph for the page of either.
    pub(crate) fn compared(self, amounts: &[Amount]) -> String {
        let [quick, full] = [Self::Quick, Self::Full].map(Self::rounds);
        let times = relative_margin(quick) / relative_margin(full);
        let listed: Vec<String> = amounts
            .iter()
            .map(|(what, [quick, full])| format!("{what} {quick} against {full}"))
            .collect();
        let listed = match listed.is_empty() {
            true => String::new(),
            false => format!("; {}", listed.join("; ")),
        };
        let this = self.pick("This is the quick one", "This is the full one");
        format!(
            "A quick run repeats everything {quick} times where a full run does {full} times{listed}. {this}. \
             For the same scatter the intervals of a quick run are {times:.1} times as wide, and what its \
             time does not suffice for is not run."
        )
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.pick("quick", "full"))
    }
}
