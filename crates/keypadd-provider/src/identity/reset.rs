//! Derives the keys of a server's stateless resets (RFC 9000 10.3) from its private key, so that a
//! restarted server resets connections that it no longer knows.
//!
//! Knows no connections: the endpoint decides which IDs get a reset (docs/DESIGN.md, "Stateless
//! resets").

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quinn_proto::crypto::HmacKey;
use ring::{hkdf, hmac};
use zeroize::zeroize_stack;

use super::private::{KEY_STACK_BYTES, PrivateKey};

const LABEL: &[u8] = b"keypadd stateless reset";

/// Derives the reset keys of all servers with one private key; no server's key reveals another's.
#[derive(Clone, Debug)]
pub struct ResetKeys(hkdf::Prk);

impl ResetKeys {
    /// The key of the server that is bound to this UDP address. Every address has its own, or a
    /// server could be made to reset the connections of another one with the same private key (RFC
    /// 9000 21.11).
    pub fn of_address(&self, address: SocketAddr) -> Arc<dyn HmacKey> {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let info = [LABEL, &ip, &address.port().to_be_bytes()];
        let key = self.0.expand(&info, hmac::HMAC_SHA256).expect("far below 255 hash outputs");
        Arc::new(hmac::Key::from(key))
    }
}

impl PrivateKey {
    /// Derives the secret for its servers' stateless resets.
    pub fn reset_keys(&self) -> ResetKeys {
        let keys = self.extracted();
        zeroize_stack::<KEY_STACK_BYTES>();
        keys
    }

    /// Has its own stack frame, which the caller wipes.
    #[inline(never)]
    fn extracted(&self) -> ResetKeys {
        ResetKeys(hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(self.seed()))
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

    fn token(key: &PrivateKey, at: &str) -> [u8; 32] {
        let mut token = [0; 32];
        key.reset_keys().of_address(address(at)).sign(CID, &mut token);
        token
    }

    #[test]
    fn tokens_are_those_of_an_independent_hkdf() {
        let key = PrivateKey::generate().unwrap();
        let info = [
            b"keypadd stateless reset".as_slice(),
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
            &4433_u16.to_be_bytes(),
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
}
