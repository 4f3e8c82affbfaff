//! Lists the addresses of a server, in order of preference. Resolves nothing.

use std::{fmt, net::SocketAddr, str::FromStr};

use crate::addresses::{
    service::ServiceName,
    target::{AddressError, DEFAULT_PORT, ServerAddress},
};

/// Most entries of a server's list: attempts begin a quarter of a second apart, and the last one
/// must not come too late.
pub const SERVER_ADDRESSES_MAX: usize = 8;

/// One entry of a server's list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerEntry {
    /// A host and a port.
    Address(ServerAddress),
    /// The name of a service, whose SRV records have the hosts and ports.
    Service(ServiceName),
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The addresses of a server, the preferred one first; at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddresses {
    all: Vec<ServerEntry>,
    /// If set, their names lead to addresses of this family only.
    family: Option<Family>,
}

impl ServerAddresses {
    /// These addresses, without duplicates.
    ///
    /// # Errors
    /// There are none, or too many.
    pub fn new(addresses: impl IntoIterator<Item = ServerEntry>) -> Result<Self, AddressError> {
        let mut all: Vec<ServerEntry> = Vec::new();
        for entry in addresses {
            if !all.contains(&entry) {
                all.push(entry);
            }
            if all.len() > SERVER_ADDRESSES_MAX {
                break;
            }
        }
        match all.len() {
            0 => Err(AddressError::NoHost(String::new())),
            1..=SERVER_ADDRESSES_MAX => Ok(Self { all, family: None }),
            _ => Err(AddressError::TooMany(Self { all, family: None }.to_string())),
        }
    }

    /// Uses only the addresses of one family.
    pub fn only(self, family: Family) -> Self {
        Self { family: Some(family), ..self }
    }

    /// Parses addresses separated by commas; those without a port have this one.
    ///
    /// # Errors
    /// One is invalid, or there are too many.
    pub fn at_port(text: &str, port: u16) -> Result<Self, AddressError> {
        let entries = text.split(',').map(|entry| ServerEntry::at_port(entry.trim(), port));
        Self::new(entries.collect::<Result<Vec<_>, _>>()?)
    }

    /// Whether this address of an entry may be used.
    pub(crate) fn uses(&self, address: &SocketAddr) -> bool {
        match self.family {
            Some(Family::V4) => address.ip().to_canonical().is_ipv4(),
            Some(Family::V6) => address.ip().to_canonical().is_ipv6(),
            None => true,
        }
    }

    /// The preferred entry.
    pub fn first(&self) -> &ServerEntry {
        self.all.first().expect("there is one at least")
    }

    /// All servers, the preferred one first.
    pub fn all(&self) -> &[ServerEntry] {
        &self.all
    }

    /// Whether there may be more than one: a service may have several.
    pub fn may_be_several(&self) -> bool {
        self.all.len() > 1 || matches!(self.first(), ServerEntry::Service(_))
    }
}

impl From<ServerAddress> for ServerAddresses {
    fn from(address: ServerAddress) -> Self {
        Self { all: vec![ServerEntry::Address(address)], family: None }
    }
}

impl FromStr for ServerEntry {
    type Err = AddressError;

    /// Parses the name of a service if it begins with `_` and has no port, else an address.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::at_port(text, DEFAULT_PORT)
    }
}

impl ServerEntry {
    /// Parses an entry; an address without a port has this one.
    fn at_port(text: &str, port: u16) -> Result<Self, AddressError> {
        match ServiceName::is_meant(text) {
            true => text.parse().map(Self::Service),
            false => ServerAddress::at_port(text, port).map(Self::Address),
        }
    }
}

impl fmt::Display for ServerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Service(name) => name.fmt(f),
        }
    }
}

impl FromStr for ServerAddresses {
    type Err = AddressError;

    /// Parses addresses separated by commas.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::at_port(text, DEFAULT_PORT)
    }
}

impl fmt::Display for ServerAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, entry) in self.all.iter().enumerate() {
            let comma = if nth > 0 { ", " } else { "" };
            write!(f, "{comma}{entry}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_begins_with_an_underscore_is_a_service_unless_it_has_a_port() {
        let parsed: ServerAddresses = "_keypadd._udp.a.example, b".parse().unwrap();
        assert_eq!(parsed.to_string(), "_keypadd._udp.a.example, b:4433");
        assert_eq!(parsed.to_string().parse(), Ok(parsed));
        let alone: ServerAddresses = "_keypadd._udp.a.example".parse().unwrap();
        assert!(matches!(alone.first(), ServerEntry::Service(_)) && alone.may_be_several());
        let host: ServerAddresses = "_keypadd._udp.a.example:99".parse().unwrap();
        assert!(matches!(host.first(), ServerEntry::Address(_)) && !host.may_be_several());
        assert!("_keypadd._udp..example".parse::<ServerAddresses>().is_err());
    }

    #[test]
    fn addresses_are_separated_by_commas_and_keep_their_order() {
        let parsed: ServerAddresses = "b.example,a.example:99, [::1]:7".parse().unwrap();
        assert_eq!(parsed.to_string(), "b.example:4433, a.example:99, [::1]:7");
        assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
        assert_eq!(parsed.first().to_string(), "b.example:4433");
        let twice: ServerAddresses = "a,a:4433".parse().unwrap();
        assert!(!twice.may_be_several() && parsed.may_be_several());
        let many = |count: u16| (1..=count).map(|port| format!("a:{port}")).collect::<Vec<_>>();
        assert!(many(8).join(",").parse::<ServerAddresses>().is_ok());
        for refused in ["", ",", "a,,b", "a,", &many(9).join(",")] {
            assert!(refused.parse::<ServerAddresses>().is_err(), "{refused}");
        }
    }

    #[test]
    fn a_family_leaves_out_the_addresses_of_the_other() {
        let parsed: ServerAddresses = "a.example".parse().unwrap();
        for (address, is_v4) in
            [("192.0.2.1:1", true), ("[2001:db8::1]:1", false), ("[::ffff:192.0.2.1]:1", true)]
        {
            let address = address.parse().unwrap();
            assert!(parsed.uses(&address));
            assert_eq!(parsed.clone().only(Family::V4).uses(&address), is_v4);
            assert_eq!(parsed.clone().only(Family::V6).uses(&address), !is_v4);
        }
    }

    #[test]
    fn another_default_port_is_for_entries_without_a_port() {
        let parsed = ServerAddresses::at_port("a,b:99,c:4433,::1,_keypadd._udp.d", 5000).unwrap();
        assert_eq!(parsed.to_string(), "a:5000, b:99, c:4433, [::1]:5000, _keypadd._udp.d");
    }
}
