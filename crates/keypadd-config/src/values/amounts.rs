//! Values that say how much: numbers, shares of a core, sizes, durations and dates, each with its
//! range.

use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use keypadd_tunnel::{LOOPS_MAX, PEER_TIMEOUT_MAX, PEER_TIMEOUT_MIN, SpinShare};

use super::{BadValue, bad};
use crate::quote::shown;

/// Smallest pool: the chunks of a single connection need this much.
const POOL_BUDGET_MIN: ByteSize = ByteSize::mib(1);

/// Lowest rate of a peer: room for handshakes and keystrokes.
const MAX_RATE_MIN: ByteSize = ByteSize::kib(16);

/// Longest timeout; a longer one is a typo.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Shortest lifetime of keys.
const KEY_LIFETIME_MIN: Duration = Duration::from_secs(1);

/// Most forwarded connections of a session: if none of them is read, they fill 2 GiB of its receive
/// window, a 32-bit number.
const FORWARDS_MAX: u32 = 32_768;

/// Most sessions of one key: the most that a server has.
const SESSIONS_MAX: u32 = 1024;

/// How long to wait for a silent peer.
pub fn peer_timeout(text: &str) -> Result<Duration, BadValue> {
    let timeout = duration(text)?;
    if (PEER_TIMEOUT_MIN..=PEER_TIMEOUT_MAX).contains(&timeout) {
        return Ok(timeout);
    }
    Err(bad(format!("{} is out of range", shown(text)), "from 10s to 1h"))
}

/// Share of one core that an event loop may spend on polling, in percent.
pub fn spin(text: &str) -> Result<SpinShare, BadValue> {
    let cause = format!("{} is not a percentage of a core", shown(text));
    text.parse().map_err(|_| bad(cause, "from 0 to 100, as in 5; 0 turns polling off"))
}

/// Number of event loops.
pub fn loops(text: &str) -> Result<usize, BadValue> {
    match text.parse() {
        Ok(number @ 1..=LOOPS_MAX) => Ok(number),
        _ => Err(bad(
            format!("{} is not a number of event loops", shown(text)),
            format!("from 1 to {LOOPS_MAX}; one per core is enough"),
        )),
    }
}

/// How many connections a session forwards at once, each way.
pub fn max_forwards(text: &str) -> Result<u32, BadValue> {
    match text.parse() {
        Ok(number @ 1..=FORWARDS_MAX) => Ok(number),
        _ => Err(bad(
            format!("{} is not a number of forwarded connections", shown(text)),
            format!("from 1 to {FORWARDS_MAX}, as in 10000"),
        )),
    }
}

/// How many sessions one key may have.
pub fn max_sessions(text: &str) -> Result<u32, BadValue> {
    match text.parse() {
        Ok(number @ 1..=SESSIONS_MAX) => Ok(number),
        _ => Err(bad(
            format!("{} is not a number of sessions", shown(text)),
            format!("from 1 to {SESSIONS_MAX}, as in 16"),
        )),
    }
}

/// Bytes per second, with or without `/s`.
pub fn max_rate(text: &str) -> Result<u64, BadValue> {
    let refused = |cause: &str| {
        bad(format!("{} is {cause}", shown(text)), "bytes per second, as in 2MiB/s or 500kB/s")
    };
    let rate = text.strip_suffix("/s").unwrap_or(text).parse::<ByteSize>();
    match rate.map_err(|_| refused("not a rate"))? {
        rate if rate < MAX_RATE_MIN => Err(refused("too low: at least 16KiB/s")),
        rate => Ok(rate.as_u64()),
    }
}

/// Share of one core for the pool filler, in percent.
pub fn cpu_percent(text: &str) -> Result<u8, BadValue> {
    match text.strip_suffix('%').unwrap_or(text).parse() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => {
            let cause = format!("{} is not a percentage of a core", shown(text));
            Err(bad(cause, "from 1 to 100, as in 20"))
        }
    }
}

/// A timeout: longer than zero, at most a day.
pub fn duration(text: &str) -> Result<Duration, BadValue> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > DURATION_MAX => {
            Err(bad(format!("{} is too long", shown(text)), "at most 1day, as in 10s or 1m 30s"))
        }
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(bad(format!("{} is not a duration", shown(text)), "as in 10s, 1m 30s or 500ms")),
    }
}

/// A timeout that may be zero.
pub fn duration_or_zero(text: &str) -> Result<Duration, BadValue> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Ok(time),
        _ => duration(text),
    }
}

/// A lifetime of keys: at least 1 s, or zero for no limit.
pub fn key_lifetime(text: &str) -> Result<Duration, BadValue> {
    match duration_or_zero(text)? {
        time if !time.is_zero() && time < KEY_LIFETIME_MIN => {
            let cause = format!("{} is too short: each new handshake takes a moment", shown(text));
            Err(bad(cause, "at least 1s; 0 for no limit"))
        }
        time => Ok(time),
    }
}

/// A number of bytes; zero is no limit.
pub fn size_or_zero(text: &str) -> Result<u64, BadValue> {
    let size = text.parse::<ByteSize>();
    let not = |_| bad(format!("{} is not a size", shown(text)), "as in 1GiB, or 0");
    size.map(|size| size.as_u64()).map_err(not)
}

/// Memory for a pool: at least 1 MiB.
pub fn pool_budget(text: &str) -> Result<usize, BadValue> {
    pool_budget_of_host(text, u64::MAX)
}

/// Memory for a pool, on a host with this much memory.
pub fn pool_budget_of_host(text: &str, memory_bytes: u64) -> Result<usize, BadValue> {
    let size = text
        .parse::<ByteSize>()
        .map_err(|_| bad(format!("{} is not a size", shown(text)), "as in 64MiB or 1GiB"))?;
    if size < POOL_BUDGET_MIN {
        let cause = format!("{} is too small for a pool", shown(text));
        return Err(bad(cause, "at least 1MiB; to use no memory, turn the pool off"));
    }
    match usize::try_from(size.as_u64()) {
        Ok(bytes) if size.as_u64() <= memory_bytes => Ok(bytes),
        _ => {
            let memory = ByteSize::b(memory_bytes).display().iec();
            let cause = format!("{} is more than this host's memory", shown(text));
            Err(bad(cause, format!("at most {memory}; 64MiB is enough for most")))
        }
    }
}

/// Until when a peer is accepted: a time, or the last second of a day, in UTC.
pub fn valid_until(text: &str) -> Result<SystemTime, BadValue> {
    let is_day = !text.contains([':', 'T', ' ']);
    let time = if is_day { format!("{text}T23:59:59Z") } else { text.to_owned() };
    humantime::parse_rfc3339_weak(&time).map_err(|_| {
        let cause = format!("{} is not a date or a time in UTC", shown(text));
        bad(cause, "as in 2027-01-31 or 2027-01-31T12:00:00Z")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_in_binary_units_and_has_a_floor() {
        assert_eq!(pool_budget("64MiB"), Ok(64 << 20));
        assert_eq!(pool_budget("1048576"), Ok(1 << 20));
        assert!(pool_budget("1048575").is_err());
        for unusable in ["lots", "1000PiB", "16EiB", "99999999999999999999999", "1e30GiB", "-1MiB"]
        {
            assert!(pool_budget_of_host(unusable, 1 << 40).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_rate_is_bytes_per_second() {
        assert_eq!(max_rate("2MiB/s"), Ok(2 << 20));
        assert_eq!(max_rate("500kB"), Ok(500_000));
        assert_eq!(max_rate("16384/s"), Ok(16_384));
        for unusable in ["16383", "0", "fast", "80Mbit/s", "-1MB/s", "1MB/m"] {
            assert!(max_rate(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_share_may_be_zero_and_loops_may_not() {
        assert_eq!(spin("0"), Ok(SpinShare::percent(0)));
        assert_eq!(spin("5%"), Ok(SpinShare::percent(5)));
        assert_eq!(loops("1"), Ok(1));
        assert_eq!(loops("32"), Ok(32));
        for unusable in ["0", "33", "-1", "4.0", "0x4", "all"] {
            assert!(loops(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn forwards_are_at_least_one_and_fit_into_a_window() {
        assert_eq!(max_forwards("1"), Ok(1));
        assert_eq!(max_forwards("32768"), Ok(32_768));
        for unusable in ["0", "32769", "-1", "1e4", "10,000", "all"] {
            assert!(max_forwards(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_key_has_from_one_session_to_as_many_as_a_server() {
        assert_eq!(max_sessions("1"), Ok(1));
        assert_eq!(max_sessions("1024"), Ok(1024));
        for unusable in ["0", "1025", "-1", "many"] {
            assert!(max_sessions(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_date_means_its_last_second_and_a_time_itself() {
        let shown =
            |text: &str| humantime::format_rfc3339_seconds(valid_until(text).unwrap()).to_string();
        assert_eq!(shown("2027-01-31"), "2027-01-31T23:59:59Z");
        assert_eq!(shown("2028-02-29"), "2028-02-29T23:59:59Z");
        for time in ["2027-01-31T12:00:00Z", "2027-01-31 12:00:00Z", "2027-01-31 12:00:00"] {
            assert_eq!(shown(time), "2027-01-31T12:00:00Z");
        }
        for unusable in
            ["", "tomorrow", "2027-02-30", "2027-13-01", "31.01.2027", "2027-01-31T12:00:00+02:00"]
        {
            assert!(valid_until(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_zero_duration_is_refused() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("0s").is_err());
        assert!(duration("10").is_err());
        assert_eq!(duration("1day"), Ok(DURATION_MAX));
        assert!(duration("25h").is_err());
        assert!(duration("1000000000years").is_err());
    }
}
