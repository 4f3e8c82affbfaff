//! Parses names of services (`_keypadd._udp.example.com`), under which DNS has SRV records (RFC
//! 2782).

use std::{fmt, str::FromStr};

use crate::addresses::target::{AddressError, Host};

/// Longest label of a name (RFC 1035, section 2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// Longest name, without a final dot: on the wire it has one byte more at each end.
const NAME_BYTES_MAX: usize = 253;

/// A name of a service. Its first label begins with `_`, and it needs no port: SRV records have
/// one. Always complete, as if it ended in a dot: no search domain is appended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceName(String);

impl ServiceName {
    /// Whether this is meant as a service name rather than a host name.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with('_') && !text.contains(':')
    }

    /// Its labels, of 1 to 63 bytes each.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }
}

impl FromStr for ServiceName {
    type Err = AddressError;

    /// Parses a name as typed; a final dot is left out.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len());
        let is_host = matches!(name.parse(), Ok(Host::Name(_)));
        let fits = name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label);
        if !Self::is_meant(name) || !is_host || !fits {
            return Err(AddressError::BadService(text.into()));
        }
        Ok(Self(name.into()))
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_have_labels_that_dns_can_carry() {
        let longest = format!("_k._udp.{}.{}", "a".repeat(63), "b".repeat(63));
        for name in ["_keypadd._udp.example.com", "_k", &longest] {
            assert_eq!(name.parse::<ServiceName>().unwrap().to_string(), name);
        }
        assert_eq!("_k._udp.a.".parse::<ServiceName>(), "_k._udp.a".parse());
        let (label, name) =
            (format!("_k.{}", "a".repeat(64)), format!("_k{}", ".aaaaaaa".repeat(32)));
        for refused in ["", "_k..a", "k._udp.a", "_k._udp.a:99", "_k a", "_k;a", &label, &name] {
            let refusal = refused.parse::<ServiceName>();
            assert_eq!(refusal, Err(AddressError::BadService(refused.into())));
        }
    }
}
