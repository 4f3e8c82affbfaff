//! Sets up logging to standard error, as text or JSON. Global to the process, so only `main` calls
//! it.

use std::any::Any;
use std::io::IsTerminal;
use std::panic;

use clap::Args;
use keypadd_config::Settings;
use keypadd_config::values::LogFormat;
use rustix::fs::fstat;
use rustix::stdio::dup2_stderr;
use tracing::error;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::flags::{All, Flags};
use crate::log_output::{LogOutput, without_waiting};
use crate::values;

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

/// Flags that every command takes.
#[derive(Debug, Args)]
pub struct LogFlags {
    /// Format and filter.
    #[command(flatten)]
    pub flags: Flags<All>,
    /// Log more; repeat to include the transport
    #[arg(short, long, env = "KEYPADD_VERBOSE", action = clap::ArgAction::Count)]
    #[arg(global = true, help_heading = "Logs", value_parser = values::verbosity)]
    pub verbose: u8,
}

/// Starts logging. Without a filter, `quiet` logs warnings and errors only.
pub fn start(settings: &Settings, verbose: u8, quiet: bool) {
    let filter = match (&settings.log, verbose) {
        (Some(filter), _) => &filter.value,
        (None, 0) if quiet => QUIET_FILTER,
        (None, 0) => DEFAULT_FILTER,
        (None, 1) => VERBOSE_FILTER,
        (None, _) => DEBUG_FILTER,
    };
    let filter: Targets = filter.parse().expect("settings keep only filters that parse");
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE) // the filter decides
        .with_timer(SystemTime)
        // Drops a line that cannot be written; the default would report it with eprintln!, which
        // panics.
        .log_internal_errors(false)
        .with_writer(LogOutput::new(
            std::io::stderr(),
            settings.log_format.value == LogFormat::Json,
        ));
    match settings.log_format.value {
        LogFormat::Json => {
            // The module would appear as a second `target`, next to a connection's own field of
            // that name.
            let builder = builder.json().flatten_event(true).with_target(false);
            builder.finish().with(filter).init();
        }
        LogFormat::Text if is_journal() => {
            let builder = builder.without_time().with_ansi(false).with_target(false);
            builder.finish().with(filter).init();
        }
        LogFormat::Text => {
            let colors = std::io::stderr().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            builder.with_ansi(colors).with_target(false).finish().with(filter).init();
        }
    }
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        panic::set_hook(Box::new(|info| {
            let location = info.location().map(ToString::to_string).unwrap_or_default();
            error!("panicked at {location}: {}", panic_message(info.payload()));
        }));
    }
}

/// Lets no message of a daemon wait for the reader of a terminal, even in the process that takes
/// its standard error over. Comes before the sandbox, which hides the terminal.
pub fn never_wait() {
    let stderr = std::io::stderr();
    if stderr.is_terminal()
        && let Ok(own) = without_waiting(stderr)
    {
        let _ = dup2_stderr(own);
    }
}

/// A panic's message, quoted and on one line.
fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = match payload.downcast_ref::<String>() {
        Some(text) => Some(text.as_str()),
        None => payload.downcast_ref::<&str>().copied(),
    };
    format!("{:?}", text.unwrap_or("no message"))
}

/// Whether standard error is systemd's journal, which adds timestamps itself (systemd.exec(5),
/// `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(std::io::stderr()).is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verbosity_is_a_filter() {
        for filter in [DEFAULT_FILTER, QUIET_FILTER, VERBOSE_FILTER, DEBUG_FILTER] {
            assert!(filter.parse::<Targets>().is_ok(), "{filter}");
        }
    }

    #[test]
    fn a_panic_is_one_line() {
        let panics: [fn(); 2] = [|| assert_eq!(1, 2), || panic!("plain")];
        let lines = panics.map(|panics| panic_message(&*panic::catch_unwind(panics).unwrap_err()));
        assert!(lines[0].contains("left: 1\\n"), "{}", lines[0]);
        assert_eq!(lines[1], "\"plain\"");
        assert!(lines.iter().all(|line| !line.contains('\n')));
    }
}
