//! `keypadd completions`: prints shell completions, generated from the definition of the command
//! line, which also complete suites, key exchanges and the names of peers.
//!
//! A name is looked up when it is completed: the script asks `keypadd completions peers`.

use clap::builder::PossibleValuesParser;
use clap::{Command, ValueHint};
use clap_complete::Shell;
use keypadd_cli::error::Error;
use keypadd_cli::results::print;
use keypadd_keystream::Suite;
use keypadd_provider::KeyExchange;

use crate::command_line::configfile;
use crate::command_line::{self, CompletedShell, CompletionsArgs};

/// Appended to the script for bash, which may treat `@` as a word boundary.
const BASH: &str = r#"
_keypadd_named() {
    local typed="${COMP_LINE:0:COMP_POINT}"
    typed="${typed##*[[:space:]]}"
    if [[ "$typed" != @* ]]; then
        _keypadd "$@"
        return
    fi
    COMPREPLY=($(compgen -W "$(keypadd completions peers 2>/dev/null)" -- "$typed"))
    if [[ "$COMP_WORDBREAKS" == *@* ]]; then
        COMPREPLY=("${COMPREPLY[@]#@}")
    fi
}
complete -F _keypadd_named -o bashdefault -o default keypadd
"#;

const FISH: &str = concat!(
    r#"complete -c keypadd -n "__fish_seen_subcommand_from connect forward" -f "#,
    r#"-a "(keypadd completions peers 2>/dev/null)""#,
    "\n",
);

/// Inserted before the end of the zsh script, which calls it for the servers of `connect`.
const ZSH: &str = r#"_keypadd_peers() {
    compadd -- ${(f)"$(keypadd completions peers 2>/dev/null)"}
    _hosts
}

if [ "$funcstack[1]""#;

/// Prints a shell's completion script, or the names of the file's peers.
///
/// # Errors
/// Exit 1: standard output fails.
pub(crate) fn run(args: CompletionsArgs) -> Result<(), Error> {
    let text = match args.shell {
        CompletedShell::Bash => generated(Shell::Bash) + BASH,
        CompletedShell::Zsh => generated(Shell::Zsh)
            .replace(":_hosts'", ":_keypadd_peers'")
            .replace("if [ \"$funcstack[1]\"", ZSH),
        CompletedShell::Fish => generated(Shell::Fish) + FISH,
        CompletedShell::Peers => peers().unwrap_or_default(),
    };
    print(text.as_bytes()).map(drop)
}

fn generated(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "keypadd", &mut script);
    String::from_utf8(script).expect("clap writes text")
}

/// The command line, with the names that only its parsers know.
fn definition() -> Command {
    let named = |arg: clap::Arg| match arg.get_id().as_str() {
        "suite" => arg.value_parser(PossibleValuesParser::new(Suite::ALL.map(Suite::name))),
        "kex" => {
            arg.value_parser(PossibleValuesParser::new(KeyExchange::ALL.map(KeyExchange::name)))
        }
        "server" => arg.value_hint(ValueHint::Hostname),
        _ => arg,
    };
    command_line::definition().mut_subcommands(|verb| match verb.get_name() {
        "forward" => verb.mut_arg("peer", |peer| peer.value_hint(ValueHint::Hostname)),
        _ => verb.mut_args(named),
    })
}

/// The peers to connect to, one per line; none if the file cannot be read, since a shell shows no
/// error.
fn peers() -> Option<String> {
    let given = std::env::var_os("KEYPADD_CONFIG").filter(|file| !file.is_empty());
    let file = configfile::place(given.map(Into::into)).ok()?;
    let (config, _) = configfile::read_without_key(&file).ok()?;
    let dialed = config.peers.iter().filter(|peer| peer.outgoing.is_some());
    Some(dialed.map(|peer| format!("@{}\n", peer.name)).collect())
}
