//! Orders the attempts at a server's addresses as RFC 8305 does: preferred addresses first, the two families
//! of a name in turn. Knows no clocks, sockets or names.

use std::{collections::VecDeque, net::SocketAddr};

/// The addresses not tried yet, by place in the server's list.
#[derive(Debug)]
pub(super) struct Attempts {
    places: Vec<Place>,
    /// To be tried before all others.
    first: Option<(usize, SocketAddr)>,
    /// Those that have been tried, and those to avoid: none is tried twice.
    tried: Vec<SocketAddr>,
}

/// What is known of one entry of the list.
#[derive(Debug, Default)]
struct Place {
    /// Its name is not resolved yet.
    is_awaited: bool,
    untried: VecDeque<SocketAddr>,
}

impl Attempts {
    /// Attempts at so many places, none of them resolved, and none at the address to avoid.
    pub(super) fn new(places: usize, avoid: Option<SocketAddr>) -> Self {
        let place = || Place { is_awaited: true, untried: VecDeque::new() };
        let places = std::iter::repeat_with(place).take(places).collect();
        Self { places, first: None, tried: avoid.into_iter().collect() }
    }

    /// The name at `place` resolves to these; to none if it does not resolve.
    pub(super) fn found(&mut self, place: usize, addresses: Vec<SocketAddr>) {
        let Some(entry) = self.places.get_mut(place) else { return };
        entry.is_awaited = false;
        entry.untried.extend(interleaved(addresses));
    }

    /// Tries this address before all others, whether or not the name at `place` resolves to it.
    pub(super) fn begin_at(&mut self, place: usize, address: SocketAddr) {
        self.first = Some((place, address));
    }

    /// Tries this address again: its attempt was given up for another one that failed later.
    pub(super) fn put_back(&mut self, place: usize, address: SocketAddr) {
        self.tried.retain(|tried| *tried != address);
        if let Some(entry) = self.places.get_mut(place) {
            entry.untried.push_front(address);
        }
    }

    /// Tries no other address of this place.
    pub(super) fn give_up(&mut self, place: usize) {
        if let Some(entry) = self.places.get_mut(place) {
            *entry = Place::default();
        }
    }

    /// The next address to try, with its place. If `in_turn`, a later place waits for the names before it.
    pub(super) fn next(&mut self, in_turn: bool) -> Option<(usize, SocketAddr)> {
        if let Some(first) = self.first.take() {
            self.tried.push(first.1);
            return Some(first);
        }
        for (nth, place) in self.places.iter_mut().enumerate() {
            while let Some(address) = place.untried.pop_front() {
                if !self.tried.contains(&address) {
                    self.tried.push(address);
                    return Some((nth, address));
                }
            }
            if place.is_awaited && in_turn {
                return None;
            }
        }
        None
    }

    /// Whether there is no address to try now.
    pub(super) fn is_empty(&self) -> bool {
        let is_tried = |address: &SocketAddr| self.tried.contains(address);
        self.first.is_none() && self.places.iter().all(|place| place.untried.iter().all(is_tried))
    }
}

/// The addresses with their families in turn, beginning with the resolver's first choice (RFC 8305,
/// section 4).
fn interleaved(addresses: Vec<SocketAddr>) -> impl Iterator<Item = SocketAddr> {
    let is_first = addresses.first().map(SocketAddr::is_ipv6);
    let (preferred, others): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| Some(address.is_ipv6()) == is_first);
    let (mut preferred, mut others) = (preferred.into_iter(), others.into_iter());
    std::iter::from_fn(move || {
        std::mem::swap(&mut preferred, &mut others);
        others.next().or_else(|| preferred.next())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(address: &str) -> SocketAddr {
        format!("{address}:1").parse().unwrap()
    }

    fn all(attempts: &mut Attempts) -> Vec<(usize, SocketAddr)> {
        std::iter::from_fn(|| attempts.next(true)).collect()
    }

    #[test]
    fn families_of_a_name_take_turns_and_places_keep_their_order() {
        let mut attempts = Attempts::new(2, None);
        let named = ["[::1]", "[::2]", "[::3]", "1.0.0.1", "1.0.0.2"].map(at).to_vec();
        attempts.found(1, ["1.0.0.9", "[::1]", "[::9]"].map(at).to_vec());
        attempts.found(0, named);
        let order = [(0, "[::1]"), (0, "1.0.0.1"), (0, "[::2]"), (0, "1.0.0.2"), (0, "[::3]")];
        // ::1 is tried by then.
        let order = order.into_iter().chain([(1, "1.0.0.9"), (1, "[::9]")]);
        let order: Vec<_> = order.map(|(place, address)| (place, at(address))).collect();
        assert_eq!(all(&mut attempts), order);
        assert!(attempts.is_empty());
    }

    #[test]
    fn a_place_waits_for_the_names_before_it_only_in_turn() {
        let mut attempts = Attempts::new(3, None);
        attempts.found(1, vec![at("1.0.0.1")]);
        assert_eq!(attempts.next(true), None);
        assert_eq!(attempts.next(false), Some((1, at("1.0.0.1"))));
        attempts.found(2, vec![at("1.0.0.2")]);
        attempts.found(0, Vec::new());
        assert_eq!(attempts.next(true), Some((2, at("1.0.0.2"))));
    }

    #[test]
    fn what_is_to_be_avoided_is_not_tried_and_what_is_given_up_not_again() {
        let mut attempts = Attempts::new(2, Some(at("1.0.0.1")));
        attempts.found(0, ["1.0.0.1", "1.0.0.2", "1.0.0.3"].map(at).to_vec());
        attempts.found(1, ["1.0.0.5", "1.0.0.6"].map(at).to_vec());
        let first = attempts.next(true).unwrap();
        assert_eq!(first, (0, at("1.0.0.2")));
        attempts.put_back(first.0, first.1);
        assert_eq!(attempts.next(true), Some(first));
        attempts.give_up(0);
        assert_eq!(all(&mut attempts), [(1, at("1.0.0.5")), (1, at("1.0.0.6"))]);
    }

    #[test]
    fn where_the_server_was_is_tried_before_what_is_preferred() {
        let mut attempts = Attempts::new(2, None);
        attempts.begin_at(1, at("1.0.0.5"));
        assert!(!attempts.is_empty());
        assert_eq!(attempts.next(true), Some((1, at("1.0.0.5"))));
        attempts.found(0, vec![at("1.0.0.1")]);
        attempts.found(1, vec![at("1.0.0.5")]);
        assert_eq!(all(&mut attempts), [(0, at("1.0.0.1"))]);
    }

    proptest! {
        #[test]
        fn every_address_is_tried_once(
            lists in prop::collection::vec(prop::collection::vec((any::<bool>(), 0_u8..9), 0..9), 1..5),
        ) {
            let mut attempts = Attempts::new(lists.len(), None);
            let mut expected = Vec::new();
            for (place, list) in lists.iter().enumerate() {
                let addresses: Vec<_> = list
                    .iter()
                    .map(|&(v6, last)| at(&if v6 { format!("[::{last}]") } else { format!("1.0.0.{last}") }))
                    .collect();
                expected.extend(addresses.clone());
                attempts.found(place, addresses);
            }
            let mut tried: Vec<_> = all(&mut attempts).into_iter().map(|(_, address)| address).collect();
            tried.sort();
            expected.sort();
            expected.dedup();
            prop_assert_eq!(tried, expected);
        }
    }
}
