//! Proves to each end of a pairing that the other knows the secret of the invitation.
//!
//! A proof is a MAC over both public keys, which TLS has proved before it is sent: it vouches for
//! that one pair and is worthless with any other key (docs/protocol.md, "Pairing"). Knows no lines,
//! sockets or files.

use std::fmt;
use std::io;

use subtle::ConstantTimeEq;

use crate::identity::PublicKey;
use crate::secret_memory::Secret;
use crate::secret_proof::{PROOF_BYTES, prove};

/// Length of a secret: 128 bits cannot be guessed.
pub const PAIRING_SECRET_BYTES: usize = 16;

/// Length of a proof.
pub const PAIRING_PROOF_BYTES: usize = PROOF_BYTES;

/// The secret of one invitation; wiped when dropped. [`fmt::Debug`] shows nothing of it.
pub struct PairingSecret(Secret<PAIRING_SECRET_BYTES>);

/// What a proof asserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairingStep {
    /// From the joining end: it was invited.
    Join,
    /// From the inviting end: it is ready to list the other.
    Accept,
}

impl PairingSecret {
    /// Draws a secret from the operating system's randomness.
    ///
    /// # Errors
    ///
    /// If the operating system provides no randomness.
    pub fn generate() -> io::Result<Self> {
        let mut secret = Secret::zeroed();
        getrandom::fill(&mut secret).map_err(|error| {
            io::Error::other(format!("cannot get random bytes from the system: {error}"))
        })?;
        Ok(Self(secret))
    }

    /// A copy of these bytes; the owner of the original must wipe it.
    pub fn from_bytes(bytes: &[u8; PAIRING_SECRET_BYTES]) -> Self {
        Self(Secret::copied(bytes))
    }

    /// The bytes, for the invitation's line.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The proof of one end. All labels have the same length, and so have keys.
    pub fn proof(
        &self,
        step: PairingStep,
        inviter: &PublicKey,
        joiner: &PublicKey,
    ) -> [u8; PAIRING_PROOF_BYTES] {
        let label = match step {
            PairingStep::Join => b"keypadd pair 1 join  ",
            PairingStep::Accept => b"keypadd pair 1 accept",
        };
        prove(self.as_bytes(), &[label, inviter.as_bytes(), joiner.as_bytes()])
    }

    /// Whether a proof is right; compares in constant time.
    pub fn is_proof(
        &self,
        given: &[u8; PAIRING_PROOF_BYTES],
        step: PairingStep,
        inviter: &PublicKey,
        joiner: &PublicKey,
    ) -> bool {
        self.proof(step, inviter, joiner).ct_eq(given).into()
    }
}

impl fmt::Debug for PairingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairingSecret").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::identity::PrivateKey;

    fn key() -> PublicKey {
        PrivateKey::generate().unwrap().public()
    }

    #[test]
    fn a_proof_is_right_for_its_secret_step_and_keys_alone() {
        let (secret, inviter, joiner) = (PairingSecret::generate().unwrap(), key(), key());
        let proof = secret.proof(PairingStep::Join, &inviter, &joiner);
        let right = |secret: &PairingSecret, step, inviter: PublicKey, joiner: PublicKey| {
            secret.is_proof(&proof, step, &inviter, &joiner)
        };
        assert!(right(&secret, PairingStep::Join, inviter, joiner));
        let same = PairingSecret::from_bytes(secret.as_bytes().try_into().unwrap());
        assert!(right(&same, PairingStep::Join, inviter, joiner));
        assert!(!right(&PairingSecret::generate().unwrap(), PairingStep::Join, inviter, joiner));
        assert!(!right(&secret, PairingStep::Accept, inviter, joiner));
        assert!(!right(&secret, PairingStep::Join, key(), joiner));
        assert!(!right(&secret, PairingStep::Join, inviter, key()));
        assert!(!right(&secret, PairingStep::Join, joiner, inviter));
    }

    #[test]
    fn a_proof_with_any_bit_changed_is_wrong() {
        let (secret, inviter, joiner) = (PairingSecret::generate().unwrap(), key(), key());
        let proof = secret.proof(PairingStep::Accept, &inviter, &joiner);
        for bit in 0..8 * PAIRING_PROOF_BYTES {
            let mut changed = proof;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.is_proof(&changed, PairingStep::Accept, &inviter, &joiner), "{bit}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let secret = PairingSecret::from_bytes(&[0x5a; PAIRING_SECRET_BYTES]);
        assert_eq!(format!("{secret:?}"), "PairingSecret { .. }");
    }
}
