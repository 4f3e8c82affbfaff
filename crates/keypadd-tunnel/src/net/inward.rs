//! Classifies addresses that lead inward: loopback, link-local, and this host's own.
//!
//! A permit that does not name such an address never admits it, whatever a name resolves to (server-side
//! request forgery): what listens on loopback often trusts every caller, and 169.254.169.254 hands out
//! credentials in many clouds.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::ifaddrs::getifaddrs;
use tracing::debug;

/// How long a list of this host's addresses is used: listing a thousand takes half a millisecond, and a
/// peer may ask for ten thousand connections a second.
const LIST_TIME: Duration = Duration::from_secs(1);

/// The addresses that lead inward on this host.
pub(crate) static INWARD: Inward = Inward::new(own_addresses);

/// Decides about addresses. Asks the system for this host's own only if an address alone does not
/// decide.
#[derive(Debug)]
pub(crate) struct Inward {
    list: fn() -> io::Result<Vec<IpAddr>>,
    own: Mutex<Option<(Instant, Vec<IpAddr>)>>,
}

impl Inward {
    const fn new(list: fn() -> io::Result<Vec<IpAddr>>) -> Self {
        Self { list, own: Mutex::new(None) }
    }

    /// Whether an address is loopback, link-local, multicast, broadcast, unspecified or this
    /// host's own. If the system does not list its addresses, every address counts as its own.
    pub(crate) fn contains(&self, address: IpAddr, now: Instant) -> bool {
        let forms = [Some(address), embedded_v4(address).map(IpAddr::V4)];
        forms.into_iter().flatten().any(|form| is_special(form) || self.is_own(form, now))
    }

    fn is_own(&self, address: IpAddr, now: Instant) -> bool {
        // Replaced as a whole, so a panic cannot leave it half changed.
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |(since, _): &(Instant, _)| now.duration_since(*since) < LIST_TIME;
        if !own.as_ref().is_some_and(is_current) {
            let listed = (self.list)().inspect_err(|error| debug!(%error, "no addresses"));
            *own = listed.ok().map(|listed| (now, listed));
        }
        own.as_ref().is_none_or(|(_, own)| own.contains(&address))
    }
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

/// The IPv4 address that an IPv6 address stands for: mapped or compatible (RFC 4291 2.5.5), NAT64
/// (RFC 6052 2.1) or 6to4 (RFC 3056 2).
fn embedded_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return None };
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] if v6 != Ipv6Addr::UNSPECIFIED => {
            Some(v4(high, low))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

/// The addresses of all interfaces (getifaddrs(3)).
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let addresses = getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| Some(IpAddr::V6(address.as_sockaddr_in6()?.ip())))
    });
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn addresses_of_this_host_and_its_link_are_inward_in_every_form() {
        let inward =
            Inward::new(|| Ok(vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()]));
        let now = Instant::now();
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
            assert_eq!(inward.contains(address.parse().unwrap(), now), expected, "{address}");
        }
    }

    #[test]
    fn the_system_lists_loopback_among_its_own_addresses() {
        assert!(own_addresses().unwrap().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn without_a_list_of_its_own_addresses_every_address_is_inward() {
        let inward = Inward::new(|| Err(io::ErrorKind::Other.into()));
        assert!(inward.contains("198.51.100.1".parse().unwrap(), Instant::now()));
    }

    #[test]
    fn this_hosts_addresses_are_listed_once_a_second_however_many_ask() {
        static LISTED: AtomicUsize = AtomicUsize::new(0);
        let inward = Inward::new(|| {
            let nth = LISTED.fetch_add(1, Relaxed) as u8;
            Ok(vec![Ipv4Addr::new(192, 0, 2, nth).into()])
        });
        let start = Instant::now();
        let own = |millis: u64| {
            let now = start + Duration::from_millis(millis);
            [0, 1].map(|nth| inward.contains(Ipv4Addr::new(192, 0, 2, nth).into(), now))
        };
        assert_eq!([0, 1, 999].map(own), [[true, false]; 3]);
        assert_eq!([1_000, 1_001].map(own), [[false, true]; 2]);
        assert_eq!(LISTED.load(Relaxed), 2);
    }
}
