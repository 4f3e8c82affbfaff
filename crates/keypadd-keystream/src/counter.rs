//! From blocks to bytes: any range of a block keystream, at any offset.
//!
//! Knows nothing of ciphers: whoever calls says how block `j` is made (SP 800-38A 6.5).

use cipher::array::{Array, ArraySize};

/// Writes bytes `offset..offset + out.len()` of a keystream over `out`.
///
/// `keystream(first, blocks)` fills `blocks` with the keystream's blocks `first`, `first + 1`, ...
/// Whole blocks are made in place, in one call, so that the cipher can work on many at once; only
/// the ragged ends go through a block on the stack, which is wiped.
pub(crate) fn write_range<N: ArraySize>(
    offset: usize,
    out: &mut [u8],
    mut keystream: impl FnMut(u64, &mut [Array<u8, N>]),
) {
    let mut block = (offset / N::USIZE) as u64;
    let mut ragged = |block: u64, skip: usize, out: &mut [u8]| {
        let mut whole = [Array::default()];
        keystream(block, &mut whole);
        out.copy_from_slice(&whole[0][skip..skip + out.len()]);
        wipe(&mut whole[0]);
    };

    let skip = offset % N::USIZE;
    let lead = if skip == 0 {
        0
    } else {
        out.len().min(N::USIZE - skip)
    };
    let (lead, rest) = out.split_at_mut(lead);
    if !lead.is_empty() {
        ragged(block, skip, lead);
        block += 1;
    }
    let (blocks, tail) = Array::slice_as_chunks_mut(rest);
    if !tail.is_empty() {
        ragged(block + blocks.len() as u64, 0, tail);
    }
    if !blocks.is_empty() {
        keystream(block, blocks);
    }
}

/// Overwrites bytes so that the compiler may not leave it out, at the speed of a `memset`
/// (`Zeroize` for slices stores byte by byte).
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    zeroize::optimization_barrier(bytes);
}
