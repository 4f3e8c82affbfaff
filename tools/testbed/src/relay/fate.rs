//! What becomes of a datagram: a pure function of the seed, the direction, the datagram's number in
//! that direction and the impairments in force. Knows no sockets and no clock.

use std::time::Duration;

use fastrand::Rng;

use super::Direction;

/// What a direction does to datagrams. Chances are 0 to 1 for each datagram by itself; the default
/// does nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Impairments {
    /// Nothing passes at all.
    pub cut: bool,
    /// Chance to be lost.
    pub loss: f64,
    /// Chance that one bit is flipped.
    pub corrupt: f64,
    /// Chance to come twice; the copy takes its own time.
    pub duplicate: f64,
    /// Chance to be held back by `hold`, so that later ones overtake it.
    pub reorder: f64,
    /// How long a datagram that is reordered is held back.
    pub hold: Duration,
    /// What every datagram takes.
    pub delay: Duration,
    /// Up to this much more, evenly spread: larger than the gaps, it reorders too.
    pub jitter: Duration,
    /// Longer datagrams are lost, and nobody says so: a black hole.
    pub bytes_max: Option<usize>,
}

/// What becomes of one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It came while the direction was cut.
    Cut,
    /// It is lost, by chance or because it is too long.
    Lost,
    /// It arrives, perhaps late, damaged or twice.
    Arrives {
        /// How long it takes.
        after: Duration,
        /// How long its copy takes, if it comes twice.
        again: Option<Duration>,
        /// The bit of it that is flipped, counted from its first byte's highest.
        flipped: Option<usize>,
        /// Whether it was held back.
        held: bool,
    },
}

impl Fate {
    /// Decides on datagram `number`, which is `bytes` long. The same arguments give the same fate,
    /// and one impairment's decisions do not depend on what the others are set to.
    pub fn of(
        seed: u64,
        direction: Direction,
        number: u64,
        bytes: usize,
        set: &Impairments,
    ) -> Self {
        let mut root = Rng::with_seed(seed);
        let of_direction = [root.u64(..), root.u64(..)][direction as usize];
        let mut chance = Rng::with_seed(of_direction.wrapping_add(number)).fork();
        // All are drawn, whatever is set.
        let lost = chance.f64() < set.loss;
        let corrupted = chance.f64() < set.corrupt;
        let doubled = chance.f64() < set.duplicate;
        let held = chance.f64() < set.reorder;
        let (first, second) = (chance.f64(), chance.f64());
        let bit = chance.usize(0..bytes.max(1) * 8);
        if set.cut {
            return Self::Cut;
        }
        if lost || set.bytes_max.is_some_and(|most| bytes > most) {
            return Self::Lost;
        }
        let hold = if held { set.hold } else { Duration::ZERO };
        Self::Arrives {
            after: set.delay + set.jitter.mul_f64(first) + hold,
            again: doubled.then(|| set.delay + set.jitter.mul_f64(second)),
            flipped: (corrupted && bytes > 0).then_some(bit),
            held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{ToClient, ToServer};

    const MANY: u64 = 10_000;

    fn fates(seed: u64, direction: Direction, set: &Impairments) -> Vec<Fate> {
        (0..MANY).map(|number| Fate::of(seed, direction, number, 1200, set)).collect()
    }

    fn everything() -> Impairments {
        Impairments {
            cut: false,
            loss: 0.2,
            corrupt: 0.01,
            duplicate: 0.05,
            reorder: 0.1,
            hold: Duration::from_millis(7),
            delay: Duration::from_millis(20),
            jitter: Duration::from_millis(3),
            bytes_max: None,
        }
    }

    /// How many in a hundred.
    fn share(fates: &[Fate], matches: impl Fn(&Fate) -> bool) -> f64 {
        fates.iter().filter(|fate| matches(fate)).count() as f64 * 100.0 / fates.len() as f64
    }

    #[test]
    fn the_same_seed_decides_the_same_and_another_does_not() {
        let set = everything();
        assert_eq!(fates(7, ToServer, &set), fates(7, ToServer, &set));
        assert_ne!(fates(7, ToServer, &set), fates(8, ToServer, &set));
        assert_ne!(fates(7, ToServer, &set), fates(7, ToClient, &set));
    }

    #[test]
    fn each_impairment_meets_as_many_as_it_says() {
        let fates = fates(1, ToServer, &everything());
        let lost = share(&fates, |fate| *fate == Fate::Lost);
        assert!((19.0..21.0).contains(&lost), "{lost}");
        // Of the 80 in a hundred that arrive.
        let flipped = share(&fates, |fate| matches!(fate, Fate::Arrives { flipped: Some(_), .. }));
        assert!((0.5..1.1).contains(&flipped), "{flipped}");
        let doubled = share(&fates, |fate| matches!(fate, Fate::Arrives { again: Some(_), .. }));
        assert!((3.4..4.6).contains(&doubled), "{doubled}");
        let held = share(&fates, |fate| matches!(fate, Fate::Arrives { held: true, .. }));
        assert!((7.2..8.8).contains(&held), "{held}");
    }

    #[test]
    fn delay_jitter_and_hold_add_up() {
        let set = everything();
        let mut latest = Duration::ZERO;
        for fate in fates(2, ToClient, &set) {
            let Fate::Arrives { after, again, held, .. } = fate else { continue };
            let least = set.delay + if held { set.hold } else { Duration::ZERO };
            assert!(after >= least && after <= least + set.jitter, "{after:?}");
            let copy = again.unwrap_or(set.delay);
            assert!(copy >= set.delay && copy <= set.delay + set.jitter, "{copy:?}");
            latest = latest.max(after - least);
        }
        assert!(latest > set.jitter.mul_f64(0.99), "jitter is spread: {latest:?}");
    }

    #[test]
    fn what_is_lost_does_not_depend_on_the_other_impairments() {
        let lost = |set: &Impairments| {
            let fates = fates(3, ToServer, set);
            fates.iter().map(|fate| *fate == Fate::Lost).collect::<Vec<_>>()
        };
        assert_eq!(lost(&everything()), lost(&Impairments { loss: 0.2, ..<_>::default() }));
    }

    #[test]
    fn what_is_too_long_is_lost_and_nothing_else() {
        let set = Impairments { bytes_max: Some(1_400), ..<_>::default() };
        let arrives = |bytes| {
            let fates = (0..MANY).map(|number| Fate::of(6, ToClient, number, bytes, &set));
            fates.filter(|fate| *fate != Fate::Lost).count() as u64
        };
        assert_eq!([1_401, 1_400].map(arrives), [0, MANY]);
    }

    #[test]
    fn every_bit_may_be_flipped_and_none_beyond_the_end() {
        let set = Impairments { corrupt: 1.0, ..<_>::default() };
        let mut seen = [false; 24];
        for number in 0..MANY {
            let fate = Fate::of(4, ToServer, number, 3, &set);
            let Fate::Arrives { flipped: Some(bit), .. } = fate else { panic!("{fate:?}") };
            seen[bit] = true;
        }
        assert_eq!(seen, [true; 24]);
        let empty = Fate::of(4, ToServer, 0, 0, &set);
        assert!(matches!(empty, Fate::Arrives { flipped: None, .. }), "{empty:?}");
    }

    #[test]
    fn a_cut_direction_passes_nothing_and_a_good_one_changes_nothing() {
        let cut = Impairments { cut: true, ..everything() };
        assert!(fates(5, ToServer, &cut).iter().all(|fate| *fate == Fate::Cut));
        let untouched =
            Fate::Arrives { after: Duration::ZERO, again: None, flipped: None, held: false };
        let fates = fates(5, ToServer, &Impairments::default());
        assert!(fates.iter().all(|fate| *fate == untouched));
    }
}
