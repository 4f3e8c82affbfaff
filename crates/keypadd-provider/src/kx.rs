//! Key exchange: the three groups of TLS 1.3 that keypadd offers, by name.
//!
//! One file per group; `secp384r1` is ring's own. A group makes its secret for one handshake, from
//! the operating system's randomness, and wipes it. Knows no suites and no identities.

mod hybrid;
mod x25519;

use std::fmt;
use std::str::FromStr;

use rustls::crypto::{SupportedKxGroup, ring};
use rustls::{Error, NamedGroup, PeerMisbehaved};
use thiserror::Error as ThisError;

/// A key exchange by its name on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyExchange {
    /// RFC 7748: the classical exchange, 32 bytes each way.
    X25519,
    /// X25519 and ML-KEM-768 together (draft-ietf-tls-ecdhe-mlkem): safe while either stands. The
    /// client's share is 1,216 bytes, so its hello takes two packets.
    #[default]
    X25519MlKem768,
    /// NIST's P-384 (RFC 8446, section 4.2.8.2), for those who must.
    Secp384r1,
}

impl KeyExchange {
    /// All of them, the default first.
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

    /// The key exchange that a handshake settled on, if it is one of ours.
    pub fn from_named_group(group: NamedGroup) -> Option<Self> {
        Self::ALL.into_iter().find(|kex| kex.group().name() == group)
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

/// A name that is no key exchange.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("`{name}` is no key exchange; there are {}", KeyExchange::ALL.map(KeyExchange::name).join(", "))]
pub struct UnknownKeyExchange {
    /// What was given.
    pub name: String,
}

/// A share of the wrong length or form, or one that leads to a worthless secret. TLS sends
/// `illegal_parameter` for it.
const INVALID_SHARE: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// Fills `secret` from the operating system, or fails the handshake: no fallback, no panic.
fn fill_random(secret: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(secret).map_err(|_| Error::FailedToGetRandomBytes)
}

#[cfg(test)]
mod tests;
