//! How long a key may be used, per suite. RFC 9001 section 6.6 asks every AEAD used with QUIC to
//! define its limits; for the private suites these are ours, argued in `docs/DESIGN.md`.
//!
//! quinn asks for a key update when a limit nears but keeps sending if the update does not come,
//! so the sealing key itself counts and stops (`seal.rs`).

use std::time::Duration;

use keypadd_keystream::{Cipher, PAYLOAD_BYTES_MAX, Protection};

/// Packets under one AES key: RFC 9001 section 6.6's figure for AES-GCM. AES-CTR with a MAC has
/// the same distinguishing bound, for the same number of blocks.
const AES_CONFIDENTIALITY_LIMIT: u64 = 1 << 23;

/// Packets under one phase of a cipher with 64-bit blocks. A subkey serves 64 of them, 2^13.5
/// blocks at 1,452 bytes, far below the 2^20 blocks of SP 800-67r2; the phase is kept short so
/// that the traffic secret behind the subkeys changes often.
const LEGACY_PHASE_PACKETS: u64 = 1 << 16;

/// The largest UDP payload that is sent under a cipher with 64-bit blocks: what Ethernet carries over
/// IPv6, and the size for which the blocks under a subkey are counted.
const LEGACY_DATAGRAM_BYTES_MAX: u16 = 1_452;

/// Bytes under one phase of a cipher with 128-bit blocks: 2^32 blocks, as RFC 4344 section 3.2 has it.
const AES_PHASE_BYTES: u64 = 1 << 36;

/// Bytes under one phase of a cipher with 64-bit blocks: a gigabyte, as RFC 4344 section 3.2 has it.
/// Packets of 1,452 bytes come to a tenth of that.
const LEGACY_PHASE_BYTES: u64 = 1 << 30;

/// How long one phase is used: an hour, as RFC 4253 section 9 has it. It bounds what a secret opens
/// that is read from memory, not what ciphers bear, so it is the same for all.
const PHASE_AGE: Duration = Duration::from_secs(3600);

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
    /// Bytes after which an update is asked for; after twice as many the key seals no more.
    pub(crate) phase_bytes: u64,
    /// Time after which an update has been asked for.
    pub(crate) phase_age: Duration,
    /// The largest UDP payload that is sent, where the suite bounds it.
    pub(crate) datagram_bytes_max: Option<u16>,
}

impl Limits {
    pub(crate) fn of(suite: Protection) -> Self {
        match suite.cipher() {
            // A null cipher wears nothing out; some figure must be there.
            Cipher::Aes128 | Cipher::Aes256 | Cipher::Null => Self {
                reported: AES_CONFIDENTIALITY_LIMIT,
                hard_stop: AES_CONFIDENTIALITY_LIMIT,
                phase_bytes: AES_PHASE_BYTES,
                phase_age: PHASE_AGE,
                datagram_bytes_max: None,
            },
            Cipher::Des | Cipher::TripleDes | Cipher::Rc2_40 => Self {
                reported: LEGACY_PHASE_PACKETS + QUINN_KEY_UPDATE_MARGIN,
                hard_stop: 2 * LEGACY_PHASE_PACKETS,
                phase_bytes: LEGACY_PHASE_BYTES,
                phase_age: PHASE_AGE,
                datagram_bytes_max: Some(LEGACY_DATAGRAM_BYTES_MAX),
            },
        }
    }

    /// The same with phases of at most so many packets.
    pub(crate) fn lowered_to(self, phase_packets_max: u64) -> Self {
        let reported = phase_packets_max.saturating_add(QUINN_KEY_UPDATE_MARGIN);
        Self {
            reported: self.reported.min(reported),
            hard_stop: self.hard_stop.min(reported.saturating_mul(2)),
            ..self
        }
    }

    /// Bytes after which the key seals no more.
    pub(crate) fn hard_stop_bytes(&self) -> u64 {
        2 * self.phase_bytes
    }

    /// Bytes after which the key asks for the connection to be closed: [`CLOSING_PACKETS`] of any length
    /// fit between this and the stop.
    pub(crate) fn closing_bytes(&self) -> u64 {
        self.hard_stop_bytes().saturating_sub(CLOSING_PACKETS * PAYLOAD_BYTES_MAX as u64)
    }

    /// Packets after which quinn updates the key, except in the first phase, which is shorter.
    pub(crate) fn phase_packets(&self) -> u64 {
        self.reported - QUINN_KEY_UPDATE_MARGIN
    }
}
