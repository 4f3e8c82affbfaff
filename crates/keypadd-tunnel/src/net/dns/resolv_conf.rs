//! Reads which DNS servers the system uses, and with which options (resolv.conf(5)).

use std::{
    fs::File,
    io::Read,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    str::FromStr,
    time::Duration,
};

use super::Nameservers;

const FILE: &str = "/etc/resolv.conf";

/// Most bytes read from the file.
const FILE_BYTES_MAX: u64 = 64 << 10;

const PORT: u16 = 53;

// Limits and defaults of resolv.conf(5).
const SERVERS_MAX: usize = 3;
const TIMEOUT_SECONDS: u64 = 5;
const TIMEOUT_SECONDS_MAX: u64 = 30;
const ATTEMPTS: u32 = 2;
const ATTEMPTS_MAX: u32 = 5;

impl Default for Nameservers {
    fn default() -> Self {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let timeout = Duration::from_secs(TIMEOUT_SECONDS);
        Self { servers: vec![server], timeout, attempts: ATTEMPTS }
    }
}

impl Nameservers {
    /// The system's servers; the one on this host if the file names none.
    pub(crate) fn of_system() -> Self {
        let mut text = Vec::new();
        if let Ok(file) = File::open(FILE) {
            // What was read before an error counts.
            let _ = file.take(FILE_BYTES_MAX).read_to_end(&mut text);
        }
        Self::parse(&String::from_utf8_lossy(&text))
    }

    fn parse(text: &str) -> Self {
        let mut read = Self::default();
        let mut servers = Vec::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => servers.extend(words.next().and_then(server)),
                Some("options") => words.for_each(|option| read.set(option)),
                _ => {}
            }
        }
        servers.truncate(SERVERS_MAX);
        if !servers.is_empty() {
            read.servers = servers;
        }
        read
    }

    fn set(&mut self, option: &str) {
        match option.split_once(':') {
            Some(("timeout", text)) => {
                let seconds = number(text, TIMEOUT_SECONDS_MAX).unwrap_or(TIMEOUT_SECONDS);
                self.timeout = Duration::from_secs(seconds.max(1));
            }
            Some(("attempts", text)) => {
                self.attempts = number(text, ATTEMPTS_MAX).unwrap_or(ATTEMPTS).max(1);
            }
            _ => {}
        }
    }
}

fn number<T: FromStr + Ord>(text: &str, max: T) -> Option<T> {
    text.parse().ok().map(|number: T| number.min(max))
}

/// A server's address; that of an IPv6 link may name its interface.
fn server(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some((address, PORT).into());
    }
    let (address, _) = text.split_once('%')?;
    address.parse::<Ipv6Addr>().ok()?;
    (text, PORT).to_socket_addrs().ok()?.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_options_are_read_and_limited() {
        let text = "# generated\nnameserver 10.0.0.53\nsearch example.com\n\
                    \tnameserver\t::1 # second\nnameserver bad\n\
                    options edns0 timeout:1 attempts:3 rotate\n\
                    nameserver 10.0.0.3\nnameserver 10.0.0.4\n";
        let read = Nameservers::parse(text);
        let servers = ["10.0.0.53:53", "[::1]:53", "10.0.0.3:53"].map(|text| text.parse().unwrap());
        assert_eq!(read.servers, servers);
        assert_eq!((read.timeout, read.attempts), (Duration::from_secs(1), 3));
        let all = Nameservers::parse("options timeout:999 attempts:0\noptions attempts:99");
        assert_eq!((all.timeout, all.attempts), (Duration::from_secs(30), 5));
        assert_eq!(Nameservers::parse("nameserver\noptions timeout:x attempts:"), <_>::default());
    }

    #[test]
    fn a_servers_link_local_address_names_its_interface() {
        assert_eq!(server("fe80::1%lo"), Some("[fe80::1%1]:53".parse().unwrap()));
        assert_eq!(server("dns.example%lo"), None);
    }
}
