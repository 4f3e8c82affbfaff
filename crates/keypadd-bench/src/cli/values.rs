//! Parses flag values that only benchmarks have; keypadd-cli and keypadd-config parse the rest.

use std::num::NonZeroU64;
use std::time::Duration;

use keypadd_cli::error::shown;
pub(super) use keypadd_cli::values::pool_budget;
use keypadd_config::values::BadValue;
use keypadd_config::values::bad;
pub(super) use keypadd_config::values::switch;
pub(super) use keypadd_config::values::{
    cipher_backend, congestion, duration, kex, loops, public_key, server, spin,
};
use keypadd_keystream::{MeasureSuite, Protection, Suite};
use keypadd_measure::LineRate;
use keypadd_papers::Paper;
use keypadd_provider::Group;
use keypadd_traffic::Exchange;

use super::Papers;

/// A suite of `bench`: one that users can choose, or one only for measurements.
pub(super) fn bench_suite(text: &str) -> Result<Protection, BadValue> {
    let chosen = text.parse().map(Suite::protection);
    chosen.or_else(|_| text.parse().map(MeasureSuite::protection)).map_err(|_| {
        let names = Suite::ALL.iter().map(|suite| suite.name());
        let names = names.chain(MeasureSuite::ALL.iter().map(|suite| suite.name()));
        let names = names.collect::<Vec<_>>().join(", ");
        bad(format!("{} is not a suite", shown(text)), format!("one of {names}"))
    })
}

/// A key exchange of `bench`, likewise.
pub(super) fn bench_kex(text: &str) -> Result<Group, BadValue> {
    Group::all().find(|group| group.name() == text).ok_or_else(|| {
        let names = Group::all().map(Group::name).collect::<Vec<_>>().join(", ");
        bad(format!("{} is not a key exchange", shown(text)), format!("one of {names}"))
    })
}

/// As [`round_trip`], but not zero.
pub(super) fn some_round_trip(text: &str) -> Result<Duration, BadValue> {
    match round_trip(text)? {
        Duration::ZERO => Err(bad("0s is not a round-trip time", "for example 100us")),
        rtt => Ok(rtt),
    }
}

/// The round-trip time of a line.
pub(super) fn round_trip(text: &str) -> Result<Duration, BadValue> {
    let most = Duration::from_secs(2);
    let rtt = duration(text)?;
    match rtt <= most {
        true => Ok(rtt),
        false => Err(bad(format!("{} is too long", shown(text)), "at most 2s")),
    }
}

/// Rates of a line, or of its two directions.
pub(super) fn line_rate(text: &str) -> Result<LineRate, BadValue> {
    let (down, up) = text.split_once('/').unwrap_or((text, text));
    let rate = |text: &str| text.parse().ok().filter(|mbit| (1..=1000).contains(mbit));
    match (rate(down), rate(up)) {
        (Some(down), Some(up)) => Ok(LineRate { down, up }),
        _ => Err(bad(
            format!("{} is not a line's rate", shown(text)),
            "1 to 1000, or two such as 100/2",
        )),
    }
}

/// A share of packets that are lost, in percent.
pub(super) fn loss(text: &str) -> Result<f64, BadValue> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=50.0).contains(&percent) => Ok(percent),
        _ => Err(bad(format!("{} is not a loss percentage", shown(text)), "0 to 50")),
    }
}

/// An arm with its own flags.
pub(super) fn arm(text: &str) -> Result<(String, String), BadValue> {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it))
    };
    match text.split_once('=') {
        Some((name, flags)) if is_name(name) => Ok((name.to_owned(), flags.to_owned())),
        _ => {
            Err(bad(format!("{} is not an arm", shown(text)), "NAME=FLAGS, as in spin='--spin 0'"))
        }
    }
}

/// A paper, or `all`.
pub(super) fn papers(text: &str) -> Result<Papers, BadValue> {
    if text == "all" {
        return Ok(Papers(Paper::ALL.to_vec()));
    }
    let found = Paper::ALL.into_iter().find(|paper| paper.name() == text);
    found.map(|paper| Papers(vec![paper])).ok_or_else(|| {
        let names = Paper::ALL.map(Paper::name).join(", ");
        bad(format!("{} is not one of the papers", shown(text)), format!("one of {names}, or all"))
    })
}

/// Most of what `bench` counts: rounds, typists, handshakes.
const COUNT_MOST: u32 = 1_000;

/// Most connections of a measurement: each has two threads, which take half of tokio's 512 blocking
/// threads. A connection waiting for a thread would distort the result.
const CONNECTIONS_MOST: u32 = 256;

/// A number of rounds, typists or handshakes.
pub(super) fn count(text: &str) -> Result<u32, BadValue> {
    up_to(COUNT_MOST, text)
}

/// A number of streams or clients.
pub(super) fn connections(text: &str) -> Result<u32, BadValue> {
    up_to(CONNECTIONS_MOST, text)
}

fn up_to(most: u32, text: &str) -> Result<u32, BadValue> {
    let cause = || format!("{} is not a number from 1 to {most}", shown(text));
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| bad(cause(), "a whole number, such as 10"))
}

/// `--seed`.
pub(super) fn seed(text: &str) -> Result<u64, BadValue> {
    let cause = || format!("{} is not a number", shown(text));
    text.parse().map_err(|_| bad(cause(), "a whole number of at most 64 bits, such as 1"))
}

/// Most events per second to try: their schedule is drawn in advance.
const RATE_MOST: f64 = 1e6;

/// Events a second.
pub(super) fn rate(text: &str) -> Result<f64, BadValue> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= RATE_MOST => Ok(rate),
        _ => Err(bad(
            format!("{} is not a number above 0 and up to {RATE_MOST}", shown(text)),
            "such as 100, or 0.5",
        )),
    }
}

/// A share in percent, as one from 0 to 1.
pub(super) fn percent(text: &str) -> Result<f64, BadValue> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(bad(format!("{} is not a percentage", shown(text)), "0 to 100")),
    }
}

/// The longest that an arm runs in a round.
const TURN_MOST: Duration = Duration::from_secs(600);

/// How long an arm runs in a round.
pub(super) fn turn_time(text: &str) -> Result<Duration, BadValue> {
    let time = duration(text)?;
    match time.is_zero() || time > TURN_MOST {
        true => Err(bad(
            format!("{} is not a length for a run", shown(text)),
            "above 0s and up to 10m; add rounds to measure longer",
        )),
        false => Ok(time),
    }
}

/// Time for a whole run.
pub(super) fn time_budget(text: &str) -> Result<Duration, BadValue> {
    let time = duration(text)?;
    match time.is_zero() || time > BUDGET_MOST {
        true => Err(bad(
            format!("{} is not a time for a run", shown(text)),
            "above 0s and up to 7d, as in 5m",
        )),
        false => Ok(time),
    }
}

/// Longest run.
const BUDGET_MOST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Largest burst or file: the far end confirms receipt within 10 s, or the wait ends.
const SIZE_MOST: u64 = 1 << 30;

/// Bytes, with or without a unit.
pub(super) fn size(text: &str) -> Result<u64, BadValue> {
    match text.parse::<bytesize::ByteSize>().map(|size| size.as_u64()) {
        Ok(size @ 1..=SIZE_MOST) => Ok(size),
        _ => Err(bad(
            format!("{} is not a size from 1 byte to 1GiB", shown(text)),
            "as in 128 or 3MiB",
        )),
    }
}

/// Bytes of a key, and of its echo.
pub(super) fn key_size(text: &str) -> Result<u64, BadValue> {
    let least = Exchange::REQUEST_BYTES_MIN;
    match size(text)? {
        bytes if bytes < least => Err(bad(
            format!("{} is smaller than a request header", shown(text)),
            format!("at least {least}"),
        )),
        bytes => Ok(bytes),
    }
}

/// `--emulate-cipher-rate`: bytes a second.
pub(super) fn cipher_rate(text: &str) -> Result<NonZeroU64, BadValue> {
    let bytes = text.trim_end_matches("/s").parse::<bytesize::ByteSize>().ok();
    bytes.and_then(|bytes| NonZeroU64::new(bytes.as_u64())).ok_or_else(|| {
        bad(format!("{} is not a byte rate", shown(text)), "bytes per second, as in 940 or 11.7MB")
    })
}

/// `SIZE[:WEIGHT]`.
pub(super) fn file(text: &str) -> Result<(u64, f64), BadValue> {
    match text.split_once(':') {
        Some((bytes, weight)) => Ok((size(bytes)?, rate(weight)?)),
        None => Ok((size(text)?, 1.0)),
    }
}
