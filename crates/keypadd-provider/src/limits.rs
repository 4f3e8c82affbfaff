//! Defines each suite's usage limits. RFC 9001 section 6.6 requires limits of every AEAD used with
//! QUIC; those of the private suites are ours, justified in `docs/protocol.md`.
//!
//! quinn requests a key update near a limit but keeps sending if none comes, so the sealing key
//! itself counts and stops (`seal.rs`).

use std::time::Duration;

use keypadd_keystream::{Mac, PAYLOAD_BYTES_MAX, Protection};

/// Packets under one AES key: RFC 9001 section 6.6's limit for AES-GCM. AES-CTR with a MAC has the
/// same distinguishing bound for the same number of blocks. ChaCha20-Poly1305 has no limit below
/// 2^62 packets there; its phases end like those of AES, so that a key found in memory opens no
/// more.
const AES_CONFIDENTIALITY_LIMIT: u64 = 1 << 23;

/// Packets under one phase of a cipher with 64-bit blocks. A subkey serves 64 of them, 2^13.5
/// blocks at 1,452 bytes, far below the 2^20 blocks of SP 800-67r2; phases are short so that the
/// traffic secret behind the subkeys changes often.
const LEGACY_PHASE_PACKETS: u64 = 1 << 16;

/// The largest UDP payload sent under a cipher with 64-bit blocks: an Ethernet frame over IPv6, for
/// which the blocks under a subkey are counted.
const LEGACY_DATAGRAM_BYTES_MAX: u16 = 1_452;

/// Bytes under one phase of a cipher with 128-bit blocks: 2^32 blocks (RFC 4344 section 3.2). The
/// same for ChaCha20, as above.
const AES_PHASE_BYTES: u64 = 1 << 36;

/// Bytes under one phase of a cipher with 64-bit blocks: a gigabyte (RFC 4344 section 3.2). A phase
/// of 1,452-byte packets is a tenth of that.
const LEGACY_PHASE_BYTES: u64 = 1 << 30;

/// The age of a phase: an hour (RFC 4253 section 9). It limits what a secret stolen from memory
/// opens, not the cipher's use, so it is the same for all.
const PHASE_AGE: Duration = Duration::from_secs(3600);

/// quinn-proto updates keys this many packets before the limit that it is told
/// (`KEY_UPDATE_MARGIN`), so a phase of N packets needs a limit of N + 10,000.
const QUINN_KEY_UPDATE_MARGIN: u64 = 10_000;

/// Forged packets that a connection tolerates: RFC 9001 section 6.6's limit for AES-GCM; a 128-bit
/// HMAC tag tolerates more. A lower limit would let anyone who knows a connection id end it
/// cheaply.
const INTEGRITY_LIMIT: u64 = 1 << 52;

/// Forged packets that a connection of ChaCha20-Poly1305 tolerates (RFC 9001 section 6.6): nineteen
/// hours of a million forgeries a second.
const POLY1305_INTEGRITY_LIMIT: u64 = 1 << 36;

/// Packets before the hard limit at which the key requests the connection to be closed: enough for
/// the closing packets.
pub(crate) const CLOSING_PACKETS: u64 = 64;

/// Packets before the expected end of a phase from which on pads of the next one are precomputed,
/// as soon as all of its own are: as many as a lane holds.
pub(crate) const STANDBY_PACKETS: u64 = 32_768;

/// Packets before the end of one direction's phase from which on the other one, whose phase ends at
/// the same moment, has heads of the next: 40 ms of 2 Gbit/s.
pub(crate) const IMMINENT_PACKETS: u64 = 8_192;

/// The limits of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyLimits {
    /// The confidentiality limit reported to quinn, in packets.
    pub(crate) reported: u64,
    /// Forged packets after which the connection ends.
    pub(crate) integrity: u64,
    /// Packets after which the key seals no more, in any case.
    pub(crate) hard_stop: u64,
    /// Bytes after which an update is requested; after twice as many the key seals no more.
    pub(crate) phase_bytes: u64,
    /// Age by which an update has been requested.
    pub(crate) phase_age: Duration,
    /// The largest UDP payload to send, if the suite limits it.
    pub(crate) datagram_bytes_max: Option<u16>,
}

impl KeyLimits {
    pub(crate) fn of(suite: Protection) -> Self {
        let integrity = match suite.mac() {
            Mac::Poly1305 => POLY1305_INTEGRITY_LIMIT,
            _ => INTEGRITY_LIMIT,
        };
        match suite.cipher().has_short_blocks() {
            // A null cipher needs no limit, but quinn needs a number.
            false => Self {
                reported: AES_CONFIDENTIALITY_LIMIT,
                integrity,
                hard_stop: AES_CONFIDENTIALITY_LIMIT,
                phase_bytes: AES_PHASE_BYTES,
                phase_age: PHASE_AGE,
                datagram_bytes_max: None,
            },
            true => Self {
                reported: LEGACY_PHASE_PACKETS + QUINN_KEY_UPDATE_MARGIN,
                integrity,
                hard_stop: 2 * LEGACY_PHASE_PACKETS,
                phase_bytes: LEGACY_PHASE_BYTES,
                phase_age: PHASE_AGE,
                datagram_bytes_max: Some(LEGACY_DATAGRAM_BYTES_MAX),
            },
        }
    }

    /// Lowers the limits to phases of at most this many packets.
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

    /// Bytes after which the key requests the connection to be closed: [`CLOSING_PACKETS`] of any
    /// length fit between this and the hard limit.
    pub(crate) fn closing_bytes(&self) -> u64 {
        self.hard_stop_bytes().saturating_sub(CLOSING_PACKETS * PAYLOAD_BYTES_MAX as u64)
    }

    /// Packets after which quinn updates the key; the first phase is shorter.
    pub(crate) fn phase_packets(&self) -> u64 {
        self.reported - QUINN_KEY_UPDATE_MARGIN
    }
}
