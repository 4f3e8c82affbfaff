//! Everything one daemon knows of itself, read afresh each time: what `status` prints and what
//! `/metrics` serves come from here. There is one per daemon and nothing global.

use std::process;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keypadd_config::values::PoolMode;
use keypadd_keystream::{Class, Protection};
use keypadd_pool::{Coverage, Direction, PartLevel};
use keypadd_provider::{DirectionStatus, Histogram, Meters};
use keypadd_tunnel::{LinkStatus, LiveSession, SessionStatus};
use serde::Serialize;

use crate::pooling::{Choice, Pooling};
use crate::rates::Rates;
use crate::sources::Sources;

/// Both directions with their label in metrics and JSON.
pub(crate) const DIRECTIONS: [(Direction, &str); 2] =
    [(Direction::Send, "send"), (Direction::Receive, "receive")];

/// Where a packet's pad came from, with its label.
pub(crate) const COVERAGES: [(Coverage, &str); 3] =
    [(Coverage::Hit, "hit"), (Coverage::Partial, "partial"), (Coverage::Miss, "miss")];

/// A daemon's sources of figures.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// `serve`, `connect` or `run`.
    pub(crate) verb: &'static str,
    /// The bound UDP address of a server, the server's address of a client, the file of `run`.
    pub(crate) place: String,
    /// When the daemon started.
    pub(crate) started: SystemTime,
    /// The pool, if there is one.
    pub(crate) pooling: Pooling,
    /// What packet protection counted.
    pub(crate) meters: Arc<Meters>,
    /// How long handing a packet to the kernel took.
    pub(crate) send_seconds: Arc<Histogram>,
    /// The sessions that live, and the peers that are dialled.
    pub(crate) sources: Sources,
    /// How fast they use pads.
    pub(crate) rates: Rates,
}

/// One daemon at one moment, as `status --json` prints it. Names are part of the command line's
/// promise: fields may come, none goes.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: &'static str,
    pid: u32,
    verb: &'static str,
    place: String,
    public_key: String,
    started_unix_seconds: u64,
    transport: TransportReport,
    pool: PoolReport,
    keystream_pool_bytes: u64,
    keystream_inline_bytes: u64,
    packets: ByDirection<Packets>,
    pool_exhaustions: u64,
    open_failures: u64,
    replays: u64,
    pad_reuse: u64,
    sessions: Vec<SessionReport>,
    links: Vec<LinkReport>,
}

/// The event loops.
#[derive(Debug, Serialize)]
struct TransportReport {
    loops: usize,
    /// CPU time that they spent on polling for nothing.
    spin_seconds: f64,
    /// The same as part of one core, since the daemon started.
    spin_ratio: f64,
}

/// A peer that is dialled.
#[derive(Debug, Serialize)]
struct LinkReport {
    peer: String,
    endpoint: String,
    #[serde(flatten)]
    link: LinkStatus,
}

#[derive(Debug, Serialize)]
struct ByDirection<T> {
    send: T,
    receive: T,
}

#[derive(Debug, Serialize)]
struct Packets {
    hit: u64,
    partial: u64,
    miss: u64,
    /// Hits among all; absent before the first packet.
    hit_ratio: Option<f64>,
}

#[derive(Debug, Default, Serialize)]
struct PoolReport {
    mode: &'static str,
    /// Whether that was chosen by what seals take.
    auto: bool,
    /// Why the pool is off; empty while it is on.
    reason: String,
    /// What was chosen for each suite, and from which figures; empty unless it was.
    suites: Vec<Choice>,
    budget_bytes: u64,
    filled_bytes: u64,
    locked_bytes: u64,
    fill_bytes: u64,
    fill_cpu_seconds: f64,
    pads_wasted: u64,
    filler_idle_class: bool,
    max_fill_cpu_percent: u8,
    /// Short packets, to send and to receive, whose pads are at hand.
    packets: u64,
    /// How long the first session that runs dry has left; absent while all are idle.
    seconds_left: Option<f64>,
}

#[derive(Debug, Serialize)]
struct SessionReport {
    #[serde(flatten)]
    session: SessionStatus,
    class: &'static str,
    keys: ByDirection<KeysReport>,
}

#[derive(Debug, Serialize)]
struct KeysReport {
    key_phase: u64,
    key_budget_left_ratio: f64,
    head: LevelReport,
    body: LevelReport,
    /// Over the last seconds; absent before two samples.
    packets_per_second: Option<f64>,
    /// How long the pads at hand last at that rate; absent while the session is idle.
    seconds_left: Option<f64>,
}

#[derive(Debug, Serialize)]
struct LevelReport {
    bytes: u64,
    packets: u64,
}

/// A suite's class after its name, for people; all but a standard suite are called insecure
/// wherever they are shown.
pub(crate) fn class_label(suite: Protection) -> &'static str {
    match suite.class() {
        Class::Standard => "(standard)",
        Class::Legacy => "insecure (legacy)",
        Class::Measure => "insecure (measure)",
    }
}

/// The class as a label of metrics and a field of JSON.
pub(crate) fn class_name(suite: Protection) -> &'static str {
    match suite.class() {
        Class::Standard => "standard",
        Class::Legacy => "legacy",
        Class::Measure => "measure",
    }
}

impl Figures {
    /// All figures now.
    pub(crate) fn report(&self) -> Report {
        let meters = &self.meters;
        let packets = |direction| {
            let [hit, partial, miss] =
                COVERAGES.map(|(coverage, _)| meters.packets(direction, coverage));
            let all = hit + partial + miss;
            Packets { hit, partial, miss, hit_ratio: (all > 0).then(|| hit as f64 / all as f64) }
        };
        let sessions: Vec<_> =
            self.sources.live().iter().map(|live| session_report(live, &self.rates)).collect();
        let links = self.sources.dialled().into_iter().map(|dialling| LinkReport {
            peer: dialling.peer,
            endpoint: dialling.endpoint,
            link: dialling.link.status(),
        });
        Report {
            version: env!("CARGO_PKG_VERSION"),
            pid: process::id(),
            verb: self.verb,
            place: self.place.clone(),
            public_key: self.sources.public_key().to_string(),
            started_unix_seconds: unix_seconds(self.started),
            transport: self.transport_report(),
            pool: self.pool_report(&sessions),
            keystream_pool_bytes: meters.keystream_pool_bytes(),
            keystream_inline_bytes: meters.keystream_inline_bytes(),
            packets: ByDirection {
                send: packets(Direction::Send),
                receive: packets(Direction::Receive),
            },
            pool_exhaustions: meters.exhaustions(),
            open_failures: meters.open_failures(),
            replays: meters.replays(),
            pad_reuse: meters.pad_reuse(),
            sessions,
            links: links.collect(),
        }
    }

    fn transport_report(&self) -> TransportReport {
        let spin_seconds = self.sources.spun().as_secs_f64();
        let up = self.started.elapsed().map_or(0.0, |up| up.as_secs_f64());
        let spin_ratio = if up > 0.0 { spin_seconds / up } else { 0.0 };
        TransportReport { loops: self.sources.loops(), spin_seconds, spin_ratio }
    }

    fn pool_report(&self, sessions: &[SessionReport]) -> PoolReport {
        let (mode, suites, pool) = self.pooling.in_force();
        let auto = mode == PoolMode::Auto;
        let Some(pool) = pool else {
            let reason = self.why_off(&suites);
            return PoolReport { mode: "off", auto, reason, suites, ..PoolReport::default() };
        };
        let pool = pool.snapshot();
        let keys = || sessions.iter().flat_map(|one| [&one.keys.send, &one.keys.receive]);
        PoolReport {
            mode: if pool.filler_alive { "on" } else { "off" },
            auto,
            reason: match pool.filler_fault {
                Some(fault) => fault.reason().into(),
                None if pool.filler_alive => String::new(),
                None => "the filler has not begun".into(),
            },
            suites,
            budget_bytes: pool.budget_bytes,
            filled_bytes: pool.filled_bytes,
            locked_bytes: pool.locked_bytes,
            fill_bytes: pool.fill_bytes_total,
            fill_cpu_seconds: pool.fill_cpu.as_secs_f64(),
            pads_wasted: pool.pads_wasted_total,
            filler_idle_class: pool.filler_idle_class,
            max_fill_cpu_percent: pool.max_fill_cpu_percent,
            packets: keys().map(|keys| keys.head.packets).sum(),
            seconds_left: keys().filter_map(|keys| keys.seconds_left).reduce(f64::min),
        }
    }
}

impl Figures {
    /// Why there is no pool: the user says so, or no suite gains by one.
    fn why_off(&self, choices: &[Choice]) -> String {
        let setting = |mode: &str| match self.verb {
            "run" => format!("pool = \"{mode}\""),
            _ => format!("--pool {mode}"),
        };
        let best = choices.iter().filter_map(Choice::best);
        let gain = |&(pooled, inline): &(f64, f64)| inline / pooled;
        let Some((pooled, inline)) = best.max_by(|one, two| gain(one).total_cmp(&gain(two))) else {
            return setting("off");
        };
        let micros = |seconds: f64| format!("{:.2} us", seconds * 1e6);
        let (pooled, inline) = (micros(pooled), micros(inline));
        format!("pooled {pooled}, inline {inline}; force with {}", setting("on"))
    }
}

fn session_report(live: &LiveSession, rates: &Rates) -> SessionReport {
    let session = live.status();
    let keys = |direction| {
        let rate = rates.of(session.id, direction);
        let status = DirectionStatus::of_all(live.keys(), direction);
        let level = |part: PartLevel| LevelReport { bytes: part.bytes, packets: part.packets };
        KeysReport {
            key_phase: status.key_phase,
            key_budget_left_ratio: status.key_budget_left_ratio,
            head: level(status.head),
            body: level(status.body),
            packets_per_second: rate.map(|rate| rate.packets),
            seconds_left: rate.and_then(|rate| rate.seconds_left(status.head, status.body)),
        }
    };
    let keys = ByDirection { send: keys(Direction::Send), receive: keys(Direction::Receive) };
    SessionReport { session, class: class_name(live.handshake().suite), keys }
}

/// Seconds since 1970; a clock before that counts as 0.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
