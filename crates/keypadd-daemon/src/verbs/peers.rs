//! `keypadd peers`: lists the peers that this user's daemons have in force.

use keypadd_cli::error::{Error, one_line};
use keypadd_cli::results::print;

use crate::command_line::PeersArgs;
use crate::control::PEERS_REQUEST;
use crate::status::peers::{PeerReport, PeersReport};
use crate::status::text::date;
use crate::verbs::status::{listed, query};

/// Permits of one kind that are shown.
const SHOWN: usize = 3;

/// Prints the peers of every daemon.
///
/// # Errors
/// Exit 5: no daemon answers. Exit 1: standard output fails.
pub(crate) fn run(args: PeersArgs) -> Result<(), Error> {
    let daemons = query(args.socket.as_deref(), PEERS_REQUEST)?;
    print(listed(daemons, args.json, render).as_bytes()).map(drop)
}

fn render(report: PeersReport) -> String {
    let PeersReport { pid, verb, place, peers } = report;
    let (verb, place) = (one_line(&verb), one_line(&place));
    let connected = peers.iter().filter(|peer| peer.connected).count();
    let (count, noun) = (peers.len(), if peers.len() == 1 { "peer" } else { "peers" });
    let mut lines =
        vec![format!("{verb} {place}, pid {pid}: {count} {noun}, {connected} connected")];
    lines.extend(peers.iter().map(line));
    lines.join("\n") + "\n"
}

/// A peer: who it is, from where it is known, and what it may do.
fn line(peer: &PeerReport) -> String {
    let state = if peer.connected { "connected" } else { "-" };
    let mut line = format!("  {state:<9}  {}", peer.name.as_deref().unwrap_or("(no name)"));
    line += &format!("  {}", some(&peer.public_keys));
    if let Some(part) = &peer.part {
        line += &format!("  peers.d/{part}");
    }
    if let Some(endpoint) = &peer.endpoint {
        line += &format!("  at {endpoint}");
    }
    for (what, values) in [
        ("permit-open", &peer.permit_open),
        ("permit-listen", &peer.permit_listen),
        ("networks", &peer.networks),
    ] {
        if !values.is_empty() {
            line += &format!("  {what} {}", some(values));
        }
    }
    if let Some(until) = peer.valid_until_unix_seconds {
        line += &format!("  until {}", date(until));
    }
    one_line(&line)
}

/// The first ones, and how many others there are.
fn some(values: &[String]) -> String {
    let mut shown = values.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = values.len().checked_sub(SHOWN) {
        shown += &format!(" and {more} more");
    }
    shown
}
