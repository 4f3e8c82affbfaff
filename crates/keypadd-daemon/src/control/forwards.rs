//! Requests about the forwards of a running daemon, and the daemon's answers.
//!
//! A request is a line: `list`, or `add NAME FLAG FORWARD` and `remove NAME FLAG FORWARD`.

use std::time::Duration;

use keypadd_cli::error::{Exit, listen_hint, shown, system};
use keypadd_cli::refusal::not_listening;
use keypadd_config::values::BadValue;
use keypadd_tunnel::{Client, Forward, RemoteForward};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

/// The request for a list.
pub(crate) const LIST: &str = "list";

/// How long a server may take to answer for a remote forward: longer than it waits for an earlier
/// session to give up a port.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer that a daemon connects to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerForwards {
    pub(crate) peer: String,
    pub(crate) forwards: Vec<ListedForward>,
}

/// A forward as shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ListedForward {
    pub(crate) forward: String,
    /// Where it listens here.
    pub(crate) listen: Vec<String>,
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
                Ok(done) => {
                    let PeerForwards { peer, mut forwards } = listed(*link);
                    forwards.retain(|one| one.forward == forward.to_string());
                    let note = match done {
                        Done::Whole => None,
                        Done::Unanswered => Some(format!(
                            "the server has not answered for {forward}: `keypadd status` shows \
                             whether it listens"
                        )),
                    };
                    json!({ "links": [PeerForwards { peer, forwards }], "note": note })
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

/// How far a change has come.
enum Done {
    Whole,
    /// The server listens for a remote forward once it is connected, or has refused it.
    Unanswered,
}

/// Adds or removes one forward; one that the server refuses is removed again. The error is the
/// answer that refuses it.
async fn change(client: &Client, add: bool, forward: &Forward) -> Result<Done, Value> {
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
        return match forward {
            Forward::Remote(remote) if add => listening(client, remote).await,
            _ => Ok(Done::Whole),
        };
    };
    let cause = format!("cannot listen on {}: {}", error.address, system(&error.source));
    let hint = listen_hint(&error.address, &error.source, "-L 2223:localhost:22");
    Err(json!({ "refused": cause, "hint": hint, "exit": Exit::BindFailed as u8 }))
}

/// Waits for the server to listen for a forward that was just added, and removes it if the server
/// refuses.
async fn listening(client: &Client, forward: &RemoteForward) -> Result<Done, Value> {
    let code = match timeout(ANSWER_TIMEOUT, client.answer_to(forward)).await {
        Ok(Some(Ok(_))) => return Ok(Done::Whole),
        Ok(Some(Err(code))) => code,
        Ok(None) | Err(_) => return Ok(Done::Unanswered),
    };
    let mut forwards: Vec<Forward> = client.forwards().into_iter().map(|(one, _)| one).collect();
    forwards.retain(|one| *one != Forward::Remote(forward.clone()));
    // Cannot fail: it binds nothing.
    let _ = client.set_forwards(forwards).await;
    let error = not_listening(forward.clone(), code);
    let exit = error.exit() as u8;
    let (cause, hint) = error.parts().next().unwrap_or_default();
    Err(json!({ "refused": cause, "hint": hint, "exit": exit }))
}

fn listed((peer, client): (&str, &Client)) -> PeerForwards {
    let forwards = client.forwards().into_iter().map(|(forward, bound)| ListedForward {
        forward: forward.to_string(),
        listen: bound.iter().map(ToString::to_string).collect(),
    });
    PeerForwards { peer: peer.into(), forwards: forwards.collect() }
}
