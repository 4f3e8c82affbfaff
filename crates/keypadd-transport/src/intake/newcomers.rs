//! Keeps newcomers waiting until their loop has time for their handshakes.
//!
//! The next is the one whose network has the fewest handshakes in progress, so that one that sends
//! many, from however many addresses, delays its own. Whoever waits for the busiest network makes
//! room for others. Knows addresses and loads, no packets.

use std::{cmp::Reverse, net::IpAddr};

use crate::admission::Load;

/// Newcomers that wait at once.
pub(crate) const PLACES: usize = 512;

/// Newcomers that wait.
pub(crate) struct Newcomers<T> {
    waiting: Vec<Waiting<T>>,
    next: u64,
}

struct Waiting<T> {
    newcomer: T,
    address: IpAddr,
    /// The load of its address and networks when it was last looked at.
    load: Load,
    arrival: u64,
}

impl<T> Newcomers<T> {
    pub(crate) fn new() -> Self {
        Self { waiting: Vec::new(), next: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lets a newcomer wait; returns the one that has no place then.
    pub(crate) fn push(&mut self, newcomer: T, address: IpAddr, load: Load) -> Option<T> {
        self.waiting.push(Waiting { newcomer, address, load, arrival: self.next });
        self.next += 1;
        if self.waiting.len() <= PLACES {
            return None;
        }
        self.take(|it| (Reverse(it.load), it.arrival))
    }

    /// Takes the next one, by the loads of now.
    pub(crate) fn pop(&mut self, load: impl Fn(IpAddr) -> Load) -> Option<T> {
        for it in &mut self.waiting {
            it.load = load(it.address);
        }
        self.take(|it| (it.load, it.arrival))
    }

    fn take<O: Ord>(&mut self, order: impl Fn(&Waiting<T>) -> O) -> Option<T> {
        let (at, _) = self.waiting.iter().enumerate().min_by_key(|(_, it)| order(it))?;
        let taken = self.waiting.swap_remove(at);
        if self.waiting.is_empty() {
            // A crowd's memory.
            self.waiting = Vec::new();
        }
        Some(taken.newcomer)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::admission::{Admission, Handshakes};

    fn v4(host: u32) -> IpAddr {
        IpAddr::V4(0x0a00_0000_u32.wrapping_add(host).into())
    }

    #[test]
    fn the_least_busy_network_is_next_and_then_who_has_waited_longest() {
        let mut newcomers = Newcomers::new();
        for (host, busy) in [(0, 2), (1, 1), (2, 0), (3, 1)] {
            assert_eq!(newcomers.push(host, v4(host), [busy, 0, 0]), None);
        }
        assert_eq!(newcomers.pop(|_| [0, 0, 0]), Some(0), "by the loads of now");
        let busy = |address| [usize::from(address == v4(1)), 0, 0];
        assert_eq!([(); 3].map(|()| newcomers.pop(busy)), [Some(2), Some(3), Some(1)]);
        assert!(newcomers.is_empty() && newcomers.pop(busy).is_none());
    }

    #[test]
    fn without_room_the_busiest_network_loses_its_oldest_newcomer() {
        let mut newcomers = Newcomers::new();
        for host in 0..PLACES as u32 {
            assert_eq!(newcomers.push(host, v4(host), [usize::from(host > 2), 0, 0]), None);
        }
        assert_eq!(newcomers.push(10_000, v4(10_000), [0, 0, 0]), Some(3));
        assert_eq!(newcomers.push(10_001, v4(10_001), [2, 0, 0]), Some(10_001));
        assert_eq!(newcomers.push(10_002, v4(10_002), [1, 0, 0]), Some(4));
        assert_eq!(newcomers.waiting.len(), PLACES);
    }

    #[test]
    fn a_newcomer_is_next_and_keeps_its_place_beside_strangers_from_a_thousand_networks() {
        const NETWORKS: u32 = 1_000;
        const NEWCOMER: u32 = u32::MAX;
        const ARRIVES: u32 = 5_000;
        // In a network of its own, and in that of a stranger.
        for from in [v4(NETWORKS << 16), v4((1 << 16) + 1)] {
            let (mut table, mut newcomers) = (Handshakes::new(), Newcomers::new());
            let (start, mut begun) = (Instant::now(), None);
            for step in 0..ARRIVES + 1_000 {
                // There is time for one in five of the strangers, 2,000 a second.
                let now = start + step * Duration::from_micros(500);
                let strangers = 5 * step..5 * (step + 1);
                let mut arrivals: Vec<_> =
                    strangers.map(|id| (id, v4((id % NETWORKS) << 16))).collect();
                if step == ARRIVES {
                    arrivals.insert(2, (NEWCOMER, from));
                }
                for (id, address) in arrivals {
                    if table.decide(address, true, now) == Admission::Accept {
                        newcomers.push((id, address), address, table.load(address));
                    }
                }
                let accepted = std::iter::from_fn(|| newcomers.pop(|address| table.load(address)))
                    .find(|(_, address)| table.decide(*address, true, now) == Admission::Accept);
                let Some((id, address)) = accepted else { continue };
                assert_ne!(table.make_room(address), Some(NEWCOMER));
                // Half of the strangers' fail at once.
                let goes_on = id == NEWCOMER || id % 2 == 0;
                table.add(goes_on.then_some(id), SocketAddr::new(address, 1), now);
                if id == NEWCOMER {
                    begun = Some(step);
                }
            }
            let begun = begun.expect("it begins");
            assert!(begun < ARRIVES + 20, "{from}: after {} steps", begun - ARRIVES);
        }
    }
}
