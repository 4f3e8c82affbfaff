//! Lists those that may have to make room for newer ones: the oldest of the group that has the
//! most.

use std::{collections::HashMap, hash::Hash};

use tokio::sync::oneshot;

/// Holders that may have to make room for others, oldest first, each with its group.
#[derive(Debug)]
pub struct Waiting<G>(Vec<(G, oneshot::Sender<()>)>);

impl<G> Default for Waiting<G> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<G: Eq + Hash> Waiting<G> {
    /// Adds a newcomer, which leaves when it drops the receiver. A message tells it to make room;
    /// an error, that this list is gone.
    pub fn add(&mut self, group: G) -> oneshot::Receiver<()> {
        let (displace, displaced) = oneshot::channel();
        self.forget_left();
        self.0.push((group, displace));
        displaced
    }

    /// How many have not left.
    pub fn count(&mut self) -> usize {
        self.forget_left();
        self.0.len()
    }

    /// Tells the oldest of the group that has the most to make room; returns whether there was one.
    pub fn displace(&mut self) -> bool {
        self.forget_left();
        while let Some(oldest) = self.oldest_of_busiest() {
            // One that has just left is passed over.
            if self.0.remove(oldest).1.send(()).is_ok() {
                return true;
            }
        }
        false
    }

    fn oldest_of_busiest(&self) -> Option<usize> {
        let mut counts = HashMap::new();
        for (group, _) in &self.0 {
            *counts.entry(group).or_insert(0_usize) += 1;
        }
        let most = counts.values().copied().max()?;
        self.0.iter().position(|(group, _)| counts.get(group) == Some(&most))
    }

    fn forget_left(&mut self) {
        self.0.retain(|(_, displace)| !displace.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these were told to make room.
    fn told(receivers: &mut [oneshot::Receiver<()>]) -> Vec<usize> {
        let told = receivers.iter_mut().map(|one| one.try_recv().is_ok());
        told.enumerate().filter_map(|(at, told)| told.then_some(at)).collect()
    }

    #[test]
    fn the_oldest_of_the_busiest_group_makes_room() {
        let mut waiting = Waiting::default();
        let mut receivers = ["a", "b", "b", "a", "b"].map(|group| waiting.add(group));
        assert!(waiting.displace());
        assert_eq!(told(&mut receivers), [1]);
        assert!(waiting.displace());
        assert_eq!(told(&mut receivers), [0], "of groups that have as many, the oldest");
        assert_eq!(waiting.count(), 3);
    }

    #[test]
    fn those_that_have_left_are_neither_counted_nor_told() {
        let mut waiting = Waiting::default();
        let [first, mut second] = [(); 2].map(|()| waiting.add(()));
        drop(first);
        assert_eq!(waiting.count(), 1);
        assert!(waiting.displace());
        assert!(second.try_recv().is_ok());
        assert!(!waiting.displace(), "there is none left");
    }
}
