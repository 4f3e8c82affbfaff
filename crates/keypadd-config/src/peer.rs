//! Reads the `[peer.NAME]` tables: who each peer is, and which end connects to the other, or both.
//! Checks what no two peers may share, in whatever files they are.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use keypadd_keystream::{Class, Suite};
use keypadd_network::Prefix;
use keypadd_provider::{KeyExchange, PublicKey};
use keypadd_tunnel::{
    DynamicForward, Forward, Listen, ListenPermit, Permit, ProxyHeaders, SERVER_ADDRESSES_MAX,
    ServerAddresses,
};
use toml::Spanned;
use toml::de::DeValue;

use crate::document::{Name, Reader, Table};
use crate::expiry::Expiry;
use crate::fault::{Faults, Place};
use crate::key::Scope;
use crate::networks::{Networks, Shared};
use crate::quote::{is_private, shown};
use crate::settings::{PeerSettings, Setting, Settings, offered, values_of};
use crate::values::{self, BadValue};

/// A peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Its name in logs and metrics.
    pub name: String,
    /// Its public keys: one, two while it replaces its key, or those of all servers behind its
    /// endpoints.
    pub keys: Vec<PublicKey>,
    /// When it is no longer accepted or connected to.
    pub valid_until: Option<SystemTime>,
    /// Limit of pool memory for all its sessions together.
    pub pool_budget_bytes: Option<usize>,
    /// The most bytes per second to send to it.
    pub max_rate: Option<u64>,
    /// How long its connections are held, if not the global time.
    pub hold: Option<Duration>,
    /// What it may do, if it may connect to this host.
    pub incoming: Option<Incoming>,
    /// How this host connects to it, if it does.
    pub outgoing: Option<Outgoing>,
    /// The networks behind it, if it has any.
    pub networks: Option<Networks>,
}

/// What a peer that connects to this host may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming {
    /// What it may connect to.
    pub permit_open: Vec<Permit>,
    /// Where it may listen.
    pub permit_listen: Vec<ListenPermit>,
}

/// How to connect to a peer, and what to forward.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Its addresses, or those of servers that can stand in for it.
    pub endpoint: ServerAddresses,
    /// The suites to offer, in order of preference.
    pub suites: Vec<Suite>,
    /// The key exchange to offer.
    pub kex: KeyExchange,
    /// The forwards.
    pub forwards: Vec<Forward>,
    /// Which connections begin with a PROXY header.
    pub proxy_headers: ProxyHeaders,
}

/// What reading peers needs.
pub(crate) struct Context<'c, 'f> {
    pub(crate) settings: &'c Settings,
    /// Whether the file has a `listen`, valid or not.
    pub(crate) listens: bool,
    pub(crate) faults: &'c mut Faults<'f>,
    pub(crate) warnings: &'c mut Faults<'f>,
    /// What the files before have.
    pub(crate) found: &'c mut Found,
}

/// The peers that were read, and what no other may share with them.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) peers: Vec<Peer>,
    /// The peers' expiry dates.
    pub(crate) expiries: Vec<Expiry>,
    pub(crate) keys: HashMap<PublicKey, KeyOwner>,
    names: HashMap<String, Place>,
    /// Where forwards listen, here or at the peer of this name.
    listeners: HashMap<(Option<String>, Listen), Place>,
    networks: Shared,
}

/// The peer that has a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyOwner {
    peer: String,
    pub(crate) place: Place,
}

/// Most keys of a peer that connects to this host: the old one and the new one.
const KEYS_MAX: usize = 2;

/// Most keys of a peer that this host dials: each server of a fleet has its own.
const SERVER_KEYS_MAX: usize = 64;

/// A legacy suite must be allowed explicitly.
pub(crate) fn refuse_legacy(settings: &Settings, suite: &Setting<Suite>, faults: &mut Faults<'_>) {
    if suite.value.class() == Class::Legacy && !settings.allow_legacy.value {
        let cause = format!("suite: `{}` is insecure (legacy)", suite.value);
        let hint = "choose aes-256-gcm, or set allow-legacy = true if you must use it";
        faults.add(place(suite), cause, Some(hint.into()));
    }
}

impl Context<'_, '_> {
    /// Reads all peers of a file and checks them against each other and those found before.
    pub(crate) fn peers(mut self, value: Option<Spanned<DeValue<'_>>>) {
        for (name, table) in value.map_or_else(Vec::new, |value| self.tables(value)) {
            let place = self.faults.place(name.at);
            // In one file, TOML refuses a second table of the same name.
            if let Some(earlier) = self.found.names.get(&name.text) {
                let cause = format!("peer {} is also in {earlier}", shown(&name.text));
                self.faults.add(name.at, cause, Some("remove one, or rename it".into()));
                continue;
            }
            self.found.names.insert(name.text.clone(), place);
            let at = name.at;
            let Some(read) = self.peer(name, table) else { continue };
            if let Some(networks) = &read.peer.networks {
                let shared = &mut self.found.networks;
                shared.add((&read.peer.name, at), networks, &read.networks, self.faults);
            }
            for Setting { value: key, at, .. } in read.keys {
                let place = self.faults.place(at.unwrap_or_default());
                let owner = KeyOwner { peer: read.peer.name.clone(), place: place.clone() };
                let Some(earlier) = self.found.keys.insert(key, owner) else { continue };
                let KeyOwner { peer: owner, place: earlier } = earlier;
                let (cause, hint) = match owner == read.peer.name {
                    true => ("public-key: the key is listed twice".into(), "list each key once"),
                    false => (
                        format!(
                            "public-key: peer {} has the same key{}",
                            shown(owner),
                            elsewhere(&earlier, &place)
                        ),
                        "give each peer its own key; one table can have an endpoint and permits",
                    ),
                };
                self.faults.add(at.unwrap_or_default(), cause, Some(hint.into()));
            }
            for Setting { value: forward, at, .. } in read.forwards {
                // The same address on two different hosts is no conflict.
                let (kind, there, listen) = match forward {
                    Forward::Local(forward) => ("local", None, forward.listen),
                    Forward::Dynamic(DynamicForward { bind, port }) => {
                        ("dynamic", None, Listen::Tcp { bind, port })
                    }
                    Forward::Remote(forward) => ("remote", Some(&read.peer.name), forward.listen),
                    // Cannot come from a file.
                    Forward::Bench(_) => continue,
                };
                if matches!(listen, Listen::Tcp { port: 0, .. } | Listen::Udp { port: 0, .. }) {
                    continue;
                }
                let listener = (there.cloned(), listen);
                let place = self.faults.place(at.unwrap_or_default());
                if let Some(earlier) = self.found.listeners.get(&listener) {
                    let (listen, also) = (&listener.1, elsewhere(earlier, &place));
                    let cause =
                        format!("{kind}: another forward already listens on `{listen}`{also}");
                    let hint = "choose another address for one of them";
                    self.faults.add(at.unwrap_or_default(), cause, Some(hint.into()));
                }
                self.found.listeners.insert(listener, place);
            }
            self.found.peers.push(read.peer);
        }
    }

    /// The tables of `[peer.NAME]`.
    fn tables<'t>(&mut self, peers: Spanned<DeValue<'t>>) -> Vec<(Name, Table<'t>)> {
        const CAUSE: &str = "peer: expected a table for each peer";
        let at = peers.span().start;
        let DeValue::Table(peers) = peers.into_inner() else {
            if !self.faults.is_broken(at) {
                let hint = "as in [peer.laptop], one table for each peer";
                self.faults.add(at, CAUSE, Some(hint.into()));
            }
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (name, value) in Table::new(Scope::Peer, peers).into_entries() {
            if let Err(BadValue { cause, hint }) = values::peer_name(&name.text) {
                self.faults.add(name.at, cause, Some(hint));
            }
            match value.into_inner() {
                DeValue::Table(table) => tables.push((name, Table::new(Scope::Peer, table))),
                _ if self.faults.is_broken(name.at) => {}
                _ => {
                    let named = if is_private(&name.text) { "NAME" } else { &name.text };
                    let hint = format!("as in [peer.{named}], with its keys on the lines below");
                    self.faults.add(name.at, CAUSE, Some(hint));
                }
            }
        }
        tables
    }

    fn peer(&mut self, name: Name, mut table: Table<'_>) -> Option<ReadPeer> {
        let called = shown(&name.text);
        let Self { settings, listens, faults, warnings, found } = self;
        let (has_key, has_endpoint) = (table.has("public-key"), table.has("endpoint"));
        let permit = ["permit-open", "permit-listen"]
            .into_iter()
            .find_map(|permit| Some((permit, table.value_at(permit)?)));
        let forwards_given = ["local", "remote", "dynamic"].iter().any(|name| table.has(name));
        for outgoing_only in
            ["local", "remote", "dynamic", "send-proxy", "accept-proxy", "suite", "kex"]
        {
            if let Some(at) = table.value_at(outgoing_only).filter(|_| !has_endpoint) {
                let cause = format!("{outgoing_only}: peer {called} has no endpoint");
                let hint = match outgoing_only {
                    "suite" | "kex" => {
                        "the connecting side chooses; set what to accept before the first \
                            [peer.NAME]"
                    }
                    _ => "add an endpoint, as in endpoint = \"lab.example:4433\"",
                };
                faults.add(at, cause, Some(hint.into()));
            }
        }
        let places: HashMap<_, _> = PeerSettings::KEYS
            .iter()
            .filter_map(|key| Some((key.name, table.value_at(key.name)?)))
            .collect();
        let mut reader = Reader { table: &mut table, faults, memory_bytes: u64::MAX };
        let own = PeerSettings::take(&mut reader);
        let networks = Networks::of(&name.text, &own, |key| places.get(key).copied(), faults);
        table.refuse_rest(faults);
        if let Some(suite) = &own.suite {
            refuse_legacy(settings, suite, faults);
        }
        // A list is also empty if its entries are invalid, which are already faults.
        let were_valid = faults.is_empty();
        let is_empty = |list: Option<usize>| list == Some(0) && were_valid;
        if !has_key || is_empty(own.public_key.as_ref().map(Vec::len)) {
            let hint = "run `keypadd pubkey` on the other host to print it";
            faults.add(name.at, format!("peer {called} has no public-key"), Some(hint.into()));
        }
        if is_empty(own.endpoint.as_ref().map(Vec::len)) {
            let hint = "remove it if the peer connects to this host";
            faults.add(name.at, "endpoint: the list is empty", Some(hint.into()));
        }
        let may_connect = !has_endpoint || permit.is_some();
        if may_connect && !*listens {
            let (at, cause, hint) = match permit.filter(|_| has_endpoint) {
                Some((permit, at)) => (
                    at,
                    format!("{permit}: peer {called} cannot connect to this host without a listen"),
                    "add listen = \"[::]:4433\" before the first [peer.NAME], or remove the permit",
                ),
                None => (
                    name.at,
                    format!("peer {called} has no endpoint, and there is no listen"),
                    "add an endpoint, or listen = \"[::]:4433\" before the first [peer.NAME]",
                ),
            };
            faults.add(at, cause, Some(hint.into()));
        }
        if has_endpoint && !forwards_given && !may_connect && networks.is_none() {
            let hint = "for example local = [\"2222:localhost:22\"]";
            let cause = format!("peer {called} has an endpoint but no forwards");
            warnings.add(name.at, cause, Some(hint.into()));
        }
        let incoming = Incoming {
            permit_open: permits(&own.permit_open, &settings.permit_open),
            permit_listen: permits(&own.permit_listen, &settings.permit_listen),
        };
        let has_permits = !(incoming.permit_open.is_empty() && incoming.permit_listen.is_empty());
        if may_connect && !has_permits && networks.is_none() {
            let hint = "for example permit-open = [\"localhost:22\"]";
            let cause = format!("peer {called} may connect to this host but has no permits");
            warnings.add(name.at, cause, Some(hint.into()));
        }
        let (first_suite, first_kex) =
            (settings.suite.iter().flatten(), settings.kex.iter().flatten());
        let suite = own.suite.iter().chain(first_suite).map(|suite| suite.value).next();
        let kex = own.kex.iter().chain(first_kex).map(|kex| kex.value).next();
        let (forwards, proxy_headers) = (own.forwards(), own.proxy_headers());
        if let Some(until) = &own.valid_until {
            let place = warnings.place(place(until));
            found.expiries.push(Expiry { peer: name.text.clone(), until: until.value, place });
        }
        let keys = own.public_key.filter(|keys| !keys.is_empty())?;
        let (most, hint) = match has_endpoint {
            true => (SERVER_KEYS_MAX, "list one key of each server that may answer there"),
            false => (
                KEYS_MAX,
                "list the old key and the new one, and remove the old one once the new one is in \
                 use",
            ),
        };
        if let Some(next) = keys.get(most) {
            let cause = format!("public-key: more than {most} keys");
            faults.add(place(next), cause, Some(hint.into()));
        }
        let endpoints = own.endpoint.filter(|endpoints| !endpoints.is_empty());
        let endpoints = endpoints.and_then(|endpoints| {
            let at = endpoints.first().map(place).unwrap_or_default();
            match ServerAddresses::new(values_of(&endpoints)) {
                Ok(endpoints) => Some(endpoints),
                Err(_) => {
                    let hint = format!("at most {SERVER_ADDRESSES_MAX}");
                    faults.add(at, "endpoint: too many", Some(hint));
                    None
                }
            }
        });
        let outgoing = endpoints.map(|endpoint| Outgoing {
            endpoint,
            suites: offered(suite),
            kex: kex.unwrap_or_default(),
            forwards: values_of(&forwards),
            proxy_headers,
        });
        Some(ReadPeer {
            peer: Peer {
                name: name.text,
                keys: values_of(&keys),
                valid_until: own.valid_until.map(|until| until.value),
                pool_budget_bytes: own.pool_budget.map(|size| size.value),
                max_rate: own.max_rate.map(|rate| rate.value),
                hold: own.hold.map(|time| time.value),
                incoming: may_connect.then_some(incoming),
                outgoing,
                networks,
            },
            keys,
            forwards,
            networks: own.networks.unwrap_or_default(),
        })
    }
}

/// A peer, with the positions of what others must not share.
struct ReadPeer {
    peer: Peer,
    keys: Vec<Setting<PublicKey>>,
    forwards: Vec<Setting<Forward>>,
    networks: Vec<Setting<Prefix>>,
}

fn place<T>(setting: &Setting<T>) -> usize {
    setting.at.unwrap_or_default()
}

/// Names the earlier place of what may occur once, if it is in another file.
fn elsewhere(earlier: &Place, place: &Place) -> String {
    match earlier.part == place.part {
        true => String::new(),
        false => format!(", in {earlier}"),
    }
}

/// A peer's own list, else the global one.
fn permits<T: Clone>(own: &Option<Vec<Setting<T>>>, global: &Option<Vec<Setting<T>>>) -> Vec<T> {
    own.as_ref().or(global.as_ref()).map_or_else(Vec::new, |permits| values_of(permits))
}
