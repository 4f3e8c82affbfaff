//! Lists the addresses of a server, in order of preference. Resolves nothing.

use std::{fmt, str::FromStr};

use crate::addresses::{
    service::ServiceName,
    target::{AddressError, ServerAddress},
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

/// The addresses of a server, the preferred one first; at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddresses(Vec<ServerEntry>);

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
            1..=SERVER_ADDRESSES_MAX => Ok(Self(all)),
            _ => Err(AddressError::TooMany(Self(all).to_string())),
        }
    }

    /// The preferred entry.
    pub fn first(&self) -> &ServerEntry {
        self.0.first().expect("there is one at least")
    }

    /// All servers, the preferred one first.
    pub fn all(&self) -> &[ServerEntry] {
        &self.0
    }

    /// Whether there may be more than one: a service may have several.
    pub fn may_be_several(&self) -> bool {
        self.0.len() > 1 || matches!(self.first(), ServerEntry::Service(_))
    }
}

impl From<ServerAddress> for ServerAddresses {
    fn from(address: ServerAddress) -> Self {
        Self(vec![ServerEntry::Address(address)])
    }
}

impl FromStr for ServerEntry {
    type Err = AddressError;

    /// Parses the name of a service if it begins with `_` and has no port, else an address.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        match ServiceName::is_meant(text) {
            true => text.parse().map(Self::Service),
            false => text.parse().map(Self::Address),
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
        let addresses = text.split(',').map(|address| address.trim().parse());
        Self::new(addresses.collect::<Result<Vec<_>, _>>()?)
    }
}

impl fmt::Display for ServerAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, entry) in self.0.iter().enumerate() {
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
}
