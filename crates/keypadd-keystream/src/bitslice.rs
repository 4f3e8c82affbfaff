//! Generates keystream by bitslicing, hundreds of blocks at a time: DES, triple DES, and AES on
//! CPUs without AES instructions.
//!
//! A bitsliced cipher has one vector per bit of the block, and every vector holds that bit of 64 to
//! 512 blocks. A filler needs thousands of blocks of one subkey, so vectors are always full.
//! Constant-time: no branch and no address depends on data or key.
//!
//! A word of a vector is 64 lanes and a segment has 64 packets: in a batch for chunks, lane `i` is
//! the packet in slot `i` and each word is another block, so lanes stay full however short the
//! rows, and a row's blocks come out side by side. Knows counter blocks and rows, no key
//! derivation.

mod aes;
mod aes_s_box;
#[cfg(any(test, target_arch = "x86_64"))]
mod circuits_ternary;
mod circuits_two;
mod counters;
mod des;
mod instructions;
mod lanes;
mod simd;
mod transpose;
mod word;

pub(crate) use aes::AesPlanes;
pub(crate) use counters::BLOCK_BITS;
pub(crate) use des::KeyPlanes;

use crate::counter;
use crate::number::SEGMENT_PACKETS;
use aes::AesRows;
use des::Halves;
use lanes::{Job, Lanes};
use zeroize::zeroize_stack;

/// Bytes of a block.
const BLOCK_BYTES: usize = 8;

/// Upper bound on a job's stack: 64 or 128 vectors of up to 64 bytes, and as much again.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 64 << 10 } else { 16 << 10 };

/// Vector instructions; a value proves that this CPU has them.
#[derive(Clone, Copy)]
pub(crate) enum Path {
    /// One word.
    Lanes64,
    #[cfg(target_arch = "x86_64")]
    Sse2(instructions::HasSse2),
    #[cfg(target_arch = "x86_64")]
    Avx2(instructions::HasAvx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(instructions::HasAvx512),
    #[cfg(target_arch = "aarch64")]
    Neon(instructions::HasNeon),
}

#[cfg(target_arch = "x86_64")]
impl Path {
    pub(crate) fn lanes_128() -> Option<Self> {
        Some(Self::Sse2(instructions::HasSse2::ALWAYS))
    }

    pub(crate) fn lanes_256() -> Option<Self> {
        instructions::HasAvx2::detect().map(Self::Avx2)
    }

    pub(crate) fn lanes_512() -> Option<Self> {
        instructions::HasAvx512::detect().map(Self::Avx512)
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Path {
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn lanes_128() -> Option<Self> {
        Some(Self::Neon(instructions::HasNeon::ALWAYS))
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

    /// Runs a job, then wipes the blocks that it leaves on the stack.
    fn run(self, job: impl Job) {
        self.run_in_frame(job);
        zeroize_stack::<STACK_BYTES>();
    }

    /// Has its own stack frame, so that the caller can wipe it.
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

    /// Writes the pads of a segment's packets from byte `offset` on; row `i` is slot `i`.
    pub(crate) fn write_rows(
        self,
        key: &KeyPlanes,
        iv: u64,
        offset: usize,
        rows: &mut [&mut [u8]],
    ) {
        let bytes = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let blocks = (offset % BLOCK_BYTES + bytes).div_ceil(BLOCK_BYTES);
        // With few rows, a batch for all slots would leave most lanes empty.
        let batches_of_one = blocks.div_ceil(self.lanes());
        if rows.len() * batches_of_one < blocks.div_ceil(self.lanes() / SEGMENT_PACKETS) {
            for (slot, row) in rows.iter_mut().enumerate() {
                self.write_packet(key, iv, slot, offset, row);
            }
        } else {
            self.run(Rows { key, iv, offset, blocks, rows });
        }
    }

    /// As [`Self::write_rows`], for AES. `counter` is block 0 of slot 0; its low 32 bits count
    /// blocks, and slots are XORed into the bits above.
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
    /// Blocks that the longest row spans.
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
            let mut state = Halves::<L>::new(proof, |bit| counters::of_rows(proof, iv, batch, bit));
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
                Halves::<L>::new(proof, |bit| counters::of_packet(proof, iv, slot, batch, bit));
            state.encrypt(proof, key);
            let rows = (blocks - done).div_ceil(L::WORDS).min(64);
            state.for_each_row(proof, rows, |row, words| {
                put_words(words, (done + row * L::WORDS) * BLOCK_BYTES, skip, out);
            });
            state.wipe(proof);
        }
    }
}

/// Writes blocks of DES that are side by side in a vector, as [`counter::copy_overlap`] does.
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
    counter::copy_overlap(&whole[..bytes], at, skip, out);
    counter::wipe(&mut whole);
}

#[cfg(test)]
mod tests;
