//! Builds counter blocks directly as bit planes.
//!
//! Only a handful of bits count within a batch; the others are the IV's, the same in every lane. A
//! counter block of a 64-bit cipher is IV xor (slot << 13 | block).

use super::lanes::Lanes;

/// Bits of a 64-bit cipher's counter block that count within a packet: 8,192 blocks of 8 bytes.
pub(crate) const BLOCK_BITS: u32 = 13;

/// Bit `n` of the numbers 0 to 63.
const LADDER: [u64; 6] = [
    0xaaaa_aaaa_aaaa_aaaa,
    0xcccc_cccc_cccc_cccc,
    0xf0f0_f0f0_f0f0_f0f0,
    0xff00_ff00_ff00_ff00,
    0xffff_0000_ffff_0000,
    0xffff_ffff_0000_0000,
];

/// A word of zeros or ones: bit `bit` of `number`.
fn spread(number: u64, bit: u32) -> u64 {
    0u64.wrapping_sub(number >> bit & 1)
}

/// Plane `bit` of a batch for all packets of a segment: lane `i` of word `w` is block `first + w`
/// of the packet in slot `i`.
#[inline(always)]
pub(super) fn of_rows<L: Lanes>(proof: L::Proof, iv: u64, first: u64, bit: u32) -> L {
    let iv = spread(iv, bit);
    match bit {
        0..BLOCK_BITS => L::from_fn(proof, |word| iv ^ spread(first + word as u64, bit)),
        _ => L::splat(proof, iv ^ bit.checked_sub(BLOCK_BITS).map_or(0, slot_bit)),
    }
}

/// As [`of_rows`], for AES: `counter` is block 0 of slot 0; its low 32 bits count blocks, those
/// above them slots.
#[inline(always)]
pub(super) fn of_aes_rows<L: Lanes>(proof: L::Proof, counter: u128, first: u32, bit: u32) -> L {
    match bit {
        0..32 => {
            let first = (counter as u32).wrapping_add(first);
            L::from_fn(proof, |word| spread(u64::from(first.wrapping_add(word as u32)), bit))
        }
        _ => L::splat(proof, spread((counter >> bit) as u64, 0) ^ slot_bit(bit - 32)),
    }
}

/// Bit `bit` of the slots 0 to 63, which are the lanes.
fn slot_bit(bit: u32) -> u64 {
    LADDER.get(bit as usize).copied().unwrap_or(0)
}

/// Plane `bit` of a batch for the packet in one slot: lane `i` of word `w` is block
/// `first + i * L::WORDS + w`.
#[inline(always)]
pub(super) fn of_packet<L: Lanes>(
    proof: L::Proof,
    iv: u64,
    slot: usize,
    first: u64,
    bit: u32,
) -> L {
    let constant = spread(iv ^ (slot as u64) << BLOCK_BITS, bit);
    let shared = L::WORDS.trailing_zeros();
    match bit {
        0..BLOCK_BITS => L::from_fn(proof, |word| {
            let first = first + word as u64;
            // Bits below the word count are the same in all lanes of a word; those above count.
            constant
                ^ match bit.checked_sub(shared) {
                    None => spread(first, bit),
                    Some(bit) => counting(first >> shared, bit),
                }
        }),
        _ => L::splat(proof, constant),
    }
}

/// Bit `bit` of the 64 numbers from `first` on.
fn counting(first: u64, bit: u32) -> u64 {
    if let Some(ladder) = LADDER.get(bit as usize) {
        return ladder.rotate_right((first & 63) as u32);
    }
    // The upper bits change at most once: after the last number that shares those of `first`.
    let same = !0 >> (first & 63);
    (spread(first, bit) & same) | (spread(first + 64, bit) & !same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_gives_the_bits_of_consecutive_numbers() {
        for first in (0..200).chain(8000..8192) {
            for bit in 0..BLOCK_BITS {
                let plane = counting(first, bit);
                for lane in 0..64 {
                    assert_eq!(
                        plane >> lane & 1,
                        (first + lane) >> bit & 1,
                        "{first} {bit} {lane}"
                    );
                }
            }
        }
    }
}
