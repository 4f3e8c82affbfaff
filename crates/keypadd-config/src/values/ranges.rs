//! Forwards of a range of ports, as in `8000-8010:web.example:8000-8010`: one for each port. Knows
//! where the ports are in a text, not what else a forward has.

use std::iter;
use std::ops::{Range, RangeInclusive};

use keypadd_network::{PortRange, PortRangeError};

use super::{BadValue, bad};
use crate::quote::shown;

/// Most ports of a range: each has a socket of its own, or two.
const PORTS_MAX: usize = 256;

/// What one text names: one forward, or one for each port of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranged<T>(pub Vec<T>);

/// Parses a text with `parse`, once for each port of its range.
pub(super) fn ranged<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, BadValue>,
) -> Result<Ranged<T>, BadValue> {
    let Some((at, to)) = ports(text) else { return parse(text).map(|one| Ranged(vec![one])) };
    let refused = |cause: &str| {
        let cause = format!("{}: {cause}", shown(text));
        bad(cause, format!("as in 8000-8010:localhost:8000-8010, at most {PORTS_MAX} ports"))
    };
    let range_at = |place: &Range<usize>| {
        let range = range(&text[place.clone()]).transpose();
        range.map_err(|error| refused(&error.to_string()))
    };
    let (listen, target) = match (range_at(&at)?, range_at(&to)?) {
        (None, None) => return parse(text).map(|one| Ranged(vec![one])),
        (Some(listen), Some(target)) if listen.len() == target.len() => (listen, target),
        _ => return Err(refused("both ends must be ranges of the same number of ports")),
    };
    if listen.len() > PORTS_MAX {
        return Err(refused("too many ports"));
    }
    let (before, between, after) = (&text[..at.start], &text[at.end..to.start], &text[to.end..]);
    let one = |(from, to)| parse(&format!("{before}{from}{between}{to}{after}"));
    listen.zip(target).map(one).collect::<Result<_, _>>().map(Ranged)
}

/// Where the ports of a forward from a port to a host are: the one to listen on, and the target's.
fn ports(text: &str) -> Option<(Range<usize>, Range<usize>)> {
    let fields = fields(text);
    let last = fields.last()?.clone();
    let is_udp = |at: usize| &text[fields[at].clone()] == "udp";
    let listen = match fields.len() {
        3 => 0,
        4 if is_udp(1) => 0,
        4 | 5 => 1,
        _ => return None,
    };
    Some((fields[listen].clone(), last))
}

/// The places of the fields, which colons outside of brackets separate.
fn fields(text: &str) -> Vec<Range<usize>> {
    let mut is_bracketed = false;
    let colons = text.char_indices().filter_map(|(at, c)| {
        match c {
            '[' => is_bracketed = true,
            ']' => is_bracketed = false,
            _ => return (c == ':' && !is_bracketed).then_some(at),
        }
        None
    });
    let ends: Vec<usize> = colons.chain([text.len()]).collect();
    let starts = iter::once(0).chain(ends.iter().map(|end| end + 1));
    starts.zip(&ends).map(|(start, end)| start..*end).collect()
}

/// The ports of `FIRST-LAST`; `None` if the text is not two numbers.
fn range(text: &str) -> Option<Result<RangeInclusive<u16>, PortRangeError>> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    text.split_once('-').filter(|(a, b)| is_number(a) && is_number(b))?;
    Some(text.parse().map(PortRange::ports))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{local_forwards, remote_forwards};

    #[test]
    fn a_range_of_ports_is_one_forward_for_each_port() {
        for (text, expected) in [
            ("8000-8002:web:9000-9002", &["8000:web:9000", "8001:web:9001", "8002:web:9002"][..]),
            ("*:80-81:web:80-81", &["*:80:web:80", "*:81:web:81"]),
            ("[::1]:80-81:[fe80::1]:80-81", &["[::1]:80:[fe80::1]:80", "[::1]:81:[fe80::1]:81"]),
            ("53-54:udp:resolver:53-54", &["53:udp:resolver:53", "54:udp:resolver:54"]),
            ("1:2-3:4", &["1:2-3:4"]),
            ("7-7:web:9-9", &["7:web:9"]),
        ] {
            let read = |text: &str| local_forwards(text).unwrap().0;
            let Ranged(remote) = remote_forwards(text).unwrap();
            let local: Vec<_> = read(text).iter().map(|forward| forward.listen.clone()).collect();
            let listens: Vec<_> = remote.iter().map(|forward| forward.listen.clone()).collect();
            assert_eq!(local, listens);
            let expected: Vec<_> = expected.iter().flat_map(|text| read(text)).collect();
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_range_that_leads_nowhere_or_is_too_long_is_refused() {
        for (text, cause) in [
            ("8000-8010:web:80", "both ends must be ranges of the same number of ports"),
            ("8000:web:80-90", "both ends must be ranges of the same number of ports"),
            ("8000-8010:web:80-91", "both ends must be ranges of the same number of ports"),
            (
                "8010-8000:web:90-80",
                "`8010-8000`: a port range must go from a lower port to a higher one",
            ),
            ("0-5:web:1-6", "`0-5` is not a port (1 to 65535) or a range such as 8000-8010"),
            ("1-257:web:1-257", "too many ports"),
        ] {
            assert_eq!(local_forwards(text).unwrap_err().cause, format!("`{text}`: {cause}"));
        }
        assert_eq!(local_forwards("1-256:web:1-256").unwrap().0.len(), PORTS_MAX);
        for text in ["8000-80000:web:8000-80000", "a-b:web:1-2", "1-2", "1-2:/run/web.sock"] {
            assert!(local_forwards(text).is_err(), "{text}");
        }
    }
}
