//! Names the (cipher, MAC) pairs that protect packets, and says who may choose which.
//!
//! A [`Protection`] is any pair with a name and a wire format; it has no parser. Users choose a
//! [`Suite`]; measurements may also choose a [`MeasureSuite`], whose parser nobody else calls.
//! Code points and negotiation belong to the provider; `docs/protocol.md` lists all pairs.

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
    /// RC2 with a 40-bit key, RFC 2268: export grade in its day; any computer can search it.
    Rc2_40,
    /// No cipher: no keystream, packets are readable.
    Null,
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
    /// HMAC-MD5, RFC 2104, all of its 128 bits.
    HmacMd5,
    /// No authentication: 16 zero bytes, which anyone can send.
    Null,
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
pub struct Protection {
    cipher: Cipher,
    mac: Mac,
}

/// A pair that users may choose: standard or legacy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Suite(Protection);

/// A pair for measurements only, as in the papers. All are insecure; some protect nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MeasureSuite(Protection);

impl Protection {
    const fn new(cipher: Cipher, mac: Mac) -> Self {
        Self { cipher, mac }
    }

    /// Every pair: those of [`Suite::ALL`], then those of [`MeasureSuite::ALL`].
    pub fn all() -> impl Iterator<Item = Self> {
        let suites = Suite::ALL.into_iter().map(Suite::protection);
        suites.chain(MeasureSuite::ALL.into_iter().map(MeasureSuite::protection))
    }

    /// The name in logs and metrics; for a suite also on command lines and in files.
    pub const fn name(self) -> &'static str {
        use {Cipher as C, Mac as M};
        match (self.cipher, self.mac) {
            (C::Aes256, M::Ghash) => "aes-256-gcm",
            (C::Aes256, M::HmacSha256) => "aes-256-ctr-hmac-sha256",
            (C::Aes256, M::HmacSha1) => "aes-256-ctr-hmac-sha1",
            (C::Aes256, M::HmacMd5) => "aes-256-ctr-hmac-md5",
            (C::Aes256, M::Null) => "aes-256-ctr-null",
            (C::Aes128, M::Ghash) => "aes-128-gcm",
            (C::Aes128, M::HmacSha256) => "aes-128-ctr-hmac-sha256",
            (C::Aes128, M::HmacSha1) => "aes-128-ctr-hmac-sha1",
            (C::Aes128, M::HmacMd5) => "aes-128-ctr-hmac-md5",
            (C::Aes128, M::Null) => "aes-128-ctr-null",
            (C::ChaCha20, M::Poly1305) => "chacha20-poly1305",
            (C::TripleDes, M::HmacSha256) => "3des-ctr-hmac-sha256",
            (C::TripleDes, M::HmacSha1) => "3des-ctr-hmac-sha1",
            (C::TripleDes, M::HmacMd5) => "3des-ctr-hmac-md5",
            (C::TripleDes, M::Null) => "3des-ctr-null",
            (C::Des, M::HmacSha256) => "des-ctr-hmac-sha256",
            (C::Des, M::HmacSha1) => "des-ctr-hmac-sha1",
            (C::Des, M::HmacMd5) => "des-ctr-hmac-md5",
            (C::Des, M::Null) => "des-ctr-null",
            (C::Rc2_40, M::HmacSha1) => "rc2-40-ctr-hmac-sha1",
            (C::Rc2_40, M::HmacMd5) => "rc2-40-ctr-hmac-md5",
            (C::Rc2_40, M::Null) => "rc2-40-ctr-null",
            (C::Null, M::HmacSha1) => "null-hmac-sha1",
            (C::Null, M::HmacMd5) => "null-hmac-md5",
            (C::Null, M::Null) => "null",
            (C::ChaCha20, _)
            | (_, M::Poly1305)
            | (C::Des | C::TripleDes | C::Rc2_40 | C::Null, M::Ghash)
            | (C::Rc2_40 | C::Null, M::HmacSha256) => unreachable!(),
        }
    }

    /// Whether the pair needs explicit consent, or is for measurements only.
    pub const fn class(self) -> Class {
        match (self.cipher, self.mac) {
            (Cipher::Rc2_40 | Cipher::Null, _) | (_, Mac::HmacMd5 | Mac::Null) => Class::Measure,
            (Cipher::Des | Cipher::TripleDes, _) => Class::Legacy,
            (Cipher::Aes128 | Cipher::Aes256 | Cipher::ChaCha20, _) => Class::Standard,
        }
    }

    /// The cipher that generates the keystream.
    pub const fn cipher(self) -> Cipher {
        self.cipher
    }

    /// The packet authenticator.
    pub const fn mac(self) -> Mac {
        self.mac
    }

    /// Whether TLS 1.3 has the pair (RFC 8446 B.4); the others are our own composition.
    pub const fn is_of_tls(self) -> bool {
        matches!(self.mac, Mac::Ghash | Mac::Poly1305)
    }

    /// Bytes of key to request from the TLS key schedule: the cipher's own key for a pair of TLS,
    /// else the 32 bytes that the pair's keys are expanded from.
    pub const fn key_bytes(self) -> usize {
        match (self.cipher, self.mac) {
            (Cipher::Aes128, Mac::Ghash) => 16,
            _ => 32,
        }
    }
}

impl Suite {
    /// `aes-256-gcm`, the default.
    pub const AES_256_GCM: Self = Self::new(Cipher::Aes256, Mac::Ghash);
    /// `aes-128-gcm`.
    pub const AES_128_GCM: Self = Self::new(Cipher::Aes128, Mac::Ghash);
    /// `chacha20-poly1305`.
    pub const CHACHA20_POLY1305: Self = Self::new(Cipher::ChaCha20, Mac::Poly1305);
    /// `aes-256-ctr-hmac-sha256`.
    pub const AES_256_CTR_HMAC_SHA256: Self = Self::new(Cipher::Aes256, Mac::HmacSha256);
    /// `aes-256-ctr-hmac-sha1`.
    pub const AES_256_CTR_HMAC_SHA1: Self = Self::new(Cipher::Aes256, Mac::HmacSha1);
    /// `aes-128-ctr-hmac-sha256`.
    pub const AES_128_CTR_HMAC_SHA256: Self = Self::new(Cipher::Aes128, Mac::HmacSha256);
    /// `aes-128-ctr-hmac-sha1`.
    pub const AES_128_CTR_HMAC_SHA1: Self = Self::new(Cipher::Aes128, Mac::HmacSha1);
    /// `3des-ctr-hmac-sha256`, legacy.
    pub const TRIPLE_DES_CTR_HMAC_SHA256: Self = Self::new(Cipher::TripleDes, Mac::HmacSha256);
    /// `3des-ctr-hmac-sha1`, legacy.
    pub const TRIPLE_DES_CTR_HMAC_SHA1: Self = Self::new(Cipher::TripleDes, Mac::HmacSha1);
    /// `des-ctr-hmac-sha256`, legacy.
    pub const DES_CTR_HMAC_SHA256: Self = Self::new(Cipher::Des, Mac::HmacSha256);
    /// `des-ctr-hmac-sha1`, legacy.
    pub const DES_CTR_HMAC_SHA1: Self = Self::new(Cipher::Des, Mac::HmacSha1);

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

    const fn new(cipher: Cipher, mac: Mac) -> Self {
        Self(Protection::new(cipher, mac))
    }

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

impl MeasureSuite {
    /// `null-hmac-sha1`: authenticated, not encrypted.
    pub const NULL_HMAC_SHA1: Self = Self::new(Cipher::Null, Mac::HmacSha1);
    /// `null`: neither encrypted nor authenticated.
    pub const NULL: Self = Self::new(Cipher::Null, Mac::Null);

    /// Every measure suite; errors list them in this order.
    pub const ALL: [Self; 14] = [
        Self::new(Cipher::Aes256, Mac::HmacMd5),
        Self::new(Cipher::Aes128, Mac::HmacMd5),
        Self::new(Cipher::TripleDes, Mac::HmacMd5),
        Self::new(Cipher::Des, Mac::HmacMd5),
        Self::new(Cipher::Rc2_40, Mac::HmacSha1),
        Self::new(Cipher::Rc2_40, Mac::HmacMd5),
        Self::new(Cipher::Aes256, Mac::Null),
        Self::new(Cipher::Aes128, Mac::Null),
        Self::new(Cipher::TripleDes, Mac::Null),
        Self::new(Cipher::Des, Mac::Null),
        Self::new(Cipher::Rc2_40, Mac::Null),
        Self::NULL_HMAC_SHA1,
        Self::new(Cipher::Null, Mac::HmacMd5),
        Self::NULL,
    ];

    const fn new(cipher: Cipher, mac: Mac) -> Self {
        Self(Protection::new(cipher, mac))
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

/// Implements what the two kinds of suites have in common.
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

named_pair!(Suite, UnknownSuite);
named_pair!(MeasureSuite, UnknownMeasureSuite);

/// Not the name of a suite. The message quotes it and lists the valid names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown suite `{0}`; suites are {names}", names = Suite::ALL.map(Suite::name).join(", "))]
pub struct UnknownSuite(String);

/// Not the name of a measure suite. The message quotes it and lists the valid names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown measure suite `{0}`; measure suites are {names}",
    names = MeasureSuite::ALL.map(MeasureSuite::name).join(", ")
)]
pub struct UnknownMeasureSuite(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_suite() {
        for suite in Suite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(suite));
        }
        for suite in MeasureSuite::ALL {
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
    fn names_are_distinct() {
        let all: Vec<_> = Protection::all().collect();
        assert_eq!(all.len(), Suite::ALL.len() + MeasureSuite::ALL.len());
        for (at, pair) in all.iter().enumerate() {
            assert!(!all[..at].contains(pair));
            assert!(!all[..at].iter().any(|earlier| earlier.name() == pair.name()));
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
            let message = name.parse::<MeasureSuite>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")));
            for suite in MeasureSuite::ALL {
                assert!(message.contains(suite.name()));
            }
        }
    }

    #[test]
    fn neither_parser_accepts_the_other_kinds_names() {
        for suite in MeasureSuite::ALL {
            assert!(suite.name().parse::<Suite>().is_err(), "{suite}");
        }
        for suite in Suite::ALL {
            assert!(suite.name().parse::<MeasureSuite>().is_err(), "{suite}");
        }
    }

    #[test]
    fn classes_match_names() {
        for suite in Suite::ALL {
            let legacy = suite.name().contains("des");
            assert_eq!(suite.class(), if legacy { Class::Legacy } else { Class::Standard });
        }
        for suite in MeasureSuite::ALL {
            let weak = ["rc2", "md5", "null"].iter().any(|part| suite.name().contains(part));
            assert!(weak && suite.protection().class() == Class::Measure, "{suite}");
        }
        assert!(Class::Standard < Class::Legacy && Class::Legacy < Class::Measure);
    }
}
