//! Derives the keys of a server's stateless resets (RFC 9000 10.3) from its private key, so that a
//! restarted server resets connections that it no longer knows.
//!
//! Knows no connections: the endpoint decides which IDs get a reset (docs/protocol.md, "Stateless
//! resets").

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use quinn_proto::crypto::{CryptoError, HmacKey};
use ring::{hkdf, hmac};

use super::private::{KEY_STACK_BYTES, PrivateKey};
use crate::wiped_stack::with_wiped_stack;

const LABEL: &[u8] = b"keypadd stateless reset";

/// Derives the reset keys of all servers of one host with one private key; no server's key reveals
/// another's.
#[derive(Clone)]
pub struct ResetKeys {
    extracted: hkdf::Prk,
    host: Arc<[u8]>,
}

impl ResetKeys {
    /// The key of the server that is bound to this UDP address. Every address has its own, or a
    /// server could be made to reset the connections of another one with the same private key (RFC
    /// 9000 21.11).
    pub fn of_address(&self, address: SocketAddr) -> ServerResetKey {
        ServerResetKey { address, current: RwLock::new(self.derive(address)) }
    }

    fn derive(&self, address: SocketAddr) -> hmac::Key {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        // Only the last part has no fixed length.
        let info = [LABEL, &ip, &address.port().to_be_bytes(), &self.host];
        let okm = self.extracted.expand(&info, hmac::HMAC_SHA256);
        hmac::Key::from(okm.expect("far below 255 hash outputs"))
    }
}

/// The key of one server's stateless resets.
pub struct ServerResetKey {
    address: SocketAddr,
    current: RwLock<hmac::Key>,
}

impl ServerResetKey {
    /// Uses the key of these from now on. Connection IDs that peers have already been told keep
    /// their tokens there, and are not reset any more once they are unknown here.
    pub fn replace(&self, keys: &ResetKeys) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = keys.derive(self.address);
    }

    /// Replaced as a whole, so a panic leaves nothing half changed.
    fn current<T>(&self, compute: impl FnOnce(&dyn HmacKey) -> T) -> T {
        compute(&*self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HmacKey for ServerResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        self.current(|key| key.sign(data, signature_out));
    }

    fn signature_len(&self) -> usize {
        self.current(|key| key.signature_len())
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        self.current(|key| key.verify(data, signature))
    }
}

/// Shows nothing of keys and host.
impl fmt::Debug for ResetKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResetKeys").finish_non_exhaustive()
    }
}

/// Shows nothing of the key.
impl fmt::Debug for ServerResetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerResetKey").field("address", &self.address).finish_non_exhaustive()
    }
}

impl PrivateKey {
    /// Derives the secret for the stateless resets of its servers on one host. `host` tells that
    /// host from others that may have this key: whoever is told a token by another one of them
    /// could end connections of this one with it (RFC 9000 21.11).
    pub fn reset_keys(&self, host: &[u8]) -> ResetKeys {
        let extract = || hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(self.seed());
        ResetKeys { extracted: with_wiped_stack::<KEY_STACK_BYTES, _>(extract), host: host.into() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ::hkdf::Hkdf;
    use ::hmac::{Hmac, KeyInit, Mac};
    use sha2::Sha256;

    use super::*;

    const CID: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn token_of(key: &ServerResetKey) -> [u8; 32] {
        let mut token = [0; 32];
        key.sign(CID, &mut token);
        token
    }

    fn token(key: &PrivateKey, at: &str) -> [u8; 32] {
        token_of(&key.reset_keys(b"host").of_address(address(at)))
    }

    #[test]
    fn tokens_are_those_of_an_independent_hkdf() {
        let key = PrivateKey::generate().unwrap();
        let info = [
            b"keypadd stateless reset".as_slice(),
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
            &4433_u16.to_be_bytes(),
            b"host",
        ];
        let mut derived = [0; 32];
        Hkdf::<Sha256>::new(None, key.seed()).expand_multi_info(&info, &mut derived).unwrap();
        let expected = Hmac::<Sha256>::new_from_slice(&derived).unwrap().chain_update(CID);
        assert_eq!(token(&key, "10.0.0.1:4433")[..], expected.finalize().into_bytes()[..]);
    }

    #[test]
    fn a_restart_has_the_same_tokens_and_another_address_or_key_has_others() {
        let key = PrivateKey::generate().unwrap();
        let again = PrivateKey::from_pem(&key.to_pem()).unwrap();
        let ours = token(&key, "[::]:4433");
        assert_eq!(token(&again, "[::]:4433"), ours);
        let others = [
            token(&key, "[::]:4434"),
            token(&key, "[::1]:4433"),
            token(&PrivateKey::generate().unwrap(), "[::]:4433"),
        ];
        assert!(!others.contains(&ours));
    }

    #[test]
    fn another_host_with_the_same_key_and_address_has_other_tokens() {
        let key = PrivateKey::generate().unwrap();
        let token = |host| token_of(&key.reset_keys(host).of_address(address("[::]:4433")));
        assert_eq!(token(b"one"), token(b"one"));
        assert_ne!(token(b"one"), token(b"other"));
    }

    #[test]
    fn a_replaced_key_has_the_tokens_of_the_new_private_key_at_its_address() {
        let [old, new] = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let key = old.reset_keys(b"host").of_address(address("[::]:4433"));
        assert_eq!(token_of(&key), token(&old, "[::]:4433"));
        key.replace(&new.reset_keys(b"host"));
        assert_eq!(token_of(&key), token(&new, "[::]:4433"));
    }
}
