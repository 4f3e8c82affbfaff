//! `keypadd connections`: lists the forwarded connections of this user's daemons.

use keypadd_cli::error::{Error, one_line};
use keypadd_cli::results::print;
use keypadd_tunnel::{ConnectionState, ConnectionStatus};

use crate::command_line::ConnectionsArgs;
use crate::control::CONNECTIONS_REQUEST;
use crate::status::connections::{ConnectionCounts, ConnectionsReport};
use crate::status::text::{age, size};
use crate::verbs::status::{listed, query};

/// Prints the connections of every daemon.
///
/// # Errors
/// Exit 5: no daemon answers. Exit 1: standard output fails.
pub(crate) fn run(args: ConnectionsArgs) -> Result<(), Error> {
    let request = match &args.peer {
        Some(peer) => format!("{CONNECTIONS_REQUEST} {peer}"),
        None => CONNECTIONS_REQUEST.to_owned(),
    };
    let daemons = query(args.socket.as_deref(), &request)?;
    print(listed(daemons, args.json, render).as_bytes()).map(drop)
}

fn render(report: ConnectionsReport) -> String {
    let ConnectionsReport { pid, verb, place, counts, connections, unlisted } = report;
    let ConnectionCounts { open, held, connecting, waiting } = counts;
    let (verb, place) = (one_line(&verb), one_line(&place));
    let mut lines = vec![format!(
        "{verb} {place}, pid {pid}: {open} open, {held} held, {connecting} connecting, {waiting} \
         waiting for a slot"
    )];
    if !connections.is_empty() {
        let (sent, received) = ("sent", "received");
        lines.push(format!("  {:<10} {:>12} {sent:>10} {received:>10}  peer", "state", "age"));
    }
    lines.extend(connections.iter().map(line));
    if unlisted > 0 {
        lines.push(format!("  and {unlisted} more, which have carried less"));
    }
    lines.join("\n") + "\n"
}

/// A connection: what it is, where it comes from, and where it leads.
fn line(connection: &ConnectionStatus) -> String {
    let ConnectionStatus { peer, forward, target, from, state, is_flow, .. } = connection;
    let state = match state {
        ConnectionState::Open => "open",
        ConnectionState::Held => "held",
        ConnectionState::Connecting => "connecting",
        ConnectionState::Waiting => "waiting",
    };
    let age = age(connection.since_unix_seconds);
    let [sent, received] = [connection.sent_bytes, connection.received_bytes].map(size);
    let [sent, received] = [sent.to_string(), received.to_string()];
    let mut path = peer.as_deref().map_or_else(|| "-".to_owned(), one_line);
    if let Some(from) = from {
        path += &format!(" from {from}");
    }
    if let Some(forward) = forward {
        path += &format!(" {}", one_line(forward));
    }
    // A -L names its target.
    let is_named = |target: &&String| {
        forward.as_ref().is_some_and(|forward| forward.ends_with(target.as_str()))
    };
    if let Some(target) = target.as_ref().filter(|target| !is_named(target)) {
        path += &format!(" to {}", one_line(target));
    }
    if *is_flow {
        path += " (udp)";
    }
    format!("  {state:<10} {age:>12} {sent:>10} {received:>10}  {path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_one_line_whatever_its_peer_is_called() {
        let connection = ConnectionStatus {
            id: 1,
            peer: Some("l\nab".into()),
            forward: Some("-D 1080".into()),
            target: Some("db:5432".into()),
            from: "127.0.0.1:9".parse().ok(),
            since_unix_seconds: u64::MAX,
            state: ConnectionState::Held,
            sent_bytes: 2048,
            received_bytes: 5,
            is_flow: false,
        };
        let columns = "  held                 0s    2.0 KiB        5 B  ";
        let shown = line(&connection);
        assert_eq!(shown.lines().count(), 1);
        assert!(shown.starts_with(columns), "{shown}");
        assert!(shown.ends_with(" from 127.0.0.1:9 -D 1080 to db:5432"), "{shown}");
        let forward = Some("-L 1:db:5432".into());
        let shown = line(&ConnectionStatus { forward, from: None, ..connection });
        assert!(shown.ends_with(" -L 1:db:5432"), "{shown}");
    }
}
