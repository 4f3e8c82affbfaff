//! Lists the addresses of this host, by the C library (getifaddrs(3)), which the sandbox allows.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use keypadd_network::{HostAddresses, Prefix};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// The addresses of this host at one moment.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(super) host: Arc<HostAddresses>,
    of_devices: Vec<(String, IpAddr)>,
    /// The networks that this host is in, without those of loopback and of links alone.
    pub(super) connected: Vec<Connected>,
}

/// A network that this host is in by an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connected {
    pub(super) network: Prefix,
    pub(super) interface: String,
}

impl Addresses {
    /// # Errors
    /// The system does not say.
    pub(crate) fn of_this_host() -> io::Result<Self> {
        let all: Vec<_> = getifaddrs()?.collect();
        let of_devices = all
            .iter()
            .filter_map(|one| Some((one.interface_name.clone(), address(one.address.as_ref()?)?)));
        Ok(Self {
            host: Arc::new(host_addresses(&all)),
            of_devices: of_devices.collect(),
            connected: all.iter().filter_map(connected).collect(),
        })
    }

    /// Whether a device has this address.
    pub(crate) fn device_has(&self, name: &str, address: IpAddr) -> bool {
        self.of_devices.iter().any(|(device, its)| device == name && *its == address)
    }

    /// The addresses of a device.
    pub(super) fn of_device(&self, name: &str) -> Vec<IpAddr> {
        let of_it = self.of_devices.iter().filter(|(device, _)| device == name);
        // An answer from a link-local address would not be forwarded.
        of_it.map(|(_, address)| *address).filter(|address| !is_link_local(*address)).collect()
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The network that this host is in by an interface, if others are in it, too.
fn connected(one: &InterfaceAddress) -> Option<Connected> {
    let is_used = one.flags.contains(InterfaceFlags::IFF_UP)
        && !one.flags.contains(InterfaceFlags::IFF_LOOPBACK);
    let (address, network) = with_network(one).filter(|_| is_used)?;
    let interface = one.interface_name.clone();
    (!is_link_local(address)).then_some(Connected { network, interface })
}

/// The addresses at which this host gets packets. A broadcast address may be set by hand, outside
/// the network of its interface.
fn host_addresses(all: &[InterfaceAddress]) -> HostAddresses {
    let broadcasts = all.iter().filter_map(|one| {
        let broadcast = address(one.broadcast.as_ref()?)?;
        Some((broadcast, network(broadcast, 128)?))
    });
    HostAddresses::new(all.iter().filter_map(with_network).chain(broadcasts))
}

/// An interface address and its network.
fn with_network(one: &InterfaceAddress) -> Option<(IpAddr, Prefix)> {
    let address = address(one.address.as_ref()?)?;
    let bits = one.netmask.as_ref().and_then(self::address).map_or(128, leading_ones);
    Some((address, network(address, bits)?))
}

fn address(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn leading_ones(mask: IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    }
}

/// The network of so many bits that an address is in.
fn network(address: IpAddr, bits: u32) -> Option<Prefix> {
    let first = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    };
    let bits = bits.min(if address.is_ipv4() { 32 } else { 128 });
    format!("{first}/{bits}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broadcast_address_that_was_set_by_hand_is_this_hosts() {
        let at = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            Some(SockaddrStorage::from(std::net::SocketAddr::new(address, 0)))
        };
        let one = InterfaceAddress {
            interface_name: "eth0".into(),
            flags: InterfaceFlags::IFF_BROADCAST,
            address: at("10.1.0.1"),
            netmask: at("255.255.255.0"),
            broadcast: at("10.1.255.255"),
            destination: None,
        };
        let host = host_addresses(&[one]);
        for own in ["10.1.0.1", "10.1.0.0", "10.1.0.255", "10.1.255.255"] {
            assert!(host.has(own.parse().unwrap()), "{own}");
        }
        assert!(!host.has("10.1.255.254".parse().unwrap()));
    }

    #[test]
    fn an_address_is_in_the_network_that_its_mask_says() {
        for (address, bits, expected) in [
            ("10.1.2.3", 16, "10.1.0.0/16"),
            ("10.1.2.3", 0, "0.0.0.0/0"),
            ("10.1.2.3", 32, "10.1.2.3/32"),
            ("10.1.2.3", 128, "10.1.2.3/32"),
            ("fd00::1:2", 112, "fd00::1:0/112"),
            ("fd00::1:2", 0, "::/0"),
        ] {
            let network = network(address.parse().unwrap(), bits).unwrap();
            assert_eq!(network.to_string(), expected);
        }
    }

    #[test]
    fn this_host_has_its_loopback_address() {
        let addresses = Addresses::of_this_host().unwrap();
        assert!(addresses.host.has("127.0.0.1".parse().unwrap()));
        assert!(addresses.of_device("lo").contains(&"127.0.0.1".parse().unwrap()));
        assert!(addresses.device_has("lo", "127.0.0.1".parse().unwrap()));
        assert!(!addresses.connected.iter().any(|one| one.interface == "lo"));
    }
}
