//! Tests key files and public keys: round trips, OpenSSL compatibility, refusals that quote no
//! secret.

#![allow(clippy::unwrap_used)]

use base64ct::{Base64, Encoding};
use curve25519_dalek::constants::EIGHT_TORSION;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use super::*;

const OPENSSL_PRIVATE: &str = include_str!("../../tests/vectors/ed25519-openssl-private.pem");
const OPENSSL_PUBLIC: &str = include_str!("../../tests/vectors/ed25519-openssl-public.pem");
const OPENSSL_ENCRYPTED: &str = include_str!("../../tests/vectors/ed25519-openssl-encrypted.pem");
const OPENSSL_P256: &str = include_str!("../../tests/vectors/p256-openssl-private.pem");
const RFC_8410_V1: &str = include_str!("../../tests/vectors/ed25519-rfc8410-v1.pem");
const RFC_8410_V2: &str = include_str!("../../tests/vectors/ed25519-rfc8410-v2.pem");

/// The public key of RFC 8410's examples, its section 10.1: a SubjectPublicKeyInfo.
const RFC_8410_SPKI: &str = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
const RFC_8410_PUBLIC: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

fn public(text: &str) -> Result<PublicKey, KeyTextError> {
    text.parse()
}

fn private(text: &str) -> KeyTextError {
    PrivateKey::from_pem(text).expect_err("not a private key")
}

fn pem_block(der: &[u8]) -> String {
    pem_rfc7468::encode_string("PRIVATE KEY", Default::default(), der).unwrap()
}

/// The PEM block of a vector, without its origin line.
fn block(vector: &str) -> &str {
    vector.split_once('\n').expect("a first line").1
}

#[test]
fn public_key_text_round_trips() {
    let key = PrivateKey::generate().unwrap().public();
    assert_eq!(key.to_string().len(), 44);
    assert_eq!(public(&key.to_string()), Ok(key));
    assert_eq!(public(&format!(" {key}\r\n")), Ok(key));
    assert_eq!(key.short(), key.to_string()[..8]);
}

#[test]
fn spki_is_the_one_of_rfc_8410() {
    let spki = Base64::decode_vec(RFC_8410_SPKI).unwrap();
    let key = public(RFC_8410_PUBLIC).unwrap();
    assert_eq!(key.spki().as_slice(), spki);
    assert_eq!(PublicKey::from_spki(&spki), Ok(key));
}

#[test]
fn no_other_spki_encoding_is_read() {
    let spki = public(RFC_8410_PUBLIC).unwrap().spki();
    for cut in 0..spki.len() {
        assert_eq!(PublicKey::from_spki(&spki[..cut]), Err(KeyTextError::NotSpki));
    }
    assert_eq!(PublicKey::from_spki(&[&spki[..], &[0]].concat()), Err(KeyTextError::NotSpki));
    for at in 0..12 {
        for bit in 0..8 {
            let mut changed = spki;
            changed[at] ^= 1 << bit;
            assert_eq!(PublicKey::from_spki(&changed), Err(KeyTextError::NotSpki));
        }
    }
    // NULL parameters, as RSA has them, which RFC 8410 forbids.
    let with_null =
        [b"\x30\x2c\x30\x07\x06\x03\x2b\x65\x70\x05\x00\x03\x21\x00", &spki[12..]].concat();
    assert_eq!(PublicKey::from_spki(&with_null), Err(KeyTextError::NotSpki));
}

#[test]
fn openssl_private_key_reads_and_writes_back_byte_for_byte() {
    let key = PrivateKey::from_pem(OPENSSL_PRIVATE).unwrap();
    assert_eq!(key.to_pem().as_str(), block(OPENSSL_PRIVATE));
    assert_eq!(PrivateKey::from_pem(block(OPENSSL_PRIVATE)).unwrap().public(), key.public());

    let body = block(OPENSSL_PUBLIC).lines().nth(1).unwrap();
    assert_eq!(key.public().spki().as_slice(), Base64::decode_vec(body).unwrap());
}

#[test]
fn pkcs8_of_either_version_is_read() {
    let expected = public(RFC_8410_PUBLIC).unwrap();
    for text in [RFC_8410_V1, RFC_8410_V2] {
        let key = PrivateKey::from_pem(text).unwrap();
        assert_eq!(key.public(), expected);
        assert_eq!(key.to_pem().as_str(), block(RFC_8410_V1));
    }
    assert!(PrivateKey::from_pem(&RFC_8410_V2.replace('\n', "\r\n")).is_ok());

    // ring writes version 2 with the tag of an early draft.
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
    let key = PrivateKey::from_pem(&pem_block(der.as_ref())).unwrap();
    assert_eq!(key.public().as_bytes(), pair.public_key().as_ref());
}

#[test]
fn generated_keys_sign_and_differ() {
    let (one, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    assert_ne!(one.public(), other.public());
    let again = PrivateKey::from_pem(&one.to_pem()).unwrap();
    assert_eq!(again.public(), one.public());

    let public = one.public();
    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(one.pkcs8().as_slice()).unwrap();
    let verifier = UnparsedPublicKey::new(&ED25519, public.as_bytes());
    assert!(verifier.verify(b"text", pair.sign(b"text").as_ref()).is_ok());
}

#[test]
fn debug_shows_no_secret() {
    let key = PrivateKey::from_pem(OPENSSL_PRIVATE).unwrap();
    let shown = format!("{key:?}");
    assert_eq!(shown, format!("PrivateKey {{ public: PublicKey({}), .. }}", key.public()));
}

#[test]
fn what_is_given_instead_of_a_public_key_is_named() {
    let middle_line = block(OPENSSL_PRIVATE).lines().nth(1).unwrap();
    let cases = [
        (OPENSSL_PRIVATE, KeyTextError::PrivateKeyGiven),
        (block(OPENSSL_PRIVATE), KeyTextError::PrivateKeyGiven),
        (OPENSSL_ENCRYPTED, KeyTextError::PrivateKeyGiven),
        (middle_line, KeyTextError::PrivateKeyGiven),
        (OPENSSL_PUBLIC, KeyTextError::PemGiven),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBm/ host", KeyTextError::SshKeyGiven),
        ("AAAAC3NzaC1lZDI1NTE5AAAAIBm/", KeyTextError::SshKeyGiven),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==", KeyTextError::SshKeyGiven),
        ("", KeyTextError::WrongLength { found: 0 }),
        (&RFC_8410_PUBLIC[1..], KeyTextError::WrongLength { found: 43 }),
        (RFC_8410_SPKI, KeyTextError::WrongLength { found: 60 }),
        (&"\u{e9}".repeat(43), KeyTextError::WrongLength { found: 43 }),
        (&"\u{e9}".repeat(44), KeyTextError::NotBase64),
        (&RFC_8410_PUBLIC.replace('9', "-"), KeyTextError::NotBase64), // the URL alphabet
        (&RFC_8410_PUBLIC.replace('=', "A"), KeyTextError::NotBase64), // 33 bytes
        (&RFC_8410_PUBLIC.replace("E=", "=="), KeyTextError::NotBase64), // 31 bytes
        (&RFC_8410_PUBLIC.replace("E=", "F="), KeyTextError::NotBase64), // unused bits set
        (&RFC_8410_PUBLIC.replace("ECW", "E W"), KeyTextError::NotBase64),
    ];
    for (text, error) in cases {
        assert_eq!(public(text), Err(error), "{text}");
    }
}

#[test]
fn what_is_given_instead_of_a_private_key_is_named() {
    let cases = [
        (RFC_8410_PUBLIC, KeyTextError::PublicKeyGiven),
        (OPENSSL_PUBLIC, KeyTextError::PublicKeyGiven),
        (OPENSSL_ENCRYPTED, KeyTextError::Encrypted),
        (OPENSSL_P256, KeyTextError::NotEd25519),
        (&OPENSSL_P256.replace("PRIVATE", "EC PRIVATE"), KeyTextError::NotEd25519),
        (&OPENSSL_PRIVATE.replace("PRIVATE", "OPENSSH PRIVATE"), KeyTextError::SshKeyGiven),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBm/ host", KeyTextError::SshKeyGiven),
        ("", KeyTextError::NotPem),
        ("listen = 4433\n", KeyTextError::NotPem),
        (&OPENSSL_PRIVATE.replace("-----END", "----END"), KeyTextError::NotPem),
        (&OPENSSL_PRIVATE.replace("MC4C", "M!4C"), KeyTextError::NotPem),
        (&OPENSSL_PRIVATE.replace("MC4C", ""), KeyTextError::Damaged),
    ];
    for (text, error) in cases {
        assert_eq!(private(text), error, "{text}");
    }
}

#[test]
fn damaged_pkcs8_is_refused() {
    let (_, v2) = pem_rfc7468::decode_vec(RFC_8410_V2.as_bytes()).unwrap();
    for cut in 1..v2.len() {
        assert_eq!(private(&pem_block(&v2[..cut])), KeyTextError::Damaged, "{cut}");
    }
    // Flipping any bit of the seed or of the public key makes the two disagree.
    for at in (16..48).chain(v2.len() - 32..v2.len()) {
        let mut changed = v2.clone();
        changed[at] ^= 1;
        assert_eq!(private(&pem_block(&changed)), KeyTextError::Damaged, "{at}");
    }
    assert_eq!(private(&pem_block(&[&v2[..], &[0]].concat())), KeyTextError::Damaged);
}

#[test]
fn public_keys_of_small_order_are_refused() {
    assert_eq!(public(&Base64::encode_string(&[0; 32])), Err(KeyTextError::SmallOrder));
    for point in EIGHT_TORSION {
        let bytes = point.compress().to_bytes();
        assert_eq!(PublicKey::from_bytes(bytes), Err(KeyTextError::SmallOrder));
    }
}

#[test]
fn bytes_other_than_a_canonical_point_are_refused() {
    // y = 2 is on no point; y = p + 3 is y = 3 written a second way (RFC 8032, section 5.1.3).
    let (mut off_curve, mut three, mut three_again) = ([0; 32], [0; 32], [0xff; 32]);
    off_curve[0] = 2;
    three[0] = 3;
    three_again[0] = 0xf0;
    three_again[31] = 0x7f;
    assert_eq!(PublicKey::from_bytes(off_curve), Err(KeyTextError::NotAPoint));
    assert!(PublicKey::from_bytes(three).is_ok());
    assert_eq!(PublicKey::from_bytes(three_again), Err(KeyTextError::NotAPoint));
}

#[test]
fn messages_are_one_line_and_quote_nothing_of_the_text() {
    let secret = block(OPENSSL_PRIVATE).lines().nth(1).unwrap();
    for text in [OPENSSL_PRIVATE, secret, &secret[20..], &secret[..44], &secret[20..64]] {
        for message in [public(text).err(), PrivateKey::from_pem(text).err()] {
            let message = message.map(|error| error.to_string()).unwrap_or_default();
            assert!(!message.contains('\n'));
            assert!(
                !secret
                    .as_bytes()
                    .windows(8)
                    .any(|w| message.as_bytes().windows(8).any(|m| m == w))
            );
        }
    }
}
