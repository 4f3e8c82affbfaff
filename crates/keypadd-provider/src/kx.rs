//! Names the key exchanges: the three TLS 1.3 groups that users choose from. Those for measurements
//! are in `measured.rs`; a program that never names them does not contain them.
//!
//! One file per kind of group; `secp384r1` is ring's. A group generates its secret for one
//! handshake, from the operating system's randomness, and wipes it.

mod hybrid;
pub(crate) mod measured;
mod modp;
mod share;
mod x25519;

use std::fmt;
use std::str::FromStr;

use keypadd_keystream::Class;
use rustls::NamedGroup;
use rustls::crypto::{SupportedKxGroup, ring};
use thiserror::Error as ThisError;

use measured::MeasureKeyExchange;

/// A key exchange by its name on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyExchange {
    /// RFC 7748: the classical exchange, 32 bytes each way.
    X25519,
    /// X25519 combined with ML-KEM-768 (draft-ietf-tls-ecdhe-mlkem): secure while either is. The
    /// client's share is 1,216 bytes, so its hello takes two packets.
    #[default]
    X25519MlKem768,
    /// NIST's P-384 (RFC 8446, section 4.2.8.2), where policy requires it.
    Secp384r1,
}

impl KeyExchange {
    /// All key exchanges that users choose from, the default first.
    pub const ALL: [Self; 3] = [Self::X25519MlKem768, Self::X25519, Self::Secp384r1];

    /// The name on the command line, in logs and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::X25519 => "x25519",
            Self::X25519MlKem768 => "x25519mlkem768",
            Self::Secp384r1 => "secp384r1",
        }
    }

    /// The implementation, for a [`rustls::crypto::CryptoProvider`].
    pub fn group(self) -> &'static dyn SupportedKxGroup {
        match self {
            Self::X25519 => &x25519::X25519,
            Self::X25519MlKem768 => &hybrid::X25519MlKem768,
            Self::Secp384r1 => ring::kx_group::SECP384R1,
        }
    }
}

/// Any key exchange that two ends can negotiate. It has no parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// One that users choose.
    Chosen(KeyExchange),
    /// One for measurements.
    Measure(MeasureKeyExchange),
}

impl Group {
    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chosen(kex) => kex.name(),
            Self::Measure(kex) => kex.name(),
        }
    }

    /// Standard, or for measurements only.
    pub fn class(self) -> Class {
        match self {
            Self::Chosen(_) => Class::Standard,
            Self::Measure(_) => Class::Measure,
        }
    }

    /// The implementation, for a [`rustls::crypto::CryptoProvider`].
    pub fn group(self) -> &'static dyn SupportedKxGroup {
        match self {
            Self::Chosen(kex) => kex.group(),
            Self::Measure(kex) => kex.group(),
        }
    }

    /// The key exchange of this name in TLS, of those that users choose from and these.
    pub fn from_named_group(group: NamedGroup, others: &[Self]) -> Option<Self> {
        let all = KeyExchange::ALL.into_iter().map(Self::Chosen).chain(others.iter().copied());
        all.into_iter().find(|kex| kex.group().name() == group)
    }
}

impl From<KeyExchange> for Group {
    fn from(kex: KeyExchange) -> Self {
        Self::Chosen(kex)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for KeyExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KeyExchange {
    type Err = UnknownKeyExchange;

    fn from_str(name: &str) -> Result<Self, UnknownKeyExchange> {
        let found = Self::ALL.into_iter().find(|kex| kex.name() == name);
        found.ok_or_else(|| UnknownKeyExchange { name: name.to_owned() })
    }
}

/// Not the name of a key exchange.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("unknown key exchange `{name}`; key exchanges are \
    {}", KeyExchange::ALL.map(KeyExchange::name).join(", "))]
pub struct UnknownKeyExchange {
    /// The name given.
    pub name: String,
}

#[cfg(test)]
mod modp_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod traces;
