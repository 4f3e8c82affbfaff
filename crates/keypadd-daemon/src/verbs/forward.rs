//! `keypadd forward`: lists, adds and removes forwards of a running daemon, over its control
//! socket.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, one_line};
use keypadd_cli::results::print;
use keypadd_config::nearest;
use serde::Deserialize;

use crate::command_line::{ForwardAction, ForwardArgs};
use crate::control::forwards::{LIST, ListedForward, PeerForwards};
use crate::control::runtime_directory;
use crate::control::{self, FORWARD_REQUEST};
use crate::verbs::status::{none_found, unanswered};

/// Longer than binding takes, with names to resolve.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A daemon's answer; the fields present tell the outcome.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    links: Option<Vec<PeerForwards>>,
    /// What is not done yet.
    note: Option<String>,
    refused: Option<String>,
    hint: Option<String>,
    exit: u8,
    error: Option<String>,
}

/// Asks the daemons.
///
/// # Errors
/// Exit 2: no such peer or forward, or no peer is named and there are several. Exit 4: the server
/// does not permit a remote forward. Exit 5: no daemon answers. Exit 6: the address cannot be
/// bound, here or by the server.
pub(crate) fn run(args: ForwardArgs) -> Result<(), Error> {
    let daemons = daemons(args.socket.clone())?;
    let peer = args.peer.as_deref();
    let forwards = args.forwards();
    if args.action == ForwardAction::List {
        if !forwards.is_empty() {
            return Err(Error::new(Exit::Usage, "`list` takes no forward"));
        }
        let links = daemons.iter().flat_map(|(_, links)| links);
        let wanted = links.filter(|link| peer.is_none_or(|name| name == link.peer));
        return print(wanted.flat_map(lines).collect::<String>().as_bytes()).map(drop);
    }
    let (socket, name) = pick(&daemons, peer)?;
    if forwards.is_empty() {
        return Err(Error::new(Exit::Usage, "the forward is missing")
            .hint("give -L, -R or -D, as in -L 2222:localhost:22"));
    }
    for forward in forwards {
        let request = format!("{FORWARD_REQUEST} {} {name} {forward}", args.action.verb());
        let links = match ask(&socket, &request)? {
            Answer { links: Some(links), note, .. } => {
                if let Some(note) = note {
                    let _ = writeln!(io::stderr().lock(), "{}", one_line(&note));
                }
                links
            }
            Answer { refused: Some(refused), hint, exit, .. } => {
                let exit = if exit == 0 { Exit::Usage } else { Exit::of(exit) };
                let error = Error::new(exit, one_line(&refused));
                return Err(match hint {
                    Some(hint) => error.hint(one_line(&hint)),
                    None => error,
                });
            }
            answer => {
                let error = answer.error.unwrap_or_else(|| "invalid answer".into());
                return Err(Error::new(Exit::Runtime, one_line(&error)));
            }
        };
        print(links.iter().flat_map(lines).collect::<String>().as_bytes())?;
    }
    Ok(())
}

/// A link's forwards, one a line.
fn lines(link: &PeerForwards) -> impl Iterator<Item = String> + '_ {
    link.forwards.iter().map(|ListedForward { forward, listen }| {
        let place = match &listen[..] {
            [] => String::new(),
            listen => format!("  listening on {}", listen.join(", ")),
        };
        one_line(&format!("@{} {forward}{place}", link.peer)) + "\n"
    })
}

/// The daemons that connect to peers, and those peers.
fn daemons(given: Option<PathBuf>) -> Result<Vec<(PathBuf, Vec<PeerForwards>)>, Error> {
    let is_given = given.is_some();
    let sockets = match given {
        Some(socket) => vec![socket],
        None => runtime_directory::all_sockets(),
    };
    let mut daemons = Vec::new();
    for socket in sockets {
        match ask(&socket, &format!("{FORWARD_REQUEST} {LIST}")) {
            Ok(Answer { links: Some(links), .. }) => daemons.push((socket, links)),
            Err(error) if is_given => return Err(error),
            // One that only serves, or has just exited.
            _ => {}
        }
    }
    match daemons.is_empty() {
        true => Err(none_connects()),
        false => Ok(daemons),
    }
}

/// The error if no daemon of this user connects to a peer.
fn none_connects() -> Error {
    none_found("no daemon found that connects to a peer".into(), "`keypadd connect` or `run`")
}

/// The daemon that connects to this peer, or to the only one.
fn pick(
    daemons: &[(PathBuf, Vec<PeerForwards>)],
    peer: Option<&str>,
) -> Result<(PathBuf, String), Error> {
    let all = || {
        daemons
            .iter()
            .flat_map(|(socket, links)| links.iter().map(move |link| (socket, &link.peer)))
    };
    let found: Vec<_> = all().filter(|(_, name)| peer.is_none_or(|peer| peer == *name)).collect();
    let names = || {
        let names: BTreeSet<_> = all().map(|(_, name)| format!("@{name}")).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    // Of the only peer, if none was given.
    let only = all().next().map(|(_, name)| &**name);
    let peer = peer.or_else(|| only.filter(|only| all().all(|(_, name)| name == only)));
    match (&found[..], peer) {
        ([(socket, name)], _) => Ok(((*socket).clone(), (*name).clone())),
        ([], Some(peer)) => {
            let cause = format!("no daemon connects to @{peer}");
            Err(Error::new(Exit::Usage, cause).hint(
                match nearest(peer, all().map(|(_, name)| &**name)) {
                    Some(near) => format!("did you mean @{near}?"),
                    None => format!("expected one of {}", names()),
                },
            ))
        }
        ([], None) => Err(none_connects()),
        (_, Some(peer)) => {
            let sockets: Vec<_> =
                found.iter().map(|(socket, _)| socket.display().to_string()).collect();
            Err(Error::new(Exit::Usage, format!("several daemons connect to @{peer}"))
                .hint(format!("name one with --socket: {}", sockets.join(", "))))
        }
        (_, None) => Err(Error::new(Exit::Usage, "no peer given, and daemons connect to several")
            .hint(format!("name one of {}", names()))),
    }
}

fn ask(socket: &Path, request: &str) -> Result<Answer, Error> {
    control::ask(socket, request, TIMEOUT).map_err(|error| unanswered(socket, &error))
}
