//! Runs ciphers with 64-bit blocks in counter mode: DES, triple DES, and what measurements hand in.
//!
//! **Warning: insecure ciphers.** DES falls to a search of 2^56 keys, and triple DES is withdrawn
//! (SP 800-67r2). Do not protect real data with them. `bitslice` is constant-time. The `des` crate
//! (used only on request) indexes tables by secrets, so whoever shares the CPU's caches can learn
//! keys.
//!
//! The short block itself is handled: a subkey and IV per 64 packets (`docs/protocol.md`) keep
//! every subkey below 2^19 blocks, so no block repeats under one. Knows segments and slots, no
//! headers and no clocks.

use crate::backend::{Blocks, CipherEngine};
use crate::bitslice::{BLOCK_BITS, KeyPlanes, Path};
use crate::counter;
use crate::number::{SEGMENT_PACKETS, Segment};
use crate::prk::Prk;
use crate::told_apart::told_apart_by_name;
use cipher::consts::U8;
use cipher::{BlockCipherEncrypt, KeyInit};
use des::{Des, TdesEde3};
use rc2::Rc2;
use zeroize::{Zeroize, Zeroizing, zeroize_stack};

/// Bytes of pad per packet that the counter can address.
pub(crate) const PAD_BYTES_MAX: usize = 8 << BLOCK_BITS;

/// Upper bound on the stack used to derive a subkey: two hash states, three key schedules, copies.
const DERIVE_STACK_BYTES: usize = 4096;

/// The cipher that a key is for.
#[derive(Clone, Copy)]
pub(crate) enum LegacyCipher {
    Des,
    TripleDes,
    Measured(MakeSubkey),
}

/// Makes a subkey from bytes that its argument expands.
pub(crate) type MakeSubkey = fn(&dyn Fn(&mut [u8])) -> Subkey;

/// Writes part of a packet's pad, see [`Subkey::write`], under this key and IV.
type WritePad = fn(&Rc2, iv: u64, slot: usize, offset: usize, out: &mut [u8]);

/// A cipher for measurements only. Only this value refers to its code, so a program that
/// never names the value does not contain the code.
pub struct MeasuredCipher {
    pub(crate) name: &'static str,
    pub(crate) digit: u16,
    /// None for a cipher without keystream.
    pub(crate) subkey: Option<MakeSubkey>,
}

impl MeasuredCipher {
    /// The cipher's digit in the code points of private suites.
    pub const fn digit(&self) -> u16 {
        self.digit
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.subkey.is_none()
    }
}

told_apart_by_name!(MeasuredCipher);

/// The key that the subkeys of all segments are expanded from.
pub(crate) struct LegacyKey {
    cipher: LegacyCipher,
    prk: Prk,
    engine: CipherEngine,
}

impl LegacyKey {
    pub(crate) fn new(cipher: LegacyCipher, prk: Prk, engine: CipherEngine) -> Self {
        Self { cipher, prk, engine }
    }

    /// The subkey of a segment: two SHA-256 blocks and a key schedule, so make it once per segment.
    pub(crate) fn subkey(&self, segment: Segment) -> Subkey {
        let subkey = self.derive_subkey(segment);
        zeroize_stack::<DERIVE_STACK_BYTES>();
        subkey
    }

    /// Has its own stack frame, so that the caller can wipe what HKDF and key schedules leave
    /// there.
    #[inline(never)]
    fn derive_subkey(&self, segment: Segment) -> Subkey {
        let segment = segment.value().to_be_bytes();
        let expand = |retry: u8, out: &mut [u8]| {
            self.prk.expand(&[b"keypadd sub", &segment, &[retry]], out);
        };
        match self.cipher {
            LegacyCipher::Des => {
                let material: Zeroizing<[u8; 16]> = first_strong(8, expand);
                let (key, iv) = material.split_at(8);
                Subkey::new(self.engine, key, iv)
            }
            LegacyCipher::TripleDes => {
                let material: Zeroizing<[u8; 32]> = first_strong(24, expand);
                let (key, iv) = material.split_at(24);
                Subkey::new(self.engine, key, iv)
            }
            LegacyCipher::Measured(subkey) => subkey(&|out| expand(0, out)),
        }
    }
}

/// The first `key || iv` in the order of retries whose key, parity set, is not weak.
fn first_strong<const N: usize>(
    key_bytes: usize,
    expand: impl Fn(u8, &mut [u8]),
) -> Zeroizing<[u8; N]> {
    let mut material = Zeroizing::new([0; N]);
    for retry in 0..=u8::MAX {
        expand(retry, &mut *material);
        let key = &mut material[..key_bytes];
        set_odd_parity(key);
        if !is_weak(key) {
            return material;
        }
    }
    // Each try fails with probability below 2^-49.
    unreachable!("256 weak DES keys in a row")
}

/// Makes the number of ones in every byte odd, by its lowest bit (FIPS 46-3).
fn set_odd_parity(key: &mut [u8]) {
    for byte in key {
        *byte = (*byte & 0xfe) | ((*byte >> 1).count_ones() as u8 & 1 ^ 1);
    }
}

/// Whether any DES key in `key` is weak, semi-weak or possibly weak, or two of three are equal
/// (SP 800-67r2 3.2 and 3.3.2). Parity must be set already: the list of weak keys includes it.
fn is_weak(key: &[u8]) -> bool {
    des::weak_key_test(key).is_err()
}

#[expect(clippy::large_enum_variant, reason = "made per segment, must not allocate")]
enum Schedule {
    Des(Des),
    TripleDes(TdesEde3),
    Bitslice(Path, KeyPlanes),
    /// Of a measured cipher. Here is no code of RC2 but what wipes its key.
    Rc2(Rc2, WritePad),
}

/// Key schedule and IV of one segment.
pub(crate) struct Subkey {
    schedule: Schedule,
    iv: u64,
}

impl Subkey {
    /// For DES with 8 bytes of key, for triple DES with 24.
    fn new(engine: CipherEngine, key: &[u8], iv: &[u8]) -> Self {
        let schedule = match (engine.blocks, key.len()) {
            (Blocks::Bitslice(path), _) => Schedule::Bitslice(path, KeyPlanes::new(key)),
            (Blocks::DesCrate, 8) => Schedule::Des(Des::new_from_slice(key).expect("8 bytes")),
            (Blocks::DesCrate, _) => {
                Schedule::TripleDes(TdesEde3::new_from_slice(key).expect("24 bytes"))
            }
        };
        Self::with_iv(schedule, iv)
    }

    /// For RC2, with what writes its pads.
    pub(crate) fn rc2(key: Rc2, write: WritePad, iv: &[u8]) -> Self {
        Self::with_iv(Schedule::Rc2(key, write), iv)
    }

    fn with_iv(schedule: Schedule, iv: &[u8]) -> Self {
        let iv = u64::from_be_bytes(iv.try_into().expect("8 bytes are left for the IV"));
        Self { schedule, iv }
    }

    /// Writes the pad of the packet in `slot` of the segment, from byte `offset` on.
    pub(crate) fn write(&self, slot: usize, offset: usize, out: &mut [u8]) {
        match &self.schedule {
            Schedule::Des(des) => write_pad(des, self.iv, slot, offset, out),
            Schedule::TripleDes(des) => write_pad(des, self.iv, slot, offset, out),
            Schedule::Rc2(rc2, write) => write(rc2, self.iv, slot, offset, out),
            Schedule::Bitslice(path, key) => path.write_packet(key, self.iv, slot, offset, out),
        }
    }

    /// Writes the pads of the packets in slots 0, 1 and so on, from byte `offset` on.
    pub(crate) fn write_rows(&self, offset: usize, rows: &mut [&mut [u8]]) {
        debug_assert!(rows.len() <= SEGMENT_PACKETS);
        match &self.schedule {
            Schedule::Bitslice(path, key) => path.write_rows(key, self.iv, offset, rows),
            Schedule::Des(_) | Schedule::TripleDes(_) | Schedule::Rc2(..) => {
                for (slot, row) in rows.iter_mut().enumerate() {
                    self.write(slot, offset, row);
                }
            }
        }
    }
}

/// Writes part of a packet's pad with a block cipher, see [`Subkey::write`].
pub(crate) fn write_pad<C: BlockCipherEncrypt<BlockSize = U8>>(
    cipher: &C,
    iv: u64,
    slot: usize,
    offset: usize,
    out: &mut [u8],
) {
    debug_assert!(slot < SEGMENT_PACKETS);
    let base = (slot as u64) << BLOCK_BITS;
    let counter = |block: u64| (iv ^ (base | block)).to_be_bytes().into();
    counter::write_range(cipher, offset, out, counter);
}

impl Drop for Subkey {
    fn drop(&mut self) {
        self.iv.zeroize(); // the key schedules wipe themselves
    }
}

#[cfg(test)]
mod tests;
