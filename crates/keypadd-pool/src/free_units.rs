//! Keeps the arena's free units, and hands them out for chunks or back to the kernel.
//!
//! Locked units go to heads first, which live longest and serve keystrokes; bodies get them last.
//! As many free units as exceed the budget are withheld from chunks. Only whole slabs can be
//! unmapped: a lowered budget chooses slabs that together fit the excess, hands out no more of
//! them, and returns each when its last unit is free. What remains of the excess, less than a slab,
//! stays mapped and unused.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::arena::{SlabId, Unit};
use crate::chunk::Part;

/// Free units.
#[derive(Default)]
pub(crate) struct FreeUnits {
    locked: Vec<Unit>,
    unlocked: Vec<Unit>,
    /// Free units of slabs that are to be unmapped.
    leaving: BTreeMap<SlabId, Vec<Unit>>,
    /// Every slab, whether its units are free or in use.
    slabs: HashMap<SlabId, SlabSize>,
    /// Mapped units above the budget.
    excess: usize,
    /// Units added since the leaving slabs were chosen.
    added: usize,
}

/// How many units a slab has, and whether they are locked.
#[derive(Clone, Copy)]
struct SlabSize {
    units: usize,
    is_locked: bool,
}

impl FreeUnits {
    pub(crate) fn add(&mut self, units: impl IntoIterator<Item = Unit>) {
        for unit in units {
            self.added += 1;
            match self.leaving.get_mut(&unit.slab()) {
                Some(leaving) => leaving.push(unit),
                None => self.stack_of(&unit).push(unit),
            }
        }
    }

    /// Adds units that were just mapped: all those of their slabs.
    pub(crate) fn add_mapped(&mut self, units: Vec<Unit>) {
        for unit in &units {
            let new = SlabSize { units: 0, is_locked: unit.is_locked() };
            self.slabs.entry(unit.slab()).or_insert(new).units += 1;
        }
        self.add(units);
    }

    /// Units for chunks.
    pub(crate) fn units(&self) -> usize {
        self.all() - self.withheld()
    }

    /// Units that stay mapped, and unused, until the rest of their slab is free or the budget
    /// grows.
    pub(crate) fn withheld(&self) -> usize {
        self.excess.min(self.all())
    }

    /// The memory of a chunk of this part, if there is enough.
    pub(crate) fn take(&mut self, part: Part) -> Option<Box<[Unit]>> {
        // The slabs that leave have no more units than the excess, so the stacks have at least
        // `units()`.
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

    /// Withholds this many units from chunks, as far as they are free, and removes the slabs that
    /// can be returned to the kernel. `excess` counts what earlier calls removed no more.
    pub(crate) fn remove_excess(&mut self, excess: usize) -> Vec<Unit> {
        // Other slabs may have become free since, beside one that an idle lane holds a unit of.
        // Choosing looks at all free units, so it waits until as many have moved.
        let is_outdated = !self.leaving.is_empty() && self.added >= self.all();
        if excess != self.excess || is_outdated {
            self.choose_leaving(excess);
        }
        let (slabs, mut removed) = (&mut self.slabs, Vec::new());
        self.leaving.retain(|id, free| {
            let is_whole = slabs.get(id).is_some_and(|slab| slab.units == free.len());
            if is_whole {
                slabs.remove(id);
                removed.append(free);
            }
            !is_whole
        });
        self.excess = excess - removed.len();
        removed
    }

    /// Removes all free units.
    pub(crate) fn remove_all(&mut self) -> Vec<Unit> {
        let mut units: Vec<_> = std::mem::take(&mut self.leaving).into_values().flatten().collect();
        units.append(&mut self.locked);
        units.append(&mut self.unlocked);
        units
    }

    /// Chooses the slabs that leave: unlocked ones first, and among those the ones with the most
    /// free units, as many as fit the excess.
    fn choose_leaving(&mut self, excess: usize) {
        for unit in std::mem::take(&mut self.leaving).into_values().flatten() {
            self.stack_of(&unit).push(unit);
        }
        self.added = 0;
        if excess == 0 {
            return;
        }
        let mut free: HashMap<SlabId, usize> = HashMap::new();
        for unit in self.locked.iter().chain(&self.unlocked) {
            *free.entry(unit.slab()).or_default() += 1;
        }
        let mut slabs: Vec<_> = self.slabs.iter().map(|(id, slab)| (*id, *slab)).collect();
        slabs.sort_unstable_by_key(|(id, slab)| {
            (slab.is_locked, Reverse(free.get(id).copied()), Reverse(*id))
        });
        let mut left = excess;
        for (id, slab) in slabs {
            if slab.units <= left {
                left -= slab.units;
                self.leaving.insert(id, Vec::new());
            }
        }
        for stack in [&mut self.locked, &mut self.unlocked] {
            let leaves = |unit: &mut Unit| self.leaving.contains_key(&unit.slab());
            let leaving: Vec<_> = stack.extract_if(.., leaves).collect();
            for unit in leaving {
                self.leaving.entry(unit.slab()).or_default().push(unit);
            }
        }
    }

    /// All free units, withheld ones too.
    fn all(&self) -> usize {
        let leaving: usize = self.leaving.values().map(Vec::len).sum();
        self.locked.len() + self.unlocked.len() + leaving
    }

    fn stack_of(&mut self, unit: &Unit) -> &mut Vec<Unit> {
        if unit.is_locked() { &mut self.locked } else { &mut self.unlocked }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::arena::{self, SLAB_UNITS};

    fn free_units(locked: usize, unlocked: usize) -> FreeUnits {
        let mut free = FreeUnits::default();
        free.add_mapped(arena::slab_that_claims(true, locked));
        free.add_mapped(arena::slab_that_claims(false, unlocked));
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
    fn locked_memory_is_removed_last_and_the_excess_that_is_no_slab_is_withheld() {
        let mut free = free_units(3, 3);
        for (excess, (removed, of_them_locked), (usable, withheld)) in [
            (2, (0, 0), (4, 2)),
            (5, (3, 0), (1, 2)),
            (2, (0, 0), (1, 2)),
            (3, (3, 3), (0, 0)),
            (0, (0, 0), (0, 0)),
        ] {
            let units = free.remove_excess(excess);
            assert_eq!((units.len(), arena::locked(&units)), (removed, of_them_locked), "{excess}");
            assert_eq!((free.units(), free.withheld()), (usable, withheld), "{excess}");
        }
    }

    #[test]
    fn a_smaller_budget_after_random_use_is_kept_at_once_and_returns_whole_slabs_in_the_end() {
        const UNITS: usize = 16 << 10;
        const KEPT: usize = UNITS / 4;
        let mut free = FreeUnits::default();
        free.add_mapped(arena::map(UNITS).expect("memory"));
        let mut random = fastrand::Rng::with_seed(9);
        random.shuffle(&mut free.locked);
        random.shuffle(&mut free.unlocked);
        let heads = (0..UNITS / 2).map(|_| free.take(Part::Head).expect("a unit"));
        let mut used: Vec<_> = heads.flatten().collect();
        // Half is in use, and some of every slab.
        assert_eq!((free.remove_excess(UNITS - KEPT).len(), free.units()), (0, 0));
        let mut mapped = UNITS;
        while let Some(unit) = used.pop() {
            free.add([unit]);
            let removed = free.remove_excess(mapped - KEPT);
            assert!(slabs_of(&removed).into_values().all(|units| units == SLAB_UNITS));
            mapped -= removed.len();
            assert_eq!(used.len() + free.units() + free.withheld(), mapped);
            assert!(used.len() >= KEPT || used.len() + free.units() == KEPT);
        }
        assert_eq!((mapped, free.units(), free.withheld()), (KEPT, KEPT, 0));
        let rest = free.remove_excess(KEPT);
        assert_eq!((rest.len(), free.slabs.len(), free.all()), (KEPT, 0, 0));
    }

    #[test]
    fn slabs_leave_while_their_memory_is_used_up_and_the_rest_of_the_pool_is_used_on() {
        const UNITS: usize = 16 * SLAB_UNITS;
        let mut free = FreeUnits::default();
        free.add_mapped(arena::map(UNITS).expect("memory"));
        let mut random = fastrand::Rng::with_seed(5);
        let mut used: VecDeque<_> = (0..UNITS).filter_map(|_| free.take(Part::Head)).collect();
        random.shuffle(used.make_contiguous());
        // One unit is never given back.
        let _idle = used.pop_back();
        let mut mapped = UNITS;
        for _ in 0..2 * UNITS {
            free.add(used.pop_front().expect("a unit"));
            mapped -= free.remove_excess(mapped - 4 * SLAB_UNITS).len();
            used.extend(free.take(Part::Head));
        }
        assert_eq!((mapped, used.len()), (4 * SLAB_UNITS, 4 * SLAB_UNITS - 1));
    }

    #[test]
    fn withheld_memory_serves_a_budget_that_grows_again() {
        const UNITS: usize = 2 * SLAB_UNITS;
        let mut free = FreeUnits::default();
        free.add_mapped(arena::map(UNITS).expect("memory"));
        let held = free.take(Part::Head).expect("a unit");
        let returned = free.remove_excess(UNITS).len();
        assert_eq!((returned, free.units()), (SLAB_UNITS, 0));
        assert_eq!(held.len() + free.withheld(), SLAB_UNITS);
        assert!(free.remove_excess(0).is_empty());
        assert_eq!((free.units(), free.withheld()), (SLAB_UNITS - 1, 0));
    }

    fn slabs_of(units: &[Unit]) -> HashMap<SlabId, usize> {
        let mut slabs = HashMap::new();
        units.iter().for_each(|unit| *slabs.entry(unit.slab()).or_default() += 1);
        slabs
    }
}
