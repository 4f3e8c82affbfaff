//! Keeps the arena's free units, and hands them out for chunks or back to the kernel.
//!
//! Locked units go to heads first, which live longest and serve keystrokes; bodies get them last. Units above
//! the budget are withheld from chunks, and returned to the kernel when their whole slab is free: freeing
//! single ones splits the mapping, and the kernel limits mappings (vm.max_map_count). The first [`HOLES_MAX`]
//! single ones go at once, so that a small pool shrinks exactly.

use std::collections::{HashMap, HashSet};

use crate::arena::{SlabId, Unit};
use crate::chunk::Part;

/// Most units returned one by one while others of their slab stay, a 64th of the pieces that the
/// kernel allows a process by default (65,530).
const HOLES_MAX: usize = 1024;

/// Free units.
#[derive(Default)]
pub(crate) struct FreeUnits {
    locked: Vec<Unit>,
    unlocked: Vec<Unit>,
    /// Free and above the budget.
    withheld: Vec<Unit>,
    /// The slabs that units are mapped in.
    slabs: HashMap<SlabId, Slab>,
    /// Holes in all slabs.
    holes: usize,
}

/// What is mapped of a slab.
#[derive(Clone, Copy, Debug, Default)]
struct Slab {
    mapped: usize,
    holes: usize,
}

impl FreeUnits {
    pub(crate) fn add(&mut self, units: impl IntoIterator<Item = Unit>) {
        for unit in units {
            if unit.is_locked() { &mut self.locked } else { &mut self.unlocked }.push(unit);
        }
    }

    /// Adds units that were just mapped.
    pub(crate) fn add_mapped(&mut self, units: Vec<Unit>) {
        for unit in &units {
            self.slabs.entry(unit.slab()).or_default().mapped += 1;
        }
        self.add(units);
    }

    /// Units for chunks.
    pub(crate) fn units(&self) -> usize {
        self.locked.len() + self.unlocked.len()
    }

    /// Units that stay mapped, and unused, until the rest of their slab is free.
    pub(crate) fn withheld(&self) -> usize {
        self.withheld.len()
    }

    /// The memory of a chunk of this part, if there is enough.
    pub(crate) fn take(&mut self, part: Part) -> Option<Box<[Unit]>> {
        if self.units() < part.units() {
            return None;
        }
        let (first, second) = match part {
            Part::Head => (&mut self.locked, &mut self.unlocked),
            Part::Body => (&mut self.unlocked, &mut self.locked),
        };
        let mut units = Vec::with_capacity(part.units());
        for from in [first, second] {
            let more = from.len().min(part.units() - units.len());
            units.extend(from.drain(from.len() - more..));
        }
        Some(units.into())
    }

    /// Withholds this many units from chunks, as far as they are free, and removes those of them that
    /// can be returned to the kernel.
    pub(crate) fn remove_excess(&mut self, excess: usize) -> Vec<Unit> {
        if self.withheld.len() > excess {
            let back = self.withheld.split_off(excess);
            self.add(back);
        }
        let more = excess - self.withheld.len();
        let had = self.withheld.len();
        let taken = self.take_excess(more);
        self.withheld.extend(taken);
        if self.withheld.len() == had { Vec::new() } else { self.returnable() }
    }

    /// Removes all free units.
    pub(crate) fn remove_all(&mut self) -> Vec<Unit> {
        let mut units = std::mem::take(&mut self.withheld);
        units.append(&mut self.locked);
        units.append(&mut self.unlocked);
        units
    }

    /// Takes up to this many units, unlocked ones first, and among those from the slabs with the
    /// most free units.
    fn take_excess(&mut self, units: usize) -> Vec<Unit> {
        let mut taken = Vec::new();
        for free in [&mut self.unlocked, &mut self.locked] {
            let wanted = (units - taken.len()).min(free.len());
            if wanted < free.len() && wanted > 0 {
                let by_slab = count_by_slab(free);
                free.sort_unstable_by_key(|unit| (by_slab[&unit.slab()], unit.slab()));
            }
            taken.extend(free.drain(free.len() - wanted..));
        }
        taken
    }

    /// Takes the withheld units of slabs that are all free, and as many single ones as may leave holes.
    fn returnable(&mut self) -> Vec<Unit> {
        let withheld = count_by_slab(&self.withheld);
        let is_whole = |slab: &SlabId| {
            self.slabs.get(slab).is_some_and(|of| Some(&of.mapped) == withheld.get(slab))
        };
        let whole: HashSet<SlabId> = withheld.keys().copied().filter(is_whole).collect();
        let units = std::mem::take(&mut self.withheld).into_iter();
        let (mut returned, mut kept): (Vec<_>, Vec<_>) =
            units.partition(|unit| whole.contains(&unit.slab()));
        for slab in whole {
            self.holes -= self.slabs.remove(&slab).map_or(0, |slab| slab.holes);
        }
        let single = kept.len().min(HOLES_MAX - self.holes);
        for unit in kept.drain(kept.len() - single..) {
            if let Some(slab) = self.slabs.get_mut(&unit.slab()) {
                slab.mapped -= 1;
                slab.holes += 1;
            }
            returned.push(unit);
        }
        self.holes += single;
        self.withheld = kept;
        // In address order, so that a slab shrinks from one end.
        returned.sort_unstable_by_key(|unit| unit.as_ptr() as usize);
        returned
    }
}

/// How many of the units each slab has.
fn count_by_slab(units: &[Unit]) -> HashMap<SlabId, usize> {
    let mut counts = HashMap::new();
    for unit in units {
        *counts.entry(unit.slab()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena;

    fn free_units(locked: usize, unlocked: usize) -> FreeUnits {
        let mut free = FreeUnits::default();
        let units = arena::map(locked + unlocked).expect("memory").into_iter().enumerate();
        free.add_mapped(
            units.map(|(nth, unit)| unit.pretending_to_be_locked(nth < locked)).collect(),
        );
        free
    }

    fn locked_of(units: Option<Box<[Unit]>>) -> Option<usize> {
        units.map(|units| arena::locked(&units))
    }

    #[test]
    fn heads_get_locked_memory_first_and_bodies_get_it_last() {
        let mut free = free_units(4, 13);
        assert_eq!(locked_of(free.take(Part::Body)), Some(0));
        assert_eq!(locked_of(free.take(Part::Head)), Some(1));
        assert_eq!(free.units(), 5);
        assert_eq!(locked_of(free.take(Part::Body)), None);
        for locked in [1, 1, 1, 0, 0] {
            assert_eq!(locked_of(free.take(Part::Head)), Some(locked));
        }
        assert_eq!(locked_of(free.take(Part::Head)), None);
    }

    #[test]
    fn locked_memory_is_removed_last() {
        let mut free = free_units(3, 3);
        // Single units may leave holes, so all excess goes at once.
        for (asked, (removed, of_them_locked)) in
            [(1, (1, 0)), (3, (3, 1)), (9, (2, 2)), (9, (0, 0))]
        {
            let units = free.remove_excess(asked);
            assert_eq!((units.len(), arena::locked(&units)), (removed, of_them_locked), "{asked}");
        }
    }

    /// Pieces that the kernel has of units, as adjacent ones are merged.
    fn pieces<'u>(units: impl Iterator<Item = &'u Unit>) -> usize {
        let mut starts: Vec<_> = units.map(|unit| unit.as_ptr() as usize).collect();
        starts.sort_unstable();
        1 + starts.windows(2).filter(|two| two[1] - two[0] != arena::UNIT_BYTES).count()
    }

    #[test]
    fn a_smaller_budget_after_random_use_leaves_few_pieces_and_all_is_returned_in_the_end() {
        const UNITS: usize = 16 << 10;
        let mut free = FreeUnits::default();
        free.add_mapped(arena::map(UNITS).expect("memory"));
        let mapped = pieces(free.locked.iter().chain(&free.unlocked));
        let mut random = fastrand::Rng::with_seed(9);
        random.shuffle(&mut free.locked);
        random.shuffle(&mut free.unlocked);
        let heads = (0..UNITS / 2).map(|_| free.take(Part::Head).expect("a unit"));
        let mut used: Vec<_> = heads.flatten().collect();
        let mut returned = free.remove_excess(UNITS).len();
        let left = pieces(used.iter().chain(&free.withheld));
        // Every second unit is free: one by one they would leave thousands.
        assert!(left <= mapped + HOLES_MAX, "{left} of {mapped}");
        assert_eq!((returned, free.units()), (HOLES_MAX, 0));
        assert_eq!(free.withheld(), UNITS / 2 - HOLES_MAX);
        while let Some(unit) = used.pop() {
            free.add([unit]);
            returned += free.remove_excess(UNITS - returned).len();
            assert_eq!(used.len() + free.withheld() + returned, UNITS);
        }
        assert_eq!((returned, free.withheld(), free.slabs.len(), free.holes), (UNITS, 0, 0, 0));
    }

    #[test]
    fn withheld_memory_serves_a_budget_that_grows_again() {
        let mut free = free_units(0, HOLES_MAX + 512);
        let held = free.take(Part::Head).expect("a unit");
        let returned = free.remove_excess(HOLES_MAX + 512).len();
        let withheld = free.withheld();
        assert_eq!(held.len() + returned + withheld, HOLES_MAX + 512);
        assert!(free.remove_excess(0).is_empty());
        assert_eq!((free.units(), free.withheld()), (withheld, 0));
    }
}
