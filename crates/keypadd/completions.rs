//! `keypadd completions`: what a shell completes, made from the definition that parsing uses.

use clap_complete::Shell;

use crate::cli::{self, CompletedShell, CompletionsArgs};
use crate::error::Error;
use crate::results::print;

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
    print(&script).map(drop)
}
