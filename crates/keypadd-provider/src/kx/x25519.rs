//! Implements X25519 (RFC 7748, RFC 8446 section 4.2.8.2) on x25519-dalek.
//!
//! The secret lives for one exchange, in locked memory, and is wiped by its type; what the
//! multiplication leaves on the stack is wiped, too.

use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::share::{INVALID_SHARE, fill_random};
use crate::secret_memory::Secret;
use crate::wiped_stack::with_wiped_stack;

/// Upper bound on the stack of an exchange, which took 2 KiB where it was measured.
const STACK_BYTES: usize = 16 << 10;

/// Length of either side's share, and of the secret.
pub(super) const SHARE_BYTES: usize = 32;

/// The group, for rustls.
#[derive(Debug)]
pub(super) struct X25519;

impl SupportedKxGroup for X25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let exchange = with_wiped_stack::<STACK_BYTES, _>(Exchange::start);
        Ok(Box::new(exchange?))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// One exchange: our secret and our share.
pub(super) struct Exchange {
    secret: Secret<SHARE_BYTES>,
    share: PublicKey,
}

impl Exchange {
    /// Generates a fresh secret. Leaves the stack to its caller to wipe.
    pub(super) fn start() -> Result<Self, Error> {
        let mut secret = Secret::zeroed();
        fill_random(&mut secret)?;
        Ok(Self::from_secret(secret))
    }

    pub(super) fn from_secret(secret: Secret<SHARE_BYTES>) -> Self {
        let share = PublicKey::from(&scalar(&secret));
        Self { secret, share }
    }

    /// Our share, for the peer.
    pub(super) fn share(&self) -> &[u8; SHARE_BYTES] {
        self.share.as_bytes()
    }

    /// The shared secret, 32 bytes, wiped when dropped. Leaves the stack to its caller to wipe.
    ///
    /// RFC 8446, section 7.4.2: implementations "MUST check whether the computed Diffie-Hellman
    /// shared secret is the all-zero value and abort if so". A share of small order yields it,
    /// and would reveal the secret to third parties.
    pub(super) fn agree(self, peer: &[u8]) -> Result<x25519_dalek::SharedSecret, Error> {
        let peer: [u8; SHARE_BYTES] = peer.try_into().map_err(|_| INVALID_SHARE)?;
        let secret = scalar(&self.secret).diffie_hellman(&PublicKey::from(peer));
        if !secret.was_contributory() {
            return Err(INVALID_SHARE);
        }
        Ok(secret)
    }
}

/// The secret as x25519-dalek takes it, for one computation.
fn scalar(secret: &Secret<SHARE_BYTES>) -> StaticSecret {
    let mut scalar = Zeroizing::new([0; SHARE_BYTES]);
    scalar.copy_from_slice(secret);
    StaticSecret::from(*scalar)
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        with_wiped_stack::<STACK_BYTES, _>(|| {
            Ok(SharedSecret::from(self.agree(peer)?.as_bytes().as_slice()))
        })
    }

    fn pub_key(&self) -> &[u8] {
        self.share().as_slice()
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}
