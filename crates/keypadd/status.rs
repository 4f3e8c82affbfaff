//! `keypadd status`: asks the daemons of this user for their figures and prints them. Reads only what the
//! text shows, so that it gets along with a daemon of another version.

mod text;
mod watch;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::StatusArgs;
use crate::control::{self, STATUS_REQUEST};
use crate::error::{Error, Exit, shown, system};
use crate::results::print;

/// A daemon answers within this time or is passed over.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints every daemon's figures, with `--watch` every second.
///
/// # Errors
/// Exit 5: no daemon answers, or none any more. Exit 1: standard output fails.
pub(crate) fn run(args: StatusArgs) -> Result<(), Error> {
    match args.watch {
        true => watch::run(&args),
        false => print(all(&args)?.as_bytes()).map(drop),
    }
}

/// Every daemon's figures as text or JSON.
fn all(args: &StatusArgs) -> Result<String, Error> {
    let daemons = match &args.socket {
        Some(path) => {
            let answer = control::ask(path, STATUS_REQUEST, PATIENCE).map_err(|error| {
                Error::new(Exit::Unreachable, silence(path, &error))
                    .hint("`keypadd status` without --socket lists the daemons of this user")
            })?;
            vec![(path.clone(), Ok(answer))]
        }
        None => find()?,
    };
    if !args.json {
        let texts: Vec<String> = daemons.into_iter().map(text).collect();
        return Ok(texts.join("\n"));
    }
    let answers: Vec<Value> = daemons.into_iter().filter_map(|(_, answer)| answer.ok()).collect();
    let document = json!({ "daemons": answers });
    Ok(if args.watch { format!("{document}\n") } else { format!("{document:#}\n") })
}

/// A socket, and what the daemon behind it answered.
type Asked = (PathBuf, io::Result<Value>);

/// Nobody answers for the daemons of this user.
pub(crate) fn none_found(cause: String) -> Error {
    Error::new(Exit::Unreachable, cause)
        .hint("start `keypadd serve`, `connect` or `run` as this user, or name a --socket")
}

fn find() -> Result<Vec<Asked>, Error> {
    let none = none_found;
    let directory = control::directory()
        .ok_or_else(|| none("no daemon found: XDG_RUNTIME_DIR is not set".into()))?;
    let sockets: Vec<PathBuf> = control::sockets(&directory);
    let asked = sockets.into_iter().map(|path| {
        let answer = control::ask(&path, STATUS_REQUEST, PATIENCE);
        (path, answer)
    });
    // Where nobody listens there is no daemon; one that is there and does not answer is worth a line.
    let gone = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    let there =
        |(_, answer): &Asked| !answer.as_ref().is_err_and(|error| gone.contains(&error.kind()));
    let daemons: Vec<Asked> = asked.filter(there).collect();
    match daemons.first() {
        None => Err(none(format!("no daemon found in {}", shown(directory.to_string_lossy())))),
        Some((path, Err(error))) if daemons.iter().all(|(_, answer)| answer.is_err()) => {
            Err(none(silence(path, error)))
        }
        Some(_) => Ok(daemons),
    }
}

/// Why there are no figures of the daemon behind a socket.
pub(crate) fn silence(path: &Path, error: &io::Error) -> String {
    let path = shown(path.to_string_lossy());
    match error.kind() {
        // A full queue and a read that took too long are one error number.
        ErrorKind::WouldBlock => format!("no daemon answers at {path}: it is stopped or too busy"),
        _ => format!("no daemon answers at {path}: {}", system(error)),
    }
}

/// The text for one daemon; an answer that is not understood hides no other daemon's.
fn text((path, answer): Asked) -> String {
    let foreign = |error: serde_json::Error| {
        let path = shown(path.to_string_lossy());
        format!("the answer at {path} is not understood: {error}\n")
    };
    match answer {
        Ok(document) => text::render(document).unwrap_or_else(foreign),
        Err(error) => silence(&path, &error) + "\n",
    }
}
