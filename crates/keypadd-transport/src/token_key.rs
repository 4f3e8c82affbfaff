//! Makes the key of the tokens by which clients show that they receive at their address (RFC 9000
//! 8.1): another one in each epoch.
//!
//! quinn-proto draws a token's nonce from a generator that it seeds once. A copy of this machine
//! goes on with the same generator, so under one key its tokens would have the nonces of the
//! original's.

use std::sync::{Arc, Mutex, PoisonError};

use quinn_proto::crypto::{AeadKey, HandshakeTokenKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use zeroize::Zeroizing;

use crate::{randomness::fill_random, udp::Egress};

/// Bytes that a key is made from: as many as its hash has.
const SEED_BYTES: usize = 32;

/// The key for all loops of an endpoint, any of which may be sent a token.
pub(crate) struct TokenKey {
    egress: Arc<dyn Egress>,
    current: Mutex<EpochKey>,
}

struct EpochKey {
    epoch: u64,
    key: Prk,
}

impl TokenKey {
    pub(crate) fn new(egress: Arc<dyn Egress>) -> Self {
        let current = Mutex::new(EpochKey { epoch: egress.epoch(), key: draw() });
        Self { egress, current }
    }
}

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        // Replaced as a whole, so a panic leaves nothing half changed.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.egress.epoch();
        if epoch != current.epoch {
            *current = EpochKey { epoch, key: draw() };
        }
        current.key.aead_from_hkdf(random_bytes)
    }
}

/// A key that nobody else has.
fn draw() -> Prk {
    let mut seed = Zeroizing::new([0; SEED_BYTES]);
    fill_random(&mut *seed);
    Salt::new(HKDF_SHA256, &[]).extract(&*seed)
}
