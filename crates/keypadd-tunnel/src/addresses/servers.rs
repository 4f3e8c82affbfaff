//! Lists the addresses of a server, in order of preference. Resolves nothing.

use std::{fmt, str::FromStr};

use crate::addresses::target::{AddressError, ServerAddress};

/// Most addresses of a server: attempts begin a quarter of a second after one another, and the last one must
/// not come too late.
pub const SERVER_ADDRESSES_MAX: usize = 8;

/// The addresses of a server, the preferred one first; at least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddresses(Vec<ServerAddress>);

impl ServerAddresses {
    /// These addresses, without those that are there twice.
    ///
    /// # Errors
    /// There are none, or too many.
    pub fn new(addresses: impl IntoIterator<Item = ServerAddress>) -> Result<Self, AddressError> {
        let mut all: Vec<ServerAddress> = Vec::new();
        for address in addresses {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        match all.len() {
            0 => Err(AddressError::NoHost(String::new())),
            1..=SERVER_ADDRESSES_MAX => Ok(Self(all)),
            _ => Err(AddressError::TooMany(Self(all).to_string())),
        }
    }

    /// The preferred address.
    pub fn first(&self) -> &ServerAddress {
        self.0.first().expect("there is one at least")
    }

    /// All of them.
    pub fn all(&self) -> &[ServerAddress] {
        &self.0
    }

    /// Whether there is another one than the first.
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }
}

impl From<ServerAddress> for ServerAddresses {
    fn from(address: ServerAddress) -> Self {
        Self(vec![address])
    }
}

impl FromStr for ServerAddresses {
    type Err = AddressError;

    /// Parses addresses with commas between them.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let addresses = text.split(',').map(|address| address.trim().parse());
        Self::new(addresses.collect::<Result<Vec<_>, _>>()?)
    }
}

impl fmt::Display for ServerAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, address) in self.0.iter().enumerate() {
            let comma = if nth > 0 { ", " } else { "" };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_separated_by_commas_and_keep_their_order() {
        let parsed: ServerAddresses = "b.example,a.example:99, [::1]:7".parse().unwrap();
        assert_eq!(parsed.to_string(), "b.example:4433, a.example:99, [::1]:7");
        assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
        assert_eq!(parsed.first().to_string(), "b.example:4433");
        let twice: ServerAddresses = "a,a:4433".parse().unwrap();
        assert!(!twice.are_several() && parsed.are_several());
        let many = |count: u16| (1..=count).map(|port| format!("a:{port}")).collect::<Vec<_>>();
        assert!(many(8).join(",").parse::<ServerAddresses>().is_ok());
        for refused in ["", ",", "a,,b", "a,", &many(9).join(",")] {
            assert!(refused.parse::<ServerAddresses>().is_err(), "{refused}");
        }
    }
}
