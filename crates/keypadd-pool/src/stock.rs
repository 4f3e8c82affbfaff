//! The arena's memory that holds no keystream: what chunks are made of, and what a smaller budget gives
//! back. Knows which units are locked and hands those out to heads first, which stay longest and serve
//! keystrokes; bodies get them when there is nothing else.

use crate::arena::Unit;
use crate::chunk::Part;

/// Free units.
#[derive(Default)]
pub(crate) struct Stock {
    locked: Vec<Unit>,
    unlocked: Vec<Unit>,
}

impl Stock {
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

    /// Parts with so many units, or all there are, unlocked ones first.
    pub(crate) fn part_with(&mut self, units: usize) -> Vec<Unit> {
        let unlocked = units.min(self.unlocked.len());
        let locked = (units - unlocked).min(self.locked.len());
        let mut parted = self.unlocked.split_off(self.unlocked.len() - unlocked);
        parted.extend(self.locked.drain(self.locked.len() - locked..));
        parted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena;

    fn stock(locked: usize, unlocked: usize) -> Stock {
        let mut stock = Stock::default();
        let units = arena::map(locked + unlocked).expect("memory").into_iter().enumerate();
        stock.add(units.map(|(nth, unit)| unit.pretending_to_be_locked(nth < locked)));
        stock
    }

    fn locked_of(units: Option<Box<[Unit]>>) -> Option<usize> {
        units.map(|units| arena::locked(&units))
    }

    #[test]
    fn heads_have_locked_memory_first_and_bodies_have_it_last() {
        let mut stock = stock(4, 13);
        assert_eq!(locked_of(stock.take(Part::Body)), Some(0));
        assert_eq!(locked_of(stock.take(Part::Head)), Some(1));
        assert_eq!(stock.units(), 5);
        assert_eq!(locked_of(stock.take(Part::Body)), None);
        for locked in [1, 1, 1, 0, 0] {
            assert_eq!(locked_of(stock.take(Part::Head)), Some(locked));
        }
        assert_eq!(locked_of(stock.take(Part::Head)), None);
    }

    #[test]
    fn locked_memory_is_parted_with_last() {
        let mut stock = stock(3, 3);
        for (asked, (parted, of_them_locked)) in
            [(1, (1, 0)), (3, (3, 1)), (9, (2, 2)), (9, (0, 0))]
        {
            let units = stock.part_with(asked);
            assert_eq!((units.len(), arena::locked(&units)), (parted, of_them_locked), "{asked}");
        }
    }
}
