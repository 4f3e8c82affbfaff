//! XORs pads into packets, 32 bytes at a time where the CPU can.
//!
//! The only unsafe block is the call into code compiled for AVX2.

#![allow(unsafe_code)]

/// The shortest pad that is worth a call.
#[cfg(target_arch = "x86_64")]
const WIDE_BYTES_MIN: usize = 256;

/// XORs a pad into equally many bytes of data and overwrites it with zeros. Bytes beyond the
/// shorter of the two are unchanged.
#[inline(always)]
pub fn spend(data: &mut [u8], pad: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if data.len() >= WIDE_BYTES_MIN && is_x86_feature_detected!("avx2") {
        // SAFETY: there is AVX2.
        unsafe { spend_by_32(data, pad) }
        return;
    }
    spend_by_any(data, pad);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn spend_by_32(data: &mut [u8], pad: &mut [u8]) {
    spend_by_any(data, pad);
}

/// Uses the vector width of the function that it is inlined into.
#[inline(always)]
fn spend_by_any(data: &mut [u8], pad: &mut [u8]) {
    for (byte, pad) in data.iter_mut().zip(&mut *pad) {
        *byte ^= std::mem::take(pad);
    }
    zeroize::optimization_barrier(pad);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_of_every_length_are_applied_and_wiped() {
        for length in (0..600).chain([1344, 1400, 9000]) {
            let data: Vec<u8> = (0..length).map(|at| (at * 7 + 1) as u8).collect();
            let pad: Vec<u8> = (0..length).map(|at| (at * 11 + 3) as u8).collect();
            let expected: Vec<u8> = data.iter().zip(&pad).map(|(data, pad)| data ^ pad).collect();
            // One byte in front makes both unaligned.
            let (mut changed, mut spent) = ([&[9], &data[..]].concat(), [&[9], &pad[..]].concat());
            spend(&mut changed[1..], &mut spent[1..]);
            assert!(changed[1..] == expected && changed[0] == 9, "{length} bytes");
            assert!(spent[1..].iter().all(|&byte| byte == 0) && spent[0] == 9, "{length} bytes");
        }
    }
}
