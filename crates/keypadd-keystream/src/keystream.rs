//! Generates the keystream of one key: chunks for pool fillers, or single packets on demand.
//!
//! Both generate the same bytes for the same packet number. Does not know whether a number has been
//! used before: the caller must make sure that it has not.

use crate::aes_ctr::AesCtr;
use crate::chacha::ChaCha;
use crate::counter;
use crate::legacy::{self, LegacyKey, Subkey};
use crate::number::{PacketNumber, SEGMENT_PACKETS, Segment};
use crate::pace::Pacing;
use crate::suite::{Cipher, MASK_BYTES_MAX};
use std::fmt;
use std::sync::Arc;

/// The longest payload a packet may have: what the counter of a 64-bit cipher can address.
///
/// Longer than any UDP datagram, so only a bug can exceed it. Callers check it before encrypting.
pub const PAYLOAD_BYTES_MAX: usize = legacy::PAD_BYTES_MAX;

/// The longest pad: a mask comes before the payload.
const PAD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + MASK_BYTES_MAX;

/// Bytes that [`InlineKeystream::apply`] generates at a time: the payload of an Ethernet frame.
const SCRATCH_BYTES: usize = 1536;

/// One cipher key and IV. Immutable, so any number of threads may use it; wiped when dropped.
pub struct KeystreamKey {
    cipher: Cipher,
    inner: Inner,
    /// Bytes of keystream before a pad's: GCM's mask, where the MAC's key encrypts it.
    skipped: usize,
    pacing: Pacing,
}

enum Inner {
    Aes(Arc<AesCtr>),
    ChaCha(ChaCha),
    Legacy(LegacyKey),
}

impl KeystreamKey {
    /// Pads begin after `skipped` bytes of a packet's keystream.
    pub(crate) fn aes(cipher: Cipher, key: Arc<AesCtr>, skipped: usize, pacing: Pacing) -> Self {
        Self { cipher, inner: Inner::Aes(key), skipped, pacing }
    }

    pub(crate) fn chacha(key: ChaCha, pacing: Pacing) -> Self {
        Self { cipher: Cipher::ChaCha20, inner: Inner::ChaCha(key), skipped: 0, pacing }
    }

    pub(crate) fn legacy(cipher: Cipher, key: LegacyKey, pacing: Pacing) -> Self {
        Self { cipher, inner: Inner::Legacy(key), skipped: 0, pacing }
    }

    /// The cipher of this key.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Whether the cipher is fast without making many pads at once: ChaCha20, and AES with
    /// instructions for it. Bitsliced ciphers make a chunk of pads many times as fast as single
    /// ones.
    pub fn is_cheap(&self) -> bool {
        let is_cheap = match &self.inner {
            Inner::Aes(key) => key.uses_aes_instructions(),
            Inner::ChaCha(_) => true,
            Inner::Legacy(_) => false,
        };
        is_cheap && self.pacing == Pacing::default()
    }

    /// Writes the pads of a segment's packets: overwrites each row, in order from slot 0, with
    /// bytes `offset..offset + row.len()` of its packet's pad.
    ///
    /// Rows may differ in length, and there may be fewer than 64. Every call makes a 64-bit cipher
    /// derive a subkey, so request all rows of a segment at once. Does not allocate.
    ///
    /// # Panics
    ///
    /// If there are more than [`SEGMENT_PACKETS`] rows, or a row ends beyond what the cipher's
    /// counter can address: it would repeat another packet's pad.
    pub fn write_rows<'a>(
        &self,
        segment: Segment,
        offset: usize,
        rows: impl Iterator<Item = &'a mut [u8]>,
    ) {
        let rows = rows.enumerate().inspect(|(slot, row)| {
            assert!(*slot < SEGMENT_PACKETS, "a segment has {SEGMENT_PACKETS} packets");
            self.check_end(offset, row.len());
        });
        let mut all: [&mut [u8]; SEGMENT_PACKETS] = std::array::from_fn(|_| &mut [][..]);
        let mut count = 0;
        for (slot, row) in rows {
            all[slot] = row;
            count = slot + 1;
        }
        let rows = &mut all[..count];
        self.pacing.make(rows.iter().map(|row| row.len()).sum(), || match &self.inner {
            Inner::Aes(key) => key.write_rows(segment, self.skipped + offset, rows),
            Inner::ChaCha(key) => key.write_rows(segment, offset, rows),
            Inner::Legacy(key) => key.subkey(segment).write_rows(offset, rows),
        });
    }

    /// Writes part of one pad; `subkey` belongs to the packet's segment.
    fn write_pad(
        &self,
        packet: PacketNumber,
        subkey: Option<&Subkey>,
        offset: usize,
        out: &mut [u8],
    ) {
        self.check_end(offset, out.len());
        match (&self.inner, subkey) {
            (Inner::Aes(key), _) => key.write(packet, self.skipped + offset, out),
            (Inner::ChaCha(key), _) => key.write(packet, offset, out),
            (Inner::Legacy(_), Some(subkey)) => subkey.write(packet.slot(), offset, out),
            (Inner::Legacy(_), None) => unreachable!("a 64-bit cipher works with a subkey"),
        }
    }

    /// Panics if a pad would run into the next packet's: a bug of ours, never the peer's doing.
    fn check_end(&self, offset: usize, len: usize) {
        let max = match self.inner {
            Inner::Aes(_) | Inner::ChaCha(_) => PAD_BYTES_MAX,
            Inner::Legacy(_) => legacy::PAD_BYTES_MAX,
        };
        let end = offset.saturating_add(len);
        assert!(end <= max, "pad of {end} bytes exceeds the counter's {max}");
    }
}

impl fmt::Debug for KeystreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeystreamKey").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

/// Generates pads of single packets inline: the fallback when the pool has none.
///
/// Generates the same bytes as [`KeystreamKey::write_rows`]. Caches the last subkey of a 64-bit
/// cipher, so that consecutive packets derive one per segment. Does not allocate per packet.
pub struct InlineKeystream {
    key: Arc<KeystreamKey>,
    /// In memory of its own: most ciphers have no subkeys.
    last: Option<Box<(Segment, Subkey)>>,
    /// Where `apply` generates pads; all zero between calls, empty before the first. A key whose
    /// packets all have their pads, or need none, never has it.
    scratch: Box<[u8]>,
}

impl InlineKeystream {
    /// Takes little memory, and derives no subkey, before the first pad is requested.
    pub fn new(key: Arc<KeystreamKey>) -> Self {
        Self { key, last: None, scratch: Box::default() }
    }

    /// The key that the pads come from.
    pub fn key(&self) -> &Arc<KeystreamKey> {
        &self.key
    }

    /// Overwrites `out` with the bytes `offset..offset + out.len()` of the packet's pad.
    ///
    /// # Panics
    ///
    /// If the pad would be longer than a mask plus [`PAYLOAD_BYTES_MAX`].
    pub fn write(&mut self, packet: PacketNumber, offset: usize, out: &mut [u8]) {
        let Self { key, last, .. } = self;
        key.pacing.make(out.len(), || {
            let subkey = subkey(key, last, packet.segment());
            key.write_pad(packet, subkey, offset, out);
        });
    }

    /// XORs bytes `offset..offset + data.len()` of the packet's pad into `data`; encrypts and
    /// decrypts. Panics like [`Self::write`], before it touches `data`.
    pub fn apply(&mut self, packet: PacketNumber, offset: usize, data: &mut [u8]) {
        let Self { key, last, scratch } = self;
        key.check_end(offset, data.len());
        if scratch.is_empty() {
            *scratch = vec![0; SCRATCH_BYTES].into();
        }
        for (piece, data) in data.chunks_mut(SCRATCH_BYTES).enumerate() {
            let pad = &mut scratch[..data.len()];
            key.pacing.make(pad.len(), || {
                let subkey = subkey(key, last, packet.segment());
                key.write_pad(packet, subkey, offset + piece * SCRATCH_BYTES, pad);
            });
            for (byte, pad) in data.iter_mut().zip(&*pad) {
                *byte ^= pad;
            }
            counter::wipe(pad);
        }
    }
}

/// The subkey of `segment`, cached in `last`; `None` for ciphers without subkeys.
fn subkey<'a>(
    key: &KeystreamKey,
    last: &'a mut Option<Box<(Segment, Subkey)>>,
    segment: Segment,
) -> Option<&'a Subkey> {
    let Inner::Legacy(key) = &key.inner else { return None };
    match last {
        Some(last) if last.0 == segment => {}
        Some(last) => **last = (segment, key.subkey(segment)),
        None => *last = Some(Box::new((segment, key.subkey(segment)))),
    }
    last.as_ref().map(|last| &last.1)
}

impl fmt::Debug for InlineKeystream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InlineKeystream").field(&self.key).finish()
    }
}
