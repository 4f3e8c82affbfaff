//! Writes any byte range of a counter-mode keystream, at any offset (SP 800-38A 6.5).
//!
//! Knows neither counters nor ciphers: the caller says what counter block `j` holds and which
//! cipher encrypts it.

use cipher::array::{Array, ArraySize};
use cipher::{BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser};
use std::marker::PhantomData;

/// Writes bytes `offset..offset + out.len()` of a keystream over `out`; block `j` of it is the
/// encryption of `counter(j)`.
pub(crate) fn write_range<N: ArraySize>(
    cipher: &impl BlockCipherEncrypt<BlockSize = N>,
    offset: usize,
    out: &mut [u8],
    counter: impl Fn(u64) -> Array<u8, N>,
) {
    let block_size = PhantomData;
    cipher.encrypt_with_backend(Range { offset, out, counter, block_size });
}

/// The whole range as one job for the cipher: entering a wide AES back end spreads the round keys
/// over vector registers, which costs as much as encrypting twenty blocks.
struct Range<'a, N, F> {
    offset: usize,
    out: &'a mut [u8],
    counter: F,
    block_size: PhantomData<N>,
}

impl<N: ArraySize, F> BlockSizeUser for Range<'_, N, F> {
    type BlockSize = N;
}

impl<N: ArraySize, F: Fn(u64) -> Array<u8, N>> BlockCipherEncClosure for Range<'_, N, F> {
    /// Encrypts whole blocks in place, as many at once as the back end likes; only the ragged ends
    /// go through a block on the stack, which is wiped.
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = N>>(self, backend: &B) {
        let ragged = |block: u64, skip: usize, out: &mut [u8]| {
            let mut whole = (self.counter)(block);
            backend.encrypt_block_inplace(&mut whole);
            out.copy_from_slice(&whole[skip..skip + out.len()]);
            wipe(&mut whole);
        };

        let mut block = (self.offset / N::USIZE) as u64;
        let skip = self.offset % N::USIZE;
        let lead = if skip == 0 { 0 } else { self.out.len().min(N::USIZE - skip) };
        let (lead, rest) = self.out.split_at_mut(lead);
        if !lead.is_empty() {
            ragged(block, skip, lead);
            block += 1;
        }

        let (blocks, tail) = Array::<u8, N>::slice_as_chunks_mut(rest);
        let end = block + blocks.len() as u64;
        for (number, block) in (block..end).zip(&mut *blocks) {
            *block = (self.counter)(number);
        }
        let (batches, few) = Array::<_, B::ParBlocksSize>::slice_as_chunks_mut(blocks);
        for batch in batches {
            backend.encrypt_par_blocks_inplace(batch);
        }
        backend.encrypt_tail_blocks_inplace(few);

        if !tail.is_empty() {
            ragged(end, 0, tail);
        }
    }
}

/// Writes several rows at a time, each bytes `offset..offset + row.len()` of its own keystream;
/// block `j` of row `i` is the encryption of `counter(i, j)`.
pub(crate) fn write_rows<N: ArraySize>(
    cipher: &impl BlockCipherEncrypt<BlockSize = N>,
    offset: usize,
    rows: &mut [&mut [u8]],
    counter: impl Fn(usize, u64) -> Array<u8, N>,
) {
    let block_size = PhantomData;
    cipher.encrypt_with_backend(Rows { offset, rows, counter, block_size });
}

/// All rows as one job for the cipher, in batches as wide as the back end likes, whatever the rows'
/// length: a head is an eighth of a wide AES batch.
struct Rows<'r, 'b, N, F> {
    offset: usize,
    rows: &'r mut [&'b mut [u8]],
    counter: F,
    block_size: PhantomData<N>,
}

impl<N: ArraySize, F> BlockSizeUser for Rows<'_, '_, N, F> {
    type BlockSize = N;
}

impl<N: ArraySize, F: Fn(usize, u64) -> Array<u8, N>> BlockCipherEncClosure for Rows<'_, '_, N, F> {
    /// Encrypts on the stack and copies to the rows, so that each line of a pool's memory, which is
    /// in no cache, is written once. The batch is wiped.
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = N>>(self, backend: &B) {
        let Self { offset, rows, counter, .. } = self;
        let first = offset / N::USIZE;
        let blocks_of = |row: &[u8]| match row.len() {
            0 => 0,
            bytes => (offset % N::USIZE + bytes).div_ceil(N::USIZE),
        };
        let mut batch = Array::<Array<u8, N>, B::ParBlocksSize>::default();
        // The next block to encrypt: its row, and its place there.
        let (mut next_row, mut next_block) = (0, 0);
        while next_row < rows.len() {
            let (begin_row, begin_block) = (next_row, next_block);
            let mut filled = 0;
            while filled < batch.len() && next_row < rows.len() {
                let left = blocks_of(rows[next_row]) - next_block;
                let run = left.min(batch.len() - filled);
                let numbers = (first + next_block) as u64..;
                for (block, number) in batch[filled..filled + run].iter_mut().zip(numbers) {
                    *block = counter(next_row, number);
                }
                filled += run;
                (next_row, next_block) =
                    if run == left { (next_row + 1, 0) } else { (next_row, next_block + run) };
            }
            if filled == batch.len() {
                backend.encrypt_par_blocks_inplace(&mut batch);
            } else {
                backend.encrypt_tail_blocks_inplace(&mut batch[..filled]);
            }
            let mut bytes = Array::slice_as_flattened(&batch[..filled]);
            let mut block = begin_block;
            for row in &mut rows[begin_row..] {
                if bytes.is_empty() {
                    break;
                }
                let run = ((blocks_of(row) - block) * N::USIZE).min(bytes.len());
                let (these, rest) = bytes.split_at(run);
                if run > 0 {
                    copy_overlap(these, (first + block) * N::USIZE, offset, row);
                }
                (bytes, block) = (rest, 0);
            }
        }
        wipe(Array::slice_as_flattened_mut(&mut batch));
    }
}

/// Copies keystream bytes `at..` into `out`, which holds the keystream from byte `skip` on. Drops
/// what lies outside `out`.
#[inline(always)]
pub(crate) fn copy_overlap(bytes: &[u8], at: usize, skip: usize, out: &mut [u8]) {
    let lead = skip.saturating_sub(at);
    let from = (at + lead - skip).min(out.len());
    let piece = (bytes.len() - lead).min(out.len() - from);
    out[from..from + piece].copy_from_slice(&bytes[lead..lead + piece]);
}

/// Overwrites bytes with zeros in a way that the compiler cannot remove, at the speed of a `memset`
/// (`Zeroize` for slices stores byte by byte).
#[inline]
pub fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    zeroize::optimization_barrier(bytes);
}
