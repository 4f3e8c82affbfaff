//! Finds the largest UDP payload that the route to a peer carries, as the kernel knows it.
//!
//! Path MTU discovery could try any size, but each size that is too large costs three lost probes,
//! and the search ends sooner if it begins with what the interface carries. The kernel also
//! remembers routers' answers to probes (ICMP) for later connections.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use quinn_proto::MtuDiscoveryConfig;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

/// Payload of an Ethernet frame over IPv6; over IPv4 there is room for 20 bytes more.
const ETHERNET_PAYLOAD: u16 = 1_452;

/// Routes that carry less are treated as Ethernet: a little more saves little, and the pool makes
/// pads for packets of [`ETHERNET_PAYLOAD`] bytes.
const JUMBO_PAYLOAD_MIN: u16 = 2 * ETHERNET_PAYLOAD;

/// Headers of IPv4 and UDP, without options.
const IPV4_HEADERS: u32 = 20 + 8;

/// Headers of IPv6 and UDP.
const IPV6_HEADERS: u32 = 40 + 8;

/// How long to wait before larger packets are tried again after a path seemed to carry only small
/// ones. At 10 % loss one search in five ends this way. After a successful probe, packets of an
/// earlier step are lost at random, and `quinn-proto` concludes that the path carries less.
const PROBE_AGAIN: Duration = Duration::from_secs(2);

/// Path MTU discovery (RFC 8899) up to UDP payloads of this many bytes.
pub fn mtu_discovery(payload_max: u16) -> MtuDiscoveryConfig {
    let mut config = MtuDiscoveryConfig::default();
    config.upper_bound(payload_max).black_hole_cooldown(PROBE_AGAIN);
    config
}

/// The largest UDP payload to probe for on the path to `peer`.
///
/// Never less than Ethernet's: the kernel believes ICMP messages, which may be forged, while probes
/// find the truth.
pub(crate) fn payload_max(peer: SocketAddr) -> u16 {
    let ip = peer.ip().to_canonical();
    let headers = if ip.is_ipv4() { IPV4_HEADERS } else { IPV6_HEADERS };
    match mtu(ip, peer) {
        Ok(mtu) => probed(mtu.saturating_sub(headers)),
        // Probe as if the route were unknown.
        Err(_) => ETHERNET_PAYLOAD,
    }
}

/// The size to probe for on a route that carries this payload.
fn probed(payload: u32) -> u16 {
    match u16::try_from(payload).unwrap_or(u16::MAX) {
        jumbo if jumbo >= JUMBO_PAYLOAD_MIN => jumbo,
        _ => ETHERNET_PAYLOAD,
    }
}

/// Asks the kernel, which reveals the route only for connected sockets. Sends nothing.
fn mtu(ip: IpAddr, peer: SocketAddr) -> io::Result<u32> {
    let any = match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    let connected = match (ip, peer) {
        // Keeps a link-local address's scope.
        (IpAddr::V6(_), peer) => socket.connect(peer),
        (IpAddr::V4(ip), peer) => socket.connect((ip, peer.port())),
    };
    connected?;
    Ok(if ip.is_ipv4() { ip_mtu(&socket) } else { ipv6_mtu(&socket) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_carries_more_than_ethernet() {
        for peer in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            let payload = payload_max(peer.parse().unwrap());
            assert!(payload > JUMBO_PAYLOAD_MIN, "{peer}: {payload}");
        }
    }

    #[test]
    fn a_route_with_little_more_than_ethernet_or_less_counts_as_ethernet() {
        for payload in [0, 524, 1_200, 1_452, 1_472, 2_903] {
            assert_eq!(probed(payload), ETHERNET_PAYLOAD, "{payload}");
        }
    }

    #[test]
    fn a_jumbo_route_is_used_in_full() {
        assert_eq!(probed(2_904), 2_904);
        assert_eq!(probed(9_000 - IPV4_HEADERS), 8_972);
        assert_eq!(probed(9_000 - IPV6_HEADERS), 8_952);
        assert_eq!(probed(1 << 20), u16::MAX);
    }

    #[test]
    fn without_a_route_probes_go_up_to_ethernet() {
        // Only sockets that ask for it may connect to a broadcast address.
        assert_eq!(payload_max("255.255.255.255:9".parse().unwrap()), ETHERNET_PAYLOAD);
    }
}
