//! Keeps the arena's free units, and hands them out for chunks or back to the kernel.
//!
//! Locked units go to heads first, which live longest and serve keystrokes; bodies get them last.

use crate::arena::Unit;
use crate::chunk::Part;

/// Free units.
#[derive(Default)]
pub(crate) struct FreeUnits {
    locked: Vec<Unit>,
    unlocked: Vec<Unit>,
}

impl FreeUnits {
    pub(crate) fn add(&mut self, units: impl IntoIterator<Item = Unit>) {
        for unit in units {
            if unit.is_locked() { &mut self.locked } else { &mut self.unlocked }.push(unit);
        }
    }

    pub(crate) fn units(&self) -> usize {
        self.locked.len() + self.unlocked.len()
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

    /// Removes up to this many units, unlocked ones first.
    pub(crate) fn remove(&mut self, units: usize) -> Vec<Unit> {
        let unlocked = units.min(self.unlocked.len());
        let locked = (units - unlocked).min(self.locked.len());
        let mut removed = self.unlocked.split_off(self.unlocked.len() - unlocked);
        removed.extend(self.locked.drain(self.locked.len() - locked..));
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena;

    fn free_units(locked: usize, unlocked: usize) -> FreeUnits {
        let mut free = FreeUnits::default();
        let units = arena::map(locked + unlocked).expect("memory").into_iter().enumerate();
        free.add(units.map(|(nth, unit)| unit.pretending_to_be_locked(nth < locked)));
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
        for (asked, (removed, of_them_locked)) in
            [(1, (1, 0)), (3, (3, 1)), (9, (2, 2)), (9, (0, 0))]
        {
            let units = free.remove(asked);
            assert_eq!((units.len(), arena::locked(&units)), (removed, of_them_locked), "{asked}");
        }
    }
}
