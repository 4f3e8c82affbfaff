//! Decides whether a request is for this server. The owner of a web page can make the name of its
//! site lead here (DNS rebinding). A browser sends that name, which is not among ours, so the page
//! reads nothing.
//!
//! RFC 9110 section 7.2 and 15.5.20, RFC 9112 section 3.2.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::{HOST, HeaderMap};
use hyper::http::uri::Authority;
use hyper::{StatusCode, Uri, Version};

/// Names that lead to this host wherever they are asked for.
const LOCALHOST: &str = "localhost";

/// Checks whom a request is for: an IP address, `localhost` or this host's own name. Any port will
/// do: the request may have come through a forward.
///
/// # Errors
/// The status of the answer: 400 if the request does not say whom it is for, which before HTTP/1.1
/// it need not, or says it unclearly; 421 if it is for another host.
pub(super) fn check(
    version: Version,
    target: &Uri,
    headers: &HeaderMap,
    own_name: &str,
) -> Result<(), StatusCode> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host),
        (None, _) if version < Version::HTTP_11 => None,
        _ => return Err(StatusCode::BAD_REQUEST),
    };
    // In its absolute form, a target has the host that counts.
    if let Some(authority) = target.authority() {
        return check_authority(authority, own_name);
    }
    let Some(host) = host else { return Ok(()) };
    if host.is_empty() {
        return Err(StatusCode::MISDIRECTED_REQUEST);
    }
    let authority = Authority::try_from(host.as_bytes()).map_err(|_| StatusCode::BAD_REQUEST)?;
    check_authority(&authority, own_name)
}

fn check_authority(authority: &Authority, own_name: &str) -> Result<(), StatusCode> {
    // Nothing precedes the host, as a user's name would.
    let host = authority.host();
    let port = match authority.as_str().strip_prefix(host) {
        Some("") => Some(""),
        Some(port) => port.strip_prefix(':'),
        None => None,
    };
    if !port.is_some_and(|port| port.bytes().all(|digit| digit.is_ascii_digit())) {
        return Err(StatusCode::BAD_REQUEST);
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_ours = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            name.parse::<Ipv4Addr>().is_ok()
                || [LOCALHOST, own_name].iter().any(|own| name.eq_ignore_ascii_case(own))
        }
    };
    if is_ours { Ok(()) } else { Err(StatusCode::MISDIRECTED_REQUEST) }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const BAD: Result<(), StatusCode> = Err(StatusCode::BAD_REQUEST);
    const MISDIRECTED: Result<(), StatusCode> = Err(StatusCode::MISDIRECTED_REQUEST);

    fn checked(version: Version, target: &str, hosts: &[&'static str]) -> Result<(), StatusCode> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_static(host));
        }
        check(version, &target.parse().unwrap(), &headers, "web1")
    }

    #[test]
    fn a_request_for_an_address_or_for_a_name_of_this_host_is_answered_whatever_its_port() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9464",
            "192.0.2.7:80",
            "[::1]",
            "[::1]:9464",
            "[2001:DB8::7]:1",
            "localhost",
            "localhost:9464",
            "localhost:",
            "LocalHost:1",
            "localhost.",
            "localhost.:9464",
            "web1:9464",
            "WEB1",
        ] {
            assert_eq!(checked(Version::HTTP_11, "/metrics", &[host]), Ok(()), "{host}");
            assert_eq!(checked(Version::HTTP_10, "/metrics", &[host]), Ok(()), "{host}");
        }
    }

    #[test]
    fn a_request_for_any_other_name_is_misdirected() {
        for host in [
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "web1.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            // Browsers turn these forms into addresses before they send them.
            "2130706433",
            "0x7f.1",
            "127.1",
            "[v1.x]",
            ".",
            "",
        ] {
            for version in [Version::HTTP_10, Version::HTTP_11] {
                let checked = checked(version, "/metrics", &[host]);
                assert_ne!(checked, Ok(()), "{host}");
                assert!(checked == MISDIRECTED || host == "[v1.x]", "{host}");
            }
        }
    }

    #[test]
    fn a_request_that_does_not_say_clearly_whom_it_is_for_is_bad() {
        assert_eq!(checked(Version::HTTP_11, "/metrics", &[]), BAD);
        assert_eq!(checked(Version::HTTP_10, "/metrics", &[]), Ok(()));
        for hosts in [
            &["localhost", "localhost"][..],
            &["localhost", "evil.example"],
            &["evil.example@localhost"],
            &["localhost@localhost"],
            &["localhost:port"],
            &["localhost:+1"],
            &["::1"],
            &["[::1"],
            &["local host"],
            &["localhost/metrics"],
        ] {
            assert_eq!(checked(Version::HTTP_11, "/metrics", hosts), BAD, "{hosts:?}");
        }
    }

    #[test]
    fn in_its_absolute_form_a_target_says_whom_a_request_is_for() {
        for (target, hosts, expected) in [
            ("http://localhost:9464/metrics", &["localhost:9464"][..], Ok(())),
            ("http://127.0.0.1/metrics", &["evil.example"], Ok(())),
            ("http://evil.example/metrics", &["localhost"], MISDIRECTED),
            ("http://evil.example@localhost/metrics", &["localhost"], BAD),
            ("http://localhost/metrics", &[], BAD),
        ] {
            assert_eq!(checked(Version::HTTP_11, target, hosts), expected, "{target}");
        }
        assert_eq!(checked(Version::HTTP_10, "http://localhost/metrics", &[]), Ok(()));
        assert_eq!(checked(Version::HTTP_10, "http://evil.example/metrics", &[]), MISDIRECTED);
    }
}
