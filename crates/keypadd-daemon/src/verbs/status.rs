//! `keypadd status`: queries this user's daemons and prints their status.

mod screen;
mod watch;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, one_line, shown, system};
use keypadd_cli::results::print;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::command_line::StatusArgs;
use crate::control::runtime_directory;
use crate::control::{self, STATUS_REQUEST};
use crate::status::text::render;

/// Timeout of a query.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints the status of every daemon, with `--watch` every second.
///
/// # Errors
/// Exit 5: no daemon answers, or a daemon is not connected to one of its peers (without `--watch`).
/// Exit 1: standard output fails.
pub(crate) fn run(args: StatusArgs) -> Result<(), Error> {
    if args.watch {
        return watch::run(&args);
    }
    let daemons = query(args.socket.as_deref(), STATUS_REQUEST)?;
    let down: Vec<String> = daemons.iter().flat_map(|(_, answer)| peers_down(answer)).collect();
    print(show(&args, daemons).as_bytes())?;
    match down.is_empty() {
        true => Ok(()),
        false => Err(Error::new(Exit::Unreachable, format!("not connected: {}", down.join(", ")))),
    }
}

/// The peers that a daemon should be connected to but is not.
fn peers_down(answer: &io::Result<Value>) -> Vec<String> {
    let links = answer.as_ref().ok().and_then(|document| document["links"].as_array());
    let down = links.into_iter().flatten().filter(|link| link["state"] != "connected");
    down.map(|link| shown(link["peer"].as_str().unwrap_or_default())).collect()
}

/// Asks every daemon, or the one of `--socket`.
///
/// # Errors
/// Exit 5: none answers.
pub(super) fn query(socket: Option<&Path>, request: &str) -> Result<Vec<DaemonAnswer>, Error> {
    match socket {
        Some(path) => {
            let answer =
                control::ask(path, request, PATIENCE).map_err(|error| unanswered(path, &error))?;
            Ok(vec![(path.to_owned(), Ok(answer))])
        }
        None => find(request),
    }
}

/// The status of every daemon as text or JSON, with `--watch` on one line.
fn show(args: &StatusArgs, daemons: Vec<DaemonAnswer>) -> String {
    match args.json && args.watch {
        true => format!("{}\n", document(daemons)),
        false => listed(daemons, args.json, render),
    }
}

/// What every daemon has answered, as text or JSON.
pub(super) fn listed<D: DeserializeOwned>(
    daemons: Vec<DaemonAnswer>,
    json: bool,
    render: impl Fn(D) -> String,
) -> String {
    if json {
        return format!("{:#}\n", document(daemons));
    }
    let texts: Vec<_> = daemons.into_iter().map(|answer| text(answer, &render)).collect();
    texts.join("\n")
}

fn document(daemons: Vec<DaemonAnswer>) -> Value {
    let answers: Vec<Value> = daemons.into_iter().filter_map(|(_, answer)| answer.ok()).collect();
    json!({ "daemons": answers })
}

/// A socket and the answer of its daemon.
pub(super) type DaemonAnswer = (PathBuf, io::Result<Value>);

/// Any command that runs a daemon, for [`none_found`].
pub(crate) const ANY_DAEMON: &str = "`keypadd serve`, `connect` or `run`";

/// The error if no daemon of this user answers; `commands` start one that would.
pub(crate) fn none_found(cause: String, commands: &str) -> Error {
    Error::new(Exit::Unreachable, cause)
        .hint(format!("start {commands} as this user, or give a --socket"))
}

fn find(request: &str) -> Result<Vec<DaemonAnswer>, Error> {
    let answers = runtime_directory::all_sockets().into_iter().map(|path| {
        let answer = control::ask(&path, request, PATIENCE);
        (path, answer)
    });
    // Skips sockets without a daemon; a daemon that does not answer gets a line.
    let gone = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    let is_running = |(_, answer): &DaemonAnswer| {
        !answer.as_ref().is_err_and(|error| gone.contains(&error.kind()))
    };
    let daemons: Vec<DaemonAnswer> = answers.filter(is_running).collect();
    match daemons.first() {
        None => Err(none_found(runtime_directory::nothing_in_any(), ANY_DAEMON)),
        Some((path, Err(error))) if daemons.iter().all(|(_, answer)| answer.is_err()) => {
            Err(none_found(no_answer(path, error), ANY_DAEMON))
        }
        Some(_) => Ok(daemons),
    }
}

/// What has happened to a daemon that took a request and closed the connection without an answer.
pub(crate) fn why_closed(path: &Path) -> &'static str {
    match control::is_listening(path) {
        true => "it gave no answer: it is shutting down, or its log says why",
        false => "it has exited, or another process has just replaced it",
    }
}

/// The error of a command that needs the daemon of this socket.
pub(crate) fn unanswered(path: &Path, error: &io::Error) -> Error {
    let unanswered = Error::new(Exit::Unreachable, no_answer(path, error));
    match error.kind() {
        // It is there.
        ErrorKind::WouldBlock | ErrorKind::UnexpectedEof | ErrorKind::InvalidData => unanswered,
        _ => unanswered.hint("run `keypadd status` without --socket to list your daemons"),
    }
}

/// Why the daemon of a socket did not answer.
pub(crate) fn no_answer(path: &Path, error: &io::Error) -> String {
    let shown = shown(path.to_string_lossy());
    match error.kind() {
        // A full queue and a read timeout have the same error code.
        ErrorKind::WouldBlock => {
            format!("no answer from the daemon at {shown}: it is stopped or too busy")
        }
        ErrorKind::UnexpectedEof => format!("the daemon at {shown}: {}", why_closed(path)),
        ErrorKind::InvalidData => {
            one_line(&format!("invalid answer from the daemon at {shown}: {error}"))
        }
        _ => format!("cannot connect to the daemon at {shown}: {}", system(error)),
    }
}

/// The text for one daemon; an invalid answer does not hide the others.
fn text<D: DeserializeOwned>((path, answer): DaemonAnswer, render: impl Fn(D) -> String) -> String {
    let foreign = |error: serde_json::Error| {
        let path = shown(path.to_string_lossy());
        one_line(&format!("invalid answer from the daemon at {path}: {error}")) + "\n"
    };
    match answer {
        Ok(document) => serde_json::from_value(document).map_or_else(foreign, render),
        Err(error) => no_answer(&path, &error) + "\n",
    }
}
