//! Who an end is: an Ed25519 key pair, without certificates (RFC 8032, RFC 7250).
//!
//! The public key travels as 44 characters of base64 on command lines and as a SubjectPublicKeyInfo
//! (RFC 8410, section 4) in the handshake; the private key lives in a PKCS#8 PEM file that OpenSSL
//! can read and write. This module reads and writes text and DER only: it knows neither files and
//! their permissions nor which keys are allowed.

mod private;
mod public;
mod tls;

use thiserror::Error;

pub use private::PrivateKey;
pub use public::PublicKey;

/// Why a text or an encoding is not the key that was asked for.
///
/// Every message is one line, says what was found, and repeats nothing of it: the text may be a
/// secret that was pasted into the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyTextError {
    /// A private key stands where a public key belongs.
    #[error("this is a private key; a public key belongs here (44 characters of base64)")]
    PrivateKeyGiven,
    /// A public key stands where a private key belongs.
    #[error("this is a public key; a private key belongs here (a PEM file from keypadd keygen)")]
    PublicKeyGiven,
    /// An SSH key, public or private, in whatever format.
    #[error("this is an SSH key; keypadd has keys of its own (keypadd keygen makes one)")]
    SshKeyGiven,
    /// A PEM block stands where the short form of a public key belongs.
    #[error("this is a PEM block; a public key is given as its 44 characters of base64")]
    PemGiven,
    /// A public key's text is too short or too long.
    #[error("a public key is 44 characters of base64; this has {found}")]
    WrongLength {
        /// How many characters there are, without white space at either end.
        found: usize,
    },
    /// The length is right, the alphabet or the padding is not.
    #[error("this is not base64 of 32 bytes (A-Z a-z 0-9 + / and one = at the end)")]
    NotBase64,
    /// 32 bytes that encode no point of the curve, or encode one in a second way.
    #[error("these 32 bytes are not an Ed25519 public key; is a character wrong?")]
    NotAPoint,
    /// A point of small order, such as 32 zero bytes: anyone can sign for it.
    #[error("this public key is worthless: anyone can sign for it (all zeros, or of small order)")]
    SmallOrder,
    /// The SubjectPublicKeyInfo is not the one that RFC 8410 lays down for Ed25519.
    #[error("this is not the encoding of an Ed25519 public key (RFC 8410)")]
    NotSpki,
    /// No PEM block labelled PRIVATE KEY was found, or its frame is damaged.
    #[error("this is not a private key in PEM (it begins with -----BEGIN PRIVATE KEY-----)")]
    NotPem,
    /// The private key is locked with a passphrase.
    #[error("this private key is encrypted; keypadd needs it without a passphrase")]
    Encrypted,
    /// A private key of another kind, such as RSA.
    #[error("this private key is not an Ed25519 key")]
    NotEd25519,
    /// The PEM frame is whole; what it holds is not PKCS#8, or names a public key that is not its own.
    #[error("this private key is damaged: its PKCS#8 content is cut short or inconsistent")]
    Damaged,
}

/// How the base64 part of every OpenSSH Ed25519 key begins (RFC 8709, section 4).
const SSH_ED25519_BLOB: &str = "AAAAC3NzaC1lZDI1NTE5";

/// Whether `text` is an SSH key: the line of a `.pub` file, its base64 part alone, or a private file.
fn is_ssh_key(text: &str) -> bool {
    let names = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-", SSH_ED25519_BLOB];
    names.iter().any(|name| text.starts_with(name))
        || text.contains("-----BEGIN OPENSSH PRIVATE KEY-----")
}

#[cfg(test)]
mod tests;
