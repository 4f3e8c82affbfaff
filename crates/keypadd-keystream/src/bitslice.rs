//! Keystream of DES and triple DES, and of AES where the CPU has no instructions for it, hundreds of
//! blocks at a time.
//!
//! A bitsliced cipher has one vector for each bit of the block, and every vector has a bit of each
//! of 64 to 512 blocks. A filler needs thousands of blocks of one subkey, so vectors are always
//! full. All time is the same whatever data and key are: no branch and no address depends on them.
//!
//! A word of a vector is 64 lanes, and a segment has 64 packets: in a batch for chunks lane `i` is
//! the packet in slot `i` and each word another block, so that lanes are full however short rows
//! are, and a row's blocks come out side by side. Knows counter blocks and rows, no derivation.

mod aes;
mod aes_s_box;
#[cfg(any(test, target_arch = "x86_64"))]
mod circuits_ternary;
mod circuits_two;
mod counters;
mod des;
mod lanes;
mod simd;
mod transpose;

pub(crate) use aes::AesPlanes;
pub(crate) use des::KeyPlanes;

use crate::number::SEGMENT_PACKETS;
use aes::AesRows;
use des::State;
use lanes::{Job, Lanes};
use zeroize::zeroize_stack;

/// Bytes of a block.
const BLOCK_BYTES: usize = 8;

/// Above what a job keeps on the stack: 64 or 128 vectors of up to 64 bytes, and as much again.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 64 << 10 } else { 16 << 10 };

/// Vectors that this CPU has; a value shows that it has them.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    /// One word.
    Lanes64,
    #[cfg(target_arch = "x86_64")]
    Sse2(simd::HasSse2),
    #[cfg(target_arch = "x86_64")]
    Avx2(simd::HasAvx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(simd::HasAvx512),
    #[cfg(target_arch = "aarch64")]
    Neon(simd::HasNeon),
}

#[cfg(target_arch = "x86_64")]
impl Path {
    pub(crate) fn lanes_128() -> Option<Self> {
        Some(Self::Sse2(simd::HasSse2::ALWAYS))
    }

    pub(crate) fn lanes_256() -> Option<Self> {
        simd::HasAvx2::detect().map(Self::Avx2)
    }

    pub(crate) fn lanes_512() -> Option<Self> {
        simd::HasAvx512::detect().map(Self::Avx512)
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Path {
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn lanes_128() -> Option<Self> {
        Some(Self::Neon(simd::HasNeon::ALWAYS))
    }

    #[cfg(not(target_arch = "aarch64"))]
    pub(crate) fn lanes_128() -> Option<Self> {
        None
    }

    pub(crate) fn lanes_256() -> Option<Self> {
        None
    }

    pub(crate) fn lanes_512() -> Option<Self> {
        None
    }
}

impl Path {
    /// Blocks encrypted at a time.
    pub(crate) fn lanes(self) -> usize {
        match self {
            Self::Lanes64 => 64,
            #[cfg(target_arch = "x86_64")]
            Self::Sse2(_) => 128,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => 256,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => 512,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => 128,
        }
    }

    /// Does a job and wipes what it leaves on the stack: blocks that vectors are made of and read out from.
    fn run(self, job: impl Job) {
        self.run_in_frame(job);
        zeroize_stack::<STACK_BYTES>();
    }

    /// In a frame of its own, so that the caller can wipe it.
    #[inline(never)]
    fn run_in_frame(self, job: impl Job) {
        match self {
            Self::Lanes64 => u64::run((), job),
            #[cfg(target_arch = "x86_64")]
            Self::Sse2(proof) => simd::Sse2::run(proof, job),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => simd::Avx2::run(proof, job),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => simd::Avx512::run(proof, job),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(proof) => simd::Neon::run(proof, job),
        }
    }

    /// Writes pads of a segment's packets from byte `offset` on, row `i` that of slot `i`.
    pub(crate) fn write_rows(
        self,
        key: &KeyPlanes,
        iv: u64,
        offset: usize,
        rows: &mut [&mut [u8]],
    ) {
        let bytes = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let blocks = (offset % BLOCK_BYTES + bytes).div_ceil(BLOCK_BYTES);
        // Few rows would leave most lanes of a batch for all slots without a packet.
        let batches_of_one = blocks.div_ceil(self.lanes());
        if rows.len() * batches_of_one < blocks.div_ceil(self.lanes() / SEGMENT_PACKETS) {
            for (slot, row) in rows.iter_mut().enumerate() {
                self.write_packet(key, iv, slot, offset, row);
            }
        } else {
            self.run(Rows { key, iv, offset, blocks, rows });
        }
    }

    /// Writes pads of a segment's packets under AES, as [`Self::write_rows`] does. `counter` is block 0
    /// of slot 0; blocks count in its low 32 bits, slots are XORed on those above.
    pub(crate) fn write_aes_rows(
        self,
        key: &AesPlanes,
        counter: u128,
        offset: usize,
        rows: &mut [&mut [u8]],
    ) {
        self.run(AesRows { key, counter, offset, rows });
    }

    /// Writes the pad of the packet in `slot` from byte `offset` on.
    pub(crate) fn write_packet(
        self,
        key: &KeyPlanes,
        iv: u64,
        slot: usize,
        offset: usize,
        out: &mut [u8],
    ) {
        self.run(Packet { key, iv, slot, offset, out });
    }
}

/// Pads of up to 64 packets, in order from slot 0.
struct Rows<'a, 'b> {
    key: &'a KeyPlanes,
    iv: u64,
    offset: usize,
    /// Blocks that the longest row touches.
    blocks: usize,
    rows: &'a mut [&'b mut [u8]],
}

impl Job for Rows<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(self, proof: L::Proof) {
        let Self { key, iv, offset, blocks, rows } = self;
        let first = offset / BLOCK_BYTES;
        for done in (0..blocks).step_by(L::WORDS) {
            let batch = (first + done) as u64;
            let mut state = State::<L>::new(proof, |bit| counters::of_rows(proof, iv, batch, bit));
            state.encrypt(proof, key);
            let at = done * BLOCK_BYTES;
            state.for_each_row(proof, rows.len(), |row, words| {
                put_words(words, at, offset % BLOCK_BYTES, rows[row]);
            });
            state.wipe(proof);
        }
    }
}

/// The pad of one packet.
struct Packet<'a> {
    key: &'a KeyPlanes,
    iv: u64,
    slot: usize,
    offset: usize,
    out: &'a mut [u8],
}

impl Job for Packet<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, proof: L::Proof) {
        let Self { key, iv, slot, offset, out } = self;
        let skip = offset % BLOCK_BYTES;
        let blocks = (skip + out.len()).div_ceil(BLOCK_BYTES);
        let first = offset / BLOCK_BYTES;
        for done in (0..blocks).step_by(L::WORDS * 64) {
            let batch = (first + done) as u64;
            let mut state =
                State::<L>::new(proof, |bit| counters::of_packet(proof, iv, slot, batch, bit));
            state.encrypt(proof, key);
            let rows = (blocks - done).div_ceil(L::WORDS).min(64);
            state.for_each_row(proof, rows, |row, words| {
                put_words(words, (done + row * L::WORDS) * BLOCK_BYTES, skip, out);
            });
            state.wipe(proof);
        }
    }
}

/// Writes blocks of DES that are side by side in a vector, as [`put`] does.
#[inline(always)]
fn put_words<L: Lanes>(words: L, at: usize, skip: usize, out: &mut [u8]) {
    let bytes = L::WORDS * BLOCK_BYTES;
    if let Some(from) = at.checked_sub(skip)
        && let Some(out) = out.get_mut(from..from + bytes)
    {
        words.store(out);
        return;
    }
    let mut whole = [0; 64];
    words.store(&mut whole[..bytes]);
    put(&whole[..bytes], at, skip, out);
    crate::counter::wipe(&mut whole);
}

/// Writes keystream that begins `skip` bytes before `out` does: these are its bytes from `at` on.
/// What is outside of `out` is dropped.
#[inline(always)]
fn put(bytes: &[u8], at: usize, skip: usize, out: &mut [u8]) {
    let lead = skip.saturating_sub(at);
    let from = (at + lead - skip).min(out.len());
    let piece = (bytes.len() - lead).min(out.len() - from);
    out[from..from + piece].copy_from_slice(&bytes[lead..lead + piece]);
}

#[cfg(test)]
mod tests;
