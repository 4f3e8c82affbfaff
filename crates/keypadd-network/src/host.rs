//! Knows which addresses are this host's own.

use std::net::IpAddr;

use crate::prefix::Prefix;

/// The addresses at which this host itself gets packets.
#[derive(Clone, Debug, Default)]
pub struct HostAddresses(Vec<IpAddr>);

impl HostAddresses {
    /// Collects the addresses of this host's interfaces, each with the network that it is in.
    ///
    /// Of a network with more than two addresses the first is this host's, too: the other form of
    /// broadcast (RFC 1122 3.2.1.3), and for IPv6 the anycast address of its routers (RFC 4291
    /// 2.6.1). So is the last of IPv4: the broadcast.
    pub fn new(interfaces: impl IntoIterator<Item = (IpAddr, Prefix)>) -> Self {
        let mut addresses = Vec::new();
        for (address, network) in interfaces {
            addresses.push(address);
            if !network.is_host() && !network.is_pair() {
                addresses.push(network.first());
                addresses.extend(network.last().is_ipv4().then_some(network.last()));
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses)
    }

    /// Whether a packet to this address is for this host.
    pub fn has(&self, address: IpAddr) -> bool {
        self.0.binary_search(&address).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broadcast_and_the_routers_of_a_network_are_this_host() {
        let interfaces = [
            ("10.1.0.1", "10.1.0.0/16"),
            ("10.255.0.1", "10.255.0.0/31"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("2001:db8:1::1", "2001:db8:1::/64"),
        ];
        let host = HostAddresses::new(
            interfaces
                .map(|(address, network)| (address.parse().unwrap(), network.parse().unwrap())),
        );
        for own in ["10.1.0.1", "10.1.0.0", "10.1.255.255", "10.255.0.1", "192.0.2.7"] {
            assert!(host.has(own.parse().unwrap()), "{own}");
        }
        assert!(host.has("2001:db8:1::1".parse().unwrap()));
        assert!(host.has("2001:db8:1::".parse().unwrap()));
        for other in ["10.1.0.2", "10.255.0.0", "192.0.2.6", "2001:db8:1::2", "2001:db8::"] {
            assert!(!host.has(other.parse().unwrap()), "{other}");
        }
        assert!(!host.has("2001:db8:1::ffff:ffff:ffff:ffff".parse().unwrap()));
    }
}
