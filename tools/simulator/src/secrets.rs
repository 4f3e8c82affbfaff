//! One connection's key schedule, computed from the traffic secrets that rustls's key log tells:
//! RFC 8446 section 7.1 and RFC 9001 sections 5.1 and 6.1, a second time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hkdf::Hkdf;
use keypadd_keystream::Suite;
use quinn_proto::Side;
use rustls::KeyLog;
use sha2::{Sha256, Sha384};

use crate::ciphers::PacketCipher;
use crate::wire::Space;

/// What rustls logs at either end of one connection.
#[derive(Debug, Default)]
pub(crate) struct SecretLog(Mutex<BTreeMap<String, Vec<u8>>>);

impl SecretLog {
    fn secrets(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn secret(&self, space: Space, sender: Side) -> Option<Vec<u8>> {
        let label = match (space, sender) {
            (Space::Handshake, Side::Client) => "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
            (Space::Handshake, Side::Server) => "SERVER_HANDSHAKE_TRAFFIC_SECRET",
            (Space::Data, Side::Client) => "CLIENT_TRAFFIC_SECRET_0",
            (Space::Data, Side::Server) => "SERVER_TRAFFIC_SECRET_0",
            (Space::Initial, _) => return None,
        };
        self.secrets().get(label).cloned()
    }

    /// The keys of one phase; `None` before the handshake has come to them.
    pub(crate) fn keys(
        &self,
        suite: Suite,
        space: Space,
        sender: Side,
        phase: u64,
    ) -> Option<PhaseKeys> {
        let mut secret = self.secret(space, sender)?;
        let header = expand_label(&secret, b"quic hp", suite.protection().key_bytes());
        for _ in 0..phase {
            secret = expand_label(&secret, b"quic ku", secret.len());
        }
        let key = expand_label(&secret, b"quic key", suite.protection().key_bytes());
        let iv = expand_label(&secret, b"quic iv", 12).try_into().expect("12 bytes");
        Some(PhaseKeys { header, packet: PacketCipher::new(suite, &key, iv) })
    }
}

impl KeyLog for SecretLog {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if let Some(other) = self.secrets().insert(label.into(), secret.into()) {
            assert_eq!(other, secret, "the ends disagree about {label}");
        }
    }
}

/// The keys of one phase of one direction.
pub(crate) struct PhaseKeys {
    pub(crate) header: Vec<u8>,
    pub(crate) packet: PacketCipher,
}

/// HKDF-Expand-Label of TLS 1.3 with an empty context; the secret's length tells the hash.
fn expand_label(secret: &[u8], label: &[u8], bytes: usize) -> Vec<u8> {
    let mut info = (bytes as u16).to_be_bytes().to_vec();
    info.push(6 + label.len() as u8);
    info.extend_from_slice(b"tls13 ");
    info.extend_from_slice(label);
    info.push(0);
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
