//! Derives encryption and authentication keys from the key that TLS provides.
//!
//! A suite of TLS uses its key as it is (RFC 9001 5.1). A private suite takes it as the
//! pseudorandom key of HKDF-SHA-256 and expands its keys from it (`prk.rs`, `docs/protocol.md`).

use crate::aes_ctr::AesCtr;
use crate::backend::CipherEngine;
use crate::chacha::ChaCha;
use crate::counter::wipe;
use crate::keystream::KeystreamKey;
use crate::legacy::{LegacyCipher, LegacyKey};
use crate::mac::{MacKey, TAG_BYTES};
use crate::prk::{MAC_INFO, Prk};
use crate::suite::{Cipher, Mac, Protection};
use std::sync::Arc;
use zeroize::zeroize_stack;

/// Upper bound on the stack that a derivation uses: hash states, an AES key schedule, their copies.
const DERIVE_STACK_BYTES: usize = 8192;

/// The encryption and authentication keys of one direction and key phase.
#[derive(Debug)]
pub struct SuiteKey {
    /// Generates pads; `None` for a null cipher. Shared, because a pool filler uses it too.
    pub keystream: Option<Arc<KeystreamKey>>,
    /// Computes and verifies tags.
    pub mac: MacKey,
}

impl SuiteKey {
    /// Derives the keys of `suite` from a TLS key and IV (RFC 9001 5.1).
    ///
    /// # Panics
    ///
    /// If `key` is not [`Protection::key_bytes`] long: the provider asked TLS for the wrong
    /// length, which no peer can cause.
    pub fn derive(suite: impl Into<Protection>, key: &[u8], iv: &[u8; 12]) -> Self {
        Self::derive_with(suite, key, iv, CipherEngine::default())
    }

    /// As [`Self::derive`], with a chosen cipher implementation.
    ///
    /// # Panics
    ///
    /// As [`Self::derive`].
    pub fn derive_with(
        suite: impl Into<Protection>,
        key: &[u8],
        iv: &[u8; 12],
        engine: CipherEngine,
    ) -> Self {
        let suite = suite.into();
        assert_eq!(key.len(), suite.key_bytes(), "length of the key for {suite}");
        let keys = Self::expand(suite, key, iv, engine);
        zeroize_stack::<DERIVE_STACK_BYTES>();
        keys
    }

    /// Has its own stack frame, so that the caller can wipe what HKDF and key schedules leave
    /// there.
    #[inline(never)]
    fn expand(suite: Protection, key: &[u8], iv: &[u8; 12], engine: CipherEngine) -> Self {
        let pacing = engine.pacing();
        let private = |mac: &dyn Fn(&Prk) -> MacKey| {
            let prk = Prk::new(key.try_into().expect("32 bytes, as asserted"));
            let mac = mac(&prk);
            (private_keystream(suite.cipher(), prk, iv, engine), mac)
        };
        let (keystream, mac) = match suite.mac() {
            Mac::Ghash => {
                let aes = Arc::new(AesCtr::new(key, iv, engine));
                // SP 800-38D 7.1, step 1.
                let mut h = aes.encrypted([0; 16]);
                let mask = aes.uses_aes_instructions().then(|| Arc::clone(&aes));
                let mac = MacKey::ghash(engine.ghash(), &h, mask);
                wipe(&mut h);
                // Block 0 is the mask, whether it is part of the pad or not.
                let skipped = TAG_BYTES - mac.mask_bytes();
                (Some(KeystreamKey::aes(suite.cipher(), aes, skipped, pacing)), mac)
            }
            Mac::Poly1305 => {
                let key = key.try_into().expect("32 bytes, as asserted");
                (Some(KeystreamKey::chacha(ChaCha::new(key, iv), pacing)), MacKey::poly1305())
            }
            Mac::HmacSha256 => private(&|prk| MacKey::hmac_sha256(&prk.expanded(&MAC_INFO))),
            Mac::HmacSha1 => private(&|prk| MacKey::hmac_sha1(&prk.expanded(&MAC_INFO))),
            Mac::Measured(mac) => private(&|prk| MacKey::measured((mac.key)(prk))),
        };
        Self { keystream: keystream.map(Arc::new), mac }
    }
}

/// The keystream of a private suite: AES uses one key expanded from `prk`, a 64-bit cipher expands
/// a subkey per segment on demand, and a null cipher has none.
fn private_keystream(
    cipher: Cipher,
    prk: Prk,
    iv: &[u8; 12],
    engine: CipherEngine,
) -> Option<KeystreamKey> {
    let enc = [b"keypadd enc".as_slice()];
    let pacing = engine.pacing();
    let aes = |aes| KeystreamKey::aes(cipher, Arc::new(aes), 0, pacing);
    let legacy =
        |legacy, prk| KeystreamKey::legacy(cipher, LegacyKey::new(legacy, prk, engine), pacing);
    Some(match cipher {
        Cipher::Aes128 => aes(AesCtr::new(&*prk.expanded::<16>(&enc), iv, engine)),
        Cipher::Aes256 => aes(AesCtr::new(&*prk.expanded::<32>(&enc), iv, engine)),
        Cipher::Des => legacy(LegacyCipher::Des, prk),
        Cipher::TripleDes => legacy(LegacyCipher::TripleDes, prk),
        Cipher::Measured(measured) => legacy(LegacyCipher::Measured(measured.subkey?), prk),
        Cipher::ChaCha20 => unreachable!("only with Poly1305, a suite of TLS"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::MeasureSuite;
    use crate::suite::Suite;
    use hmac::digest::block_buffer::{BlockBuffer, Eager};
    use zeroize::ZeroizeOnDrop;

    /// `Hmac` and `Hkdf` consist of hash cores and a buffer, and have no other fields.
    #[test]
    fn the_types_that_hold_keys_wipe_themselves() {
        fn wipes_itself<T: ZeroizeOnDrop>() {}
        wipes_itself::<aes::Aes128Enc>();
        wipes_itself::<aes::Aes256Enc>();
        wipes_itself::<chacha20::ChaChaCore<chacha20::R20, chacha20::variants::Ietf>>();
        wipes_itself::<des::Des>();
        wipes_itself::<des::TdesEde3>();
        wipes_itself::<rc2::Rc2>();
        wipes_itself::<md5::block_api::Md5Core>();
        wipes_itself::<sha1::block_api::Sha1Core>();
        wipes_itself::<sha2::block_api::Sha256VarCore>();
        wipes_itself::<BlockBuffer<cipher::consts::U64, Eager>>();
    }

    #[test]
    #[should_panic(expected = "length of the key")]
    fn a_key_of_the_wrong_length_panics() {
        SuiteKey::derive(Suite::AES_128_GCM, &[0; 32], &[0; 12]);
    }

    #[test]
    fn a_null_cipher_has_no_keystream_and_all_others_have_one() {
        for suite in Protection::all() {
            let keys = SuiteKey::derive(suite, &[7; 32][..suite.key_bytes()], &[0; 12]);
            let cipher = keys.keystream.as_ref().map(|keystream| keystream.cipher());
            assert_eq!(cipher.unwrap_or(Cipher::NULL), suite.cipher(), "{suite}");
        }
        assert!(SuiteKey::derive(MeasureSuite::NULL, &[7; 32], &[0; 12]).keystream.is_none());
    }

    #[test]
    fn debug_output_shows_no_key() {
        let key = [0xab; 32];
        let keys = SuiteKey::derive(Suite::DES_CTR_HMAC_SHA1, &key, &[0xab; 12]);
        let shown = format!("{keys:?}");
        assert!(!shown.contains("171") && !shown.contains("ab,"), "{shown}");
    }
}
