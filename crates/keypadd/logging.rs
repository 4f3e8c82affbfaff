//! Sets up logging to standard error, as text or JSON. Global to the process, so only `main` calls
//! it.

use std::io::IsTerminal;

use keypadd_config::Settings;
use keypadd_config::values::LogFormat;
use rustix::fs::fstat;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

/// `info` for our crates, errors of the transport.
const DEFAULT_FILTER: &str = "error,keypadd=info,keypadd_keystream=info,keypadd_pool=info,\
                              keypadd_provider=info,keypadd_tunnel=info";
/// Warnings of our crates, errors of the transport.
const QUIET_FILTER: &str = "error,keypadd=warn,keypadd_keystream=warn,keypadd_pool=warn,\
                            keypadd_provider=warn,keypadd_tunnel=warn";
/// `-v`: `debug` for our crates, warnings of the transport.
const VERBOSE_FILTER: &str = "warn,keypadd=debug,keypadd_keystream=debug,keypadd_pool=debug,\
                              keypadd_provider=debug,keypadd_transport=debug,\
                              keypadd_tunnel=debug";
/// `-vv`: `debug` for everything.
const DEBUG_FILTER: &str = "debug";

/// Starts logging. Without a filter, `quiet` logs warnings and errors only.
pub(crate) fn start(settings: &Settings, verbose: u8, quiet: bool) {
    let filter = EnvFilter::new(match (&settings.log, verbose) {
        (Some(filter), _) => &filter.value,
        (None, 0) if quiet => QUIET_FILTER,
        (None, 0) => DEFAULT_FILTER,
        (None, 1) => VERBOSE_FILTER,
        (None, _) => DEBUG_FILTER,
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(SystemTime)
        // Drops a line that cannot be written; the default would report it with eprintln!, which
        // panics.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match settings.log_format.value {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Text if is_journal() => {
            builder.without_time().with_ansi(false).with_target(false).init();
        }
        LogFormat::Text => {
            let colors = std::io::stderr().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            builder.with_ansi(colors).with_target(false).init();
        }
    }
}

/// Whether standard error is systemd's journal, which adds timestamps itself (systemd.exec(5),
/// `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(std::io::stderr()).is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
}
