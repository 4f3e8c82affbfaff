//! `keypadd completions`: prints shell completions, generated from the definition of the command
//! line.

use clap_complete::Shell;

use crate::cli::{self, CompletedShell, CompletionsArgs};
use crate::error::Error;
use crate::results::print;

/// Prints a shell's completion script.
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
