//! Runs `keypadd bench` by executing `keypadd-bench`, found beside this program or on PATH.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::error::{Error, Exit, system};

/// The program.
const PROGRAM: &str = "keypadd-bench";

/// Replaces this process by it, with every argument but `bench`; returns only on failure.
pub(crate) fn start() -> Error {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(verb) = arguments.iter().position(|argument| argument == "bench") {
        arguments.remove(verb);
    }
    let beside = std::env::current_exe().ok().map(|keypadd| keypadd.with_file_name(PROGRAM));
    // Without a slash: on PATH.
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(program).args(arguments).exec();
    match error.kind() {
        ErrorKind::NotFound => {
            Error::new(Exit::Runtime, "bench: keypadd-bench is neither beside keypadd nor on PATH")
                .hint("`cargo build --release -p keypadd-bench` builds it; put it beside keypadd")
        }
        _ => Error::new(
            Exit::Runtime,
            format!("bench: cannot run keypadd-bench: {}", system(&error)),
        ),
    }
}
