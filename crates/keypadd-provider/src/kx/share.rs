//! Provides what all groups need: the error for bad shares, randomness for secrets, and a stack
//! that is wiped after they are computed with.

use rustls::{Error, PeerMisbehaved};
use zeroize::zeroize_stack;

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

/// Computes with secrets, in a frame of its own, and wipes `BYTES` of the stack below this one:
/// what libraries keep there they do not wipe. The result must keep its own secrets on the heap.
pub(super) fn with_wiped_stack<const BYTES: usize, T>(compute: impl FnOnce() -> T) -> T {
    let result = in_a_frame_of_its_own(compute);
    zeroize_stack::<BYTES>();
    result
}

#[inline(never)]
fn in_a_frame_of_its_own<T>(compute: impl FnOnce() -> T) -> T {
    compute()
}
