//! Checks keys in files, on command lines and from peers: any text or bytes give a key or a refusal, a key has
//! one text and one encoding, and no refusal quotes what it refuses, which may be a secret.

use keypadd_provider::{KeyTextError, PrivateKey, PublicKey};

/// The longest part of a refused text that may stand in the refusal by chance.
const QUOTED_MAX: usize = 12;

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    if let Ok(key) = PublicKey::from_spki(bytes) {
        assert_eq!(key.spki(), bytes, "a key with two encodings");
    }
    if let Ok(key) =
        bytes.try_into().map_err(drop).and_then(|key| PublicKey::from_bytes(key).map_err(drop))
    {
        assert_eq!(PublicKey::from_spki(&key.spki()), Ok(key));
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    match text.parse::<PublicKey>() {
        Ok(key) => assert_eq!(key.to_string(), text.trim(), "a key with two texts"),
        Err(error) => is_discreet(error, text),
    }
    match PrivateKey::from_pem(text) {
        Ok(key) => {
            let again = PrivateKey::from_pem(&key.to_pem()).expect("what it writes it reads");
            assert_eq!(again.public(), key.public());
            assert!(!format!("{key:?}").contains(text.trim()));
        }
        Err(error) => is_discreet(error, text),
    }
}

fn is_discreet(error: KeyTextError, text: &str) {
    let said = error.to_string();
    assert!(!said.is_empty() && !said.chars().any(char::is_control), "{said:?}");
    // Words of ours may well stand in the text.
    let secrets = text.split(|c: char| !c.is_ascii_alphanumeric() && !"+/=".contains(c));
    for secret in secrets.filter(|secret| secret.len() > QUOTED_MAX) {
        assert!(!said.contains(secret), "{said:?}");
    }
}
