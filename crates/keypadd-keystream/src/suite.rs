//! Names the (cipher, MAC) pairs that protect packets, and says who may choose which.
//!
//! A [`Protection`] is any pair with a name and a wire format; it has no parser. Users choose a
//! [`Suite`]; measurements may also choose one of `measured.rs`. Nothing here refers to those,
//! so a program that never names them does not contain them. Code points and negotiation belong to
//! the provider; `docs/protocol.md` lists all pairs.

use crate::backend::CipherEngine;
use crate::bitslice::Path;
use crate::legacy::MeasuredCipher;
use crate::mac::MeasuredMac;
use std::fmt;
use std::str::FromStr;

/// The cipher that generates the keystream: a block cipher in counter mode, or ChaCha20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES with a 128-bit key, FIPS 197.
    Aes128,
    /// AES with a 256-bit key, FIPS 197.
    Aes256,
    /// ChaCha20 with a 256-bit key, RFC 8439.
    ChaCha20,
    /// Single DES, FIPS 46-3: 56 bits of key, broken by search since 1998.
    Des,
    /// Three-key triple DES, SP 800-67r2: withdrawn, kept for comparison.
    TripleDes,
    /// For measurements only, and handed in by a program that measures.
    Measured(&'static MeasuredCipher),
}

/// The packet authenticator. All have 16-byte tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mac {
    /// GHASH under a one-time mask from the keystream, SP 800-38D.
    Ghash,
    /// Poly1305 under a one-time key from the keystream, RFC 8439.
    Poly1305,
    /// HMAC-SHA-256, RFC 2104, the first 128 bits.
    HmacSha256,
    /// HMAC-SHA-1, RFC 2104, the first 128 bits.
    HmacSha1,
    /// For measurements only, and handed in by a program that measures.
    Measured(&'static MeasuredMac),
}

/// The longest mask of any MAC.
pub const MASK_BYTES_MAX: usize = 32;

/// How a suite or a key exchange may be used, from the least to the most restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Offered and accepted by default.
    Standard,
    /// Insecure or withdrawn; must be named and allowed explicitly.
    Legacy,
    /// For measurements only: a connection that uses it carries no forwards.
    Measure,
}

/// A (cipher, MAC) pair with a name and a wire format. Other pairs cannot be constructed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protection(pub(crate) &'static Pair);

/// What a [`Protection`] refers to.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    pub(crate) cipher: Cipher,
    pub(crate) mac: Mac,
}

/// A pair by its name, cipher and MAC.
macro_rules! pair {
    ($name:literal, $cipher:expr, $mac:expr) => {
        Protection(&Pair { name: $name, cipher: $cipher, mac: $mac })
    };
}

pub(crate) use pair;

/// A pair that users may choose: standard or legacy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Suite(Protection);

impl Cipher {
    /// Whether it generates no keystream, so that packets are readable.
    pub const fn is_null(self) -> bool {
        matches!(self, Self::Measured(cipher) if cipher.is_null())
    }

    /// Whether a key generates keystream in blocks of 64 bits.
    pub const fn has_short_blocks(self) -> bool {
        match self {
            Self::Des | Self::TripleDes => true,
            Self::Aes128 | Self::Aes256 | Self::ChaCha20 => false,
            Self::Measured(cipher) => !cipher.is_null(),
        }
    }

    /// The engine for this cipher in place of `engine`: the one of
    /// [`CipherBackend::Auto`](crate::CipherBackend::Auto), at the same pace and with the same
    /// GHASH, if the two run the cipher alike.
    pub fn engine(self, engine: CipherEngine) -> CipherEngine {
        let auto = engine.as_auto();
        let lanes = |engine: CipherEngine| engine.aes_path().map(Path::lanes);
        let is_alike = match self {
            Self::Des | Self::TripleDes => false,
            Self::Aes128 | Self::Aes256 => lanes(engine) == lanes(auto),
            Self::ChaCha20 | Self::Measured(_) => true,
        };
        if is_alike { auto } else { engine }
    }
}

impl Protection {
    /// The name in logs and metrics; for a suite also on command lines and in files.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether the pair needs explicit consent, or is for measurements only.
    pub const fn class(self) -> Class {
        match (self.0.cipher, self.0.mac) {
            (Cipher::Measured(_), _) | (_, Mac::Measured(_)) => Class::Measure,
            (Cipher::Des | Cipher::TripleDes, _) => Class::Legacy,
            (Cipher::Aes128 | Cipher::Aes256 | Cipher::ChaCha20, _) => Class::Standard,
        }
    }

    /// The cipher that generates the keystream.
    pub const fn cipher(self) -> Cipher {
        self.0.cipher
    }

    /// The packet authenticator.
    pub const fn mac(self) -> Mac {
        self.0.mac
    }

    /// Whether TLS 1.3 has the pair (RFC 8446 B.4); the others are our own composition.
    pub const fn is_of_tls(self) -> bool {
        matches!(self.0.mac, Mac::Ghash | Mac::Poly1305)
    }

    /// Bytes of key to request from the TLS key schedule: the cipher's own key for a pair of TLS,
    /// else the 32 bytes that the pair's keys are expanded from.
    pub const fn key_bytes(self) -> usize {
        match (self.0.cipher, self.0.mac) {
            (Cipher::Aes128, Mac::Ghash) => 16,
            _ => 32,
        }
    }
}

impl Suite {
    /// `aes-256-gcm`, the default.
    pub const AES_256_GCM: Self = Self(pair!("aes-256-gcm", Cipher::Aes256, Mac::Ghash));
    /// `aes-128-gcm`.
    pub const AES_128_GCM: Self = Self(pair!("aes-128-gcm", Cipher::Aes128, Mac::Ghash));
    /// `chacha20-poly1305`.
    pub const CHACHA20_POLY1305: Self =
        Self(pair!("chacha20-poly1305", Cipher::ChaCha20, Mac::Poly1305));
    /// `aes-256-ctr-hmac-sha256`.
    pub const AES_256_CTR_HMAC_SHA256: Self =
        Self(pair!("aes-256-ctr-hmac-sha256", Cipher::Aes256, Mac::HmacSha256));
    /// `aes-256-ctr-hmac-sha1`.
    pub const AES_256_CTR_HMAC_SHA1: Self =
        Self(pair!("aes-256-ctr-hmac-sha1", Cipher::Aes256, Mac::HmacSha1));
    /// `aes-128-ctr-hmac-sha256`.
    pub const AES_128_CTR_HMAC_SHA256: Self =
        Self(pair!("aes-128-ctr-hmac-sha256", Cipher::Aes128, Mac::HmacSha256));
    /// `aes-128-ctr-hmac-sha1`.
    pub const AES_128_CTR_HMAC_SHA1: Self =
        Self(pair!("aes-128-ctr-hmac-sha1", Cipher::Aes128, Mac::HmacSha1));
    /// `3des-ctr-hmac-sha256`, legacy.
    pub const TRIPLE_DES_CTR_HMAC_SHA256: Self =
        Self(pair!("3des-ctr-hmac-sha256", Cipher::TripleDes, Mac::HmacSha256));
    /// `3des-ctr-hmac-sha1`, legacy.
    pub const TRIPLE_DES_CTR_HMAC_SHA1: Self =
        Self(pair!("3des-ctr-hmac-sha1", Cipher::TripleDes, Mac::HmacSha1));
    /// `des-ctr-hmac-sha256`, legacy.
    pub const DES_CTR_HMAC_SHA256: Self =
        Self(pair!("des-ctr-hmac-sha256", Cipher::Des, Mac::HmacSha256));
    /// `des-ctr-hmac-sha1`, legacy.
    pub const DES_CTR_HMAC_SHA1: Self =
        Self(pair!("des-ctr-hmac-sha1", Cipher::Des, Mac::HmacSha1));

    /// Every suite, the most recommended first; help texts and errors list them in this order.
    pub const ALL: [Self; 11] = [
        Self::AES_256_GCM,
        Self::AES_128_GCM,
        Self::CHACHA20_POLY1305,
        Self::AES_256_CTR_HMAC_SHA256,
        Self::AES_256_CTR_HMAC_SHA1,
        Self::AES_128_CTR_HMAC_SHA256,
        Self::AES_128_CTR_HMAC_SHA1,
        Self::TRIPLE_DES_CTR_HMAC_SHA256,
        Self::TRIPLE_DES_CTR_HMAC_SHA1,
        Self::DES_CTR_HMAC_SHA256,
        Self::DES_CTR_HMAC_SHA1,
    ];

    /// The suites of TLS 1.3 (RFC 8446 B.4). The others are our own composition, or legacy.
    pub const REVIEWED: [Self; 3] = [Self::AES_256_GCM, Self::AES_128_GCM, Self::CHACHA20_POLY1305];

    /// The suites that a server accepts unless it names others, the cheapest first: AES-GCM if
    /// [`has_aes_gcm`](crate::has_aes_gcm) is true, else ChaCha20.
    pub fn accepted(has_aes_gcm: bool) -> [Self; 3] {
        let mut suites = Self::REVIEWED;
        if !has_aes_gcm {
            suites.rotate_right(1);
        }
        suites
    }

    /// The suites that a client offers unless it names one, in the same order: one with AES, one
    /// without.
    pub fn offered(has_aes_gcm: bool) -> [Self; 2] {
        let mut suites = [Self::AES_256_GCM, Self::CHACHA20_POLY1305];
        if !has_aes_gcm {
            suites.reverse();
        }
        suites
    }

    /// Whether the suite needs explicit consent; never [`Class::Measure`].
    pub const fn class(self) -> Class {
        self.0.class()
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::AES_256_GCM
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protection({})", self.name())
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Implements what suites and measure suites have in common.
macro_rules! named_pair {
    ($type:ident, $unknown:ident) => {
        impl $type {
            /// The pair itself.
            pub const fn protection(self) -> Protection {
                self.0
            }

            /// The name on command lines and in output.
            pub const fn name(self) -> &'static str {
                self.0.name()
            }
        }

        impl From<$type> for Protection {
            fn from(suite: $type) -> Self {
                suite.0
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self.name())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = $unknown;

            fn from_str(name: &str) -> Result<Self, $unknown> {
                let found = Self::ALL.into_iter().find(|suite| suite.name() == name);
                found.ok_or_else(|| $unknown(name.to_owned()))
            }
        }
    };
}

pub(crate) use named_pair;

named_pair!(Suite, UnknownSuite);

/// Not the name of a suite. The message quotes it and lists the valid names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown suite `{0}`; suites are {names}", names = Suite::ALL.map(Suite::name).join(", "))]
pub struct UnknownSuite(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_suite() {
        for suite in Suite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(suite));
        }
        assert_eq!(Suite::default().name(), "aes-256-gcm");
    }

    #[test]
    fn defaults_begin_with_chacha20_where_aes_gcm_is_slow() {
        for (has_aes_gcm, first) in [(true, Suite::AES_256_GCM), (false, Suite::CHACHA20_POLY1305)]
        {
            let (accepted, offered) = (Suite::accepted(has_aes_gcm), Suite::offered(has_aes_gcm));
            assert_eq!((accepted[0], offered[0]), (first, first));
            assert!(Suite::REVIEWED.iter().all(|suite| accepted.contains(suite)));
            assert!(offered.iter().all(|suite| accepted.contains(suite)));
        }
    }

    #[test]
    fn an_unknown_suite_error_quotes_the_name_and_lists_the_valid_ones() {
        for name in ["rc4", "", "AES-256-GCM", "des-gcm", "aes-256-gcm ", "null-hmac-sha256"] {
            let message = name.parse::<Suite>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")));
            for suite in Suite::ALL {
                assert!(message.contains(suite.name()));
            }
        }
    }

    #[test]
    fn classes_match_names() {
        for suite in Suite::ALL {
            let legacy = suite.name().contains("des");
            assert_eq!(suite.class(), if legacy { Class::Legacy } else { Class::Standard });
        }
        assert!(Class::Standard < Class::Legacy && Class::Legacy < Class::Measure);
    }
}
