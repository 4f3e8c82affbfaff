//! What stands behind a flag or a key of the file, read from text. A value that cannot be used becomes a
//! [`BadValue`]: a cause that names the value and a hint with a good one. Whoever asked puts the flag's
//! or the key's name in front. Knows nothing of where the text came from.

use std::error::Error as StdError;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use keypadd_keystream::{CipherBackend, CipherEngine, Suite};
use keypadd_provider::{KeyExchange, KeyTextError, PublicKey};
use keypadd_tunnel::{
    AddressError, Congestion, DynamicForward, ForwardError, ListenPermit, LocalForward, Permit,
    PermitError, RemoteForward, ServerAddress, SpinShare, Target,
};
use tracing_subscriber::EnvFilter;

use crate::quote::{is_private, shown};

/// The least pool: below it a single connection's chunks do not fit.
const POOL_BUDGET_LEAST: ByteSize = ByteSize::mib(1);

/// The longest wait that can be asked for; what is longer is a slip of the finger.
const DURATION_MOST: Duration = Duration::from_secs(24 * 60 * 60);

/// Most event loops: no host gains by more, and each has a thread and a socket.
const LOOPS_MOST: usize = 64;

/// Most forwarded connections of a session: unread, they hold 2 GiB of its receive window, which is a
/// number of 32 bits.
const FORWARDS_MOST: u32 = 32_768;

/// Longest name of a peer; it becomes a label of metrics.
const NAME_CHARS_MAX: usize = 63;

/// Whether there is a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// For suites for which it pays on this machine.
    Auto,
    /// Idle CPU makes keystream ahead of need.
    On,
    /// Every byte is made when it is needed.
    Off,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Why a value cannot be used, and what could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// Follows the flag's or the key's name: `'x' is not ...`.
    pub cause: String,
    /// A good value, or where to find one.
    pub hint: String,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl StdError for BadValue {}

fn bad(cause: impl Into<String>, hint: impl Into<String>) -> BadValue {
    BadValue { cause: cause.into(), hint: hint.into() }
}

/// A cause for `text` from a library's message, which may repeat the text or a part of it.
fn refused(text: &str, message: &str, hint: &str) -> BadValue {
    if is_private(text) {
        bad(format!("{} does not belong here", shown(text)), hint)
    } else if message.starts_with(&format!("`{text}`")) {
        bad(message, hint)
    } else {
        bad(format!("{}: {message}", shown(text)), hint)
    }
}

/// The text, unless it holds a private key: as the name of a host it would be looked up.
fn public<'a>(text: &'a str, hint: &str) -> Result<&'a str, BadValue> {
    if is_private(text) { Err(refused(text, "", hint)) } else { Ok(text) }
}

/// A public key: 44 characters of base64.
///
/// # Errors
/// The text is none.
pub fn public_key(text: &str) -> Result<PublicKey, BadValue> {
    // The text may be a secret in the wrong place: the message says what it is and stops there.
    text.parse().map_err(|error: KeyTextError| {
        bad(error.to_string(), "`keypadd pubkey`, run on the other host, prints its public key")
    })
}

/// An address and a port.
///
/// # Errors
/// The text is none.
pub fn socket(text: &str) -> Result<SocketAddr, BadValue> {
    text.parse().map_err(|_| {
        bad(
            format!("{} is not ADDR:PORT", shown(text)),
            "an IP address and a port, as in 127.0.0.1:4433 or [::]:4433",
        )
    })
}

/// A server, with the port 4433 unless one is given.
///
/// # Errors
/// The text is none.
pub fn server(text: &str) -> Result<ServerAddress, BadValue> {
    const HINT: &str = "HOST or HOST:PORT, as in host.example:4433 or [2001:db8::1]:4433";
    public(text, HINT)?
        .parse()
        .map_err(|error: AddressError| refused(text, &error.to_string(), HINT))
}

/// A host and a port.
///
/// # Errors
/// The text is none.
pub fn target(text: &str) -> Result<Target, BadValue> {
    const HINT: &str = "HOST:PORT, as in localhost:22 or [::1]:22";
    public(text, HINT)?
        .parse()
        .map_err(|error: AddressError| refused(text, &error.to_string(), HINT))
}

/// A local forward in ssh's grammar.
///
/// # Errors
/// The text is none.
pub fn local_forward(text: &str) -> Result<LocalForward, BadValue> {
    const HINT: &str = "as in 2222:localhost:22 or 127.0.0.1:8080:web.example:80";
    public(text, HINT)?
        .parse()
        .map_err(|error: ForwardError| refused(text, &error.cause.to_string(), HINT))
}

/// A remote forward in ssh's grammar.
///
/// # Errors
/// The text is none.
pub fn remote_forward(text: &str) -> Result<RemoteForward, BadValue> {
    const HINT: &str = "as in 8080:localhost:80 or *:8080:/run/web.sock";
    public(text, HINT)?
        .parse()
        .map_err(|error: ForwardError| refused(text, &error.cause.to_string(), HINT))
}

/// A dynamic forward: a port for SOCKS.
///
/// # Errors
/// The text is none.
pub fn dynamic_forward(text: &str) -> Result<DynamicForward, BadValue> {
    const HINT: &str = "as in 1080 or 127.0.0.1:1080";
    public(text, HINT)?
        .parse()
        .map_err(|error: ForwardError| refused(text, &error.cause.to_string(), HINT))
}

/// Where a peer may listen.
///
/// # Errors
/// The text is no pattern.
pub fn listen_permit(text: &str) -> Result<ListenPermit, BadValue> {
    const HINT: &str = "as in 8080, 10.0.0.1:8080, 0.0.0.0:*, *:8080, *:* or /run/web.sock";
    public(text, HINT)?
        .parse()
        .map_err(|error: PermitError| refused(text, &error.cause.to_string(), HINT))
}

/// A target, or targets, that a peer may reach.
///
/// # Errors
/// The text is none.
pub fn permit(text: &str) -> Result<Permit, BadValue> {
    const HINT: &str = "as in localhost:22, db.example:*, *:443, 10.0.0.0/8:5432 or *:*";
    public(text, HINT)?
        .parse()
        .map_err(|error: PermitError| refused(text, &error.cause.to_string(), HINT))
}

/// A suite by its name.
///
/// # Errors
/// The text is none.
pub fn suite(text: &str) -> Result<Suite, BadValue> {
    text.parse().map_err(|_| {
        let names = Suite::ALL.map(Suite::name).join(", ");
        bad(format!("{} is not a suite", shown(text)), format!("one of {names}"))
    })
}

/// A key exchange by its name.
///
/// # Errors
/// The text is none.
pub fn kex(text: &str) -> Result<KeyExchange, BadValue> {
    text.parse().map_err(|_| {
        let names = KeyExchange::ALL.map(|kex| kex.to_string()).join(", ");
        bad(format!("{} is not a key exchange", shown(text)), format!("one of {names}"))
    })
}

/// What computes DES, by its name; it must be one that this CPU can run.
///
/// # Errors
/// The text is none, or the CPU lacks the instructions.
pub fn cipher_backend(text: &str) -> Result<CipherEngine, BadValue> {
    let here = || {
        let all = CipherBackend::ALL.into_iter();
        let names = all.filter(|backend| backend.is_available()).map(CipherBackend::name);
        format!("one of {}", names.collect::<Vec<_>>().join(", "))
    };
    let backend: CipherBackend = text
        .parse()
        .map_err(|_| bad(format!("{} is not a cipher backend", shown(text)), here()))?;
    backend.engine().map_err(|missing| bad(missing.to_string(), here()))
}

/// A congestion control by its name.
///
/// # Errors
/// The text is none.
pub fn congestion(text: &str) -> Result<Congestion, BadValue> {
    let cause = format!("{} is not a congestion control", shown(text));
    text.parse().map_err(|_| bad(cause, "one of cubic, bbr"))
}

/// How much of one core an event loop may spend on polling, in percent.
///
/// # Errors
/// The text is no whole percentage.
pub fn spin(text: &str) -> Result<SpinShare, BadValue> {
    let cause = format!("{} is not a share of a core", shown(text));
    text.parse().map_err(|_| bad(cause, "from 0 to 100, as in 5; 0 turns polling off"))
}

/// How many event loops there are.
///
/// # Errors
/// The text is no number from 1 to 64.
pub fn loops(text: &str) -> Result<usize, BadValue> {
    match text.parse() {
        Ok(number @ 1..=LOOPS_MOST) => Ok(number),
        _ => Err(bad(
            format!("{} is not a number of loops", shown(text)),
            format!("from 1 to {LOOPS_MOST}; one for each core is enough"),
        )),
    }
}

/// Forwarded connections that a session carries at once, each way.
///
/// # Errors
/// The text is no number from 1 to 32768.
pub fn max_forwards(text: &str) -> Result<u32, BadValue> {
    match text.parse() {
        Ok(number @ 1..=FORWARDS_MOST) => Ok(number),
        _ => Err(bad(
            format!("{} is not a number of forwarded connections", shown(text)),
            format!("from 1 to {FORWARDS_MOST}, as in 10000"),
        )),
    }
}

/// Whether there is a pool, by name.
///
/// # Errors
/// The text is none.
pub fn pool_mode(text: &str) -> Result<PoolMode, BadValue> {
    match text {
        "auto" => Ok(PoolMode::Auto),
        "on" => Ok(PoolMode::On),
        "off" => Ok(PoolMode::Off),
        _ => Err(bad(format!("{} is not a choice", shown(text)), "one of auto, on, off")),
    }
}

/// How much of one core may go into keystream, in percent.
///
/// # Errors
/// The text is no whole percentage.
pub fn cpu_percent(text: &str) -> Result<u8, BadValue> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => {
            Err(bad(format!("{} is not a share of a core", shown(text)), "from 1 to 100, as in 20"))
        }
    }
}

/// A format of logs by its name.
///
/// # Errors
/// The text is none.
pub fn log_format(text: &str) -> Result<LogFormat, BadValue> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(bad(format!("{} is not a choice", shown(text)), "one of text, json")),
    }
}

/// A log filter, kept as text: the logger parses it again, once it is known to be one.
///
/// # Errors
/// The text is none.
pub fn log_filter(text: &str) -> Result<String, BadValue> {
    match EnvFilter::try_new(text) {
        // Any word is the name of some module, a key as well.
        Ok(_) if !is_private(text) => Ok(text.to_owned()),
        _ => Err(bad(
            format!("{} is not a filter", shown(text)),
            "a level such as debug, or levels by part such as info,keypadd_tunnel=debug",
        )),
    }
}

/// A time to wait: more than nothing, at most a day.
///
/// # Errors
/// The text is none.
pub fn duration(text: &str) -> Result<Duration, BadValue> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > DURATION_MOST => {
            Err(bad(format!("{} is too long", shown(text)), "at most 1day, as in 10s or 1m 30s"))
        }
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(bad(format!("{} is not a duration", shown(text)), "as in 10s, 1m 30s or 500ms")),
    }
}

/// A time that ending may take: at most a day, and it may be none.
///
/// # Errors
/// The text is none.
pub fn drain_timeout(text: &str) -> Result<Duration, BadValue> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Ok(time),
        _ => duration(text),
    }
}

/// Memory for a pool: at least 1 MiB and at most what the host has.
///
/// # Errors
/// Neither a size nor one that fits.
pub fn pool_budget(text: &str, memory_bytes: u64) -> Result<usize, BadValue> {
    let size = text
        .parse::<ByteSize>()
        .map_err(|_| bad(format!("{} is not a size", shown(text)), "as in 64MiB or 1GiB"))?;
    if size < POOL_BUDGET_LEAST {
        let cause = format!("{} is too small for a pool", shown(text));
        return Err(bad(cause, "at least 1MiB; with the pool off there is none"));
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

/// A peer's name: a label of metrics, a part of log lines.
///
/// # Errors
/// Too long, empty, or of other characters.
pub fn peer_name(text: &str) -> Result<String, BadValue> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.chars().all(good) || is_private(text)
    {
        return Err(bad(
            format!("{} is not a name for a peer", shown(text)),
            format!("up to {NAME_CHARS_MAX} letters, digits and -_.@, as in laptop"),
        ));
    }
    Ok(text.to_owned())
}

/// A path; a private key pasted as one is told before a file of that name is made or sought.
///
/// # Errors
/// The text is a private key.
pub fn path(path: PathBuf) -> Result<PathBuf, BadValue> {
    match path.to_string_lossy() {
        text if is_private(&text) => {
            Err(refused(&text, "", "the name of a file; the key itself stays in it"))
        }
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_in_binary_units_and_has_a_floor() {
        assert_eq!(pool_budget("64MiB", u64::MAX), Ok(64 << 20));
        assert_eq!(pool_budget("1048576", u64::MAX), Ok(1 << 20));
        assert!(pool_budget("1048575", u64::MAX).is_err());
        for unusable in ["lots", "1000PiB", "16EiB", "99999999999999999999999", "1e30GiB", "-1MiB"]
        {
            assert!(pool_budget(unusable, 1 << 40).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_share_may_be_nothing_and_loops_may_not() {
        assert_eq!(spin("0"), Ok(SpinShare::percent(0)));
        assert_eq!(spin("5%"), Ok(SpinShare::percent(5)));
        assert_eq!(loops("1"), Ok(1));
        assert_eq!(loops("64"), Ok(64));
        for unusable in ["0", "65", "-1", "4.0", "0x4", "all"] {
            assert!(loops(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn forwards_are_some_and_fit_into_a_window() {
        assert_eq!(max_forwards("1"), Ok(1));
        assert_eq!(max_forwards("32768"), Ok(32_768));
        for unusable in ["0", "32769", "-1", "1e4", "10,000", "all"] {
            assert!(max_forwards(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_duration_of_nothing_is_refused() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("0s").is_err());
        assert!(duration("10").is_err());
        assert_eq!(duration("1day"), Ok(DURATION_MOST));
        assert!(duration("25h").is_err());
        assert!(duration("1000000000years").is_err());
    }
}
