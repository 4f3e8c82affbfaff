//! The whole file: every key taken, checked by itself and against the others. All faults are found in one
//! pass; settings come out only where there are none.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use keypadd_keystream::{CipherEngine, Class, Suite};
use keypadd_provider::KeyExchange;
use keypadd_tunnel::{Congestion, ListenPermit, Permit, SpinShare};
use toml::Spanned;
use toml::de::DeValue;

use crate::document::{self, Placed, Table};
use crate::fault::{Fault, Faults};
use crate::keys::{KEYS, Scope};
use crate::peer::{Peer, PeerEntry};
use crate::quote::is_private;
use crate::values::{self, BadValue, LogFormat, PoolMode};

/// What holds where the file says nothing.
pub const POOL_BUDGET_BYTES: usize = 64 << 20;
/// Likewise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Likewise.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the private key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// Where it is when nothing says so.
    Default,
    /// In this file; a relative path means the configuration's directory.
    File(PathBuf),
}

/// A file that cannot be used.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Everything that is wrong, in the file's order; never empty.
    pub faults: Vec<Fault>,
    /// Where the private key is, unless that is what is wrong: it can be looked at all the same.
    pub key: Option<KeyPlace>,
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The private key's file.
    pub key: KeyPlace,
    /// Where peers come in.
    pub listen: Option<SocketAddr>,
    /// Suites to accept, never none; legacy ones only where they are allowed.
    pub suites: Vec<Suite>,
    /// Key exchanges to accept, never none.
    pub kex: Vec<KeyExchange>,
    /// Whether legacy suites are allowed.
    pub allow_legacy: bool,
    /// Whether peers that come in may measure.
    pub permit_bench: bool,
    /// Whether there is a pool.
    pub pool: PoolMode,
    /// Its memory.
    pub pool_budget_bytes: usize,
    /// How much of one core may go into filling it.
    pub max_fill_cpu_percent: u8,
    /// Whether its memory must be locked.
    pub require_locked: bool,
    /// What computes DES.
    pub cipher_engine: CipherEngine,
    /// How fast to send.
    pub congestion: Congestion,
    /// How much of one core each event loop may spend on polling.
    pub spin: SpinShare,
    /// How many event loops there are; unless given, this host's cores decide.
    pub loops: Option<usize>,
    /// How many connections a session forwards at once, each way; unless given, the tunnel's default.
    pub max_forwards: Option<u32>,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long what is open may take to finish on SIGTERM.
    pub drain_timeout: Duration,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// What is logged.
    pub log: Option<String>,
    /// How.
    pub log_format: Option<LogFormat>,
    /// The peers, in the file's order.
    pub peers: Vec<Peer>,
    /// Global keys that the file does not hold.
    pub defaults: Vec<&'static str>,
    /// What works and is probably not meant.
    pub warnings: Vec<Fault>,
}

impl Config {
    /// Reads a file's text. `memory_bytes` is this host's memory, which bounds the pool.
    ///
    /// # Errors
    /// Everything that is wrong, in the file's order.
    pub fn read(text: &str, memory_bytes: u64) -> Result<Self, Refused> {
        let mut faults = Faults::of(text);
        let mut table = document::parse(text, &mut faults);
        let given: Vec<String> = table.names().map(str::to_owned).collect();
        let peers = table.take("peer");
        let globals = Globals::take(&mut table, memory_bytes, &mut faults);
        table.refuse_rest(&mut faults);
        let entries = peers.map_or_else(Vec::new, |(_, peers)| peer_entries(peers, &mut faults));
        let mut warnings = Faults::of(text);
        let peers = globals.settle_peers(entries, &mut faults, &mut warnings);
        if peers.is_empty() && faults.is_empty() {
            let hint = "add a [peer.NAME] with its public-key, and an endpoint if it is dialled";
            faults.add(0, "no peers: there is nothing to do", Some(hint.into()));
        }
        if let Some(listen) = &globals.listen
            && !peers.iter().any(|peer| peer.incoming.is_some())
        {
            let cause = "listen: no peer can come in: each one has an endpoint";
            let hint = "leave listen out, or add a [peer.NAME] without endpoint";
            warnings.add(listen.at, cause, Some(hint.into()));
        }
        let key = match &globals.key {
            Some(key) => Some(KeyPlace::File(key.value.clone())),
            None => (!given.iter().any(|name| name == "key")).then_some(KeyPlace::Default),
        };
        let key = match key {
            Some(key) if faults.is_empty() => key,
            key => return Err(Refused { faults: faults.sorted(), key }),
        };
        let defaults = KEYS
            .iter()
            .filter(|key| key.scope == Scope::Global && !given.iter().any(|name| name == key.name))
            .map(|key| key.name);
        Ok(Self {
            listen: globals.listen.as_ref().map(|listen| listen.value),
            suites: globals.suites(),
            kex: globals.kex(),
            key,
            allow_legacy: globals.allow_legacy,
            permit_bench: globals.permit_bench,
            pool: globals.pool.map_or(PoolMode::Auto, |pool| pool.value),
            pool_budget_bytes: globals.pool_budget.map_or(POOL_BUDGET_BYTES, |size| size.value),
            max_fill_cpu_percent: globals.max_fill_cpu.map_or(100, |share| share.value),
            require_locked: globals.require_locked,
            cipher_engine: globals.cipher_engine.map(|name| name.value).unwrap_or_default(),
            congestion: globals.congestion.map(|name| name.value).unwrap_or_default(),
            spin: globals.spin.map(|share| share.value).unwrap_or_default(),
            loops: globals.loops.map(|number| number.value),
            max_forwards: globals.max_forwards.map(|number| number.value),
            connect_timeout: globals.connect_timeout.map_or(CONNECT_TIMEOUT, |time| time.value),
            drain_timeout: globals.drain_timeout.map_or(DRAIN_TIMEOUT, |time| time.value),
            metrics: globals.metrics.map(|address| address.value),
            log: globals.log.map(|filter| filter.value),
            log_format: globals.log_format.map(|format| format.value),
            peers,
            defaults: defaults.collect(),
            warnings: warnings.sorted(),
        })
    }
}

/// The global keys as far as they are right by themselves.
pub(crate) struct Globals {
    key: Option<Placed<PathBuf>>,
    pub(crate) listen: Option<Placed<SocketAddr>>,
    pub(crate) permit_open: Vec<Permit>,
    pub(crate) permit_listen: Vec<ListenPermit>,
    suite: Option<Vec<Placed<Suite>>>,
    kex: Option<Vec<Placed<KeyExchange>>>,
    pub(crate) allow_legacy: bool,
    permit_bench: bool,
    pool: Option<Placed<PoolMode>>,
    pool_budget: Option<Placed<usize>>,
    max_fill_cpu: Option<Placed<u8>>,
    require_locked: bool,
    cipher_engine: Option<Placed<CipherEngine>>,
    congestion: Option<Placed<Congestion>>,
    spin: Option<Placed<SpinShare>>,
    loops: Option<Placed<usize>>,
    max_forwards: Option<Placed<u32>>,
    connect_timeout: Option<Placed<Duration>>,
    drain_timeout: Option<Placed<Duration>>,
    metrics: Option<Placed<SocketAddr>>,
    log: Option<Placed<String>>,
    log_format: Option<Placed<LogFormat>>,
    /// Whether the file has a `listen`, be it right or wrong.
    pub(crate) listens: bool,
}

impl Globals {
    fn take(table: &mut Table<'_>, memory_bytes: u64, faults: &mut Faults<'_>) -> Self {
        let listens = table.has("listen");
        let permit_open = table.list("permit-open", values::permit, faults);
        let permit_listen = table.list("permit-listen", values::listen_permit, faults);
        let budget = |text: &str| values::pool_budget(text, memory_bytes);
        let globals = Self {
            key: table.text("key", |text| values::path(text.into()), faults),
            listen: table.text("listen", values::socket, faults),
            permit_open: values_of(permit_open.unwrap_or_default()),
            permit_listen: values_of(permit_listen.unwrap_or_default()),
            suite: some_of("suite", table, values::suite, faults),
            kex: some_of("kex", table, values::kex, faults),
            allow_legacy: table.switch("allow-legacy", faults).is_some_and(|switch| switch.value),
            permit_bench: table.switch("permit-bench", faults).is_some_and(|switch| switch.value),
            pool: table.text("pool", values::pool_mode, faults),
            pool_budget: table.text("pool-budget", budget, faults),
            max_fill_cpu: table.text("max-fill-cpu", values::cpu_percent, faults),
            require_locked: table
                .switch("require-locked", faults)
                .is_some_and(|switch| switch.value),
            cipher_engine: table.text("cipher-backend", values::cipher_backend, faults),
            congestion: table.text("congestion", values::congestion, faults),
            spin: table.text("spin", values::spin, faults),
            loops: table.number("loops", values::loops, faults),
            max_forwards: table.number("max-forwards", values::max_forwards, faults),
            connect_timeout: table.text("connect-timeout", values::duration, faults),
            drain_timeout: table.text("drain-timeout", values::drain_timeout, faults),
            metrics: table.text("metrics", values::socket, faults),
            log: table.text("log", values::log_filter, faults),
            log_format: table.text("log-format", values::log_format, faults),
            listens,
        };
        for suite in globals.suite.iter().flatten() {
            globals.refuse_legacy(suite, faults);
        }
        globals
    }

    /// A legacy suite needs consent.
    pub(crate) fn refuse_legacy(&self, suite: &Placed<Suite>, faults: &mut Faults<'_>) {
        if suite.value.class() == Class::Legacy && !self.allow_legacy {
            let cause = format!("suite: `{}` is insecure (legacy)", suite.value);
            let hint = "choose aes-256-gcm, or set allow-legacy = true if it must be this one";
            faults.add(suite.at, cause, Some(hint.into()));
        }
    }

    /// Suites that a server accepts.
    fn suites(&self) -> Vec<Suite> {
        match &self.suite {
            Some(suites) => suites.iter().map(|suite| suite.value).collect(),
            None => Suite::ALL.into_iter().filter(|s| s.class() == Class::Standard).collect(),
        }
    }

    fn kex(&self) -> Vec<KeyExchange> {
        match &self.kex {
            Some(kex) => kex.iter().map(|kex| kex.value).collect(),
            None => KeyExchange::ALL.to_vec(),
        }
    }

    /// What a dialled peer is offered unless it says otherwise.
    pub(crate) fn suite_offered(&self) -> Suite {
        self.suite.iter().flatten().map(|suite| suite.value).next().unwrap_or_default()
    }

    /// Likewise.
    pub(crate) fn kex_offered(&self) -> KeyExchange {
        self.kex.iter().flatten().map(|kex| kex.value).next().unwrap_or_default()
    }
}

/// The values without their places.
pub(crate) fn values_of<T>(placed: Vec<Placed<T>>) -> Vec<T> {
    placed.into_iter().map(|placed| placed.value).collect()
}

/// A list that, where it stands, must name something.
fn some_of<T>(
    name: &'static str,
    table: &mut Table<'_>,
    read: impl Fn(&str) -> Result<T, BadValue>,
    faults: &mut Faults<'_>,
) -> Option<Vec<Placed<T>>> {
    if let Some(at) = table.empty_list_at(name) {
        let hint = format!("leave {name} out to accept the usual ones");
        faults.add(at, format!("{name}: the list is empty"), Some(hint));
    }
    table.list(name, read, faults)
}

/// The tables of `[peer.NAME]`.
fn peer_entries<'t>(peers: Spanned<DeValue<'t>>, faults: &mut Faults<'_>) -> Vec<PeerEntry<'t>> {
    let at = peers.span().start;
    let DeValue::Table(peers) = peers.into_inner() else {
        if !faults.is_broken(at) {
            let hint = "as in [peer.laptop], each peer under a name of its own";
            faults.add(at, "peer: a table for each peer belongs here", Some(hint.into()));
        }
        return Vec::new();
    };
    let mut entries = Vec::new();
    for (name, value) in Table::new(Scope::Peer, peers).into_entries() {
        if let Err(BadValue { cause, hint }) = values::peer_name(&name.value) {
            faults.add(name.at, cause, Some(hint));
        }
        match value.into_inner() {
            DeValue::Table(table) => {
                let table = Table::new(Scope::Peer, table);
                entries.push(PeerEntry { name, table });
            }
            _ if faults.is_broken(name.at) => {}
            _ => {
                let named = if is_private(&name.value) { "NAME" } else { &name.value };
                let hint = format!("as in [peer.{named}], with its keys on the lines below");
                faults.add(name.at, "peer: a table for each peer belongs here", Some(hint));
            }
        }
    }
    entries
}
