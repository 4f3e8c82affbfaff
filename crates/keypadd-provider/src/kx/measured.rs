//! Names the key exchanges that are for measurements only, as in the papers: Diffie-Hellman modulo
//! a prime. Nothing else in this crate names them: a program contains them only if it names them
//! itself and hands them in.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use rustls::crypto::SupportedKxGroup;
use thiserror::Error as ThisError;

use super::{Group, KeyExchange, modp};

/// A key exchange for measurements only. No user-facing parser returns it.
#[derive(Clone, Copy, Debug)]
pub struct MeasureKeyExchange {
    name: &'static str,
    group: &'static dyn SupportedKxGroup,
}

impl MeasureKeyExchange {
    /// RFC 2409's group 1: 768 bits, broken by well-funded attackers.
    pub const MODP_768: Self = Self { name: "modp-768", group: &modp::MODP_768 };
    /// RFC 2409's group 2: 1,024 bits, within reach of the largest attackers.
    pub const MODP_1024: Self = Self { name: "modp-1024", group: &modp::MODP_1024 };
    /// RFC 3526's group 15: 3,072 bits.
    pub const MODP_3072: Self = Self { name: "modp-3072", group: &modp::MODP_3072 };
    /// RFC 7919's ffdhe3072.
    pub const FFDHE3072: Self = Self { name: "ffdhe3072", group: &modp::FFDHE3072 };

    /// All key exchanges that only benchmarks use.
    pub const ALL: [Self; 4] = [Self::MODP_768, Self::MODP_1024, Self::MODP_3072, Self::FFDHE3072];

    /// The name on the benchmarks' command line and in reports.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The implementation, for a [`rustls::crypto::CryptoProvider`].
    pub fn group(self) -> &'static dyn SupportedKxGroup {
        self.group
    }
}

impl PartialEq for MeasureKeyExchange {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for MeasureKeyExchange {}

impl Hash for MeasureKeyExchange {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Group {
    /// All groups, users' choices first. For programs that measure, and for tests.
    pub fn all() -> impl Iterator<Item = Self> {
        let chosen = KeyExchange::ALL.into_iter().map(Self::Chosen);
        chosen.chain(MeasureKeyExchange::ALL.into_iter().map(Self::Measure))
    }
}

impl From<MeasureKeyExchange> for Group {
    fn from(kex: MeasureKeyExchange) -> Self {
        Self::Measure(kex)
    }
}

impl fmt::Display for MeasureKeyExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for MeasureKeyExchange {
    type Err = UnknownMeasureKeyExchange;

    fn from_str(name: &str) -> Result<Self, UnknownMeasureKeyExchange> {
        let found = Self::ALL.into_iter().find(|kex| kex.name == name);
        found.ok_or_else(|| UnknownMeasureKeyExchange { name: name.to_owned() })
    }
}

/// Not the name of a key exchange for measurements.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error(
    "unknown measure key exchange `{name}`; measure key exchanges are {}",
    MeasureKeyExchange::ALL.map(MeasureKeyExchange::name).join(", ")
)]
pub struct UnknownMeasureKeyExchange {
    /// The name given.
    pub name: String,
}
