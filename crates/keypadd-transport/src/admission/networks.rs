//! Networks by which handshakes are counted, and those that have proved a key.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

/// Slots per network once [`ROOMY`](super::ROOMY) are taken, by prefix length; an IPv4 address
/// counts as a /64, its /24 as a /56.
pub(super) const SHARES: [(u32, usize); 3] = [(64, 64), (56, 256), (48, 512)];

/// The largest networks.
pub(super) const LARGEST: u32 = SHARES[2].0;

/// Networks remembered as having proved a key. Beyond that, the oldest within the /48 or /16 that
/// has most is forgotten, so that a key that proves itself from everywhere there makes no other
/// network forgotten.
pub(super) const PROVED_MAX: usize = 4096;

/// A prefix of an address. IPv4 addresses are in their IPv6-mapped form, shifted so that each is a
/// /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Network {
    bits: u128,
    pub(super) length: u32,
}

impl Network {
    pub(super) fn of(address: IpAddr, length: u32) -> Self {
        let bits = match address.to_canonical() {
            // Outside global unicast (2000::/3), so it never equals an IPv6 network.
            IpAddr::V4(v4) => (1 << 127) | (u128::from(v4.to_bits()) << 64),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        Self { bits, length: u128::BITS }.widened(length)
    }

    /// The network with this shorter prefix that contains it.
    fn widened(self, length: u32) -> Self {
        Self { bits: self.bits >> (128 - length) << (128 - length), length }
    }

    /// The networks that a handshake counts against: one that has proved a key is not its
    /// neighbors'.
    pub(super) fn all(address: IpAddr, known: bool) -> impl Iterator<Item = (Self, usize)> {
        SHARES
            .into_iter()
            .take(if known { 1 } else { SHARES.len() })
            .map(move |(length, share)| (Self::of(address, length), share))
    }

    pub(super) fn smallest(address: IpAddr) -> Self {
        Self::of(address, SHARES[0].0)
    }

    pub(super) fn largest(address: IpAddr) -> Self {
        Self::of(address, LARGEST)
    }
}

/// Networks that have proved a key, by age.
#[derive(Debug, Default)]
pub(super) struct ProvedNetworks {
    ages: HashMap<Network, u64>,
    by_age: HashMap<u64, Network>,
    /// Ages by the largest network.
    within: HashMap<Network, BTreeSet<u64>>,
    next: u64,
}

impl ProvedNetworks {
    /// Whether this address's network has proved a key.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.ages.contains_key(&Network::smallest(address))
    }

    /// Records that it has.
    pub(super) fn add(&mut self, address: IpAddr) {
        let network = Network::smallest(address);
        if let Some(before) = self.ages.get(&network) {
            self.forget(*before);
        }
        let age = self.next;
        self.next += 1;
        self.ages.insert(network, age);
        self.by_age.insert(age, network);
        self.within.entry(Network::largest(address)).or_default().insert(age);
        if self.ages.len() > PROVED_MAX
            && let Some(oldest) = oldest_of_busiest(self.within.values())
        {
            self.forget(*oldest);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    fn forget(&mut self, age: u64) {
        if let Some(network) = self.by_age.remove(&age) {
            self.ages.remove(&network);
            forget_in(&mut self.within, network.widened(LARGEST), age);
        }
    }
}

/// The oldest age of the network that has most.
pub(super) fn oldest_of_busiest<'a>(
    networks: impl Iterator<Item = &'a BTreeSet<u64>>,
) -> Option<&'a u64> {
    networks.max_by_key(|ages| (ages.len(), Reverse(ages.first())))?.first()
}

pub(super) fn forget_in(
    networks: &mut HashMap<Network, BTreeSet<u64>>,
    network: Network,
    age: u64,
) {
    if let Some(ages) = networks.get_mut(&network) {
        ages.remove(&age);
        if ages.is_empty() {
            networks.remove(&network);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_key_that_proves_itself_from_everywhere_makes_no_other_network_forgotten() {
        let mut proved = ProvedNetworks::default();
        let at = |host: u32| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + host));
        proved.add(at(0));
        // Two other /16s, the first of them twice.
        for nth in 0..3 << 16 {
            let address = at((1 << 16) + nth % (2 << 16));
            proved.add(address);
            assert!(proved.has(address));
        }
        assert!(proved.has(at(0)));
        assert_eq!((proved.ages.len(), proved.by_age.len()), (PROVED_MAX, PROVED_MAX));
        assert_eq!(proved.within.values().map(BTreeSet::len).sum::<usize>(), PROVED_MAX);
    }
}
