//! Computes how much one holder may have of what it and the free rest make up together.
//!
//! The rule is dynamic thresholds (Choudhury and Hahne 1998). It knows neither the other holders
//! nor the total: what is free stands for both.

/// The most that a holder may have which has `own` now, while `free` is nobody's: `up / (up +
/// down)` of both, so that its part and the free rest are as `up` to `down`.
///
/// With (1, 1) a holder may have as much as it leaves free: alone it gets half, two get a third
/// each, and there is always some for the next one.
#[inline]
pub const fn threshold((up, down): (u64, u64), own: u64, free: u64) -> u64 {
    up.saturating_mul(own.saturating_add(free)) / (up + down)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_may_have_as_much_as_it_leaves_free_or_three_times_as_much() {
        assert_eq!(threshold((1, 1), 0, 600), 300);
        assert_eq!(threshold((1, 1), 300, 300), 300, "the same with what it has already");
        assert_eq!(threshold((1, 1), 0, 5), 2);
        assert_eq!(threshold((3, 1), 0, 400), 300);
        assert_eq!(threshold((3, 1), u64::MAX, 1), u64::MAX / 4, "without overflow");
    }

    #[test]
    fn each_of_several_greedy_holders_gets_as_much_as_stays_free() {
        let (mut held, total) = ([0_u64; 3], 4_000);
        for _ in 0..100 {
            for holder in 0..held.len() {
                let free = total - held.iter().sum::<u64>();
                held[holder] = threshold((1, 1), held[holder], free);
            }
        }
        assert!(held.iter().all(|held| held.abs_diff(1_000) < 5), "{held:?}");
    }
}
