//! `keypadd completions`: what a shell completes, made from the definition that parsing uses.

use std::io::{self, ErrorKind, Write};

use clap_complete::Shell;

use crate::cli::{self, CompletedShell, CompletionsArgs};
use crate::error::{Error, Exit, system};

/// Prints them.
///
/// # Errors
/// Exit 1: standard output fails.
pub(crate) fn run(args: CompletionsArgs) -> Result<(), Error> {
    let shell = match args.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::definition(), "keypadd", &mut script);
    print(&script)
}

/// Writes a result. A reader that has gone away, such as `head`, is not a failure.
///
/// # Errors
/// Exit 1: standard output fails.
pub(crate) fn print(text: &[u8]) -> Result<(), Error> {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::new(
            Exit::Runtime,
            format!("cannot write to standard output: {}", system(&error)),
        )),
        _ => Ok(()),
    }
}
