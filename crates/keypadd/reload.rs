//! `keypadd reload`: asks daemons that run from a file to read it again, and says what came of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::cli::ReloadArgs;
use crate::control::{self, RELOAD_PATIENCE, RELOAD_REQUEST};
use crate::error::{Error, Exit, one_line, shown};
use crate::results::print;
use crate::status::{none_found, silence};

/// The daemon gives up first, and says so.
const PATIENCE: Duration = RELOAD_PATIENCE.saturating_add(Duration::from_secs(5));

/// What a daemon answers; which fields there are says how it went.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    file: Option<String>,
    changed: Vec<String>,
    restart: Vec<String>,
    /// What does not work, and did not before.
    warnings: Vec<String>,
    /// The error's text, when the old settings stay in force.
    refused: Option<String>,
    exit: u8,
    /// The verb of a daemon that runs without a file.
    no_file: Option<String>,
    error: Option<String>,
}

/// Has one daemon reload, or all of this user's that have a file.
///
/// # Errors
/// Exit 3: a file cannot be used; its daemon goes on with the old settings. Exit 6: likewise, an address
/// cannot be bound. Exit 5: no daemon answers. Exit 2: the daemon has no file.
pub(crate) fn run(args: ReloadArgs) -> Result<(), Error> {
    let sockets = match &args.socket {
        Some(path) => vec![path.clone()],
        None => find()?,
    };
    let mut failed: Option<Error> = None;
    let (mut reloaded, mut without) = (0, None);
    for path in sockets {
        match control::ask(&path, RELOAD_REQUEST, PATIENCE) {
            Ok(Answer { no_file: Some(verb), .. }) => without = Some(verb),
            Ok(answer) => match outcome(&path, answer) {
                Ok(text) => {
                    reloaded += 1;
                    print(text.as_bytes())?;
                }
                Err(error) => failed = Some(also(failed, error)),
            },
            // Of all daemons, one that has just ended is not missed.
            Err(_) if args.socket.is_none() => {}
            Err(error) => {
                failed = Some(also(failed, Error::new(Exit::Unreachable, silence(&path, &error))));
            }
        }
    }
    match failed {
        Some(error) => Err(error),
        None if reloaded > 0 => Ok(()),
        None => Err(match without {
            Some(verb) => Error::new(
                Exit::Usage,
                format!("`keypadd {}` runs without a configuration file", one_line(&verb)),
            )
            .hint("start it again with other flags, or use `keypadd run`"),
            None => none_found("no daemon found".into()),
        }),
    }
}

fn also(before: Option<Error>, error: Error) -> Error {
    match before {
        Some(before) => before.and(error),
        None => error,
    }
}

/// The sockets of this user's daemons.
fn find() -> Result<Vec<PathBuf>, Error> {
    let directory = control::directory()
        .ok_or_else(|| none_found("no daemon found: XDG_RUNTIME_DIR is not set".into()))?;
    let sockets = control::sockets(&directory);
    if sockets.is_empty() {
        let directory = shown(directory.to_string_lossy());
        return Err(none_found(format!("no daemon found in {directory}")));
    }
    Ok(sockets)
}

/// What a person reads, or why nothing was reloaded.
fn outcome(path: &Path, answer: Answer) -> Result<String, Error> {
    if let Some(refused) = answer.refused {
        // The daemon's own error, word for word.
        let exit =
            if answer.exit == Exit::BindFailed as u8 { Exit::BindFailed } else { Exit::Config };
        let lines = refused.lines().map(|line| (line.to_owned(), None));
        return Err(Error::listed(exit, lines)
            .and(Error::new(exit, "nothing was reloaded: the old settings stay in force")));
    }
    let Some(file) = answer.file else {
        let error = answer.error.unwrap_or_else(|| "its answer is not understood".into());
        let path = shown(path.to_string_lossy());
        return Err(Error::new(Exit::Runtime, format!("the daemon at {path}: {error}")));
    };
    let mut lines = vec![format!("reloaded {file}")];
    lines.extend(answer.changed.iter().map(|line| format!("  {line}")));
    if answer.changed.is_empty() && answer.restart.is_empty() {
        lines.push("  nothing has changed".into());
    }
    if !answer.restart.is_empty() {
        lines.push(format!("  not until a restart: {}", answer.restart.join(", ")));
    }
    lines.extend(answer.warnings.iter().map(|line| format!("  {line}")));
    Ok(lines.iter().map(|line| one_line(line) + "\n").collect())
}
