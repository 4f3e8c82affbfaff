//! Encodes and decodes headers of the PROXY protocol, without I/O: sends version 2, reads 1 and 2.
//!
//! The specification is <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>; section
//! numbers refer to it. A reader asks [`wanted`] how many bytes come next, and so never takes a
//! byte after the header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use thiserror::Error;

/// Begins version 2 (2.2).
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Begins version 1 (2.1).
const SIGNATURE_V1: &[u8] = b"PROXY ";

/// Bytes of version 2 before the addresses (2.2).
const HEAD_BYTES: usize = 16;

/// Longest header of version 1, including CRLF (2.1).
const V1_BYTES_MAX: usize = 107;

/// Longest addresses and extensions (TLVs) accepted; 2.2 asks senders to keep to 536 bytes, but a
/// TLS certificate among the extensions takes more.
const BODY_BYTES_MAX: usize = 4 << 10;

// Version in the upper half of a byte, command in the lower one (2.2).
const VERSION_2: u8 = 0x20;
const COMMAND_LOCAL: u8 = 0;
const COMMAND_PROXY: u8 = 1;

// Address family in the upper half, transport in the lower one (2.2).
const UNSPEC: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const FAMILY_MAX: u8 = 3;
const TRANSPORT_MAX: u8 = 2;

/// The header of a connection that comes from this host itself, or from no address (2.2, LOCAL).
pub const LOCAL_HEADER: [u8; HEAD_BYTES] = *b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

/// Where a connection comes from and what it was made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The client.
    pub source: SocketAddr,
    /// The address that it connected to.
    pub destination: SocketAddr,
}

/// Bytes that are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a PROXY header")]
pub struct NotAHeader;

/// Encodes a header of version 2; LOCAL without addresses.
pub fn encode(endpoints: Option<Endpoints>) -> Vec<u8> {
    let Some(Endpoints { source, destination }) = endpoints else { return LOCAL_HEADER.to_vec() };
    let (family, addresses) = match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (TCP4, [from.octets(), to.octets()].concat()),
        // Both in one family: an IPv4 address is written in its mapped form.
        (from, to) => (TCP6, [mapped(from).octets(), mapped(to).octets()].concat()),
    };
    let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
    // At most 36.
    let length = (addresses.len() + ports.len()) as u16;
    let head = [VERSION_2 | COMMAND_PROXY, family];
    [&SIGNATURE[..], &head, &length.to_be_bytes(), &addresses, &ports].concat()
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// How many bytes must follow a header that begins like this; 0 once it is complete.
///
/// # Errors
/// No header begins like this.
pub fn wanted(header: &[u8]) -> Result<usize, NotAHeader> {
    let read = header.len();
    if read < SIGNATURE.len() {
        return Ok(SIGNATURE.len() - read);
    }
    if header.starts_with(&SIGNATURE) {
        let Some(&[high, low]) = header.get(HEAD_BYTES - 2..HEAD_BYTES) else {
            return Ok(HEAD_BYTES - read);
        };
        let body = usize::from(u16::from_be_bytes([high, low]));
        return match body <= BODY_BYTES_MAX {
            true => Ok((HEAD_BYTES + body).saturating_sub(read)),
            false => Err(NotAHeader),
        };
    }
    match header {
        [.., b'\r', b'\n'] if header.starts_with(SIGNATURE_V1) => Ok(0),
        _ if !header.starts_with(SIGNATURE_V1) || read >= V1_BYTES_MAX => Err(NotAHeader),
        [.., b'\r'] => Ok(1),
        // At least CRLF.
        _ => Ok(2.min(V1_BYTES_MAX - read)),
    }
}

/// Decodes a complete header. `None`: the connection's own addresses count.
///
/// # Errors
/// The header is malformed.
pub fn decode(header: &[u8]) -> Result<Option<Endpoints>, NotAHeader> {
    match header.split_at_checked(HEAD_BYTES) {
        Some((head, body)) if head.starts_with(&SIGNATURE) => decode_v2(head, body),
        _ => decode_v1(header),
    }
}

fn decode_v2(head: &[u8], body: &[u8]) -> Result<Option<Endpoints>, NotAHeader> {
    let (command, family) = (head[12], head[13]);
    // Other values must be refused (2.2).
    if command & 0xf0 != VERSION_2 || family >> 4 > FAMILY_MAX || family & 0xf > TRANSPORT_MAX {
        return Err(NotAHeader);
    }
    match (command & 0xf, family) {
        (COMMAND_LOCAL, _) | (COMMAND_PROXY, UNSPEC) => Ok(None),
        (COMMAND_PROXY, TCP4) => {
            let (addresses, _extensions) = body.split_first_chunk::<12>().ok_or(NotAHeader)?;
            let [a, b, c, d, e, f, g, h, ports @ ..] = *addresses;
            let (from, to) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
            Ok(Some(endpoints((from.into(), to.into()), ports)))
        }
        (COMMAND_PROXY, TCP6) => {
            let (from, rest) = body.split_first_chunk::<16>().ok_or(NotAHeader)?;
            let (to, rest) = rest.split_first_chunk::<16>().ok_or(NotAHeader)?;
            let (ports, _extensions) = rest.split_first_chunk::<4>().ok_or(NotAHeader)?;
            let (from, to) = (Ipv6Addr::from(*from), Ipv6Addr::from(*to));
            Ok(Some(endpoints((from.into(), to.into()), *ports)))
        }
        // A datagram or a unix socket: there are no addresses to pass on.
        (COMMAND_PROXY, _) => Ok(None),
        _ => Err(NotAHeader),
    }
}

fn endpoints((from, to): (IpAddr, IpAddr), ports: [u8; 4]) -> Endpoints {
    let [a, b, c, d] = ports;
    let address = |ip: IpAddr, port| match ip.to_canonical() {
        IpAddr::V4(v4) => SocketAddr::from((v4, port)),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, 0).into(),
    };
    Endpoints {
        source: address(from, u16::from_be_bytes([a, b])),
        destination: address(to, u16::from_be_bytes([c, d])),
    }
}

/// A line of text (2.1).
fn decode_v1(header: &[u8]) -> Result<Option<Endpoints>, NotAHeader> {
    let line = header.strip_suffix(b"\r\n").and_then(|line| str::from_utf8(line).ok());
    let fields: Vec<_> = line.ok_or(NotAHeader)?.split(' ').collect();
    let port = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u16>().map_err(|_| NotAHeader),
        false => Err(NotAHeader),
    };
    match fields[..] {
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        ["PROXY", family @ ("TCP4" | "TCP6"), from, to, from_port, to_port] => {
            let address = |text: &str, port| match text.parse::<IpAddr>() {
                Ok(address) if address.is_ipv4() == (family == "TCP4") => {
                    Ok(SocketAddr::new(address.to_canonical(), port))
                }
                _ => Err(NotAHeader),
            };
            Ok(Some(Endpoints {
                source: address(from, port(from_port)?)?,
                destination: address(to, port(to_port)?)?,
            }))
        }
        _ => Err(NotAHeader),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn between(source: &str, destination: &str) -> Endpoints {
        let at = |text: &str| text.parse().unwrap();
        Endpoints { source: at(source), destination: at(destination) }
    }

    /// How a reader decodes these bytes, and how many it takes; `None` if it wants more.
    fn read(bytes: &[u8]) -> Option<(Result<Option<Endpoints>, NotAHeader>, usize)> {
        let mut taken = 0;
        loop {
            match wanted(&bytes[..taken]) {
                Ok(0) => return Some((decode(&bytes[..taken]), taken)),
                Ok(more) if taken + more <= bytes.len() => taken += more,
                Ok(_) => return None,
                Err(error) => return Some((Err(error), taken)),
            }
        }
    }

    #[test]
    fn headers_have_the_bytes_of_the_specification() {
        let v4 = encode(Some(between("192.0.2.7:1025", "198.51.100.1:443")));
        let head = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a";
        let rest = b"\x21\x11\x00\x0c\xc0\x00\x02\x07\xc6\x33\x64\x01\x04\x01\x01\xbb";
        assert_eq!(v4, [&head[..], rest].concat());
        let v6 = encode(Some(between("[2001:db8::7]:1025", "[::1]:443")));
        assert_eq!(v6[12..16], *b"\x21\x21\x00\x24");
        assert_eq!(v6[48..], *b"\x04\x01\x01\xbb");
        assert_eq!(encode(None), [&head[..], b"\x20\x00\x00\x00"].concat());
        // A dual-stack listener reports IPv4 addresses in their mapped form.
        let mapped = encode(Some(between("[::ffff:192.0.2.7]:1025", "[::ffff:198.51.100.1]:443")));
        assert_eq!(mapped, v4);
    }

    #[test]
    fn no_byte_after_a_header_is_taken_and_none_before_its_end_is_enough() {
        let with_extension =
            b"\x21\x11\x00\x10\xc0\x00\x02\x07\xc6\x33\x64\x01\x04\x01\x01\xbb\x04\x00\x01\x00";
        let told = Some(between("192.0.2.7:1025", "198.51.100.1:443"));
        let told_v6 = Some(between("[2001:db8::7]:1", "[2001:db8::1]:2"));
        for (header, told) in [
            (encode(told), told),
            (encode(told_v6), told_v6),
            ([&SIGNATURE[..], with_extension].concat(), told),
            (LOCAL_HEADER.to_vec(), None),
            // UNSPEC, a unix socket, a datagram.
            ([&SIGNATURE[..], b"\x21\x00\x00\x02ab"].concat(), None),
            ([&SIGNATURE[..], b"\x21\x31\x00\x00"].concat(), None),
            ([&SIGNATURE[..], b"\x21\x12\x00\x0c\0\0\0\0\0\0\0\0\0\0\0\0"].concat(), None),
            (b"PROXY TCP4 192.0.2.7 198.51.100.1 1025 443\r\n".to_vec(), told),
            (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n".to_vec(), told_v6),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n".to_vec(), None),
        ] {
            let length = header.len();
            assert_eq!(read(&header), Some((Ok(told), length)));
            assert_eq!(
                read(&[&header[..], b"GET / HTTP/1.1\r\n"].concat()),
                Some((Ok(told), length))
            );
            assert!((0..length).all(|cut| read(&header[..cut]).is_none()));
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let v2 = |rest: &[u8]| [&SIGNATURE[..], rest].concat();
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 198.51.100.1 1025\r\n".to_vec(),
            b"PROXY TCP4 ::1 198.51.100.1 1025 443\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 198.51.100.1 +25 443\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 443\r\n".to_vec(),
            b"PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n".to_vec(),
            b"PROXY UDP4 192.0.2.7 198.51.100.1 1025 443\r\n".to_vec(),
            [&b"PROXY UNKNOWN "[..], &[b'x'; 100]].concat(),
            // Version 3, command 2, family 4, transport 3, addresses cut short, too long.
            v2(b"\x31\x11\x00\x00"),
            v2(b"\x22\x11\x00\x00"),
            v2(b"\x21\x41\x00\x00"),
            v2(b"\x21\x13\x00\x00"),
            v2(b"\x21\x11\x00\x0b01234567890"),
            v2(b"\x21\x21\x00\x0c012345678901"),
            v2(b"\x21\x11\xff\xff"),
        ] {
            let outcome = read(&bytes).expect("it is refused without more bytes").0;
            assert_eq!(outcome, Err(NotAHeader), "{}", String::from_utf8_lossy(&bytes));
        }
    }

    proptest! {
        #[test]
        fn any_addresses_come_back(
            from in any::<IpAddr>(), to in any::<IpAddr>(), ports in any::<(u16, u16)>()
        ) {
            let plain = |ip: IpAddr, port| SocketAddr::new(ip.to_canonical(), port);
            let (source, destination) = (plain(from, ports.0), plain(to, ports.1));
            let header = encode(Some(Endpoints { source, destination }));
            let length = header.len();
            let told = Some(Endpoints { source, destination });
            prop_assert_eq!(read(&header), Some((Ok(told), length)));
        }

        #[test]
        fn any_bytes_are_refused_or_end_within_the_limit(
            begin in 0..3_usize, bytes in vec(any::<u8>(), 0..8192)
        ) {
            let begin = [&b""[..], &SIGNATURE, SIGNATURE_V1][begin];
            if let Some((_, taken)) = read(&[begin, &bytes].concat()) {
                prop_assert!(taken <= HEAD_BYTES + BODY_BYTES_MAX);
            }
        }
    }
}
