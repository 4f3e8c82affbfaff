//! Starts `keypadd-bench`, found next to this program or on PATH, in place of this process: for
//! `keypadd bench`, and for a daemon that answers the measurements of peers.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use keypadd_cli::error::{Error, Exit, system};
use keypadd_config::Settings;

use crate::command_line;
use crate::kit::Kit;

/// The program that runs benchmarks, and daemons that answer them.
const PROGRAM: &str = "keypadd-bench";

/// Replaces this process with it, passing every argument but the verb; returns only on failure.
pub(crate) fn start() -> Error {
    let mut arguments = arguments();
    let at = verb_at(&arguments);
    if at < arguments.len() {
        arguments.remove(at);
    }
    execute("bench", arguments)
}

/// The kit of a daemon with these settings, none if it answers no measurements. If this program has
/// no kit for one that does, the process is replaced with one that has, with the same arguments.
///
/// # Errors
/// Exit 1: it cannot be started.
pub(crate) fn kit_for(settings: &Settings, kit: Option<Kit>) -> Result<Option<Kit>, Error> {
    match (settings.permit_bench.value && settings.listen.is_some(), kit) {
        (false, _) => Ok(None),
        (true, Some(kit)) => Ok(Some(kit)),
        (true, None) => Err(execute("permit-bench", arguments())),
    }
}

/// Whether this process is told to run a daemon that may answer measurements.
pub fn is_daemon() -> bool {
    let arguments = arguments();
    arguments.get(verb_at(&arguments)).is_some_and(|verb| verb == "serve" || verb == "run")
}

fn arguments() -> Vec<OsString> {
    env::args_os().skip(1).collect()
}

/// Replaces this process with the program; returns only on failure. Descriptors and the environment
/// stay: a new process that takes over from an old one needs them.
fn execute(what: &str, arguments: Vec<OsString>) -> Error {
    let beside = env::current_exe().ok().map(|keypadd| keypadd.with_file_name(PROGRAM));
    // Without a slash, so it is searched on PATH.
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(program).args(arguments).exec();
    match error.kind() {
        ErrorKind::NotFound => Error::new(
            Exit::Runtime,
            format!("{what}: cannot find keypadd-bench next to keypadd or on PATH"),
        )
        .hint("`cargo build --release -p keypadd-bench` builds it; put it next to keypadd"),
        _ => Error::new(
            Exit::Runtime,
            format!("{what}: cannot run keypadd-bench: {}", system(&error)),
        ),
    }
}

/// Where the command is. Only global flags come before it, and one may have its name as a value.
fn verb_at(arguments: &[OsString]) -> usize {
    let program = command_line::definition();
    let takes_value = |argument: &OsString| {
        program.get_arguments().any(|flag| {
            let long = flag.get_long().map(|name| format!("--{name}"));
            flag.get_action().takes_values() && long.is_some_and(|long| *argument == *long)
        })
    };
    let mut at = 0;
    while arguments.get(at).is_some_and(|argument| argument.as_encoded_bytes().starts_with(b"-")) {
        at += if takes_value(&arguments[at]) { 2 } else { 1 };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_global_flags_and_their_values_come_before_the_verb() {
        for (given, passed_on) in [
            ("bench terminal", "terminal"),
            ("--log bench bench terminal", "--log bench terminal"),
            ("--log=bench -v bench --log bench terminal", "--log=bench -v --log bench terminal"),
            ("bench --out bench", "--out bench"),
            ("bench bench", "bench"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            let mut arguments = words(given);
            assert_eq!(arguments.remove(verb_at(&arguments)), "bench");
            assert_eq!(arguments, words(passed_on), "{given}");
        }
    }
}
