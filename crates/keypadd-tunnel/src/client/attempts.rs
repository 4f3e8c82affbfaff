//! Orders the attempts at a server's addresses as RFC 8305 does: preferred addresses first,
//! alternating between the two families of a name. Knows no clocks, sockets or names.

use std::{collections::VecDeque, net::SocketAddr, ops::Range};

use crate::net::source::plain;

/// The addresses not tried yet, by candidate: an entry of the server's list, or a target of a
/// service there.
#[derive(Debug)]
pub(super) struct Attempts {
    candidates: Vec<Candidate>,
    /// Which candidates to try, the preferred one first.
    order: Vec<usize>,
    /// To be tried before all others.
    first: Option<(usize, SocketAddr)>,
    /// Addresses already tried, and those to avoid: none is tried twice.
    tried: Vec<SocketAddr>,
}

/// The state of one candidate.
#[derive(Debug, Default)]
struct Candidate {
    /// Its name is not resolved yet.
    is_awaited: bool,
    untried: VecDeque<SocketAddr>,
}

impl Attempts {
    /// Attempts at this many unresolved candidates, but none at `avoid`, which may be in the mapped
    /// form that dual-stack sockets report.
    pub(super) fn new(count: usize, avoid: Option<SocketAddr>) -> Self {
        let tried = avoid.map(plain).into_iter().collect();
        let mut attempts = Self { candidates: Vec::new(), order: Vec::new(), first: None, tried };
        attempts.order = attempts.add(count).collect();
        attempts
    }

    /// Adds unresolved candidates, in no order.
    fn add(&mut self, count: usize) -> Range<usize> {
        let candidate = || Candidate { is_awaited: true, untried: VecDeque::new() };
        let before = self.candidates.len();
        self.candidates.extend(std::iter::repeat_with(candidate).take(count));
        before..self.candidates.len()
    }

    /// The candidate is a service with this many targets: they take its place in the order, and are
    /// numbered last.
    pub(super) fn expand(&mut self, candidate: usize, targets: usize) {
        let added = self.add(targets);
        if let Some(at) = self.order.iter().position(|of| *of == candidate) {
            self.order.splice(at..=at, added);
        }
    }

    /// The candidate's name resolves to these addresses; none if it does not resolve.
    pub(super) fn found(&mut self, candidate: usize, addresses: Vec<SocketAddr>) {
        let Some(candidate) = self.candidates.get_mut(candidate) else { return };
        candidate.is_awaited = false;
        candidate.untried.extend(interleaved(addresses));
    }

    /// Tries this address before all others, whether or not the candidate's name resolves to it.
    pub(super) fn begin_at(&mut self, candidate: usize, address: SocketAddr) {
        self.first = Some((candidate, plain(address)));
    }

    /// Tries this address again: its attempt was given up for another one that failed later.
    pub(super) fn put_back(&mut self, candidate: usize, address: SocketAddr) {
        self.tried.retain(|tried| *tried != address);
        if !self.order.contains(&candidate) {
            self.first = Some((candidate, plain(address)));
        } else if let Some(candidate) = self.candidates.get_mut(candidate) {
            candidate.untried.push_front(address);
        }
    }

    /// Tries no other address of this candidate.
    pub(super) fn give_up(&mut self, candidate: usize) {
        if let Some(candidate) = self.candidates.get_mut(candidate) {
            *candidate = Candidate::default();
        }
    }

    /// The next address to try, with its candidate. With `in_turn`, a later candidate waits for the
    /// names before it.
    pub(super) fn next(&mut self, in_turn: bool) -> Option<(usize, SocketAddr)> {
        if let Some(first) = self.first.take() {
            self.tried.push(first.1);
            return Some(first);
        }
        for nth in &self.order {
            let Some(candidate) = self.candidates.get_mut(*nth) else { continue };
            while let Some(address) = candidate.untried.pop_front() {
                if !self.tried.contains(&address) {
                    self.tried.push(address);
                    return Some((*nth, address));
                }
            }
            if candidate.is_awaited && in_turn {
                return None;
            }
        }
        None
    }

    /// Whether there is no address to try now.
    pub(super) fn is_empty(&self) -> bool {
        let is_tried = |address: &SocketAddr| self.tried.contains(address);
        let mut candidates = self.order.iter().filter_map(|nth| self.candidates.get(*nth));
        self.first.is_none() && candidates.all(|it| it.untried.iter().all(is_tried))
    }
}

/// The addresses with their families alternating, beginning with the resolver's first choice (RFC
/// 8305, section 4).
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
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn at(address: &str) -> SocketAddr {
        format!("{address}:1").parse().unwrap()
    }

    fn all(attempts: &mut Attempts) -> Vec<(usize, SocketAddr)> {
        std::iter::from_fn(|| attempts.next(true)).collect()
    }

    #[test]
    fn families_of_a_name_take_turns_and_candidates_keep_their_order() {
        let mut attempts = Attempts::new(2, None);
        let named = ["[::1]", "[::2]", "[::3]", "1.0.0.1", "1.0.0.2"].map(at).to_vec();
        attempts.found(1, ["1.0.0.9", "[::1]", "[::9]"].map(at).to_vec());
        attempts.found(0, named);
        let order = [(0, "[::1]"), (0, "1.0.0.1"), (0, "[::2]"), (0, "1.0.0.2"), (0, "[::3]")];
        // ::1 has been tried by then.
        let order = order.into_iter().chain([(1, "1.0.0.9"), (1, "[::9]")]);
        let order: Vec<_> = order.map(|(nth, address)| (nth, at(address))).collect();
        assert_eq!(all(&mut attempts), order);
        assert!(attempts.is_empty());
    }

    #[test]
    fn a_candidate_waits_for_the_names_before_it_only_in_turn() {
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

    #[test]
    fn the_targets_of_a_service_take_its_place() {
        let mut attempts = Attempts::new(3, None);
        attempts.found(2, vec![at("1.0.0.9")]);
        attempts.found(0, vec![at("1.0.0.1")]);
        assert_eq!(attempts.next(true), Some((0, at("1.0.0.1"))));
        assert_eq!(attempts.next(true), None);
        attempts.expand(1, 2);
        attempts.found(4, vec![at("1.0.0.3")]);
        assert_eq!(attempts.next(true), None);
        attempts.found(3, vec![at("1.0.0.2")]);
        let order = [(3, "1.0.0.2"), (4, "1.0.0.3"), (2, "1.0.0.9")];
        assert_eq!(all(&mut attempts), order.map(|(nth, address)| (nth, at(address))));
        assert!(attempts.is_empty());
    }

    #[test]
    fn a_service_without_targets_is_not_waited_for() {
        let mut attempts = Attempts::new(2, None);
        attempts.found(1, vec![at("1.0.0.9")]);
        attempts.expand(0, 0);
        assert_eq!(all(&mut attempts), [(1, at("1.0.0.9"))]);
    }

    #[test]
    fn an_address_that_a_socket_reports_in_its_mapped_form_is_not_tried_again() {
        let mapped = at("[::ffff:1.0.0.1]");
        let mut attempts = Attempts::new(1, Some(mapped));
        attempts.found(0, vec![at("1.0.0.1")]);
        assert_eq!(attempts.next(true), None);
        let mut attempts = Attempts::new(1, None);
        attempts.begin_at(0, mapped);
        attempts.found(0, vec![at("1.0.0.1")]);
        assert_eq!(all(&mut attempts), [(0, at("1.0.0.1"))]);
    }

    #[test]
    fn where_the_server_was_is_tried_again_even_if_its_service_has_other_targets_now() {
        let mut attempts = Attempts::new(1, None);
        attempts.begin_at(0, at("1.0.0.5"));
        let first = attempts.next(true).unwrap();
        attempts.expand(0, 1);
        attempts.found(1, vec![at("1.0.0.1")]);
        attempts.put_back(first.0, first.1);
        assert_eq!(all(&mut attempts), [first, (1, at("1.0.0.1"))]);
        assert!(attempts.is_empty());
    }

    proptest! {
        #[test]
        fn every_address_is_tried_once(
            lists in vec(vec((any::<bool>(), 0_u8..9), 0..9), 1..5),
        ) {
            let mut attempts = Attempts::new(lists.len(), None);
            let mut expected = Vec::new();
            for (nth, list) in lists.iter().enumerate() {
                let addresses: Vec<_> = list
                    .iter()
                    .map(|&(v6, last)| match v6 {
                        true => at(&format!("[::{last}]")),
                        false => at(&format!("1.0.0.{last}")),
                    })
                    .collect();
                expected.extend(addresses.clone());
                attempts.found(nth, addresses);
            }
            let mut tried: Vec<_> =
                all(&mut attempts).into_iter().map(|(_, address)| address).collect();
            tried.sort();
            expected.sort();
            expected.dedup();
            prop_assert_eq!(tried, expected);
        }
    }
}
