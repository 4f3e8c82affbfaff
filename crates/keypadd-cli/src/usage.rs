//! Rewrites clap's errors in our form: one line that names the flag and the value, one with a hint,
//! exit 2. Also prints help and the version, which clap returns as errors.

use std::error::Error as StdError;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use keypadd_config::values::BadValue;

use crate::error::{Error, Exit, is_private, shown};
use crate::keyfile::quoted_for_shell;

/// Flags that others expect, and ours.
const NAMED_OTHERWISE: [(&str, &str); 1] = [("--forward", "-L, -R or -D")];

/// Prints help or the version, or converts clap's error.
pub(crate) fn explain<T>(error: &clap::Error, program: Command) -> Result<Option<T>, Error> {
    let wrong = |cause: String| Error::new(Exit::Usage, cause);
    let flag = flag_name(error, ContextKind::InvalidArg, &program);
    let selected = SelectedCommand::read(program.clone());
    let help_line = || selected.help_line();
    let choices = |error| choices(error).unwrap_or_else(help_line);
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    Err(match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader such as `head` may have closed its end.
            let _ = error.print();
            return Ok(None);
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            wrong(format!("no {} given", selected.kind())).hint(selected.choices())
        }
        ErrorKind::InvalidSubcommand => {
            let verb = text(error, ContextKind::InvalidSubcommand);
            let cause = format!("{} is not a {}", shown(verb.unwrap_or_default()), selected.kind());
            wrong(cause).hint(match nearest(error).or_else(|| selected.for_flags_of_ssh()) {
                Some(near) => format!("did you mean `{} {near}`?", selected.typed),
                None => selected.choices(),
            })
        }
        ErrorKind::UnknownArgument => {
            let given = text(error, ContextKind::InvalidArg).unwrap_or_default();
            if is_private(given) {
                return Err(wrong("private keys are not allowed on the command line".into())
                    .hint("use --key to name the file that holds it"));
            }
            let thing = if given.starts_with('-') { "flag" } else { "argument" };
            let unknown = wrong(format!("unknown {thing} {}", shown(given)));
            let is_here = selected.has_flag("local");
            let renamed = NAMED_OTHERWISE.iter().find(|(name, _)| is_here && *name == given);
            let suggested = text(error, ContextKind::SuggestedArg);
            match renamed.map(|(_, ours)| *ours).or(suggested) {
                Some(near) => unknown.hint(format!("did you mean {near}?")),
                None if given.ends_with(".toml") && selected.has_flag("config") => {
                    let file = quoted_for_shell(Path::new(given));
                    unknown.hint(format!("did you mean --config {file}?"))
                }
                None => unknown.hint(match selected.for_flags_of_ssh() {
                    Some(verb) => format!("did you mean `{} {verb}`?", selected.typed),
                    None => help_line(),
                }),
            }
        }
        ErrorKind::ValueValidation => match error.source().and_then(|e| e.downcast_ref()) {
            Some(BadValue { cause, hint }) => wrong(format!("{flag}: {cause}")).hint(hint),
            None => wrong(format!("{flag}: {} is not valid", shown(value))).hint(help_line()),
        },
        ErrorKind::InvalidValue if value.is_empty() => {
            wrong(format!("{flag} requires a value")).hint(choices(error))
        }
        ErrorKind::InvalidValue => {
            wrong(format!("{flag}: {} is not a valid value", shown(value))).hint(choices(error))
        }
        ErrorKind::MissingRequiredArgument => wrong(format!("{flag} is missing")).hint(help_line()),
        ErrorKind::ArgumentConflict => {
            let other = flag_name(error, ContextKind::PriorArg, &program);
            let twice = format!("{flag} is given twice");
            let both = format!("{flag} and {other} cannot be used together");
            wrong(if flag == other { twice } else { both }).hint(help_line())
        }
        _ => {
            let whole = error.to_string();
            let first = whole.lines().next().unwrap_or_default();
            wrong(first.trim_start_matches("error: ").to_owned()).hint(help_line())
        }
    })
}

/// The flag as typed, or the variable that set it; clap names both `--pool <MODE>`.
fn flag_name(error: &clap::Error, kind: ContextKind, program: &Command) -> String {
    let Some(full) = text(error, kind) else { return "a value".into() };
    let flag = full.split(' ').next().unwrap_or_default().trim_end_matches("...");
    let Some(name) = flag.strip_prefix("--") else {
        let optional = flag.strip_prefix('[').and_then(|flag| flag.strip_suffix(']'));
        return optional.unwrap_or(flag).trim_matches(['<', '>']).to_owned();
    };
    let typed = |wanted: &dyn Fn(&str) -> bool| arguments().any(|argument| wanted(&argument));
    let variable = format!("KEYPADD_{}", name.to_uppercase().replace('-', "_"));
    let short = short_of(name, program).map(|short| format!("-{short}"));
    if typed(&|argument| argument.split('=').next() == Some(flag)) {
        flag.to_owned()
    } else if let Some(short) = short.filter(|short| typed(&|argument| argument.starts_with(short)))
    {
        short
    } else if std::env::var_os(&variable).is_some_and(|value| !value.is_empty()) {
        variable
    } else {
        flag.to_owned()
    }
}

/// The arguments as typed; what is no text is replaced.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned())
}

/// The letter of a flag, such as `L` for `local`.
fn short_of(name: &str, program: &Command) -> Option<char> {
    let mut flags = program.get_subcommands().flat_map(Command::get_arguments);
    flags.find(|flag| flag.get_long() == Some(name)).and_then(clap::Arg::get_short)
}

/// A part of clap's context; for a list, the first entry.
fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(texts) => texts.first().map(String::as_str),
        _ => None,
    }
}

/// The command that was probably meant: clap lists the most likely one last.
fn nearest(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::Strings(texts) => texts.last().map(String::as_str),
        _ => text(error, ContextKind::SuggestedSubcommand),
    }
}

/// The value that was probably meant, and all valid ones, if clap knows them.
fn choices(error: &clap::Error) -> Option<String> {
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => {
            let all = format!("expected one of {}", values.join(", "));
            Some(match text(error, ContextKind::SuggestedValue) {
                Some(near) => format!("did you mean {near}? {all}"),
                None => all,
            })
        }
        _ => None,
    }
}

/// The command named by the arguments: `bench terminal`, `bench`, or none.
struct SelectedCommand {
    typed: String,
    command: Command,
}

impl SelectedCommand {
    fn read(mut command: Command) -> Self {
        let mut typed = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
        for argument in arguments() {
            if let Some(below) = command.find_subcommand(&argument).cloned() {
                typed = format!("{typed} {}", below.get_name());
                command = below;
            }
        }
        Self { typed, command }
    }

    /// Points to the help of the command.
    fn help_line(&self) -> String {
        let Self { typed, command } = self;
        let what = if command.get_name() == "keypadd" { "the commands" } else { "the flags" };
        format!("see `{typed} --help` for {what} and an example")
    }

    fn has_flag(&self, name: &str) -> bool {
        self.command.get_arguments().any(|flag| flag.get_long() == Some(name))
    }

    /// The subcommand that ssh's flags of forwards are for: ssh itself has none.
    fn for_flags_of_ssh(&self) -> Option<&str> {
        let is_one =
            |typed: String| ["-L", "-R", "-D", "-W"].iter().any(|flag| typed.starts_with(flag));
        let connect = self.command.find_subcommand("connect")?;
        arguments().any(is_one).then(|| connect.get_name())
    }

    /// What its subcommands are called in help.
    fn kind(&self) -> String {
        self.command.get_subcommand_value_name().unwrap_or("COMMAND").to_lowercase()
    }

    fn choices(&self) -> String {
        let names: Vec<_> = self.command.get_subcommands().map(Command::get_name).collect();
        format!("expected one of {}; see `{} --help`", names.join(", "), self.typed)
    }
}
