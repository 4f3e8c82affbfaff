//! Parses the ports that a permit or a forward names: one, or all from one to another.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use thiserror::Error;

/// One port, or all from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// A text that names no ports; the message quotes it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PortRangeError {
    /// Neither a number from 1 to 65535 nor two of these with `-` between them.
    #[error("`{0}` is not a port (1 to 65535) or a range such as 8000-8010")]
    NotPorts(String),
    /// The first port is higher than the last.
    #[error("`{0}`: a port range must go from a lower port to a higher one")]
    Backwards(String),
}

impl PortRangeError {
    /// The text that the message quotes.
    pub fn quoted(&self) -> &str {
        match self {
            Self::NotPorts(text) | Self::Backwards(text) => text,
        }
    }
}

impl PortRange {
    /// Every port. No other range has port 0, which packets may have, and which a listener takes
    /// for any free port.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// One port.
    pub fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Parses the ports of a permit, where `*` is every port.
    ///
    /// # Errors
    /// As for parsing ports.
    pub fn of_permit(text: &str) -> Result<Self, PortRangeError> {
        if text == "*" { Ok(Self::ANY) } else { text.parse() }
    }

    /// Whether it has this port.
    pub fn contains(self, port: u16) -> bool {
        self.ports().contains(&port)
    }

    /// Its ports.
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    /// Parses `PORT` or `FIRST-LAST`, digits only.
    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let port = |port: &str| {
            let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
            let number = port.parse().ok().filter(|port| is_number && *port != 0);
            number.ok_or_else(|| PortRangeError::NotPorts(text.into()))
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first)?, port(last)?) {
            (first, last) if first > last => Err(PortRangeError::Backwards(text.into())),
            (first, last) => Ok(Self { first, last }),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ANY => f.write_str("*"),
            Self { first, last } if first == last => first.fmt(f),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_display_as_they_are_written() {
        for text in ["1", "65535", "8000-8010", "1-65535", "*"] {
            assert_eq!(PortRange::of_permit(text).unwrap().to_string(), text);
        }
        assert_eq!("7-7".parse(), Ok(PortRange::one(7)));
    }

    #[test]
    fn what_is_no_port_and_no_range_is_refused() {
        for text in ["", "0", "65536", "+22", "ssh", "80-", "-80", "0-5", "1-65536", "1-2-3", "*"] {
            assert_eq!(text.parse::<PortRange>(), Err(PortRangeError::NotPorts(text.into())));
        }
        assert_eq!("90-80".parse::<PortRange>(), Err(PortRangeError::Backwards("90-80".into())));
    }

    #[test]
    fn a_range_has_its_ends_and_no_port_beside_them() {
        let range: PortRange = "8000-8010".parse().unwrap();
        for (port, has) in [(7999, false), (8000, true), (8010, true), (8011, false)] {
            assert_eq!(range.contains(port), has, "{port}");
        }
        assert!(
            PortRange::ANY.contains(0) && !PortRange::of_permit("1-65535").unwrap().contains(0)
        );
    }
}
