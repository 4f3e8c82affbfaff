//! Runs `keypadd bench` by executing `keypadd-bench`, found next to this program or on PATH.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use keypadd_cli::error::{Error, Exit, system};

use crate::command_line;

/// The program that runs benchmarks.
const PROGRAM: &str = "keypadd-bench";

/// Replaces this process with it, passing every argument but the verb; returns only on failure.
pub(crate) fn start() -> Error {
    let arguments = without_verb(std::env::args_os().skip(1).collect());
    let beside = std::env::current_exe().ok().map(|keypadd| keypadd.with_file_name(PROGRAM));
    // Without a slash, so it is searched on PATH.
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(program).args(arguments).exec();
    match error.kind() {
        ErrorKind::NotFound => {
            Error::new(Exit::Runtime, "bench: cannot find keypadd-bench next to keypadd or on PATH")
                .hint("`cargo build --release -p keypadd-bench` builds it; put it next to keypadd")
        }
        _ => Error::new(
            Exit::Runtime,
            format!("bench: cannot run keypadd-bench: {}", system(&error)),
        ),
    }
}

/// Removes the verb `bench`. Only global flags come before it, and one may have `bench` as its
/// value.
fn without_verb(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let program = command_line::definition();
    let takes_value = |argument: &OsString| {
        program.get_arguments().any(|flag| {
            let long = flag.get_long().map(|name| format!("--{name}"));
            flag.get_action().takes_values() && long.is_some_and(|long| *argument == *long)
        })
    };
    let mut at = 0;
    while arguments.get(at).is_some_and(|argument| argument != "bench") {
        at += if takes_value(&arguments[at]) { 2 } else { 1 };
    }
    if at < arguments.len() {
        arguments.remove(at);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_verb_is_removed() {
        for (given, passed_on) in [
            ("bench terminal", "terminal"),
            ("--log bench bench terminal", "--log bench terminal"),
            ("--log=bench -v bench --log bench terminal", "--log=bench -v --log bench terminal"),
            ("bench --out bench", "--out bench"),
            ("bench bench", "bench"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(without_verb(words(given)), words(passed_on), "{given}");
        }
    }
}
