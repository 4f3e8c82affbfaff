//! Parses and prints private keys: a 32-byte seed, kept in one place in locked memory and wiped
//! when dropped.
//!
//! Reads PKCS#8 version 1, as OpenSSL writes it, and version 2 (RFC 5958, RFC 8410 section 7);
//! writes version 1, which every OpenSSL since 1.1.1 reads. ring does the arithmetic and the DER.
//! ring does not wipe the key pair that it signs with, which lives as long as its TLS
//! configuration.

use std::fmt;
use std::io;

use pem_rfc7468::LineEnding;
use ring::signature::{Ed25519KeyPair, KeyPair};
use zeroize::Zeroizing;

use super::error::{KeyTextError, is_ssh_key};
use super::public::PublicKey;
use crate::secret_memory::Secret;
use crate::wiped_stack::with_wiped_stack;

/// Upper bound on the stack that ring and the decoders use: it is wiped because they leave copies
/// of the seed there, and the stack below a daemon's start is never used again.
pub(super) const KEY_STACK_BYTES: usize = 16 << 10;

const PEM_LABEL: &str = "PRIVATE KEY";

/// A PKCS#8 version 1 document of Ed25519 up to the seed: SEQUENCE { 0, SEQUENCE { OID
/// 1.3.101.112 }, OCTET STRING { OCTET STRING } } (RFC 8410, section 7).
const PKCS8_V1_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The position of the seed in either version, and of the algorithm's name.
const SEED_BYTES: std::ops::Range<usize> = 16..48;
const ALGORITHM_BYTES: std::ops::Range<usize> = 5..12;

/// An Ed25519 private key. [`fmt::Debug`] shows the public half only; there is no `Display`.
pub struct PrivateKey {
    seed: Secret<32>,
    public: PublicKey,
}

impl PrivateKey {
    /// Generates a key from the operating system's randomness.
    ///
    /// # Errors
    ///
    /// If the operating system provides no randomness.
    pub fn generate() -> io::Result<Self> {
        with_wiped_stack::<KEY_STACK_BYTES, _>(Self::drawn)
    }

    fn drawn() -> io::Result<Self> {
        let mut seed = Secret::zeroed();
        getrandom::fill(&mut seed).map_err(|error| {
            io::Error::other(format!("cannot get random bytes from the system: {error}"))
        })?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|error| {
            io::Error::other(format!("cannot generate an Ed25519 key: {error}"))
        })?;
        let public = public_half(&pair).map_err(io::Error::other)?;
        Ok(Self { seed, public })
    }

    /// Parses the text of a PKCS#8 PEM file; text before the block is allowed (RFC 7468, section
    /// 2).
    ///
    /// # Errors
    ///
    /// A [`KeyTextError`] that says what the text is instead, or what is wrong with it.
    pub fn from_pem(text: &str) -> Result<Self, KeyTextError> {
        with_wiped_stack::<KEY_STACK_BYTES, _>(|| Self::decoded(text))
    }

    fn decoded(text: &str) -> Result<Self, KeyTextError> {
        if is_ssh_key(text.trim()) {
            return Err(KeyTextError::SshKeyGiven);
        }
        let mut buffer = Zeroizing::new(vec![0; text.len()]);
        match pem_rfc7468::decode_label(text.as_bytes()) {
            Ok(PEM_LABEL) => {}
            Ok("PUBLIC KEY" | "CERTIFICATE") => return Err(KeyTextError::PublicKeyGiven),
            Ok("ENCRYPTED PRIVATE KEY") => return Err(KeyTextError::Encrypted),
            Ok(label) if label.ends_with(PEM_LABEL) => return Err(KeyTextError::NotEd25519),
            _ if text.parse::<PublicKey>().is_ok() => return Err(KeyTextError::PublicKeyGiven),
            _ => return Err(KeyTextError::NotPem),
        }
        let (_, der) =
            pem_rfc7468::decode(text.as_bytes(), &mut buffer).map_err(|_| KeyTextError::NotPem)?;
        Self::from_pkcs8(der)
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, KeyTextError> {
        if der.len() > ALGORITHM_BYTES.end
            && der[0] == PKCS8_V1_PREFIX[0]
            && der[ALGORITHM_BYTES] != PKCS8_V1_PREFIX[ALGORITHM_BYTES]
        {
            return Err(KeyTextError::NotEd25519);
        }
        // Version 2 includes the public key, and ring rejects it if it does not match the seed.
        let pair =
            Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| KeyTextError::Damaged)?;
        let public = public_half(&pair)?;
        let seed = der.get(SEED_BYTES).and_then(|seed| seed.try_into().ok());
        let seed = Secret::copied(seed.ok_or(KeyTextError::Damaged)?);
        // Attributes after the seed may lengthen the outer header and move the seed: check that
        // these 32 bytes give the public key.
        Ed25519KeyPair::from_seed_and_public_key(&seed, public.as_bytes())
            .map_err(|_| KeyTextError::Damaged)?;
        Ok(Self { seed, public })
    }

    /// The PKCS#8 PEM text for a key file; wiped when dropped.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let text = pem_rfc7468::encode_string(PEM_LABEL, LineEnding::LF, self.pkcs8().as_slice());
        Zeroizing::new(text.expect("48 bytes are within PEM's limits"))
    }

    /// The PKCS#8 document, version 1.
    pub(super) fn pkcs8(&self) -> Zeroizing<[u8; 48]> {
        let mut der = Zeroizing::new([0; 48]);
        der[..SEED_BYTES.start].copy_from_slice(&PKCS8_V1_PREFIX);
        der[SEED_BYTES].copy_from_slice(&self.seed);
        der
    }

    /// The seed, for derivations.
    pub(super) fn seed(&self) -> &[u8] {
        &self.seed
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey").field("public", &self.public).finish_non_exhaustive()
    }
}

fn public_half(pair: &Ed25519KeyPair) -> Result<PublicKey, KeyTextError> {
    let bytes = pair.public_key().as_ref();
    PublicKey::from_bytes(bytes.try_into().map_err(|_| KeyTextError::Damaged)?)
}
