//! Classifies addresses that lead inward: loopback, link-local, this host's own, and those at which
//! a cloud answers its machines.
//!
//! A permit that does not name such an address never admits it, whatever a name resolves to
//! (server-side request forgery): what listens on loopback often trusts every caller, and
//! 169.254.169.254 hands out credentials in many clouds. Which addresses are this host's own is the
//! kernel's to say, by its routes.

mod embedded;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with},
};
use tracing::debug;

use self::embedded::embedded_v4;

/// The networks in which a cloud gives a machine its credentials or its configuration, as prefix
/// and length. Those that are link-local count anyway.
const CLOUD_SERVICES: [(IpAddr, u8); 9] = [
    // Alibaba Cloud, "Instance metadata": 100.100.100.200, and for IPv6 fd00:100::100:200.
    (v4(100, 100, 100, 200), 32),
    (v6([0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200]), 128),
    // Azure, "What is IP address 168.63.129.16?": WireServer.
    (v4(168, 63, 129, 16), 32),
    // Oracle Cloud Infrastructure Classic, "Retrieving instance metadata".
    (v4(192, 0, 0, 192), 32),
    // Oracle Cloud Infrastructure, "Getting instance metadata".
    (v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]), 128),
    // AWS, "IPv6 on AWS: Supporting Amazon VPC services", ::254 for metadata; "Set up the Amazon
    // EKS Pod Identity Agent", ::23.
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0]), 32),
    // Google Cloud, "View and query VM metadata", of machines with IPv6 only.
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]), 128),
    // Akamai, "Metadata service API".
    (v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1]), 128),
    // Scaleway, as in cloud-init's "Scaleway" data source.
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]), 128),
];

/// A request for the route to an address (rtnetlink(7)): `RTM_GETROUTE`, with `NLM_F_REQUEST` and
/// `RTA_DST`.
const GET_ROUTE: u16 = 26;
const REQUEST: u16 = 1;
const DESTINATION: u16 = 1;

/// The answer `RTM_NEWROUTE`; others are errors, whose number follows the header (netlink(7)).
const NEW_ROUTE: u16 = 24;

/// Bytes of `struct nlmsghdr` and `struct rtmsg`, of `struct rtattr`, and of all with an address;
/// where the second has its type.
const ROUTE_BYTES: usize = 16 + 12;
const ATTRIBUTE_BYTES: usize = 4;
const REQUEST_BYTES_MAX: usize = ROUTE_BYTES + ATTRIBUTE_BYTES + 16;
const TYPE_AT: usize = 16 + 7;

/// The type of a route out of this host: `RTN_UNICAST`. All others that lead anywhere lead to this
/// host or to many.
const UNICAST: u8 = 1;

/// Whether an address leads to this host, its link or its cloud: it is loopback, link-local,
/// multicast, broadcast, unspecified, of a cloud's services or this host's own, or an IPv6 address
/// that stands for an IPv4 address of these kinds. If the system does not say which addresses are
/// this host's, all are.
pub(crate) fn is_inward(address: IpAddr) -> bool {
    leads_inward(address, |address| {
        is_own(address).unwrap_or_else(|error| {
            debug!(%error, "no route");
            true
        })
    })
}

fn leads_inward(address: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> bool {
    let embedded = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => Some(embedded_v4(v6).map(IpAddr::V4)),
    };
    let mut forms = std::iter::once(address).chain(embedded.into_iter().flatten());
    forms.any(|form| is_special(form) || is_cloud_service(form) || is_own(form))
}

fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            // 0.0.0.0/8 is "this network" (RFC 6890 2.2.2); Linux takes 0.0.0.0 for loopback.
            v4.octets()[0] == 0
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_unicast_link_local()
                || v6.is_multicast()
        }
    }
}

fn is_cloud_service(address: IpAddr) -> bool {
    CLOUD_SERVICES.iter().any(|&(prefix, bits)| match (address, prefix) {
        (IpAddr::V4(v4), IpAddr::V4(prefix)) => {
            (v4.to_bits() ^ prefix.to_bits()).leading_zeros() >= bits.into()
        }
        (IpAddr::V6(v6), IpAddr::V6(prefix)) => {
            (v6.to_bits() ^ prefix.to_bits()).leading_zeros() >= bits.into()
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    })
}

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

/// Whether the system's route to an address ends at this host: it has the address, or a local route
/// covers it.
fn is_own(address: IpAddr) -> io::Result<bool> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let (request, length) = request(address);
    send(&socket, &request[..length], SendFlags::empty())?;
    // The kernel has answered by now.
    let mut answer = [0; ROUTE_BYTES];
    let (_, bytes) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    if bytes < ROUTE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let [_, _, _, _, low, high, .., e0, e1, e2, e3, _, _, _, _, _, _, _, _] = answer;
    if u16::from_ne_bytes([low, high]) == NEW_ROUTE {
        return Ok(answer[TYPE_AT] != UNICAST);
    }
    match Errno::from_raw_os_error(i32::from_ne_bytes([e0, e1, e2, e3]).wrapping_neg()) {
        // No route, one that refuses, or no IPv6: nothing can be reached there.
        Errno::NETUNREACH
        | Errno::HOSTUNREACH
        | Errno::ACCESS
        | Errno::INVAL
        | Errno::OPNOTSUPP => Ok(false),
        error => Err(error.into()),
    }
}

/// The request for the route to an address, and its length.
fn request(address: IpAddr) -> ([u8; REQUEST_BYTES_MAX], usize) {
    let mut message = [0; REQUEST_BYTES_MAX];
    let (head, octets) = message.split_at_mut(ROUTE_BYTES + ATTRIBUTE_BYTES);
    let (family, bytes) = match address {
        IpAddr::V4(v4) => {
            octets[..4].copy_from_slice(&v4.octets());
            (AddressFamily::INET, 4)
        }
        IpAddr::V6(v6) => {
            octets.copy_from_slice(&v6.octets());
            (AddressFamily::INET6, 16)
        }
    };
    let length = head.len() + bytes;
    head[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    head[4..6].copy_from_slice(&GET_ROUTE.to_ne_bytes());
    head[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    (head[16], head[17]) = (family.as_raw() as u8, 8 * bytes as u8);
    head[28..30].copy_from_slice(&((ATTRIBUTE_BYTES + bytes) as u16).to_ne_bytes());
    head[30..].copy_from_slice(&DESTINATION.to_ne_bytes());
    (message, length)
}

#[cfg(test)]
mod tests {
    use testbed::Namespace;

    use super::*;

    #[test]
    fn addresses_of_this_host_and_its_link_are_inward_in_every_form() {
        let own = ["192.0.2.7", "2001:db8::7"].map(|own| own.parse::<IpAddr>().unwrap());
        for (address, expected) in [
            ("127.0.0.1", true),
            ("127.255.0.9", true),
            ("0.0.0.0", true),
            ("0.1.2.3", true),
            ("169.254.169.254", true),
            ("224.0.0.1", true),
            ("255.255.255.255", true),
            ("::", true),
            ("::1", true),
            ("fe80::1", true),
            ("febf::1", true),
            ("ff02::1", true),
            ("::ffff:127.0.0.1", true),
            ("::127.0.0.1", true),
            ("64:ff9b::7f00:1", true),
            ("64:ff9b::a9fe:a9fe", true),
            ("2002:7f00:1::", true),
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("64:ff9b::c000:207", true),
            ("2001:db8::7", true),
            ("192.0.2.8", false),
            ("10.0.0.1", false),
            ("2001:db8::8", false),
            ("64:ff9b::808:808", false),
            ("fd00::1", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(leads_inward(address, |it| own.contains(&it)), expected, "{address}");
        }
    }

    #[test]
    fn what_a_cloud_answers_its_machines_with_is_inward_and_its_neighbors_are_not() {
        for (address, expected) in [
            ("100.100.100.200", true),
            ("100.100.100.199", false),
            ("fd00:100::100:200", true),
            ("fd00:100::100:201", false),
            ("168.63.129.16", true),
            ("168.63.129.17", false),
            ("192.0.0.192", true),
            ("192.0.0.193", false),
            ("fd00:c1::a9fe:a9fe", true),
            ("fd00:c1::a9fe:a9ff", false),
            ("fd00:ec2::254", true),
            ("fd00:ec2::23", true),
            ("fd00:ec3::254", false),
            ("fd20:ce::254", true),
            ("fd20:ce::253", false),
            ("fd00:a9fe:a9fe::1", true),
            ("fd00:a9fe:a9fe::2", false),
            ("fd00:42::42", true),
            ("fd00:42::43", false),
            // Each form that stands for an IPv4 address, for one of these and for one that is not.
            ("::ffff:168.63.129.16", true),
            ("::168.63.129.16", true),
            ("::168.63.129.17", false),
            ("::ffff:0:168.63.129.16", true),
            ("::ffff:0:169.254.169.254", true),
            ("::ffff:0:8.8.8.8", false),
            ("64:ff9b::168.63.129.16", true),
            ("64:ff9b:1:a9fe:a9:fe00::", true),
            ("64:ff9b:1:a9:fe:a9fe::", true),
            ("64:ff9b:1::a9:fea9:fe00:0", true),
            ("64:ff9b:1::169.254.169.254", true),
            ("64:ff9b:1:7::169.254.169.254", true),
            ("64:ff9b:1:ffff::127.0.0.1", true),
            ("64:ff9b:1::8.8.8.8", false),
            ("64:ff9b:1:808:8:800::", false),
            ("2002:a83f:8110::1", true),
            ("2002:808:808::1", false),
            ("2001::5601:5601", true),
            ("2001:0:808:808:0:ffff:57c0:7eef", true),
            ("2001:0:a9fe:a9fe:0:ffff:f7f7:f7f7", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(leads_inward(address, |_| false), expected, "{address}");
        }
    }

    #[test]
    fn what_a_route_leads_to_this_host_is_its_own() {
        for own in ["127.0.0.1", "127.255.0.9"] {
            assert!(is_own(own.parse().unwrap()).unwrap(), "{own}");
        }
        // Needs root.
        let Ok(host) = Namespace::new() else { return };
        host.ip("link set lo up
             addr add 203.0.113.1/32 dev lo
             route add local 192.0.2.0/24 dev lo
             route add local 198.51.100.0/24 dev lo src 127.0.0.1
             route add local 2001:db8::/64 dev lo
             link add out type veth peer name other
             link set out up
             link set other up
             route add 10.0.0.0/8 dev out
             route add fd00::/8 dev out
             route add unreachable 172.16.0.0/12")
            .unwrap();
        host.inside(|| {
            let inward = |address: &&str| is_inward(address.parse().unwrap());
            let own =
                ["203.0.113.1", "192.0.2.9", "::ffff:192.0.2.9", "198.51.100.9", "2001:db8::9"];
            assert!(own.iter().all(inward));
            let others = ["10.0.0.1", "fd00::1", "172.16.0.1", "203.0.113.2", "2001:db9::1"];
            assert!(!others.iter().any(inward));
            Ok(())
        })
        .unwrap();
    }
}
