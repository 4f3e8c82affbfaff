//! `keypadd reload`: makes daemons reload their file, or replaces them with a new process, and
//! prints what changed.

mod replace;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, one_line, shown};
use keypadd_cli::results::print;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::command_line::ReloadArgs;
use crate::control::runtime_directory;
use crate::control::{self, RELOAD_REQUEST, RELOAD_TIMEOUT, STATUS_REQUEST};
use crate::verbs::status::{ANY_DAEMON, no_answer, none_found, unanswered};

use replace::{Replaced, replace};

/// Longer than the daemon's own timeout, so that its error arrives.
const TIMEOUT: Duration = RELOAD_TIMEOUT.saturating_add(Duration::from_secs(5));

/// How long a daemon may take to show that it is running. A stopped one is given up on after that.
const PATIENCE: Duration = Duration::from_secs(8);

/// Timeout of each query while another host waits for the outcome.
const WAITED_FOR: Duration = Duration::from_secs(3);

/// A daemon's answer; the fields present tell the outcome.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    file: Option<String>,
    changed: Vec<String>,
    /// What a new process would apply, also if this one has refused the file.
    restart: Vec<String>,
    /// Problems that the reload did not fix.
    warnings: Vec<String>,
    /// The error, if the old settings stay in force.
    refused: Option<String>,
    exit: u8,
    /// The command of a daemon without a file.
    no_file: Option<String>,
    error: Option<String>,
}

/// Reloads one daemon, or all of this user's that have a file.
///
/// # Errors
/// Exit 3: a file is invalid; exit 6: an address cannot be bound; in both cases the old settings
/// stay in force. Exit 5: no daemon answers. Exit 2: the daemon has no file.
pub(crate) fn run(args: ReloadArgs) -> Result<(), Error> {
    let sockets = match &args.socket {
        Some(path) => vec![path.clone()],
        None => find()?,
    };
    let mut failed: Option<Error> = None;
    let (mut reloaded, mut without) = (0, None);
    for path in sockets {
        match reload(&path, &args) {
            Ok(Done::Prints(text)) => {
                reloaded += 1;
                print(text.as_bytes())?;
            }
            Ok(Done::WithoutFile(verb)) => without = Some(verb),
            Ok(Done::Gone) => {}
            Err(error) => failed = Some(also(failed, error)),
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
            .hint("restart it with new flags, or use `keypadd run`"),
            None => none_found("no daemon found".into(), ANY_DAEMON),
        }),
    }
}

/// What happened to one daemon.
enum Done {
    /// The daemon has reloaded or was replaced; prints this.
    Prints(String),
    /// The daemon runs this command, without a file.
    WithoutFile(String),
    /// The daemon has just exited.
    Gone,
}

/// Reloads the daemon of one socket, or replaces it.
fn reload(path: &Path, args: &ReloadArgs) -> Result<Done, Error> {
    // If all daemons are reloaded, one that has just exited is no error.
    let is_the_one = args.socket.is_some();
    let status: io::Result<IgnoredAny> = control::ask(path, STATUS_REQUEST, PATIENCE);
    let nobody = [ErrorKind::NotFound, ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied];
    if let Err(error) = status
        && (error.kind() == ErrorKind::WouldBlock || is_the_one && nobody.contains(&error.kind()))
    {
        return Err(unanswered(path, &error));
    }
    let (mut same, mut not_replaced) = (false, None);
    if args.binary {
        match replace(path, false)? {
            Replaced::Started(text) => return Ok(Done::Prints(text)),
            Replaced::Same => same = true,
            Replaced::Failed(cause) if is_the_one => return Err(cause),
            Replaced::Failed(cause) => not_replaced = Some(cause),
        }
    }
    match control::ask(path, RELOAD_REQUEST, TIMEOUT) {
        Ok(Answer { no_file: Some(verb), .. }) if same => {
            Ok(Done::Prints(format!("`keypadd {}` runs this program already\n", one_line(&verb))))
        }
        Ok(Answer { no_file: Some(verb), .. }) => Ok(Done::WithoutFile(verb)),
        Ok(answer) if same && !answer.restart.is_empty() => match replace(path, true)? {
            Replaced::Started(text) => Ok(Done::Prints(text)),
            Replaced::Same => Ok(Done::Gone),
            Replaced::Failed(cause) => Err(cause),
        },
        // It was reloaded, but the user asked for a replacement.
        Ok(answer) => {
            outcome(path, answer).and_then(|text| not_replaced.map_or(Ok(Done::Prints(text)), Err))
        }
        // Unless it had taken the request: then the process that has replaced it may run an earlier
        // file.
        Err(error)
            if !is_the_one
                && ![ErrorKind::UnexpectedEof, ErrorKind::InvalidData].contains(&error.kind()) =>
        {
            Ok(Done::Gone)
        }
        Err(error) => Err(unanswered(path, &error)),
    }
}

/// What happened to a changed file in the daemon that runs it.
#[derive(Debug)]
pub(crate) enum Reloaded {
    /// No daemon of this user runs the file.
    NoDaemon,
    /// The daemon applies all but these settings, which wait for a restart.
    Applied(Vec<String>),
    /// The old settings stay in force.
    Refused(String),
}

/// A daemon that runs a file.
pub(crate) struct RunsFile {
    pub(crate) socket: PathBuf,
    pub(crate) pid: u64,
}

impl RunsFile {
    /// The one behind these sockets that runs this file; takes a few seconds at most.
    pub(crate) fn find(file: &Path, sockets: Vec<PathBuf>) -> Option<Self> {
        let file = canonical(file);
        sockets.into_iter().find_map(|socket| {
            let status: Value = control::ask(&socket, STATUS_REQUEST, WAITED_FOR).ok()?;
            let place = (status["verb"] == "run").then(|| status["place"].as_str())??;
            let pid = status["pid"].as_u64()?;
            (canonical(Path::new(place)) == file).then_some(Self { socket, pid })
        })
    }
}

/// Reloads the daemon of this user that runs this file; takes a few seconds at most.
pub(crate) fn reload_file(file: &Path) -> Reloaded {
    let Some(RunsFile { socket, .. }) = RunsFile::find(file, runtime_directory::all_sockets())
    else {
        return Reloaded::NoDaemon;
    };
    match control::ask(&socket, RELOAD_REQUEST, WAITED_FOR) {
        Ok(Answer { refused: None, file: Some(_), restart, .. }) => Reloaded::Applied(restart),
        Ok(Answer { refused, error, .. }) => {
            let cause = refused.or(error).unwrap_or_else(|| "invalid answer".into());
            let first = cause.lines().next().unwrap_or_default();
            Reloaded::Refused(first.trim_start_matches("keypadd: ").to_owned())
        }
        Err(error) => Reloaded::Refused(no_answer(&socket, &error)),
    }
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn also(before: Option<Error>, error: Error) -> Error {
    match before {
        Some(before) => before.and(error),
        None => error,
    }
}

/// The sockets of this user's daemons.
fn find() -> Result<Vec<PathBuf>, Error> {
    let sockets = runtime_directory::all_sockets();
    if sockets.is_empty() {
        Err(none_found(runtime_directory::nothing_in_any(), ANY_DAEMON))
    } else {
        Ok(sockets)
    }
}

/// The text of an answer, or the error in it.
fn outcome(path: &Path, answer: Answer) -> Result<String, Error> {
    if let Some(refused) = answer.refused {
        let exit =
            if answer.exit == Exit::BindFailed as u8 { Exit::BindFailed } else { Exit::Config };
        let lines = refused.lines().map(|line| (line.to_owned(), None));
        return Err(Error::listed(exit, lines)
            .and(Error::new(exit, "reload failed; the old settings remain in effect")));
    }
    let Some(file) = answer.file else {
        let error = answer.error.unwrap_or_else(|| "invalid answer".into());
        let path = shown(path.to_string_lossy());
        return Err(Error::new(Exit::Runtime, format!("the daemon at {path}: {error}")));
    };
    let mut lines = vec![format!("reloaded {file}")];
    lines.extend(answer.changed.iter().map(|line| format!("  {line}")));
    if answer.changed.is_empty() && answer.restart.is_empty() {
        lines.push("  no changes".into());
    }
    if !answer.restart.is_empty() {
        let restart = answer.restart.join(", ");
        lines.push(format!("  restart to apply, as with `keypadd reload --binary`: {restart}"));
    }
    lines.extend(answer.warnings.iter().map(|line| format!("  {line}")));
    Ok(lines.iter().map(|line| one_line(line) + "\n").collect())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_daemon_that_gives_an_invalid_answer_has_not_exited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for request in [STATUS_REQUEST, RELOAD_REQUEST] {
                    let (mut client, _) = listener.accept().unwrap();
                    client.read_exact(&mut vec![0; request.len() + 1]).unwrap();
                    client.write_all(b"?").unwrap();
                }
            });
            let reloaded = reload(&path, &ReloadArgs { socket: None, binary: false });
            let error = reloaded.err().unwrap().to_string();
            assert!(error.contains("invalid answer from the daemon at"), "{error}");
        });
    }
}
