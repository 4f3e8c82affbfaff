//! Logs go to standard error, as text or JSON; standard output belongs to results. The only part of
//! the program that is global to the process, hence set up by `main` and by nothing else.

use std::any::Any;
use std::io::IsTerminal;
use std::panic;

use rustix::fs::fstat;
use tracing::error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::cli::{LogFlags, LogFormat};

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

/// Starts logging as the flags say; where they say nothing, a `quiet` verb speaks of trouble only.
pub(crate) fn start(flags: &LogFlags, quiet: bool) {
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
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        panic::set_hook(Box::new(|info| {
            let location = info.location().map(ToString::to_string).unwrap_or_default();
            error!("panic at {location}: {}", panic_message(info.payload()));
        }));
    }
}

/// What a panic says, quoted and on one line.
fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = match payload.downcast_ref::<String>() {
        Some(text) => Some(text.as_str()),
        None => payload.downcast_ref::<&str>().copied(),
    };
    format!("{:?}", text.unwrap_or("no message"))
}

/// Whether standard error is systemd's journal, which has its own time for each line (systemd.exec(5),
/// `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(std::io::stderr()).is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line() {
        let panics: [fn(); 2] = [|| assert_eq!(1, 2), || panic!("plain")];
        let lines = panics.map(|panics| panic_message(&*panic::catch_unwind(panics).unwrap_err()));
        assert!(lines[0].contains("left: 1\\n"), "{}", lines[0]);
        assert_eq!(lines[1], "\"plain\"");
        assert!(lines.iter().all(|line| !line.contains('\n')));
    }
}
