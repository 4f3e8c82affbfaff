//! Says which peer an address is behind: the one that has the longest prefix with it.

use std::net::IpAddr;

use thiserror::Error;

use crate::prefix::Prefix;

/// The networks of all peers.
#[derive(Clone, Debug)]
pub struct Routes<P> {
    v4: Vec<Route<P>>,
    v6: Vec<Route<P>>,
}

/// A prefix and the peer that it is behind.
#[derive(Clone, Debug)]
struct Route<P> {
    prefix: Prefix,
    peer: P,
    /// The longest prefix around this one, by its place in the list.
    around: Option<usize>,
}

/// Two peers have the same prefix, so that packets for it have two ways.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{prefix} is behind both {first} and {second}")]
pub struct Overlap<P> {
    /// The prefix.
    pub prefix: Prefix,
    /// One of the peers.
    pub first: P,
    /// The other one.
    pub second: P,
}

impl<P> Default for Routes<P> {
    fn default() -> Self {
        Self { v4: Vec::new(), v6: Vec::new() }
    }
}

impl<P: Clone + PartialEq> Routes<P> {
    /// Collects the networks of all peers. Those of one may lie inside those of another.
    ///
    /// # Errors
    /// A prefix that two peers have.
    pub fn new(networks: impl IntoIterator<Item = (P, Prefix)>) -> Result<Self, Overlap<P>> {
        let mut routes = Self::default();
        for (peer, prefix) in networks {
            routes.family_mut(prefix.first()).push(Route { prefix, peer, around: None });
        }
        link(&mut routes.v4)?;
        link(&mut routes.v6)?;
        Ok(routes)
    }

    /// The peer that this address is behind.
    pub fn peer_of(&self, address: IpAddr) -> Option<&P> {
        let family = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        // What contains the address begins at or before it; of prefixes that begin together the
        // longest is the last.
        let mut at = family.partition_point(|route| route.prefix.first() <= address).checked_sub(1);
        while let Some(route) = at.and_then(|at| family.get(at)) {
            if route.prefix.contains(address) {
                return Some(&route.peer);
            }
            at = route.around;
        }
        None
    }

    fn family_mut(&mut self, address: IpAddr) -> &mut Vec<Route<P>> {
        match address {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        }
    }
}

/// Sorts the routes of one family and finds what is around each.
fn link<P: Clone + PartialEq>(routes: &mut Vec<Route<P>>) -> Result<(), Overlap<P>> {
    routes.sort_by_key(|route| (route.prefix.first(), route.prefix.bits()));
    let twins =
        |pair: &&[Route<P>]| pair[0].prefix == pair[1].prefix && pair[0].peer != pair[1].peer;
    if let Some(pair) = routes.windows(2).find(twins) {
        let [first, second] = [&pair[0], &pair[1]].map(|route| route.peer.clone());
        return Err(Overlap { prefix: pair[0].prefix, first, second });
    }
    routes.dedup_by_key(|route| route.prefix);
    for at in 1..routes.len() {
        // Prefixes are apart or one inside the other: what is around this one is the one before it,
        // or is around that.
        let mut around = Some(at - 1);
        while let Some(outer) = around
            && !routes[outer].prefix.covers(&routes[at].prefix)
        {
            around = routes[outer].around;
        }
        routes[at].around = around;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn routes(networks: &[(&'static str, &str)]) -> Result<Routes<&'static str>, String> {
        let networks = networks.iter().map(|(peer, prefix)| (*peer, prefix.parse().unwrap()));
        Routes::new(networks).map_err(|overlap| overlap.to_string())
    }

    #[test]
    fn an_address_is_behind_the_peer_with_the_longest_prefix() {
        let routes = routes(&[
            ("hub", "0.0.0.0/0"),
            ("berlin", "10.2.0.0/16"),
            ("lab", "10.2.0.0/24"),
            ("lab", "10.2.128.0/17"),
            ("printer", "10.2.128.7/32"),
            ("berlin", "2001:db8:2::/48"),
        ])
        .unwrap();
        for (address, peer) in [
            ("9.9.9.9", Some("hub")),
            ("10.1.255.255", Some("hub")),
            ("10.2.0.255", Some("lab")),
            ("10.2.1.0", Some("berlin")),
            ("10.2.128.6", Some("lab")),
            ("10.2.128.7", Some("printer")),
            ("10.2.255.255", Some("lab")),
            ("10.3.0.0", Some("hub")),
            ("255.255.255.255", Some("hub")),
            ("2001:db8:2:ffff::1", Some("berlin")),
            ("2001:db8:3::", None),
            ("::a02:1", None),
        ] {
            assert_eq!(routes.peer_of(address.parse().unwrap()).copied(), peer, "{address}");
        }
    }

    #[test]
    fn one_prefix_of_two_peers_is_refused_and_one_written_twice_is_not() {
        let twice = [("a", "10.2.0.0/16"), ("a", "10.2.0.0/16"), ("b", "10.2.0.0/24")];
        assert!(routes(&twice).is_ok());
        let both = [("a", "10.2.0.0/16"), ("b", "10.2.0.0/24"), ("c", "10.2.0.0/16")];
        assert_eq!(routes(&both).unwrap_err(), "10.2.0.0/16 is behind both a and c");
    }

    proptest! {
        #[test]
        fn the_longest_match_is_what_a_search_of_all_prefixes_finds(
            networks in prop::collection::vec((0..4u8, 0..64u32, 24..=32u8), 0..24),
            address in 0..256u32,
        ) {
            let prefix = |bits: u32, length: u8| {
                let mask = u32::MAX << (32 - u32::from(length));
                let first = std::net::Ipv4Addr::from_bits((bits << 2) & mask);
                format!("{first}/{length}").parse::<Prefix>().unwrap()
            };
            let networks: Vec<_> = networks
                .into_iter()
                .map(|(peer, bits, length)| (peer, prefix(bits, length)))
                .collect();
            let address = std::net::Ipv4Addr::from_bits(address).into();
            let twins = networks.iter().any(|(peer, prefix)| {
                networks.iter().any(|(other, twin)| prefix == twin && peer != other)
            });
            match Routes::new(networks.iter().copied()) {
                Err(_) => prop_assert!(twins),
                Ok(routes) => {
                    prop_assert!(!twins);
                    let containing = networks.iter().filter(|(_, net)| net.contains(address));
                    let longest = containing.max_by_key(|(_, prefix)| prefix.bits());
                    prop_assert_eq!(routes.peer_of(address), longest.map(|(peer, _)| peer));
                }
            }
        }
    }
}
