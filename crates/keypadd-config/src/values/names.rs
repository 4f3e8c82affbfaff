//! Values that are one of several words, or a name: suites, modes, switches, log filters, users,
//! peers, files.

use std::path::PathBuf;

use base64ct::{Base64, Encoding};
use keypadd_keystream::{CipherBackend, CipherEngine, Suite};
use keypadd_provider::KeyExchange;
use keypadd_tunnel::{Congestion, ServerId};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::{BadValue, bad};
use crate::quote::{is_private, shown};
use crate::similar::choices;

/// The levels of a log filter, from the fewest lines to the most.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

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
    Congestion::named(text).ok_or_else(|| bad(cause, choices(text, &Congestion::NAMES)))
}

/// The ID by which a load balancer finds a server: eight bytes in hexadecimal digits, or in base64,
/// as a pod gets them from AWS's controller.
pub fn server_id(text: &str) -> Result<ServerId, BadValue> {
    let mut octets = [0; 8];
    let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 2 * octets.len());
    let is_read = match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        Some(number) if !text.contains('+') => {
            octets = number.to_be_bytes();
            true
        }
        _ => Base64::decode(text, &mut octets).is_ok_and(|read| read.len() == 8),
    };
    let bad = || {
        let cause = format!("{} is not a server ID", shown(text));
        bad(cause, "eight bytes, as in 0x0123456789abcdef")
    };
    is_read.then_some(ServerId(octets)).ok_or_else(bad)
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
        false => Err(bad(format!("{} is not a user name", shown(text)), "as in keypadd")),
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

/// A log filter, kept as text: the logger parses it again. Empty directives are dropped; if no
/// other is left, only errors are logged. A word alone is a level: the logger would take any other
/// for a module's name, and then log nothing of all others.
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
    let levels = directives
        .iter()
        .map(|directive| directive.split_once('=').map_or(*directive, |(_, level)| level));
    let wrong =
        levels.filter(|level| is_name(level)).find(|level| level.parse::<LevelFilter>().is_err());
    // Any word is a valid module name, so a pasted key would be too.
    match wrong {
        Some(level) if !is_private(text) => Err(bad(
            format!("{} is not a log level", shown(level)),
            format!("{}; by module as in info,keypadd_tunnel=debug", choices(level, &LEVELS)),
        )),
        None if is_filter && !is_private(text) => Ok(filter),
        _ => Err(bad(
            format!("{} is not a log filter", shown(text)),
            "a level such as debug, or levels by module such as info,keypadd_tunnel=debug",
        )),
    }
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
    fn a_server_id_is_eight_octets_in_either_form() {
        let id = ServerId([0x2d, 0x65, 0x75, 0xa1, 0x6f, 0xa0, 0x8e, 0xa4]);
        for text in ["0x2d6575a16fa08ea4", "0x2D6575A16FA08EA4", "LWV1oW+gjqQ="] {
            assert_eq!(server_id(text), Ok(id), "{text}");
        }
        for unusable in [
            "",
            "1",
            "0x2d6575a16fa08e",
            "0x2d6575a16fa08ea4a4",
            "0x+d6575a16fa08ea4",
            "LWV1oW+gjg==",
        ] {
            assert!(server_id(unusable).is_err(), "{unusable}");
        }
    }

    #[test]
    fn a_log_filter_is_levels_and_modules() {
        for filter in ["debug", "INFO", "off", "3", "info,keypadd_tunnel=debug", "a::b=3"] {
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
    fn a_word_that_is_no_level_is_not_taken_for_a_modules_name() {
        for (filter, wrong, hint) in [
            ("warning", "warning", "did you mean warn? expected one of off, error,"),
            ("info,keypadd=inf", "inf", "did you mean info?"),
            ("verbose", "verbose", "expected one of off, error, warn, info, debug, trace;"),
            ("debug,keypadd_tunnel", "keypadd_tunnel", "expected one of"),
        ] {
            let bad = log_filter(filter).unwrap_err();
            assert_eq!(bad.cause, format!("`{wrong}` is not a log level"));
            assert!(bad.hint.starts_with(hint), "{}", bad.hint);
        }
    }
}
