//! Finds the IPv4 addresses that an IPv6 address may stand for: where a translator or a tunnel on
//! the way sends its packets.
//!
//! A network may translate under a prefix of its own (RFC 6052 2.1), which nothing here can know.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A prefix under which addresses stand for IPv4 addresses.
struct Form {
    prefix: Ipv6Addr,
    bits: u32,
    /// Where the octets of the IPv4 address are.
    at: [usize; 4],
    /// Whether they are inverted.
    is_inverted: bool,
}

const LAST: [usize; 4] = [12, 13, 14, 15];

/// The forms with one place for the IPv4 address.
const FORMS: [Form; 6] = [
    // IPv4-compatible (RFC 4291 2.5.5.1).
    form([0, 0, 0, 0, 0, 0], 96, LAST),
    // IPv4-mapped (RFC 4291 2.5.5.2).
    form([0, 0, 0, 0, 0, 0xffff], 96, LAST),
    // IPv4-translated (RFC 2765 2.1).
    form([0, 0, 0, 0, 0xffff, 0], 96, LAST),
    // NAT64 (RFC 6052 2.1).
    form([0x64, 0xff9b, 0, 0, 0, 0], 96, LAST),
    // 6to4 (RFC 3056 2).
    form([0x2002, 0, 0, 0, 0, 0], 16, [2, 3, 4, 5]),
    // Teredo: the client (RFC 4380 4).
    Form { is_inverted: true, ..form([0x2001, 0, 0, 0, 0, 0], 32, LAST) },
];

/// NAT64 of a network's own choice, with a prefix of 48, 56, 64 or 96 bits (RFC 8215 3, RFC 6052
/// 2.2).
const LOCAL_USE: [Form; 4] = [
    form(LOCAL_USE_PREFIX, 48, [6, 7, 9, 10]),
    form(LOCAL_USE_PREFIX, 48, [7, 9, 10, 11]),
    form(LOCAL_USE_PREFIX, 48, [9, 10, 11, 12]),
    form(LOCAL_USE_PREFIX, 48, LAST),
];

const LOCAL_USE_PREFIX: [u16; 6] = [0x64, 0xff9b, 1, 0, 0, 0];

const fn form([a, b, c, d, e, f]: [u16; 6], bits: u32, at: [usize; 4]) -> Form {
    Form { prefix: Ipv6Addr::new(a, b, c, d, e, f, 0, 0), bits, at, is_inverted: false }
}

impl Form {
    fn read(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let common = (address.to_bits() ^ self.prefix.to_bits()).leading_zeros();
        (common >= self.bits).then(|| {
            let octets = address.octets();
            let octets = self.at.map(|at| octets[at]);
            Ipv4Addr::from(if self.is_inverted { octets.map(|octet| !octet) } else { octets })
        })
    }
}

/// The IPv4 addresses that this one may stand for.
pub(super) fn embedded_v4(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    // Which of these lengths the network has chosen is unknown. Under the others the address shows
    // zeros of the prefix or the suffix, which no translator sends to: 0.0.0.0/8 is no destination
    // (RFC 1122 3.2.1.3).
    let local = move |form: &Form| form.read(address).filter(|v4| v4.octets()[0] != 0);
    let one = FORMS.iter().filter_map(move |form| form.read(address));
    one.chain(LOCAL_USE.iter().filter_map(local))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_read_where_its_specification_puts_the_address() {
        for (address, expected) in [
            ("::192.0.2.33", &["192.0.2.33"][..]),
            ("::ffff:192.0.2.33", &["192.0.2.33"]),
            ("::ffff:0:192.0.2.33", &["192.0.2.33"]),
            ("64:ff9b::192.0.2.33", &["192.0.2.33"]),
            ("2002:c000:221::1", &["192.0.2.33"]),
            // RFC 4380 4, of a client behind a NAT at 192.0.2.45.
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", &["192.0.2.45"]),
            // As in RFC 6052 2.4, with prefixes of this network.
            ("64:ff9b:1:c000:2:2100::", &["192.0.2.33", "2.33.0.0"]),
            ("64:ff9b:1:c0:0:221::", &["192.0.2.33"]),
            ("64:ff9b:1:0:c0:2:2100:0", &["192.0.2.33", "33.0.0.0"]),
            ("64:ff9b:1::192.0.2.33", &["192.0.2.33"]),
            ("64:ff9b:2::192.0.2.33", &[]),
            ("2001:db8::192.0.2.33", &[]),
        ] {
            let found: Vec<_> = embedded_v4(address.parse().unwrap()).collect();
            let expected: Vec<Ipv4Addr> = expected.iter().map(|it| it.parse().unwrap()).collect();
            assert_eq!(found, expected, "{address}");
        }
    }
}
