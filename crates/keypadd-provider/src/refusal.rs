//! Names the reasons for which one end refuses the other in a handshake, and reads them back.
//!
//! QUIC sends a reason to the peer as text, so a refusal names only what the peer sent or what is
//! not secret. Knows nothing of sessions and of what a user should do.

use std::fmt;
use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError};

use crate::identity::PublicKey;

const KEY_NOT_ALLOWED: &str = "key not allowed";
const KEY_EXPIRED: &str = "key expired";
const NOT_PINNED: &str = "server key not pinned";
const NO_COMMON_SUITE: &str = "no common suite";
const NO_COMMON_KEY_EXCHANGE: &str = "no common key exchange";

/// Why one end refuses the other.
///
/// Its text is the reason with which QUIC closes the connection (RFC 9000, section 19.19);
/// [`parse`](Self::parse) reads that at the other end. Exhaustive on purpose: a new variant does
/// not compile until somebody has written what a user reads of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A client's key is not listed. The client has proved that it holds the key.
    KeyNotAllowed(PublicKey),
    /// A client's key is listed, and its time is over. The client has proved that it holds the key.
    KeyExpired(PublicKey),
    /// The server's key is not pinned. The server need not hold the key that it presented.
    NotPinned(PublicKey),
    /// The client offers no suite that the server allows.
    NoCommonSuite {
        /// Names or code points.
        offered: Box<str>,
        /// Names.
        allowed: Box<str>,
    },
    /// The client offers no key exchange that the server allows.
    NoCommonKeyExchange {
        /// Names or code points.
        offered: Box<str>,
        /// Names.
        allowed: Box<str>,
    },
}

impl Refusal {
    /// Reads a reason. `None` if it is another, also if it only begins like a refusal: a peer
    /// chooses the text, and what a refusal holds is safe to print.
    pub fn parse(reason: &str) -> Option<Self> {
        let (kind, rest) = reason.split_once(": ")?;
        let key = || rest.parse().ok();
        Some(match kind {
            KEY_NOT_ALLOWED => Self::KeyNotAllowed(key()?),
            KEY_EXPIRED => Self::KeyExpired(key()?),
            NOT_PINNED => Self::NotPinned(key()?),
            NO_COMMON_SUITE => {
                let (offered, allowed) = lists(rest)?;
                Self::NoCommonSuite { offered, allowed }
            }
            NO_COMMON_KEY_EXCHANGE => {
                let (offered, allowed) = lists(rest)?;
                Self::NoCommonKeyExchange { offered, allowed }
            }
            _ => return None,
        })
    }

    /// The refusal of a verifier in an error of rustls, if that is why the handshake failed.
    pub(crate) fn from_error(error: &Error) -> Option<&Self> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                inner.downcast_ref()
            }
            _ => None,
        }
    }
}

/// What the client offered and what the server allows.
fn lists(text: &str) -> Option<(Box<str>, Box<str>)> {
    let (offered, allowed) = text.strip_prefix("offered ")?.split_once("; allowed ")?;
    let is_list = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-, ".contains(c));
    (is_list(offered) && is_list(allowed)).then(|| (offered.into(), allowed.into()))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyNotAllowed(key) => write!(f, "{KEY_NOT_ALLOWED}: {key}"),
            Self::KeyExpired(key) => write!(f, "{KEY_EXPIRED}: {key}"),
            Self::NotPinned(key) => write!(f, "{NOT_PINNED}: {key}"),
            Self::NoCommonSuite { offered, allowed } => {
                write!(f, "{NO_COMMON_SUITE}: offered {offered}; allowed {allowed}")
            }
            Self::NoCommonKeyExchange { offered, allowed } => {
                write!(f, "{NO_COMMON_KEY_EXCHANGE}: offered {offered}; allowed {allowed}")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// How a verifier's refusal travels through rustls, whose alert for it is `certificate_unknown`
/// (46).
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    /// The refusal after this one: a new variant needs a place here.
    fn next(refusal: &Refusal) -> Option<Refusal> {
        let key = || KEY.parse().expect("a key");
        Some(match refusal {
            Refusal::KeyNotAllowed(_) => Refusal::KeyExpired(key()),
            Refusal::KeyExpired(_) => Refusal::NotPinned(key()),
            Refusal::NotPinned(_) => Refusal::NoCommonSuite {
                offered: "aes-128-gcm, 0x1234, 9 more".into(),
                allowed: "aes-256-gcm".into(),
            },
            Refusal::NoCommonSuite { .. } => Refusal::NoCommonKeyExchange {
                offered: "".into(),
                allowed: "x25519, secp384r1".into(),
            },
            Refusal::NoCommonKeyExchange { .. } => return None,
        })
    }

    #[test]
    fn each_reason_is_as_on_the_wire_since_the_first_version_and_reads_back() {
        let first = Refusal::KeyNotAllowed(KEY.parse().expect("a key"));
        let reasons: Vec<_> = std::iter::successors(Some(first), next)
            .map(|refusal| {
                let reason = refusal.to_string();
                assert_eq!(Refusal::parse(&reason), Some(refusal));
                reason
            })
            .collect();
        let expected = [
            format!("key not allowed: {KEY}"),
            format!("key expired: {KEY}"),
            format!("server key not pinned: {KEY}"),
            "no common suite: offered aes-128-gcm, 0x1234, 9 more; allowed aes-256-gcm".into(),
            "no common key exchange: offered ; allowed x25519, secp384r1".into(),
        ];
        assert_eq!(reasons, expected);
    }

    #[test]
    fn a_text_that_only_begins_like_a_refusal_is_none() {
        for reason in [
            "",
            "key not allowed",
            "key not allowed: ",
            "key not allowed: not a key",
            &format!("key not allowed: {KEY} or another"),
            &format!("Key not allowed: {KEY}"),
            &format!("the server says: key not allowed: {KEY}"),
            "no common suite: offered aes-128-gcm",
            "no common suite: allowed aes-128-gcm; offered aes-256-gcm",
            "no common suite: offered \u{1b}[2J; allowed aes-128-gcm",
            "no common key exchange: offered x25519; allowed \u{202e}",
        ] {
            assert_eq!(Refusal::parse(reason), None, "{reason}");
        }
    }
}
