//! Checks GCM's tags: every implementation of GHASH that this CPU has computes the same, whether the mask
//! comes from the pad or the key encrypts it, and verifies it.

use keypadd_keystream::{CipherBackend, GhashPath, InlineKeystream, PacketNumber, Suite, SuiteKey};

use super::input::Input;

/// Panics unless the implementations agree about a key, a number, a header and a ciphertext.
pub fn holds(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut key = [0; 32];
    let given = input.bytes(key.len());
    key[..given.len()].copy_from_slice(given);
    let Some(header_bytes) = input.byte() else { return };
    let Some(number) = input.short() else { return };
    let number = PacketNumber::new((number as u64) << 40 | number as u64);
    let header = input.bytes(usize::from(header_bytes));
    let ciphertext = input.bytes(usize::MAX);
    let mut tags = Vec::new();
    for backend in [CipherBackend::Auto, CipherBackend::Bitslice64] {
        let engine = backend.engine().expect("it is everywhere");
        for ghash in GhashPath::available() {
            let engine = engine.with_ghash(ghash);
            let SuiteKey { keystream, mac } =
                SuiteKey::derive_with(Suite::AES_256_GCM, &key, &[7; 12], engine);
            let mut mask = vec![0; mac.mask_bytes()];
            InlineKeystream::new(keystream.expect("AES")).write(number, 0, &mut mask);
            let tag = mac.tag(number, header, ciphertext, &mask);
            assert!(mac.verify(number, header, ciphertext, &mask, &tag), "{engine:?}");
            tags.push((engine, tag));
        }
    }
    for (engine, tag) in &tags {
        assert_eq!(*tag, tags[0].1, "{engine:?} and {:?}", tags[0].0);
    }
}
