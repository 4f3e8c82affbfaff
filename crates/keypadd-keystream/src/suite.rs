//! The suites a connection can run: a cipher, a MAC, and the name people type.
//!
//! Knows which pairs exist and how they are called. Code points, offers and refusals belong to
//! the provider; `docs/DESIGN.md` lists both in one table.

use std::fmt;
use std::str::FromStr;

/// The block cipher whose counter mode makes the keystream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES with a 128-bit key, FIPS 197.
    Aes128,
    /// AES with a 256-bit key, FIPS 197.
    Aes256,
    /// Single DES, FIPS 46-3: 56 bits of key, broken by search since 1998.
    Des,
    /// Three-key triple DES, SP 800-67r2: withdrawn, kept for comparison.
    TripleDes,
}

/// What authenticates a packet. All of them send 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mac {
    /// GHASH under a one-time mask from the keystream, SP 800-38D.
    Ghash,
    /// HMAC-SHA-256, RFC 2104, the first 128 bits.
    HmacSha256,
    /// HMAC-SHA-1, RFC 2104, the first 128 bits.
    HmacSha1,
}

/// How a suite may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Offered and accepted without further ado.
    Standard,
    /// Insecure or withdrawn; only for those who ask for it by name and allow it.
    Legacy,
}

/// A (cipher, MAC) pair that has a name and a wire format. Other pairs cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Suite {
    cipher: Cipher,
    mac: Mac,
}

impl Suite {
    /// `aes-256-gcm`, the default.
    pub const AES_256_GCM: Self = Self::new(Cipher::Aes256, Mac::Ghash);
    /// `aes-128-gcm`.
    pub const AES_128_GCM: Self = Self::new(Cipher::Aes128, Mac::Ghash);
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
    pub const ALL: [Self; 10] = [
        Self::AES_256_GCM,
        Self::AES_128_GCM,
        Self::AES_256_CTR_HMAC_SHA256,
        Self::AES_256_CTR_HMAC_SHA1,
        Self::AES_128_CTR_HMAC_SHA256,
        Self::AES_128_CTR_HMAC_SHA1,
        Self::TRIPLE_DES_CTR_HMAC_SHA256,
        Self::TRIPLE_DES_CTR_HMAC_SHA1,
        Self::DES_CTR_HMAC_SHA256,
        Self::DES_CTR_HMAC_SHA1,
    ];

    const fn new(cipher: Cipher, mac: Mac) -> Self {
        Self { cipher, mac }
    }

    /// The name on command lines, in configuration, logs and metrics.
    pub const fn name(self) -> &'static str {
        match (self.cipher, self.mac) {
            (Cipher::Aes256, Mac::Ghash) => "aes-256-gcm",
            (Cipher::Aes128, Mac::Ghash) => "aes-128-gcm",
            (Cipher::Aes256, Mac::HmacSha256) => "aes-256-ctr-hmac-sha256",
            (Cipher::Aes256, Mac::HmacSha1) => "aes-256-ctr-hmac-sha1",
            (Cipher::Aes128, Mac::HmacSha256) => "aes-128-ctr-hmac-sha256",
            (Cipher::Aes128, Mac::HmacSha1) => "aes-128-ctr-hmac-sha1",
            (Cipher::TripleDes, Mac::HmacSha256) => "3des-ctr-hmac-sha256",
            (Cipher::TripleDes, Mac::HmacSha1) => "3des-ctr-hmac-sha1",
            (Cipher::Des, Mac::HmacSha256) => "des-ctr-hmac-sha256",
            (Cipher::Des, Mac::HmacSha1) => "des-ctr-hmac-sha1",
            (Cipher::Des | Cipher::TripleDes, Mac::Ghash) => unreachable!(),
        }
    }

    /// Whether the suite needs the user's explicit consent.
    pub const fn class(self) -> Class {
        match self.cipher {
            Cipher::Aes128 | Cipher::Aes256 => Class::Standard,
            Cipher::Des | Cipher::TripleDes => Class::Legacy,
        }
    }

    /// The cipher that makes the keystream.
    pub const fn cipher(self) -> Cipher {
        self.cipher
    }

    /// What authenticates the packets.
    pub const fn mac(self) -> Mac {
        self.mac
    }

    /// Bytes of key to ask of the TLS key schedule: the AES key itself for GCM, else the 32
    /// bytes that the suite's own keys are expanded from.
    pub const fn key_bytes(self) -> usize {
        match (self.cipher, self.mac) {
            (Cipher::Aes128, Mac::Ghash) => 16,
            _ => 32,
        }
    }

    /// Leading bytes of a packet's pad that mask the tag and are never XORed on payload.
    pub const fn mask_bytes(self) -> usize {
        match self.mac {
            Mac::Ghash => 16,
            Mac::HmacSha256 | Mac::HmacSha1 => 0,
        }
    }
}

impl Default for Suite {
    fn default() -> Self {
        Self::AES_256_GCM
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Suite({})", self.name())
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Suite {
    type Err = UnknownSuite;

    fn from_str(name: &str) -> Result<Self, UnknownSuite> {
        Self::ALL
            .into_iter()
            .find(|suite| suite.name() == name)
            .ok_or_else(|| UnknownSuite(name.to_owned()))
    }
}

/// A name that is no suite's. The message repeats it and lists those that exist.
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
    fn names_are_distinct() {
        for (at, suite) in Suite::ALL.into_iter().enumerate() {
            assert!(!Suite::ALL[..at].contains(&suite));
            assert!(!Suite::ALL[..at].iter().any(|earlier| earlier.name() == suite.name()));
        }
    }

    #[test]
    fn an_unknown_name_is_repeated_and_the_known_ones_listed() {
        for name in ["rc4", "", "AES-256-GCM", "null", "des-gcm", "aes-256-gcm "] {
            let message = name.parse::<Suite>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")));
            for suite in Suite::ALL {
                assert!(message.contains(suite.name()));
            }
        }
    }

    #[test]
    fn only_the_des_family_is_legacy() {
        for suite in Suite::ALL {
            assert_eq!(suite.class() == Class::Legacy, suite.name().contains("des"));
        }
    }
}
