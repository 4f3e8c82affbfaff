//! Requests to drain a daemon's server, and the daemon's answers.
//!
//! A request is `for SECONDS`, `on` or `off`.

use std::time::Duration;

use humantime::format_duration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::status::sources::Sources;

/// A drain without a limit.
pub(crate) const ON: &str = "on";

/// The end of a drain.
pub(crate) const OFF: &str = "off";

/// Begins a drain with a limit, in seconds.
pub(crate) const FOR: &str = "for";

/// A server after a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Drained {
    /// Whether it accepts no new sessions.
    pub(crate) draining: bool,
    pub(crate) sessions: usize,
    /// Their open connections.
    pub(crate) connections: u64,
}

/// Answers a request in a daemon that runs this command.
pub(crate) fn answer(request: &str, sources: Option<&Sources>, verb: &str) -> Value {
    let Some((sessions, draining)) = sources.and_then(Sources::server) else {
        return json!({ "no_server": verb });
    };
    let live = sessions.live();
    let connections = live.iter().map(|session| session.open_connections()).sum();
    let limit = match request.split_once(' ').unwrap_or((request, "")) {
        (ON | OFF, "") => None,
        (FOR, seconds) => match seconds.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => return unknown(),
        },
        _ => return unknown(),
    };
    match request {
        OFF => draining.end(),
        _ => draining.begin(limit),
    }
    let sessions = live.len();
    let is_on = draining.is_on();
    if is_on {
        let limit = limit.map(|limit| format_duration(limit).to_string());
        tracing::info!(sessions, connections, limit, "draining: accepts no new sessions");
    } else {
        tracing::info!(sessions, connections, "accepts new sessions");
    }
    json!(Drained { draining: is_on, sessions, connections })
}

fn unknown() -> Value {
    json!({ "error": "unknown request" })
}
