//! Orders the targets of a service: by priority, then randomly by weight (RFC 2782). Resolves
//! nothing.

use super::{SrvError, message::SrvRecord};
use crate::addresses::target::ServerAddress;

/// Most targets used from one answer: attempts begin a quarter of a second apart.
pub(crate) const TARGETS_MAX: usize = 8;

/// Most records considered from one answer, those of the lowest priorities.
const RECORDS_MAX: usize = 256;

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SrvTarget {
    pub(crate) address: ServerAddress,
    /// How many priorities in the answer are lower: targets of equal rank are equally preferred.
    pub(crate) rank: usize,
}

/// The targets of these records in the order in which to try them, without duplicates; `draw(max)`
/// returns a random number up to `max`.
///
/// # Errors
/// There is no target, or `draw` fails.
pub(crate) fn in_order(
    mut records: Vec<SrvRecord>,
    mut draw: impl FnMut(u32) -> Result<u32, SrvError>,
) -> Result<Vec<SrvTarget>, SrvError> {
    if records.is_empty() {
        return Err(SrvError::NoRecord);
    }
    // Those of weight 0 come first, as RFC 2782 says: they are drawn, but rarely.
    records.sort_by_key(|record| (record.priority, record.weight != 0));
    records.truncate(RECORDS_MAX);
    let mut targets: Vec<SrvTarget> = Vec::new();
    for (rank, group) in records.chunk_by(|a, b| a.priority == b.priority).enumerate() {
        let mut left: Vec<&SrvRecord> = group.iter().collect();
        while !left.is_empty() && targets.len() < TARGETS_MAX {
            let total = left.iter().map(|record| u32::from(record.weight)).sum();
            let (drawn, mut sum) = (draw(total)?, 0);
            let reached = left.iter().position(|record| {
                sum += u32::from(record.weight);
                sum >= drawn
            });
            let Some(address) = left.remove(reached.unwrap_or(0)).target.clone() else { continue };
            if !targets.iter().any(|target| target.address == address) {
                targets.push(SrvTarget { address, rank });
            }
        }
    }
    if targets.is_empty() { Err(SrvError::NoService) } else { Ok(targets) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use fastrand::Rng;

    use super::*;

    fn record(priority: u16, weight: u16, target: &str) -> SrvRecord {
        let target = (target != ".").then(|| target.parse().unwrap());
        SrvRecord { priority, weight, target }
    }

    fn ordered(records: &[SrvRecord], rng: &mut Rng) -> Vec<(usize, String)> {
        let targets = in_order(records.to_vec(), |max| Ok(rng.u32(..=max))).unwrap();
        targets.into_iter().map(|it| (it.rank, it.address.host.to_string())).collect()
    }

    #[test]
    fn priorities_decide_before_weights() {
        let records =
            [record(20, 65_535, "c"), record(10, 0, "a"), record(10, 0, "b"), record(30, 1, "d")];
        let mut rng = Rng::with_seed(1);
        for _ in 0..100 {
            let order = ordered(&records, &mut rng);
            assert_eq!(order.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 0, 1, 2]);
            assert_eq!(order[2..], [(1, "c".into()), (2, "d".into())]);
        }
    }

    #[test]
    fn weights_are_shares_of_first_attempts_and_no_weight_is_a_small_one() {
        let records =
            [record(1, 60, "a"), record(1, 30, "b"), record(1, 10, "c"), record(1, 0, "d")];
        let (mut rng, mut first) = (Rng::with_seed(2), HashMap::new());
        for _ in 0..10_000 {
            let order = ordered(&records, &mut rng);
            assert_eq!(order.len(), 4);
            *first.entry(order[0].1.clone()).or_insert(0) += 1;
        }
        let is_about = |host: &str, share: i32| (first[host] - share).abs() < 300;
        assert!(is_about("a", 6_000) && is_about("b", 3_000) && is_about("c", 1_000), "{first:?}");
        assert!((1..300).contains(&first["d"]), "{first:?}");
    }

    #[test]
    fn at_most_eight_targets_are_used_the_preferred_ones_and_none_twice() {
        let host = |nth: u16| format!("h{nth}");
        let mut records: Vec<_> = (0..20).rev().map(|nth| record(nth, 0, &host(nth))).collect();
        records.push(record(0, 0, "h0"));
        let order = ordered(&records, &mut Rng::with_seed(3));
        let expected: Vec<_> = (0..8).map(|nth| (usize::from(nth), host(nth))).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn a_dot_alone_says_that_there_is_no_service() {
        let order = |records: &[SrvRecord]| in_order(records.to_vec(), Ok);
        assert!(matches!(order(&[record(0, 0, ".")]), Err(SrvError::NoService)));
        assert!(matches!(order(&[]), Err(SrvError::NoRecord)));
        assert_eq!(order(&[record(0, 0, "."), record(1, 0, "a")]).unwrap().len(), 1);
    }
}
