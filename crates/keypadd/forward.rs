//! `keypadd forward`: lists, adds and removes forwards of a running daemon, over its control socket, and
//! answers such requests in the daemon.
//!
//! A request is a line: `list`, or `add NAME FLAG FORWARD` and `remove NAME FLAG FORWARD`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, listen_hint, one_line, shown, system};
use keypadd_cli::results::print;
use keypadd_config::{nearest, values::BadValue};
use keypadd_tunnel::{Client, Forward};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cli::{ForwardAction, ForwardArgs};
use crate::control::{self, FORWARD_REQUEST};
use crate::runtime_directory;
use crate::status::{no_answer, none_found};

/// Longer than binding takes, with names to resolve.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The request for a list.
const LIST: &str = "list";

/// A peer that a daemon connects to.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PeerForwards {
    peer: String,
    forwards: Vec<ListedForward>,
}

/// A forward as shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ListedForward {
    forward: String,
    /// Where it listens here.
    listen: Vec<String>,
}

/// A daemon's answer; the fields present tell the outcome.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    links: Option<Vec<PeerForwards>>,
    refused: Option<String>,
    hint: Option<String>,
    exit: u8,
    error: Option<String>,
}

/// Asks the daemons.
///
/// # Errors
/// Exit 2: no such peer or forward, or no peer is named and there are several. Exit 5: no daemon answers. Exit 6: the
/// address cannot be bound.
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
            Answer { links: Some(links), .. } => links,
            Answer { refused: Some(refused), hint, exit, .. } => {
                let exit = match exit {
                    code if code == Exit::BindFailed as u8 => Exit::BindFailed,
                    _ => Exit::Usage,
                };
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
        true => Err(none_found("no daemon found that connects to a peer".into())),
        false => Ok(daemons),
    }
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
    let names = || all().map(|(_, name)| format!("@{name}")).collect::<Vec<_>>().join(", ");
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
        ([], None) => Err(none_found("no daemon found that connects to a peer".into())),
        (_, Some(peer)) => {
            Err(Error::new(Exit::Usage, format!("several daemons connect to @{peer}"))
                .hint("name one with --socket; `keypadd status` lists them"))
        }
        (_, None) => Err(Error::new(Exit::Usage, "no peer given, and daemons connect to several")
            .hint(format!("name one of {}", names()))),
    }
}

fn ask(socket: &Path, request: &str) -> Result<Answer, Error> {
    control::ask(socket, request, TIMEOUT)
        .map_err(|error| Error::new(Exit::Unreachable, no_answer(socket, &error)))
}

/// Whether a request changes nothing.
pub(crate) fn is_list(request: &str) -> bool {
    request == LIST
}

/// Answers a request in the daemon that has these clients, listed by peer name.
pub(crate) async fn answer(request: &str, clients: &[(&str, &Client)]) -> Value {
    let words: Vec<&str> = request.splitn(4, ' ').collect();
    let refused = |cause: String, hint: String| json!({ "refused": cause, "hint": hint });
    match words[..] {
        [LIST] => {
            json!({ "links": clients.iter().map(|link| listed(*link)).collect::<Vec<_>>() })
        }
        [action @ ("add" | "remove"), name, flag, text] => {
            let Some(link) = clients.iter().find(|(peer, _)| *peer == name) else {
                return json!({ "error": format!("no peer {name}") });
            };
            let forward = match parsed(flag, text) {
                Ok(forward) => forward,
                Err(BadValue { cause, hint }) => return refused(cause, hint),
            };
            match change(link.1, action == "add", &forward).await {
                Ok(()) => {
                    let PeerForwards { peer, mut forwards } = listed(*link);
                    forwards.retain(|one| one.forward == forward.to_string());
                    json!({ "links": [PeerForwards { peer, forwards }] })
                }
                Err(error) => error,
            }
        }
        _ => json!({ "error": "unknown request" }),
    }
}

fn parsed(flag: &str, text: &str) -> Result<Forward, BadValue> {
    use keypadd_config::values::{bad, dynamic_forward, local_forward, remote_forward};
    match flag {
        "-L" => local_forward(text).map(Forward::Local),
        "-R" => remote_forward(text).map(Forward::Remote),
        "-D" => dynamic_forward(text).map(Forward::Dynamic),
        _ => Err(bad(format!("{} is not a forward flag", shown(flag)), "-L, -R or -D")),
    }
}

/// Adds or removes one forward. The error is the answer that refuses it.
async fn change(client: &Client, add: bool, forward: &Forward) -> Result<(), Value> {
    let mut forwards: Vec<Forward> = client.forwards().into_iter().map(|(one, _)| one).collect();
    let is_there = forwards.contains(forward);
    let refused = |cause: String, hint: &str| Err(json!({ "refused": cause, "hint": hint }));
    if add && is_there {
        return refused(format!("{forward} already exists"), "`keypadd forward list` shows all");
    }
    if !add && !is_there {
        return refused(format!("there is no {forward}"), "`keypadd forward list` shows all");
    }
    match add {
        true => forwards.push(forward.clone()),
        false => forwards.retain(|one| one != forward),
    }
    let Err(error) = client.set_forwards(forwards).await else {
        let done = if add { "added" } else { "removed" };
        tracing::info!(%forward, "forward {done}");
        return Ok(());
    };
    let cause = format!("cannot listen on {}: {}", error.address, system(&error.source));
    let hint = listen_hint(&error.address, &error.source, "-L 2223:localhost:22");
    Err(json!({ "refused": cause, "hint": hint, "exit": Exit::BindFailed as u8 }))
}

fn listed((peer, client): (&str, &Client)) -> PeerForwards {
    let forwards = client.forwards().into_iter().map(|(forward, bound)| ListedForward {
        forward: forward.to_string(),
        listen: bound.iter().map(ToString::to_string).collect(),
    });
    PeerForwards { peer: peer.into(), forwards: forwards.collect() }
}
