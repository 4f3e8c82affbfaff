//! How long a key may be used, per suite. RFC 9001 section 6.6 asks every AEAD used with QUIC to
//! define its limits; for the private suites these are ours, argued in `docs/DESIGN.md`.
//!
//! quinn asks for a key update when a limit nears but keeps sending if the update does not come,
//! so the sealing key itself counts and stops (`seal.rs`).

use keypadd_keystream::{Cipher, Protection};

/// Packets under one AES key: RFC 9001 section 6.6's figure for AES-GCM. AES-CTR with a MAC has
/// the same distinguishing bound, for the same number of blocks.
const AES_CONFIDENTIALITY_LIMIT: u64 = 1 << 23;

/// Packets under one phase of a cipher with 64-bit blocks. A subkey serves 64 of them, 2^13.5
/// blocks at 1,452 bytes, far below the 2^20 blocks of SP 800-67r2; the phase is kept short so
/// that the traffic secret behind the subkeys changes often.
const LEGACY_PHASE_PACKETS: u64 = 1 << 16;

/// quinn-proto updates keys this many packets before the limit that it is told
/// (`KEY_UPDATE_MARGIN`), so a phase of N packets is asked for by naming N + 10,000.
const QUINN_KEY_UPDATE_MARGIN: u64 = 10_000;

/// Forged packets that a connection bears. RFC 9001 allows 2^52 for AES-GCM; a 128-bit HMAC tag
/// bears more. A lower figure would hand whoever knows a connection id a cheap way to end it.
pub(crate) const INTEGRITY_LIMIT: u64 = 1 << 52;

/// Numbers before the hard stop at which the key asks for the connection to be closed: enough for
/// the closing packets themselves.
pub(crate) const CLOSING_PACKETS: u64 = 64;

/// Packets before the expected end of a phase at which the next phase's heads are prefilled.
pub(crate) const STANDBY_PACKETS: u64 = 2_048;

/// The limits of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// What quinn is told as the confidentiality limit, in packets.
    pub(crate) reported: u64,
    /// Packets after which the key seals no more, whatever the peer does.
    pub(crate) hard_stop: u64,
}

impl Limits {
    pub(crate) fn of(suite: Protection) -> Self {
        match suite.cipher() {
            // A null cipher wears nothing out; some figure must be there.
            Cipher::Aes128 | Cipher::Aes256 | Cipher::Null => {
                Self { reported: AES_CONFIDENTIALITY_LIMIT, hard_stop: AES_CONFIDENTIALITY_LIMIT }
            }
            Cipher::Des | Cipher::TripleDes | Cipher::Rc2_40 => Self {
                reported: LEGACY_PHASE_PACKETS + QUINN_KEY_UPDATE_MARGIN,
                hard_stop: 2 * LEGACY_PHASE_PACKETS,
            },
        }
    }

    /// The same with phases of at most so many packets.
    pub(crate) fn lowered_to(self, phase_packets_max: u64) -> Self {
        let reported = phase_packets_max.saturating_add(QUINN_KEY_UPDATE_MARGIN);
        Self {
            reported: self.reported.min(reported),
            hard_stop: self.hard_stop.min(reported.saturating_mul(2)),
        }
    }

    /// Packets after which quinn updates the key, except in the first phase, which is shorter.
    pub(crate) fn phase_packets(&self) -> u64 {
        self.reported - QUINN_KEY_UPDATE_MARGIN
    }
}
