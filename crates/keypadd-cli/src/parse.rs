//! Parses arguments and environment variables according to a program's clap definition. For every
//! program, an empty variable counts as unset, and help never shows the values of variables.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches};

use crate::error::Error;
use crate::usage;

/// Reads the process's arguments and variables.
///
/// `Ok(None)` after printing help or the version.
///
/// # Errors
/// Exit 2, with the flag and the value in the cause.
pub fn read<C: CommandFactory + FromArgMatches>() -> Result<Option<C>, Error> {
    let matches = definition::<C>().try_get_matches_from(arguments(std::env::args_os()));
    match matches.and_then(|matches| C::from_arg_matches(&matches)) {
        Ok(cli) => Ok(Some(cli)),
        Err(error) => usage::explain(&error, C::command()),
    }
}

/// The arguments, with `help VERB` as `VERB --help`.
fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = given.collect();
    if arguments.get(1).is_some_and(|first| first == "help") {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}

/// The command for parsing and help. Help does not show the current values of variables, and an
/// empty variable counts as unset.
fn definition<C: CommandFactory>() -> clap::Command {
    let adjust = |arg: clap::Arg| {
        let empty = |name| std::env::var_os(name).is_some_and(|value| value.is_empty());
        match arg.get_env().is_some_and(empty) {
            true => arg.env(Resettable::Reset),
            false => arg.hide_env_values(true),
        }
    };
    adjust_all(C::command(), adjust)
}

fn adjust_all(command: clap::Command, adjust: fn(clap::Arg) -> clap::Arg) -> clap::Command {
    command.mut_args(adjust).mut_subcommands(|verb| adjust_all(verb, adjust))
}

/// Inconsistencies in a program's definition, for that program's own test: a long flag whose
/// variable is not named after it, or a verb whose help has no example. `called` is the program's
/// name in the examples.
pub fn inconsistencies(program: &clap::Command, called: &str) -> Vec<String> {
    let mut found = Vec::new();
    for verb in program.get_subcommands() {
        for flag in verb.get_arguments() {
            let Some(long) = flag.get_long() else { continue };
            let name = format!("KEYPADD_{}", long.to_uppercase().replace('-', "_"));
            if flag.get_env().is_none_or(|variable| variable != name.as_str()) {
                found.push(format!("{} --{long} has no variable {name}", verb.get_name()));
            }
        }
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        let example = format!("{called} {}", verb.get_name());
        if !help.contains(&example) {
            found.push(format!("no example of {example}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_on_a_verb_is_asked_for_in_either_order() {
        for (given, read) in [
            ("keypadd help", "keypadd --help"),
            ("keypadd help serve", "keypadd serve --help"),
            ("keypadd serve help", "keypadd serve help"),
            ("keypadd", "keypadd"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(arguments(words(given).into_iter()), words(read));
        }
    }
}
