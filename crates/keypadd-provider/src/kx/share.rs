//! Provides what all groups need: the error for bad shares, and randomness for secrets.

use rustls::{Error, PeerMisbehaved};

/// A share of the wrong length or form, or one that leads to a worthless secret. TLS sends
/// `illegal_parameter` for it.
pub(super) const INVALID_SHARE: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// Fills `secret` from the operating system, or fails the handshake: no fallback, no panic.
pub(super) fn fill_random(secret: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(secret).map_err(|_| Error::FailedToGetRandomBytes)?;
    #[cfg(test)]
    super::traces::note(secret);
    Ok(())
}
