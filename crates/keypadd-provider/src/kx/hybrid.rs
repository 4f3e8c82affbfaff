//! Implements X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem, FIPS 203), secure while either half is.
//!
//! Client share: encapsulation key (1,184) and X25519 share (32). Server share: ciphertext (1,088)
//! and X25519 share (32). Secret: ML-KEM's 32 bytes, then X25519's. Every length is checked before
//! either half is used; the secrets of both halves are wiped by their types, and what is left of
//! them on the stack is wiped, too.

use ml_kem::{
    B32, Ciphertext, Decapsulate, DecapsulationKey768, EncapsulationKey768, Key, KeyExport,
    MlKem768, Seed,
};
use rustls::crypto::{ActiveKeyExchange, CompletedKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, ProtocolVersion};
use zeroize::Zeroizing;

use super::share::{INVALID_SHARE, fill_random};
use super::x25519::{self, Exchange};
use crate::wiped_stack::with_wiped_stack;

/// Upper bound on the stack of either side, which took 31 KiB where it was measured: vectors and
/// matrices of polynomials, of 512 bytes each.
const STACK_BYTES: usize = 64 << 10;

/// ML-KEM-768's encapsulation key, the client's half (FIPS 203, table 3).
const ENCAPSULATION_KEY_BYTES: usize = 1184;

/// ML-KEM-768's ciphertext, the server's half (FIPS 203, table 3).
const CIPHERTEXT_BYTES: usize = 1088;

/// ML-KEM's part of the secret.
const ML_KEM_SECRET_BYTES: usize = 32;

/// The group, for rustls.
#[derive(Debug)]
pub(super) struct X25519MlKem768;

impl SupportedKxGroup for X25519MlKem768 {
    /// The client's side: a key pair of each kind.
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let exchange = with_wiped_stack::<STACK_BYTES, _>(ClientExchange::start);
        Ok(Box::new(exchange?))
    }

    /// The server's side, in one step: it computes its secret along with its share.
    fn start_and_complete(&self, client_share: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, classical_share) = split(client_share, ENCAPSULATION_KEY_BYTES)?;
        // FIPS 203, section 7.2: the type check, and the modulus check (no coefficient of 3,329 or
        // more), without which ML-KEM.Encaps must not run.
        let key = Key::<EncapsulationKey768>::try_from(key).map_err(|_| INVALID_SHARE)?;
        let key = EncapsulationKey768::new(&key).map_err(|_| INVALID_SHARE)?;

        with_wiped_stack::<STACK_BYTES, _>(|| {
            let classical = Exchange::start()?;
            let our_share = *classical.share();
            let classical_secret = classical.agree(classical_share)?;

            let mut message = Zeroizing::new(B32::default());
            fill_random(message.as_mut_slice())?;
            let (ciphertext, ml_kem_secret) = key.encapsulate_deterministic(&message);
            let ml_kem_secret = Zeroizing::new(ml_kem_secret);

            Ok(CompletedKeyExchange {
                group: self.name(),
                pub_key: [ciphertext.as_slice(), &our_share].concat(),
                secret: join(ml_kem_secret.as_slice(), classical_secret.as_bytes()),
            })
        })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

/// A client's exchange, waiting for the server's share.
struct ClientExchange {
    decapsulation_key: DecapsulationKey768,
    classical: Exchange,
    share: Vec<u8>,
}

impl ClientExchange {
    fn start() -> Result<Self, Error> {
        let mut seed = Zeroizing::new(Seed::default());
        fill_random(seed.as_mut_slice())?;
        Ok(Self::new(DecapsulationKey768::from_seed(*seed), Exchange::start()?))
    }

    fn new(decapsulation_key: DecapsulationKey768, classical: Exchange) -> Self {
        let encapsulation_key = decapsulation_key.encapsulation_key().to_bytes();
        let share = [encapsulation_key.as_slice(), classical.share()].concat();
        Self { decapsulation_key, classical, share }
    }

    fn agree(self, server_share: &[u8]) -> Result<SharedSecret, Error> {
        let (ciphertext, classical_share) = split(server_share, CIPHERTEXT_BYTES)?;
        let ciphertext = Ciphertext::<MlKem768>::try_from(ciphertext).map_err(|_| INVALID_SHARE)?;
        let classical_secret = self.classical.agree(classical_share)?;
        let ml_kem_secret = Zeroizing::new(self.decapsulation_key.decapsulate(&ciphertext));
        Ok(join(ml_kem_secret.as_slice(), classical_secret.as_bytes()))
    }
}

impl ActiveKeyExchange for ClientExchange {
    /// Every ciphertext of the right length yields a secret; if it was not made for our key, nobody
    /// else has that secret (FIPS 203, section 6.3), and the handshake ends at Finished.
    fn complete(self: Box<Self>, server_share: &[u8]) -> Result<SharedSecret, Error> {
        with_wiped_stack::<STACK_BYTES, _>(|| self.agree(server_share))
    }

    /// Offers the X25519 half as a share of its own, which saves a round trip with a server that
    /// supports only X25519. rustls asks for it if both groups are configured.
    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((NamedGroup::X25519, self.classical.share()))
    }

    fn complete_hybrid_component(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        Box::new(self.classical).complete(peer)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

/// Splits a share into ML-KEM's part and X25519's; refuses any other length than the sum.
fn split(share: &[u8], ml_kem_bytes: usize) -> Result<(&[u8], &[u8]), Error> {
    if share.len() != ml_kem_bytes + x25519::SHARE_BYTES {
        return Err(INVALID_SHARE);
    }
    Ok(share.split_at(ml_kem_bytes))
}

/// Both secrets, ML-KEM's first, in a buffer that never grows, so it leaves no copy behind.
fn join(ml_kem: &[u8], classical: &[u8]) -> SharedSecret {
    let mut secret = Vec::with_capacity(ML_KEM_SECRET_BYTES + x25519::SHARE_BYTES);
    secret.extend_from_slice(ml_kem);
    secret.extend_from_slice(classical);
    SharedSecret::from(secret)
}

#[cfg(test)]
mod tests;
