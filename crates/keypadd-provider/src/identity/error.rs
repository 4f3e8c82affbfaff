//! Explains why a text or an encoding is not the key that was expected.

use thiserror::Error;

/// Why a text or an encoding is not the key that was expected.
///
/// Every message is one line, says what was found, and quotes none of it: the text may be a secret
/// pasted into the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyTextError {
    /// A private key was given instead of a public key.
    #[error("this is a private key; expected a public key (44 characters of base64)")]
    PrivateKeyGiven,
    /// A public key was given instead of a private key.
    #[error("this is a public key; expected a private key (a PEM file from keypadd keygen)")]
    PublicKeyGiven,
    /// An SSH key was given, public or private, in any format.
    #[error("this is an SSH key; keypadd uses its own keys (create one with keypadd keygen)")]
    SshKeyGiven,
    /// A PEM block was given instead of a public key's base64.
    #[error("this is a PEM block; a public key is given as its 44 characters of base64")]
    PemGiven,
    /// A public key's text is too short or too long.
    #[error("a public key is 44 characters of base64; this has {found}")]
    WrongLength {
        /// The characters found, without surrounding white space.
        found: usize,
    },
    /// The length is right, but the alphabet or the padding is not.
    #[error("this is not base64 of 32 bytes (A-Z a-z 0-9 + / and one = at the end)")]
    NotBase64,
    /// The 32 bytes encode no point of the curve, or encode one non-canonically.
    #[error("these 32 bytes are not an Ed25519 public key; is a character wrong?")]
    NotAPoint,
    /// The point has small order, such as 32 zero bytes: anyone can sign for it.
    #[error("this public key is insecure: anyone can sign for it (all zeros, or of small order)")]
    SmallOrder,
    /// The SubjectPublicKeyInfo is not the one that RFC 8410 specifies for Ed25519.
    #[error("this is not the encoding of an Ed25519 public key (RFC 8410)")]
    NotSpki,
    /// There is no PEM block labeled PRIVATE KEY, or its frame is damaged.
    #[error(
        "this is not a private key in PEM (such a file begins with -----BEGIN PRIVATE KEY-----)"
    )]
    NotPem,
    /// The private key is encrypted with a passphrase.
    #[error("this private key is encrypted; keypadd needs it without a passphrase")]
    Encrypted,
    /// A private key of another kind, such as RSA.
    #[error("this private key is not an Ed25519 key")]
    NotEd25519,
    /// The PEM frame is intact, but its content is not PKCS#8, or includes a public key that does
    /// not match.
    #[error("this private key is damaged: its PKCS#8 content is cut short or inconsistent")]
    Damaged,
}

/// How the base64 part of every OpenSSH Ed25519 key begins (RFC 8709, section 4).
const SSH_ED25519_BLOB: &str = "AAAAC3NzaC1lZDI1NTE5";

/// Whether `text` is an SSH key: the line of a `.pub` file, its base64 part alone, or a private
/// file.
pub(super) fn is_ssh_key(text: &str) -> bool {
    let names = ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-", SSH_ED25519_BLOB];
    names.iter().any(|name| text.starts_with(name))
        || text.contains("-----BEGIN OPENSSH PRIVATE KEY-----")
}
