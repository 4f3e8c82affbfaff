//! Logs to standard error, as text or JSON; standard output belongs to results. The only part of a
//! program that is global to the process, hence set up by `main` and by nothing else.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use rustix::fs::fstat;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::values;

/// Our crates speak at `info`, the transport below only of errors.
const DEFAULT_FILTER: &str = "error,keypadd=info,keypadd_keystream=info,keypadd_pool=info,\
                              keypadd_provider=info,keypadd_tunnel=info";
/// Our crates speak of trouble, the transport below only of errors.
const QUIET_FILTER: &str = "error,keypadd=warn,keypadd_keystream=warn,keypadd_pool=warn,\
                            keypadd_provider=warn,keypadd_tunnel=warn";
/// `-v`: our crates at `debug`, the transport's warnings.
const VERBOSE_FILTER: &str = "warn,keypadd=debug,keypadd_keystream=debug,keypadd_pool=debug,\
                              keypadd_provider=debug,keypadd_transport=debug,\
                              keypadd_tunnel=debug";
/// `-vv`: what the transport does as well.
const TALKATIVE_FILTER: &str = "debug";

/// Flags that every verb takes.
#[derive(Debug, Args)]
pub struct LogFlags {
    /// How logs are written on standard error [default: text]
    #[arg(long, env = "KEYPADD_LOG_FORMAT", value_name = "FORMAT")]
    #[arg(global = true, help_heading = "Logs")]
    pub log_format: Option<LogFormat>,
    /// What is logged: a level, or levels by part such as info,keypadd_tunnel=debug
    #[arg(long, env = "KEYPADD_LOG", value_name = "FILTER", value_parser = keypadd_config::values::log_filter)]
    #[arg(global = true, help_heading = "Logs")]
    pub log: Option<String>,
    /// Log more; twice, the transport as well
    #[arg(short, long, env = "KEYPADD_VERBOSE", action = clap::ArgAction::Count)]
    #[arg(global = true, help_heading = "Logs", value_parser = values::verbosity)]
    pub verbose: u8,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "clap would show a comment as help")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Starts logging as the flags say; where they say nothing, a `quiet` verb speaks of trouble only.
pub fn start(flags: &LogFlags, quiet: bool) {
    let filter = EnvFilter::new(match (&flags.log, flags.verbose) {
        (Some(filter), _) => filter,
        (None, 0) if quiet => QUIET_FILTER,
        (None, 0) => DEFAULT_FILTER,
        (None, 1) => VERBOSE_FILTER,
        (None, _) => TALKATIVE_FILTER,
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(SystemTime)
        // A log line that cannot be written is lost; the default would complain with eprintln!, which
        // panics on the same standard error.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match flags.log_format.unwrap_or_default() {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Text if is_journal() => {
            builder.without_time().with_ansi(false).with_target(false).init();
        }
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            builder.with_ansi(colours).with_target(false).init();
        }
    }
}

/// Whether standard error is systemd's journal, which has its own time for each line (systemd.exec(5),
/// `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(std::io::stderr()).is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
}
