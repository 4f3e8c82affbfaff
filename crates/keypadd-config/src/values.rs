//! Parses the value of a flag or a key of the file. An invalid one becomes a [`BadValue`]: a cause that
//! quotes it and a hint with a valid one; the caller prepends the name of the flag or key. Does not know
//! where the text came from.
//!
//! Every function here returns an error if the text is not a valid value.

use std::error::Error as StdError;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use keypadd_keystream::{CipherBackend, CipherEngine, Suite};
use keypadd_provider::{KeyExchange, KeyTextError, PublicKey};
use keypadd_tunnel::{
    AddressError, Congestion, DynamicForward, ForwardError, ListenPermit, LocalForward,
    PEER_TIMEOUT_MAX, PEER_TIMEOUT_MIN, Permit, PermitError, RemoteForward, ServerAddress,
    ServerAddresses, ServerEntry, SpinShare, Target,
};
use tracing_subscriber::filter::Targets;

use crate::quote::{is_private, shown};
use crate::similar::choices;

/// Smallest pool: the chunks of a single connection need this much.
const POOL_BUDGET_MIN: ByteSize = ByteSize::mib(1);

/// Longest timeout; a longer one is a typo.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Shortest lifetime of keys.
const KEY_LIFETIME_MIN: Duration = Duration::from_secs(1);

/// Most event loops: more do not help on any host, and each costs a thread and a socket.
const LOOPS_MAX: usize = 64;

/// Most forwarded connections of a session: if none of them is read, they fill 2 GiB of its receive window, a
/// 32-bit number.
const FORWARDS_MAX: u32 = 32_768;

/// Most sessions of one key: the most that a server has.
const SESSIONS_MAX: u32 = 1024;

/// Longest name of a peer, which becomes a metrics label.
const NAME_CHARS_MAX: usize = 63;

/// When to use a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// For suites that are faster with one on this machine.
    Auto,
    /// For every suite.
    On,
    /// Never.
    Off,
}

/// Log output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Why a value is invalid, and a valid one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// Follows the flag's or the key's name: `'x' is not ...`.
    pub cause: String,
    /// A valid value, or where to find one.
    pub hint: String,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl StdError for BadValue {}

/// The error for a value.
pub fn bad(cause: impl Into<String>, hint: impl Into<String>) -> BadValue {
    BadValue { cause: cause.into(), hint: hint.into() }
}

/// Parses an address, a forward or a permit. A text that contains a private key is refused first: as a host
/// name, it would be sent to DNS.
fn parsed<T: FromStr<Err: Cause>>(text: &str, hint: &str) -> Result<T, BadValue> {
    if is_private(text) {
        return Err(bad(format!("{} is not allowed here", shown(text)), hint));
    }
    text.parse().map_err(|error: T::Err| {
        let message = error.cause();
        match error.quoted() == Some(text) {
            true => bad(message, hint),
            false => bad(format!("{}: {message}", shown(text)), hint),
        }
    })
}

/// What a parse error says.
trait Cause {
    /// The message alone, without the text that was parsed.
    fn cause(&self) -> String;

    /// The text that the message quotes, if any, which may be the whole.
    fn quoted(&self) -> Option<&str>;
}

impl Cause for AddressError {
    fn cause(&self) -> String {
        self.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        Some(self.quoted())
    }
}

impl Cause for ForwardError {
    fn cause(&self) -> String {
        self.cause.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        self.cause.quoted()
    }
}

impl Cause for PermitError {
    fn cause(&self) -> String {
        self.cause.to_string()
    }

    fn quoted(&self) -> Option<&str> {
        self.cause.quoted()
    }
}

/// The forms of a server's address.
const SERVER_FORMS: &str = "HOST or HOST:PORT, as in host.example:4433 or [2001:db8::1]:4433";

/// A server, with port 4433 unless given.
pub fn server(text: &str) -> Result<ServerAddress, BadValue> {
    parsed(text, SERVER_FORMS)
}

/// Where a server is: an address, with port 4433 unless given, or the name of a service.
pub fn server_entry(text: &str) -> Result<ServerEntry, BadValue> {
    parsed(text, SERVER_FORMS)
}

/// The same for several, separated by commas.
pub fn servers(text: &str) -> Result<ServerAddresses, BadValue> {
    parsed(text, SERVER_FORMS)
}

/// A host and a port.
pub fn target(text: &str) -> Result<Target, BadValue> {
    parsed(text, "HOST:PORT, as in localhost:22 or [::1]:22")
}

/// A local forward in ssh's syntax.
pub fn local_forward(text: &str) -> Result<LocalForward, BadValue> {
    parsed(text, "as in 2222:localhost:22, 127.0.0.1:8080:web.example:80 or 5353:udp:resolver:53")
}

/// A remote forward in ssh's syntax.
pub fn remote_forward(text: &str) -> Result<RemoteForward, BadValue> {
    parsed(text, "as in 8080:localhost:80, *:8080:/run/web.sock or 5353:udp:resolver:53")
}

/// A dynamic forward: a port for SOCKS.
pub fn dynamic_forward(text: &str) -> Result<DynamicForward, BadValue> {
    parsed(text, "as in 1080 or 127.0.0.1:1080")
}

/// Where a peer may listen.
pub fn listen_permit(text: &str) -> Result<ListenPermit, BadValue> {
    parsed(text, "as in 8080, 10.0.0.1:8080, 0.0.0.0:*, *:8080, *:*, udp:5353 or /run/web.sock")
}

/// Targets that a peer may connect to.
pub fn permit(text: &str) -> Result<Permit, BadValue> {
    parsed(text, "as in localhost:22, db.example:*, *:443, 10.0.0.0/8:5432, udp:resolver:53 or *:*")
}

/// A public key: 44 characters of base64.
pub fn public_key(text: &str) -> Result<PublicKey, BadValue> {
    // The text may be a secret pasted in the wrong place: the message describes it and does not quote it.
    text.parse().map_err(|error: KeyTextError| {
        bad(error.to_string(), "run `keypadd pubkey` on the other host to print its public key")
    })
}

/// An address and a port.
pub fn socket(text: &str) -> Result<SocketAddr, BadValue> {
    text.parse().map_err(|_| {
        bad(
            format!("{} is not ADDR:PORT", shown(text)),
            "an IP address and a port, as in 127.0.0.1:4433 or [::]:4433",
        )
    })
}

/// A suite, by name.
pub fn suite(text: &str) -> Result<Suite, BadValue> {
    text.parse().map_err(|_| {
        bad(format!("{} is not a suite", shown(text)), choices(text, &Suite::ALL.map(Suite::name)))
    })
}

/// A key exchange, by name.
pub fn kex(text: &str) -> Result<KeyExchange, BadValue> {
    text.parse().map_err(|_| {
        let names = KeyExchange::ALL.map(KeyExchange::name);
        bad(format!("{} is not a key exchange", shown(text)), choices(text, &names))
    })
}

/// A DES implementation, by name; this CPU must support it.
pub fn cipher_backend(text: &str) -> Result<CipherEngine, BadValue> {
    let hint = || {
        let all = CipherBackend::ALL.into_iter();
        let names = all.filter(|backend| backend.is_available()).map(CipherBackend::name);
        choices(text, &names.collect::<Vec<_>>())
    };
    let backend: CipherBackend = text
        .parse()
        .map_err(|_| bad(format!("{} is not a cipher backend", shown(text)), hint()))?;
    backend.engine().map_err(|missing| bad(missing.to_string(), hint()))
}

/// A congestion control algorithm, by name.
pub fn congestion(text: &str) -> Result<Congestion, BadValue> {
    let cause = format!("{} is not a congestion control algorithm", shown(text));
    text.parse().map_err(|_| bad(cause, choices(text, &["rate", "cubic"])))
}

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

/// A boolean. The file itself allows only `true` and `false`.
pub fn switch(text: &str) -> Result<bool, BadValue> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(bad(format!("{} is not a boolean", shown(text)), "expected true or false")),
    }
}

/// When to use a pool, by name.
pub fn pool_mode(text: &str) -> Result<PoolMode, BadValue> {
    match text {
        "auto" => Ok(PoolMode::Auto),
        "on" => Ok(PoolMode::On),
        "off" => Ok(PoolMode::Off),
        _ => {
            let hint = choices(text, &["auto", "on", "off"]);
            Err(bad(format!("{} is not a pool mode", shown(text)), hint))
        }
    }
}

/// `on` or `off`.
pub fn on_off(text: &str) -> Result<bool, BadValue> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(bad(format!("{} is not a mode", shown(text)), "expected one of on, off")),
    }
}

/// The name of a user of this host; whether it exists is checked at startup.
pub fn user_name(text: &str) -> Result<String, BadValue> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-$".contains(c);
    match !text.is_empty() && text.chars().all(is_name) && !is_private(text) {
        true => Ok(text.to_owned()),
        false => Err(bad(format!("{} is not the name of a user", shown(text)), "as in keypadd")),
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

/// A log format, by name.
pub fn log_format(text: &str) -> Result<LogFormat, BadValue> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => {
            let hint = choices(text, &["text", "json"]);
            Err(bad(format!("{} is not a log format", shown(text)), hint))
        }
    }
}

/// A log filter, kept as text: the logger parses it again. Empty directives are dropped; if no other is left,
/// only errors are logged.
pub fn log_filter(text: &str) -> Result<String, BadValue> {
    let directives: Vec<&str> =
        text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    let filter = if directives.is_empty() { "error".to_owned() } else { directives.join(",") };
    // `Targets` takes any characters for a module's name, so these are checked here.
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_:-".contains(c))
    };
    let is_filter = directives.iter().all(|directive| directive.split('=').all(is_name))
        && filter.parse::<Targets>().is_ok();
    // Any word is a valid module name, so a pasted key would be too.
    if !is_filter || is_private(text) {
        return Err(bad(
            format!("{} is not a log filter", shown(text)),
            "a level such as debug, or levels by module such as info,keypadd_tunnel=debug",
        ));
    }
    Ok(filter)
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

/// A peer's name, as it appears in logs and metrics.
pub fn peer_name(text: &str) -> Result<String, BadValue> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.chars().all(good) || is_private(text)
    {
        return Err(bad(
            format!("{} is not a valid peer name", shown(text)),
            format!("up to {NAME_CHARS_MAX} letters, digits and -_.@, as in laptop"),
        ));
    }
    Ok(text.to_owned())
}

/// The path of a file.
pub fn file(text: &str) -> Result<PathBuf, BadValue> {
    path(text.into())
}

/// A path, unless it is a pasted private key: no file of that name must be created or looked up.
pub fn path(path: PathBuf) -> Result<PathBuf, BadValue> {
    match path.to_string_lossy() {
        text if is_private(&text) => Err(bad(
            format!("{} is not allowed here", shown(&text)),
            "name the file that holds the key",
        )),
        _ => Ok(path),
    }
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
    fn a_share_may_be_zero_and_loops_may_not() {
        assert_eq!(spin("0"), Ok(SpinShare::percent(0)));
        assert_eq!(spin("5%"), Ok(SpinShare::percent(5)));
        assert_eq!(loops("1"), Ok(1));
        assert_eq!(loops("64"), Ok(64));
        for unusable in ["0", "65", "-1", "4.0", "0x4", "all"] {
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
    fn a_log_filter_is_levels_and_modules() {
        for filter in ["debug", "INFO", "off", "keypadd", "info,keypadd_tunnel=debug", "a::b=3"] {
            assert_eq!(log_filter(filter), Ok(filter.to_owned()));
        }
        assert_eq!(log_filter(" info, keypadd=debug,"), Ok("info,keypadd=debug".to_owned()));
        assert_eq!(log_filter(""), Ok("error".to_owned()));
        for unusable in ["a=loud", "a=", "=debug", "a=b=debug", "a[span]=debug", "[{field}]", "a b"]
        {
            assert!(log_filter(unusable).is_err(), "{unusable}");
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
