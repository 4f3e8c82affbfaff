//! Expands secrets by label (RFC 8446, section 7.1) independently of our code and of rustls.

use hkdf::Hkdf;
use sha2::{Digest, Sha256, Sha384};

/// HKDF-Expand-Label of TLS 1.3 with an empty context; the secret's length tells the hash.
pub fn expand_label(secret: &[u8], label: &[u8], bytes: usize) -> Vec<u8> {
    expand_in(secret, label, b"", bytes)
}

/// What an exporter of TLS 1.3 gives for an empty context (RFC 8446 7.5).
pub fn export(secret: &[u8], label: &[u8], bytes: usize) -> Vec<u8> {
    let nothing = match secret.len() {
        32 => Sha256::digest(b"").to_vec(),
        _ => Sha384::digest(b"").to_vec(),
    };
    let derived = expand_in(secret, label, &nothing, secret.len());
    expand_in(&derived, b"exporter", &nothing, bytes)
}

fn expand_in(secret: &[u8], label: &[u8], context: &[u8], bytes: usize) -> Vec<u8> {
    let mut info = (bytes as u16).to_be_bytes().to_vec();
    info.push(6 + label.len() as u8);
    info.extend_from_slice(b"tls13 ");
    info.extend_from_slice(label);
    info.push(context.len() as u8);
    info.extend_from_slice(context);
    let mut out = vec![0; bytes];
    match secret.len() {
        32 => Hkdf::<Sha256>::from_prk(secret).expect("32 bytes").expand(&info, &mut out),
        _ => Hkdf::<Sha384>::from_prk(secret).expect("48 bytes").expand(&info, &mut out),
    }
    .expect("short");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9001 appendix A.1: the client's Initial keys from its Initial secret.
    #[test]
    fn labels_expand_as_in_rfc_9001() {
        let secret = [
            0xc0, 0x0c, 0xf1, 0x51, 0xca, 0x5b, 0xe0, 0x75, 0xed, 0x0e, 0xbf, 0xb5, 0xc8, 0x03,
            0x23, 0xc4, 0x2d, 0x6b, 0x7d, 0xb6, 0x78, 0x81, 0x28, 0x9a, 0xf4, 0x00, 0x8f, 0x1f,
            0x6c, 0x35, 0x7a, 0xea,
        ];
        let iv = [0xfa, 0x04, 0x4b, 0x2f, 0x42, 0xa3, 0xfd, 0x3b, 0x46, 0xfb, 0x25, 0x5c];
        assert_eq!(expand_label(&secret, b"quic iv", 12), iv);
    }
}
