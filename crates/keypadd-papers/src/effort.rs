//! Defines quick and full runs, and describes how much weaker a quick one is.

use std::fmt;

use keypadd_measure::sequence::MIN_ROUNDS;
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
    /// Fewest and most rounds per experiment: as often as the papers repeated theirs, and then as
    /// long as a claim is not decided.
    pub(crate) fn rounds(self) -> [u32; 2] {
        self.pick([0, u32::MAX], [11, 29])
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
        let [least, most] = Self::Full.rounds();
        let listed = amounts
            .iter()
            .map(|(what, [quick, full])| format!("; {what} {quick} against {full}"))
            .collect::<String>();
        let this = self.pick("This is the quick one", "This is the full one");
        format!(
            "A quick run repeats what undecided claims need until its time is over, at least {MIN_ROUNDS} times; a full \
             run repeats everything {least} times, and what undecided claims need up to {most} times{listed}. {this}."
        )
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.pick("quick", "full"))
    }
}
