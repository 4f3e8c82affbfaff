//! Describes a limit, for the one table that has them all.

use std::{
    fmt::{self, Display, Formatter},
    time::Duration,
};

use crate::bucket::Rate;

/// A row of the table of limits.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// What is limited.
    pub resource: &'static str,
    /// Who has a part of it.
    pub holder: &'static str,
    /// How much there is.
    pub total: Amount,
    /// How much of it a holder may have.
    pub rule: &'static str,
    /// What happens when it is reached.
    pub when_reached: &'static str,
    /// The setting that changes it, if there is one.
    pub setting: Option<&'static str>,
    /// The name of a test that reaches it.
    pub test: &'static str,
}

/// How much there is of something.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// So many.
    Count(u64),
    /// So many of each holder, and of all together.
    CountOf {
        /// Of each holder.
        each: u64,
        /// Of all.
        all: u64,
    },
    /// So many bytes.
    Bytes(u64),
    /// A rate of events.
    Rate(Rate),
    /// A time in advance, and one part in this many of the time that passes.
    Time {
        /// Time in advance.
        advance: Duration,
        /// One part in this many.
        one_in: u32,
    },
    /// What a setting or the host decides.
    Text(&'static str),
}

impl Display for Amount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count) => thousands(count, f),
            Self::CountOf { each, all } => write!(f, "{each}, all together {all}"),
            Self::Bytes(bytes) if bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            Self::Bytes(bytes) => write!(f, "{} KiB", bytes >> 10),
            Self::Rate(Rate { burst: 1, interval }) => write!(f, "one in {interval:?}"),
            Self::Rate(Rate { burst, interval }) => {
                write!(f, "{burst} at once, then one in {interval:?}")
            }
            Self::Time { advance, one_in } => {
                write!(f, "{advance:?} in advance, then one part in {one_in}")
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Writes a number with commas between groups of three digits.
fn thousands(number: u64, f: &mut Formatter<'_>) -> fmt::Result {
    match number / 1_000 {
        0 => write!(f, "{number}"),
        more => {
            thousands(more, f)?;
            write!(f, ",{:03}", number % 1_000)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_people_read_them() {
        let second = Duration::from_secs(1);
        for (amount, text) in [
            (Amount::Count(64), "64"),
            (Amount::Count(1_002_048), "1,002,048"),
            (Amount::CountOf { each: 8, all: 64 }, "8, all together 64"),
            (Amount::Bytes(4 << 20), "4 MiB"),
            (Amount::Bytes(128 << 10), "128 KiB"),
            (Amount::Rate(Rate::ONE_A_MINUTE), "one in 60s"),
            (Amount::Rate(Rate { burst: 3, interval: second / 20 }), "3 at once, then one in 50ms"),
            (
                Amount::Time { advance: second / 50, one_in: 10 },
                "20ms in advance, then one part in 10",
            ),
            (Amount::Text("as many"), "as many"),
        ] {
            assert_eq!(amount.to_string(), text);
        }
    }
}
