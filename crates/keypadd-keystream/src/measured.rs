//! Has the ciphers, MACs and suites that are for measurements only: RC2 with a 40-bit key, no
//! cipher, HMAC-MD5 and no MAC.
//!
//! **Warning: these protect little or nothing.** RC2-40 falls to a search of 2^40 keys, and the
//! `rc2` crate indexes tables by secrets. Nothing else in this crate names them: a program contains
//! them only if it names them itself and hands them in, as suites.

use crate::legacy::{MeasuredCipher, Subkey, write_pad};
use crate::mac::{self, MeasuredMac, PacketMac, TAG_BYTES};
use crate::number::PacketNumber;
use crate::prk::MAC_INFO;
use crate::suite::{Cipher, Mac, Pair, Protection, Suite, named_pair, pair};
use hmac::Hmac;
use md5::Md5;
use rc2::Rc2;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Effective bits of an RC2 key (RFC 2268 2), and the key bytes to expand.
const RC2_BITS: usize = 40;
const RC2_KEY_BYTES: usize = RC2_BITS / 8;

static RC2_40: MeasuredCipher =
    MeasuredCipher { name: "RC2-40", digit: 5, subkey: Some(rc2_subkey) };
static NULL_CIPHER: MeasuredCipher = MeasuredCipher { name: "null", digit: 0, subkey: None };
pub(crate) static HMAC_MD5: MeasuredMac = MeasuredMac {
    name: "HMAC-MD5",
    digit: 3,
    key: |prk| mac::keyed::<Hmac<Md5>>(&*prk.expanded::<16>(&MAC_INFO)),
};
pub(crate) static NULL_MAC: MeasuredMac =
    MeasuredMac { name: "null", digit: 0, key: |_| Box::new(NullMac) };

impl Cipher {
    /// RC2 with a 40-bit key, RFC 2268: export grade in its day; any computer can search it.
    pub const RC2_40: Self = Self::Measured(&RC2_40);
    /// No cipher: no keystream, packets are readable.
    pub const NULL: Self = Self::Measured(&NULL_CIPHER);
}

impl Mac {
    /// HMAC-MD5, RFC 2104, all of its 128 bits.
    pub const HMAC_MD5: Self = Self::Measured(&HMAC_MD5);
    /// No authentication: 16 zero bytes, which anyone can send.
    pub const NULL: Self = Self::Measured(&NULL_MAC);
}

/// RC2 has no parity bits and no list of weak keys, so the first try is used.
fn rc2_subkey(expand: &dyn Fn(&mut [u8])) -> Subkey {
    let mut material = Zeroizing::new([0; RC2_KEY_BYTES + 8]);
    expand(&mut *material);
    let (key, iv) = material.split_at(RC2_KEY_BYTES);
    Subkey::rc2(Rc2::new_with_eff_key_len(key, RC2_BITS), write_pad, iv)
}

impl PacketMac for Hmac<Md5> {
    fn tag(&self, packet: PacketNumber, header: &[u8], ciphertext: &[u8]) -> [u8; TAG_BYTES] {
        mac::hmac_and_wipe(self, packet, header, ciphertext)
    }
}

/// Authenticates nothing.
struct NullMac;

impl PacketMac for NullMac {
    fn tag(&self, _: PacketNumber, _: &[u8], _: &[u8]) -> [u8; TAG_BYTES] {
        [0; TAG_BYTES]
    }
}

/// A pair for measurements only, as in the papers. All are insecure; some protect nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MeasureSuite(Protection);

impl MeasureSuite {
    /// `null-hmac-sha1`: authenticated, not encrypted.
    pub const NULL_HMAC_SHA1: Self = Self(pair!("null-hmac-sha1", Cipher::NULL, Mac::HmacSha1));
    /// `null`: neither encrypted nor authenticated.
    pub const NULL: Self = Self(pair!("null", Cipher::NULL, Mac::NULL));

    /// Every measure suite; errors list them in this order.
    pub const ALL: [Self; 14] = [
        Self(pair!("aes-256-ctr-hmac-md5", Cipher::Aes256, Mac::HMAC_MD5)),
        Self(pair!("aes-128-ctr-hmac-md5", Cipher::Aes128, Mac::HMAC_MD5)),
        Self(pair!("3des-ctr-hmac-md5", Cipher::TripleDes, Mac::HMAC_MD5)),
        Self(pair!("des-ctr-hmac-md5", Cipher::Des, Mac::HMAC_MD5)),
        Self(pair!("rc2-40-ctr-hmac-sha1", Cipher::RC2_40, Mac::HmacSha1)),
        Self(pair!("rc2-40-ctr-hmac-md5", Cipher::RC2_40, Mac::HMAC_MD5)),
        Self(pair!("aes-256-ctr-null", Cipher::Aes256, Mac::NULL)),
        Self(pair!("aes-128-ctr-null", Cipher::Aes128, Mac::NULL)),
        Self(pair!("3des-ctr-null", Cipher::TripleDes, Mac::NULL)),
        Self(pair!("des-ctr-null", Cipher::Des, Mac::NULL)),
        Self(pair!("rc2-40-ctr-null", Cipher::RC2_40, Mac::NULL)),
        Self::NULL_HMAC_SHA1,
        Self(pair!("null-hmac-md5", Cipher::NULL, Mac::HMAC_MD5)),
        Self::NULL,
    ];
}

named_pair!(MeasureSuite, UnknownMeasureSuite);

/// Not the name of a measure suite. The message quotes it and lists the valid names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown measure suite `{0}`; measure suites are {names}",
    names = MeasureSuite::ALL.map(MeasureSuite::name).join(", ")
)]
pub struct UnknownMeasureSuite(String);

impl Protection {
    /// Every pair: those of [`Suite::ALL`], then those of [`MeasureSuite::ALL`]. For programs that
    /// measure, and for tests.
    pub fn all() -> impl Iterator<Item = Self> {
        let suites = Suite::ALL.into_iter().map(Suite::protection);
        suites.chain(MeasureSuite::ALL.into_iter().map(MeasureSuite::protection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;
    use crate::mac::tests::check;
    use crate::vectors;

    #[test]
    fn every_name_parses_to_its_suite_and_neither_parser_accepts_the_other_kinds() {
        for suite in MeasureSuite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(suite));
            assert!(suite.name().parse::<Suite>().is_err(), "{suite}");
        }
        for suite in Suite::ALL {
            assert!(suite.name().parse::<MeasureSuite>().is_err(), "{suite}");
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
        for name in ["rc4", "", "NULL", "des-gcm", "null-hmac-sha256"] {
            let message = name.parse::<MeasureSuite>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")));
            for suite in MeasureSuite::ALL {
                assert!(message.contains(suite.name()));
            }
        }
    }

    #[test]
    fn classes_match_names() {
        for suite in MeasureSuite::ALL {
            let weak = ["rc2", "md5", "null"].iter().any(|part| suite.name().contains(part));
            assert!(weak && suite.protection().class() == Class::Measure, "{suite}");
        }
    }

    #[test]
    fn rfc_2202_macs_of_md5_are_reproduced() {
        check::<Hmac<Md5>>(include_str!("../tests/vectors/rfc2202_md5.txt"));
    }

    /// Covers every effective key length in the RFC; `tests/sealed_packets.rs` covers 40 bits.
    #[test]
    fn rfc_2268_blocks_are_reproduced_as_pads() {
        for case in vectors::blocks(include_str!("../tests/vectors/rfc2268.txt")) {
            let rc2 = Rc2::new_with_eff_key_len(&case.bytes("key"), case.parsed("effective_bits"));
            let mut pad = [0; 8];
            Subkey::rc2(rc2, write_pad, &case.bytes("plaintext")).write(0, 0, &mut pad);
            assert_eq!(pad[..], case.bytes("ciphertext"));
        }
    }
}
