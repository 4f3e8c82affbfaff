//! The keystream of one key: chunks for fillers, single packets for everyone in a hurry.
//!
//! Both give the same bytes for the same packet number, always. Knows packet numbers, never what
//! is in a packet, nor whether a number has been used before: that is the session's duty.

use crate::aes_ctr::AesCtr;
use crate::counter;
use crate::legacy::{self, LegacyKey, Subkey};
use crate::number::{PacketNumber, SEGMENT_PACKETS, Segment};
use crate::pace::Pacing;
use crate::suite::Cipher;
use std::fmt;
use std::sync::Arc;

/// The longest payload a packet may have: what the counter of a 64-bit cipher can number.
///
/// Above every UDP datagram, so only a fault can exceed it. Who encrypts checks it beforehand.
pub const PAYLOAD_BYTES_MAX: usize = legacy::PAD_BYTES_MAX;

/// Bytes of pad a packet can need: GCM's tag mask comes before the payload.
const PAD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 16;

/// Bytes that [`InlineKeystream::apply`] makes at a time: the payload of an Ethernet frame at once.
const SCRATCH_BYTES: usize = 1536;

/// One cipher key and IV. Immutable, so any number of threads may use it; wiped when dropped.
pub struct KeystreamKey {
    cipher: Cipher,
    inner: Inner,
    pacing: Pacing,
}

enum Inner {
    Aes(AesCtr),
    Legacy(LegacyKey),
}

impl KeystreamKey {
    pub(crate) fn aes(cipher: Cipher, key: AesCtr, pacing: Pacing) -> Self {
        Self { cipher, inner: Inner::Aes(key), pacing }
    }

    pub(crate) fn legacy(cipher: Cipher, key: LegacyKey, pacing: Pacing) -> Self {
        Self { cipher, inner: Inner::Legacy(key), pacing }
    }

    /// The cipher this key is for.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Writes pads of a segment's packets: `rows` is one buffer per packet, in order from slot 0,
    /// and each is overwritten with the bytes `offset..offset + row.len()` of its packet's pad.
    ///
    /// Rows may differ in length and be fewer than 64. One call costs a 64-bit cipher one subkey,
    /// so ask for all rows of a segment at once. Allocates nothing.
    ///
    /// # Panics
    ///
    /// If there are more than [`SEGMENT_PACKETS`] rows, or a row ends beyond what the cipher's
    /// counter can number; going on would repeat another packet's pad.
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
            Inner::Aes(key) => key.write_rows(segment, offset, rows),
            Inner::Legacy(key) => key.subkey(segment).write_rows(offset, rows),
        });
    }

    /// Writes part of one pad; `subkey` is that of the packet's segment.
    fn write_pad(
        &self,
        packet: PacketNumber,
        subkey: Option<&Subkey>,
        offset: usize,
        out: &mut [u8],
    ) {
        self.check_end(offset, out.len());
        match (&self.inner, subkey) {
            (Inner::Aes(key), _) => key.write(packet, offset, out),
            (Inner::Legacy(_), Some(subkey)) => subkey.write(packet.slot(), offset, out),
            (Inner::Legacy(_), None) => unreachable!("a 64-bit cipher works with a subkey"),
        }
    }

    /// Past its end a pad would run into the next packet's: a fault of ours, never a peer's.
    fn check_end(&self, offset: usize, len: usize) {
        let max = match self.inner {
            Inner::Aes(_) => PAD_BYTES_MAX,
            Inner::Legacy(_) => legacy::PAD_BYTES_MAX,
        };
        let end = offset.saturating_add(len);
        assert!(end <= max, "a pad of {end} bytes, at most {max} can be numbered");
    }
}

impl fmt::Debug for KeystreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeystreamKey").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

/// Pads of single packets, made on the spot: what a dry pool falls back on.
///
/// Gives the bytes that [`KeystreamKey::write_rows`] gives. It keeps the last subkey of a 64-bit
/// cipher, so that a run of packets derives one per segment. Allocates nothing per packet.
pub struct InlineKeystream {
    key: Arc<KeystreamKey>,
    last: Option<(Segment, Subkey)>,
    /// Where `apply` makes pads; all zero between calls.
    scratch: Box<[u8]>,
}

impl InlineKeystream {
    /// A fallback for `key`; makes no subkey before it is asked for a pad.
    pub fn new(key: Arc<KeystreamKey>) -> Self {
        Self { key, last: None, scratch: vec![0; SCRATCH_BYTES].into() }
    }

    /// The key whose pads these are.
    pub fn key(&self) -> &Arc<KeystreamKey> {
        &self.key
    }

    /// Overwrites `out` with the bytes `offset..offset + out.len()` of the packet's pad.
    ///
    /// # Panics
    ///
    /// If the pad would be longer than the mask of the tag and [`PAYLOAD_BYTES_MAX`].
    pub fn write(&mut self, packet: PacketNumber, offset: usize, out: &mut [u8]) {
        let Self { key, last, .. } = self;
        key.pacing.make(out.len(), || {
            let subkey = subkey(key, last, packet.segment());
            key.write_pad(packet, subkey, offset, out);
        });
    }

    /// XORs the bytes `offset..offset + data.len()` of the packet's pad on `data`; encrypts and
    /// decrypts. Panics as [`Self::write`] does, before it touches `data`.
    pub fn apply(&mut self, packet: PacketNumber, offset: usize, data: &mut [u8]) {
        let Self { key, last, scratch } = self;
        key.check_end(offset, data.len());
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

/// The subkey of `segment`, made unless it is the `last` one; `None` for ciphers without subkeys.
fn subkey<'a>(
    key: &KeystreamKey,
    last: &'a mut Option<(Segment, Subkey)>,
    segment: Segment,
) -> Option<&'a Subkey> {
    let Inner::Legacy(key) = &key.inner else {
        return None;
    };
    if last.as_ref().is_none_or(|(of, _)| *of != segment) {
        *last = Some((segment, key.subkey(segment)));
    }
    last.as_ref().map(|(_, subkey)| subkey)
}

impl fmt::Debug for InlineKeystream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InlineKeystream").field(&self.key).finish()
    }
}
