//! `keypadd drain`: stops running servers from accepting new sessions, or lets them accept
//! again, over their control sockets.

use std::path::Path;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, one_line};
use keypadd_cli::results::print;
use keypadd_config::values;
use serde::Deserialize;

use crate::command_line::{DrainArgs, checked};
use crate::control::drain::{Drained, FOR, OFF, ON};
use crate::control::runtime_directory;
use crate::control::{self, DRAIN_REQUEST};
use crate::verbs::status::{none_found, unanswered};

/// How long a daemon may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A daemon's answer; the fields present tell the outcome.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    #[serde(flatten)]
    drained: Option<Drained>,
    /// The command of a daemon that has no server.
    no_server: Option<String>,
    error: Option<String>,
}

/// Asks one daemon, or all of this user's that are servers.
///
/// # Errors
/// Exit 2: the time is not one, or the daemon is not a server. Exit 5: no server answers.
pub(crate) fn run(args: DrainArgs) -> Result<(), Error> {
    let time = args.time.as_deref().map(|time| checked("--for", values::duration(time)));
    let request = match time.transpose()? {
        _ if args.off => format!("{DRAIN_REQUEST} {OFF}"),
        Some(time) => format!("{DRAIN_REQUEST} {FOR} {}", time.as_secs_f64().ceil()),
        None => format!("{DRAIN_REQUEST} {ON}"),
    };
    let is_given = args.socket.is_some();
    let sockets = args.socket.map_or_else(runtime_directory::all_sockets, |path| vec![path]);
    let mut asked = 0;
    for path in sockets {
        let answer = match ask(&path, &request) {
            // One that has just exited.
            Err(_) if !is_given => continue,
            answer => answer?,
        };
        match answer {
            Answer { drained: Some(drained), .. } => {
                asked += 1;
                print(line(&path, &drained).as_bytes())?;
            }
            Answer { no_server: Some(_), .. } if !is_given => {}
            Answer { no_server: Some(verb), .. } => {
                let cause = format!("this `keypadd {}` is not a server", one_line(&verb));
                let hint = "give the --socket of a daemon that listens";
                return Err(Error::new(Exit::Usage, cause).hint(hint));
            }
            Answer { error, .. } => {
                let error = error.unwrap_or_else(|| "invalid answer".into());
                return Err(Error::new(Exit::Runtime, one_line(&error)));
            }
        }
    }
    match asked {
        0 => Err(none_found("no server found".into(), "`keypadd serve` or `run`")),
        _ => Ok(()),
    }
}

fn line(path: &Path, drained: &Drained) -> String {
    let Drained { draining, sessions, connections } = drained;
    let what = if *draining { "draining" } else { "accepts new sessions" };
    let path = one_line(&path.display().to_string());
    format!("{path}: {what}; sessions {sessions}, open connections {connections}\n")
}

fn ask(socket: &Path, request: &str) -> Result<Answer, Error> {
    control::ask(socket, request, TIMEOUT).map_err(|error| unanswered(socket, &error))
}
