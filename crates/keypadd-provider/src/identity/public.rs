//! Parses and prints public keys: 32 bytes that are known to be a usable Ed25519 key.
//!
//! Parsing is strict: a key has one text and one encoding, so equal keys compare equal.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding};
use curve25519_dalek::edwards::CompressedEdwardsY;

use super::error::{KeyTextError, is_ssh_key};

/// Length of a public key's text: 32 bytes in base64, with one `=`.
const TEXT_CHARS: usize = 44;

/// Characters of the text that identify a peer without a name.
const SHORT_CHARS: usize = 8;

/// A SubjectPublicKeyInfo of Ed25519 up to the key: SEQUENCE { SEQUENCE { OID 1.3.101.112 },
/// BIT STRING, no unused bits } (RFC 8410, sections 3 and 4). The parameters must be absent.
const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// How the base64 of a PKCS#8 Ed25519 key begins: a PEM file's middle line, pasted alone.
const PKCS8_BASE64_PREFIXES: [&str; 2] = ["MC4CAQAwBQYDK2Vw", "MFECAQEwBQYDK2Vw"];

/// An Ed25519 public key: a point of the curve, canonically encoded, not of small order.
///
/// [`FromStr`] parses the 44-character text, ignoring surrounding white space; [`fmt::Display`]
/// writes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Parses the 32 bytes of RFC 8032, section 5.1.5.
    ///
    /// # Errors
    ///
    /// [`KeyTextError::NotAPoint`] and [`KeyTextError::SmallOrder`]. A signature under a key of
    /// small order can be forged without a private key, so such a key in a list would admit anyone.
    pub fn from_bytes(bytes: [u8; 32]) -> Result<Self, KeyTextError> {
        // RFC 8032, section 5.1.3: y must be below p, which a round trip proves.
        let point = CompressedEdwardsY(bytes).decompress().ok_or(KeyTextError::NotAPoint)?;
        if point.is_small_order() {
            return Err(KeyTextError::SmallOrder);
        }
        if point.compress().to_bytes() != bytes {
            return Err(KeyTextError::NotAPoint);
        }
        Ok(Self(bytes))
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses a DER SubjectPublicKeyInfo: what a peer sends as its raw public key (RFC 7250).
    ///
    /// # Errors
    ///
    /// [`KeyTextError::NotSpki`] for any deviation from the one encoding that RFC 8410 permits, and
    /// the errors of [`PublicKey::from_bytes`].
    pub fn from_spki(der: &[u8]) -> Result<Self, KeyTextError> {
        let key = der.strip_prefix(&SPKI_PREFIX).ok_or(KeyTextError::NotSpki)?;
        Self::from_bytes(key.try_into().map_err(|_| KeyTextError::NotSpki)?)
    }

    /// The DER SubjectPublicKeyInfo of this key (RFC 8410, section 4).
    pub fn spki(&self) -> [u8; 44] {
        let mut der = [0; 44];
        der[..SPKI_PREFIX.len()].copy_from_slice(&SPKI_PREFIX);
        der[SPKI_PREFIX.len()..].copy_from_slice(&self.0);
        der
    }

    /// The first 8 characters of the text, which identify a peer without a name in logs and
    /// metrics.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(SHORT_CHARS);
        text
    }
}

impl FromStr for PublicKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let text = text.trim();
        // Detect likely mix-ups first: their lengths and alphabets are wrong too, and saying only
        // that would make users look for a typo.
        if is_ssh_key(text) {
            return Err(KeyTextError::SshKeyGiven);
        }
        let is_pkcs8_line = PKCS8_BASE64_PREFIXES.iter().any(|prefix| text.starts_with(prefix));
        if is_pkcs8_line || text.contains("PRIVATE KEY-----") {
            return Err(KeyTextError::PrivateKeyGiven);
        }
        if text.contains("-----BEGIN") {
            return Err(KeyTextError::PemGiven);
        }
        let found = text.chars().count();
        if found != TEXT_CHARS {
            return Err(KeyTextError::WrongLength { found });
        }
        // 44 characters can hold 33 bytes; the spare byte lets those be rejected rather than
        // overflow.
        let mut bytes = [0; 33];
        let bytes = Base64::decode(text, &mut bytes).map_err(|_| KeyTextError::NotBase64)?;
        Self::from_bytes(bytes.try_into().map_err(|_| KeyTextError::NotBase64)?)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&Base64::encode_string(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}
