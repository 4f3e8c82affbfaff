//! Computes a connection's keys independently from the traffic secrets in rustls's key log (RFC
//! 8446 section 7.1, RFC 9001 sections 5.1 and 6.1).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use interposer::expand_label;
use keypadd_keystream::Suite;
use quinn_proto::Side;
use rustls::KeyLog;

use crate::ciphers::PacketCipher;
use crate::wire::Space;

/// The secrets that rustls logs at either end of one connection.
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

    /// The keys of one phase; `None` before the handshake has derived them.
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
