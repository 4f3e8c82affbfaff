//! Computes proofs that an end knows a secret: HMAC-SHA-256 under it (RFC 2104).
//!
//! What a proof is about is its caller's: the parts must be such that no two inputs have the same
//! bytes, as those of fixed lengths are.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::wiped_stack::with_wiped_stack;

/// Length of a proof.
pub(crate) const PROOF_BYTES: usize = 32;

/// Upper bound on the stack of a MAC: copies of its state and the words of a hash.
const MAC_STACK_BYTES: usize = if cfg!(debug_assertions) { 16 << 10 } else { 4 << 10 };

/// The proof of these parts, one after the other. Wipes the stack that it used; to be compared in
/// constant time.
pub(crate) fn prove(secret: &[u8], parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    with_wiped_stack::<MAC_STACK_BYTES, _>(|| mac(secret, parts))
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    parts.iter().fold(mac, |mac, part| mac.chain_update(part)).finalize().into_bytes().into()
}
