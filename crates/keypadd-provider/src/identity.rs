//! Reads and writes identities: Ed25519 key pairs, without certificates (RFC 8032, RFC 7250).
//!
//! The public key is 44 characters of base64 on command lines and a SubjectPublicKeyInfo (RFC 8410,
//! section 4) in the handshake; the private key is a PKCS#8 PEM file that OpenSSL can read and
//! write. Knows text, DER and derivations only: neither files nor which keys are allowed.

mod error;
mod private;
mod public;
mod reset;
mod tls;

pub use error::KeyTextError;
pub use private::PrivateKey;
pub use public::PublicKey;
pub use reset::{ResetKeys, ServerResetKey};

#[cfg(test)]
mod tests;
