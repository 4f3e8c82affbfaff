//! Forwards as OpenSSH writes them: `-L [bind:]port:host:hostport` (ssh(1)).
//!
//! Loopback, in both families, unless a bind address is given; an empty one or `*` is every
//! address. Port 0 is any free port (the ready line says which). Text only: sockets are bound in
//! `listen`, and `-W host:port` is a plain [`Target`].

use std::{fmt, net::IpAddr, str::FromStr};

use thiserror::Error;

use crate::target::{AddressError, Host, Target, parse_port};

/// Where a forward listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bind {
    /// 127.0.0.1 and ::1.
    Loopback,
    /// Every address of both families.
    All,
    /// This address, or what this name resolves to when it is bound.
    Host(Host),
}

/// A local forward: what connects to it here is connected to the target from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalForward {
    /// Where to listen.
    pub bind: Bind,
    /// The TCP port to listen on; 0 for any that is free.
    pub port: u16,
    /// What the other end connects to.
    pub target: Target,
}

/// Why a text is no forward.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("forward `{forward}`: {cause}")]
pub struct ForwardError {
    /// The text as given.
    pub forward: String,
    /// What is wrong with it.
    pub cause: ForwardFault,
}

/// What is wrong with a forward.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ForwardFault {
    /// Not three or four fields.
    #[error("expected [BIND:]PORT:HOST:HOSTPORT, with IPv6 addresses in brackets")]
    Fields,
    /// A host or a port that cannot be one.
    #[error(transparent)]
    Address(#[from] AddressError),
}

impl FromStr for LocalForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        parse(text).map_err(|cause| ForwardError { forward: text.into(), cause })
    }
}

fn parse(text: &str) -> Result<LocalForward, ForwardFault> {
    let (bind, port, host, host_port) = match fields(text).ok_or(ForwardFault::Fields)?[..] {
        [port, host, host_port] => (Bind::Loopback, port, host, host_port),
        [bind, port, host, host_port] => (parse_bind(bind)?, port, host, host_port),
        _ => return Err(ForwardFault::Fields),
    };
    let port = if port == "0" { 0 } else { parse_port(port)? };
    let target = Target { host: host.parse()?, port: parse_port(host_port)? };
    Ok(LocalForward { bind, port, target })
}

fn parse_bind(text: &str) -> Result<Bind, AddressError> {
    match text {
        "" | "*" => Ok(Bind::All),
        text => Ok(match text.parse()? {
            host if Host::is_localhost(&host) => Bind::Loopback,
            host => Bind::Host(host),
        }),
    }
}

/// Splits at colons outside brackets and takes the brackets off; `None` where they do not match.
fn fields(text: &str) -> Option<Vec<&str>> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let after = match rest.strip_prefix('[') {
            Some(bracketed) => {
                let (field, after) = bracketed.split_once(']')?;
                fields.push(field);
                after
            }
            None => {
                let end = rest.find(':').unwrap_or(rest.len());
                fields.push(&rest[..end]);
                &rest[end..]
            }
        };
        match after.strip_prefix(':') {
            Some(next) => rest = next,
            None if after.is_empty() => return Some(fields),
            None => return None,
        }
    }
}

impl fmt::Display for LocalForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bind {
            Bind::Loopback => {}
            Bind::All => f.write_str("*:")?,
            Bind::Host(Host::Address(IpAddr::V6(address))) => write!(f, "[{address}]:")?,
            Bind::Host(host) => write!(f, "{host}:")?,
        }
        write!(f, "{}:{}", self.port, self.target)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forwards_are_read_as_ssh_reads_them() {
        let address = |text: &str| Bind::Host(Host::Address(text.parse().unwrap()));
        for (text, bind, port, target) in [
            ("8080:web:80", Bind::Loopback, 8080, "web:80"),
            ("localhost:8080:web:80", Bind::Loopback, 8080, "web:80"),
            ("[localhost]:8080:web:80", Bind::Loopback, 8080, "web:80"),
            (":8080:web:80", Bind::All, 8080, "web:80"),
            ("*:8080:web:80", Bind::All, 8080, "web:80"),
            ("10.0.0.1:8080:web:80", address("10.0.0.1"), 8080, "web:80"),
            ("[::1]:8080:[fd00::1]:80", address("::1"), 8080, "[fd00::1]:80"),
            ("8080:[fd00::1]:80", Bind::Loopback, 8080, "[fd00::1]:80"),
            ("0:web:80", Bind::Loopback, 0, "web:80"),
            ("host.lan:1:web:80", Bind::Host(Host::Name("host.lan".into())), 1, "web:80"),
        ] {
            let forward = LocalForward { bind, port, target: target.parse().unwrap() };
            assert_eq!(text.parse(), Ok(forward), "{text}");
        }
    }

    #[test]
    fn bad_forwards_are_named() {
        let shape = "expected [BIND:]PORT:HOST:HOSTPORT, with IPv6 addresses in brackets";
        for (text, cause) in [
            ("8080", shape),
            ("8080:web", shape),
            ("a:8080:web:80:1", shape),
            ("8080:::1:80", shape),
            ("8080:[::1:80", shape),
            ("8080:[::1]x:80", shape),
            ("8080::80", "``: the host is missing"),
            ("x:web:80", "`x` is not a port (1 to 65535)"),
            ("8080:web:0", "`0` is not a port (1 to 65535)"),
            ("70000:web:1", "`70000` is not a port (1 to 65535)"),
        ] {
            let error = text.parse::<LocalForward>().unwrap_err().to_string();
            assert_eq!(error, format!("forward `{text}`: {cause}"));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused_without_a_panic(text in "\\PC{0,40}") {
            let _ = text.parse::<LocalForward>();
        }

        #[test]
        fn what_is_shown_is_read_back(
            bind in "|\\*:|:|10\\.0\\.0\\.1:|\\[::1\\]:|lan:|\\[a\\]:",
            port: u16,
            host in "[a-c]{1,5}|\\[fd00::1\\]|10\\.0\\.0\\.1",
            host_port in 1..=u16::MAX,
        ) {
            let forward: LocalForward = format!("{bind}{port}:{host}:{host_port}").parse().unwrap();
            prop_assert_eq!(forward.to_string().parse(), Ok(forward));
        }
    }
}
