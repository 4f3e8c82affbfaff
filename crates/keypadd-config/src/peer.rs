//! One `[peer.NAME]`: who it is, whether it comes in, is dialled, or both; and what peers may not have in
//! common.

use std::collections::HashMap;

use keypadd_keystream::Suite;
use keypadd_provider::{KeyExchange, PublicKey};
use keypadd_tunnel::{
    BenchForward, DynamicForward, Forward, Listen, ListenPermit, Permit, ServerAddress,
};

use crate::config::{Globals, values_of};
use crate::document::{Placed, Table};
use crate::fault::Faults;
use crate::quote::shown;
use crate::values;

/// A peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// What it is called in logs and metrics.
    pub name: String,
    /// Its key.
    pub key: PublicKey,
    /// Pool memory that its connections may hold together, if that is limited.
    pub pool_budget_bytes: Option<usize>,
    /// What it may do where it may come in.
    pub incoming: Option<Incoming>,
    /// How it is dialled where it is.
    pub dialled: Option<Dialled>,
}

/// What a peer may do that comes in.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming {
    /// What it may reach.
    pub permit_open: Vec<Permit>,
    /// Where it may listen here.
    pub permit_listen: Vec<ListenPermit>,
}

/// How a peer is dialled, and for what.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialled {
    /// Where it is.
    pub endpoint: ServerAddress,
    /// The suite offered.
    pub suite: Suite,
    /// The key exchange offered.
    pub kex: KeyExchange,
    /// What is forwarded through it.
    pub forwards: Vec<Forward>,
}

/// A peer's table before it is read.
pub(crate) struct PeerEntry<'t> {
    pub(crate) name: Placed<String>,
    pub(crate) table: Table<'t>,
}

impl Globals {
    /// Reads all peers, and holds them against each other.
    pub(crate) fn settle_peers(
        &self,
        entries: Vec<PeerEntry<'_>>,
        faults: &mut Faults<'_>,
        warnings: &mut Faults<'_>,
    ) -> Vec<Peer> {
        let mut peers = Vec::new();
        let mut keys: HashMap<PublicKey, String> = HashMap::new();
        let mut listeners = Vec::new();
        for PeerEntry { name, table } in entries {
            let Some(read) = self.settle_peer(name, table, faults, warnings) else { continue };
            if let Some(earlier) = keys.insert(read.peer.key, read.peer.name.clone()) {
                let cause = format!("public-key: peer {} has the same", shown(earlier));
                let hint = "each peer has a key of its own; one table may have both an endpoint and permits";
                faults.add(read.key_at, cause, Some(hint.into()));
            }
            for Placed { value: forward, at } in read.forwards {
                // Where another host listens is that host's matter, but once is enough there too.
                let (kind, there, listen) = match forward {
                    Forward::Local(forward) => ("local", None, forward.listen),
                    Forward::Dynamic(forward) => {
                        let DynamicForward { bind, port } = forward;
                        ("dynamic", None, Listen::Tcp { bind, port })
                    }
                    Forward::Bench(forward) => {
                        let BenchForward { bind, port } = forward;
                        ("bench", None, Listen::Tcp { bind, port })
                    }
                    Forward::Remote(forward) => ("remote", Some(read.peer.key), forward.listen),
                };
                if matches!(listen, Listen::Tcp { port: 0, .. }) {
                    continue;
                }
                if listeners.contains(&(there, listen.clone())) {
                    let cause = format!("{kind}: `{listen}` is listened on twice");
                    faults.add(at, cause, Some("choose another place for one of them".into()));
                }
                listeners.push((there, listen));
            }
            peers.push(read.peer);
        }
        peers
    }

    fn settle_peer(
        &self,
        name: Placed<String>,
        mut table: Table<'_>,
        faults: &mut Faults<'_>,
        warnings: &mut Faults<'_>,
    ) -> Option<ReadPeer> {
        let called = shown(&name.value);
        let (has_key, dials) = (table.has("public-key"), table.has("endpoint"));
        let key = table.text("public-key", values::public_key, faults);
        let endpoint = table.text("endpoint", values::server, faults);
        let budget = |text: &str| values::pool_budget(text, u64::MAX);
        let pool_budget = table.text("pool-budget", budget, faults);
        let permit = ["permit-open", "permit-listen"]
            .into_iter()
            .find_map(|name| Some((name, table.value_at(name)?)));
        let permit_open = table.list("permit-open", values::permit, faults);
        let permit_listen = table.list("permit-listen", values::listen_permit, faults);
        for only_dialled in ["local", "remote", "dynamic", "suite", "kex"] {
            if let Some(at) = table.value_at(only_dialled).filter(|_| !dials) {
                let cause = format!("{only_dialled}: peer {called} is not dialled");
                let hint = match only_dialled {
                    "local" | "remote" | "dynamic" => {
                        "give it an endpoint, as in endpoint = \"lab.example:4433\""
                    }
                    _ => {
                        "who comes in chooses; what is accepted stands before the first [peer.NAME]"
                    }
                };
                faults.add(at, cause, Some(hint.into()));
            }
        }
        let forwards_given = ["local", "remote", "dynamic"].iter().any(|name| table.has(name));
        let forwards = take_forwards(&mut table, faults);
        let suite = table.text("suite", values::suite, faults);
        if let Some(suite) = &suite {
            self.refuse_legacy(suite, faults);
        }
        let kex = table.text("kex", values::kex, faults);
        let comes_in = !dials || permit.is_some();
        if !has_key {
            let hint = "`keypadd pubkey`, run on the other host, prints it";
            faults.add(name.at, format!("peer {called} has no public-key"), Some(hint.into()));
        }
        if comes_in && !self.listens {
            let (at, cause, hint) = match permit.filter(|_| dials) {
                Some((permit, at)) => (
                    at,
                    format!("{permit}: peer {called} cannot come in: there is no listen"),
                    "add listen = \"[::]:4433\" before the first [peer.NAME], or leave the permit out",
                ),
                None => (
                    name.at,
                    format!(
                        "peer {called} has no endpoint, and cannot come in: there is no listen"
                    ),
                    "add listen = \"[::]:4433\" before the first [peer.NAME], or give it an endpoint",
                ),
            };
            faults.add(at, cause, Some(hint.into()));
        }
        if dials && !forwards_given && !comes_in {
            let hint = "for example local = [\"2222:localhost:22\"]";
            warnings.add(
                name.at,
                format!("peer {called} is dialled, and nothing is forwarded"),
                Some(hint.into()),
            );
        }
        table.refuse_rest(faults);
        let incoming = Incoming {
            permit_open: permit_open.map_or_else(|| self.permit_open.clone(), values_of),
            permit_listen: permit_listen.map_or_else(|| self.permit_listen.clone(), values_of),
        };
        if comes_in && incoming.permit_open.is_empty() && incoming.permit_listen.is_empty() {
            let hint = "for example permit-open = [\"localhost:22\"]";
            let cause = format!("peer {called} can come in and reach nothing");
            warnings.add(name.at, cause, Some(hint.into()));
        }
        let key = key?;
        let dialled = endpoint.map(|endpoint| Dialled {
            endpoint: endpoint.value,
            suite: suite.map_or_else(|| self.suite_offered(), |suite| suite.value),
            kex: kex.map_or_else(|| self.kex_offered(), |kex| kex.value),
            forwards: forwards.iter().map(|forward| forward.value.clone()).collect(),
        });
        Some(ReadPeer {
            peer: Peer {
                name: name.value,
                key: key.value,
                pool_budget_bytes: pool_budget.map(|size| size.value),
                incoming: comes_in.then_some(incoming),
                dialled,
            },
            key_at: key.at,
            forwards,
        })
    }
}

/// A peer with the places that others are held against.
struct ReadPeer {
    peer: Peer,
    key_at: usize,
    forwards: Vec<Placed<Forward>>,
}

/// The forwards of a table, of all kinds.
fn take_forwards(table: &mut Table<'_>, faults: &mut Faults<'_>) -> Vec<Placed<Forward>> {
    let local = |text: &str| values::local_forward(text).map(Forward::Local);
    let remote = |text: &str| values::remote_forward(text).map(Forward::Remote);
    let dynamic = |text: &str| values::dynamic_forward(text).map(Forward::Dynamic);
    [
        table.list("local", local, faults),
        table.list("remote", remote, faults),
        table.list("dynamic", dynamic, faults),
    ]
    .into_iter()
    .flatten()
    .flatten()
    .collect()
}
