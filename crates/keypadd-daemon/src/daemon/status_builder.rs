//! Collects a daemon's snapshot from its counters, pool and sessions, for each `keypadd status` and
//! each scrape of /metrics. One per daemon; nothing is global.

use std::fmt;
use std::process;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use keypadd_config::values::PoolMode;
use keypadd_keystream::{Class, Protection, has_aes_gcm};
use keypadd_pool::{Coverage, Direction, PartLevel};
use keypadd_provider::{DirectionStatus, Histogram, Meters, PacketStage};
use keypadd_share::Budget;
use keypadd_transport::MemoryBudgets;
use keypadd_tunnel::{
    Draining, HeldCounts, HeldList, LinkStatus, LiveSession, MemoryShares, SharedLimits,
    unix_seconds,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::control::{PROTOCOL_VERSION, Status};
use crate::daemon::confine::Confinement;
use crate::daemon::networks::PeerNetworks;
use crate::daemon::pooling::{Choice, Pooling, budget_max};
use crate::status::connections::{ConnectionCounts, ConnectionsReport, most_carried};
use crate::status::peers::PeersReport;
use crate::status::rates::Rates;
use crate::status::snapshot::{
    ByDirection, HoldReport, KeysReport, LevelReport, LinkReport, MemoryReport, PacketsReport,
    PoolReport, SessionReport, ShareReport, Snapshot, Times, TransportReport,
};
use crate::status::sources::{PeerTerms, Sources};

/// The sources of a daemon's status.
#[derive(Clone, Debug)]
pub(crate) struct StatusBuilder {
    /// `serve`, `connect` or `run`.
    pub(crate) verb: &'static str,
    /// A server's UDP address, a client's server address, or the file of `run`.
    pub(crate) place: String,
    /// When the daemon started.
    pub(crate) started: SystemTime,
    /// The pool.
    pub(crate) pooling: Pooling,
    /// The sandbox.
    pub(crate) confinement: Confinement,
    /// Counters of packet protection.
    pub(crate) meters: Arc<Meters>,
    /// Time to hand a packet to the kernel.
    pub(crate) send_seconds: Arc<Histogram>,
    /// Limits and what they refused.
    pub(crate) limits: Arc<SharedLimits>,
    /// The peers whose streams are held.
    pub(crate) held: HeldList,
    /// The memory, and what may take how much of it.
    pub(crate) memory: MemoryShares,
    /// The networks of peers.
    pub(crate) networks: PeerNetworks,
    /// The open sessions, and the peers to connect to.
    pub(crate) sources: Sources,
    /// The sessions' packet rates.
    pub(crate) rates: Rates,
}

impl Status for StatusBuilder {
    fn verb(&self) -> &'static str {
        self.verb
    }

    fn document(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&self.snapshot())
    }

    fn connections(&self, peer: Option<&str>) -> serde_json::Result<Vec<u8>> {
        let mut all = self.limits.connections();
        all.retain(|one| peer.is_none_or(|name| one.peer.as_deref() == Some(name)));
        let counts = ConnectionCounts::of(all.iter().map(|one| one.state));
        let (connections, unlisted) = most_carried(all);
        serde_json::to_vec(&ConnectionsReport {
            pid: process::id(),
            verb: self.verb.into(),
            place: self.place.clone(),
            counts,
            connections,
            unlisted,
        })
    }

    fn peers(&self) -> serde_json::Result<Vec<u8>> {
        let (verb, place) = (self.verb.into(), self.place.clone());
        serde_json::to_vec(&PeersReport {
            pid: process::id(),
            verb,
            place,
            peers: self.sources.peers(),
        })
    }
}

/// A suite's class, shown after its name; every suite but the standard ones is marked insecure.
pub(crate) fn class_label(suite: Protection) -> &'static str {
    match suite.class() {
        Class::Standard => "(standard)",
        Class::Legacy => "insecure (legacy)",
        Class::Measure => "insecure (measure)",
    }
}

/// The class as a metrics label and in JSON.
fn class_name(suite: Protection) -> &'static str {
    match suite.class() {
        Class::Standard => "standard",
        Class::Legacy => "legacy",
        Class::Measure => "measure",
    }
}

impl Collector for StatusBuilder {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.snapshot().encode(encoder)
    }
}

/// How much of a packet's keystream came from the pool, in the order of their labels.
const COVERAGES: [Coverage; 3] = [Coverage::Hit, Coverage::Partial, Coverage::Miss];

impl StatusBuilder {
    /// All that a daemon shows, now.
    fn snapshot(&self) -> Snapshot {
        let meters = &self.meters;
        let packets = |direction| {
            let [hit, partial, miss] =
                COVERAGES.map(|coverage| meters.packets(direction, coverage));
            let all = hit + partial + miss;
            PacketsReport {
                hit,
                partial,
                miss,
                hit_ratio: (all > 0).then(|| hit as f64 / all as f64),
            }
        };
        let sessions: Vec<_> =
            self.sources.live().iter().map(|live| self.session_report(live)).collect();
        let links = self.sources.dialed().into_iter().map(|dialing| {
            let LinkStatus {
                state,
                since_unix_seconds,
                cause,
                retry_unix_seconds,
                reconnects,
                renewals,
            } = dialing.link.status();
            let reconnects =
                reconnects.into_iter().map(|(reason, n)| (reason.label().to_owned(), n));
            LinkReport {
                peer: dialing.peer,
                endpoint: dialing.endpoint,
                state,
                since_unix_seconds,
                cause,
                retry_unix_seconds,
                reconnects: reconnects.collect(),
                renewals,
                valid_until_unix_seconds: dialing.valid_until.map(unix_seconds),
            }
        });
        let draining = self.sources.server().map(|(_, draining)| draining);
        let drain_left = draining.as_ref().and_then(Draining::left);
        let times =
            |direction| COVERAGES.map(|coverage| Times::from(meters.seconds(direction, coverage)));
        let stages = PacketStage::ALL.map(|stage| (stage.name(), meters.stage_seconds(stage)));
        let stages = stages.into_iter().chain([("udp_send", &*self.send_seconds)]);
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            control_version: PROTOCOL_VERSION,
            pid: process::id(),
            verb: self.verb.to_owned(),
            place: self.place.clone(),
            public_key: self.sources.public_key().to_string(),
            started_unix_seconds: unix_seconds(self.started),
            draining: draining.is_some_and(|draining| draining.is_on()),
            drain_left_seconds: drain_left.map(|left| left.as_secs()),
            sandbox: self.confinement.report(),
            transport: self.transport_report(),
            suite_preference: self.suite_preference().to_owned(),
            limits: self.limits.counts(),
            connections: ConnectionCounts::of(self.limits.connection_states()),
            memory: self.memory_report(),
            hold: self.hold_report(),
            pool: self.pool_report(&sessions),
            keystream_pool_bytes: meters.keystream_pool_bytes(),
            keystream_inline_bytes: meters.keystream_inline_bytes(),
            packets: ByDirection {
                send: packets(Direction::Send),
                receive: packets(Direction::Receive),
            },
            pool_exhaustions: meters.exhaustions(),
            open_failures: meters.open_failures(),
            resets: meters.resets(),
            replays: meters.replays(),
            pad_reuse: meters.pad_reuse(),
            sessions,
            links: links.collect(),
            networks: self.networks.status().into_iter().map(Into::into).collect(),
            packet_times: ByDirection {
                send: times(Direction::Send),
                receive: times(Direction::Receive),
            },
            stage_times: stages.map(|(stage, times)| (stage, times.into())).collect(),
            forwards: self.limits.forwards(),
        }
    }

    fn transport_report(&self) -> TransportReport {
        let (polled, datagrams_dropped) = self.sources.loop_counts();
        let spin_seconds = polled.as_secs_f64();
        let up = self.started.elapsed().map_or(0.0, |up| up.as_secs_f64());
        let spin_ratio = if up > 0.0 { spin_seconds / up } else { 0.0 };
        let loops = self.sources.loops();
        TransportReport { loops, spin_seconds, spin_ratio, datagrams_dropped }
    }

    fn memory_report(&self) -> MemoryReport {
        let share = |of: &str, max: u64, used_bytes| ShareReport {
            of: of.to_owned(),
            max_bytes: (max != u64::MAX).then_some(max),
            used_bytes,
        };
        let budget = |of, budget: &Budget| share(of, budget.total(), budget.taken());
        let MemoryBudgets { received, sent } = &self.memory.budgets;
        let counts = self.limits.counts();
        let forwards_max = self.memory.forwards_total(counts.descriptors_max);
        let pool = self.pooling.pool().map(|pool| pool.snapshot().budget_bytes);
        MemoryReport {
            limit_bytes: self.memory.bytes(),
            shares: vec![
                budget("received", received),
                budget("sent", sent),
                share("forwards", forwards_max, self.memory.of_forwards(counts.descriptors)),
                share("pool", budget_max(self.memory.bytes()) as u64, pool.unwrap_or(0)),
            ],
        }
    }

    fn hold_report(&self) -> HoldReport {
        let HeldCounts { streams_resumed, streams_reset } = self.held.counts();
        let peers = self.held.peers();
        HoldReport { peers, resumed: streams_resumed, reset: streams_reset }
    }

    fn pool_report(&self, sessions: &[SessionReport]) -> PoolReport {
        let (mode, suites, pool) = self.pooling.in_force();
        let auto = mode == PoolMode::Auto;
        let Some(pool) = pool else {
            let reason = self.why_off(&suites);
            let suites = suites.into_iter().map(|choice| choice.report).collect();
            return PoolReport {
                mode: "off".into(),
                auto,
                reason,
                suites,
                ..PoolReport::default()
            };
        };
        let pool = pool.snapshot();
        let keys = || sessions.iter().flat_map(|one| [&one.keys.send, &one.keys.receive]);
        PoolReport {
            mode: if pool.filler_alive { "on" } else { "off" }.into(),
            auto,
            reason: match pool.filler_fault {
                Some(fault) => fault.reason().into(),
                None if pool.filler_alive => String::new(),
                None => "the filler has not started".into(),
            },
            suites: suites.into_iter().map(|choice| choice.report).collect(),
            budget_bytes: pool.budget_bytes,
            filled_bytes: pool.filled_bytes,
            locked_bytes: pool.locked_bytes,
            withheld_bytes: pool.withheld_bytes,
            fill_bytes: pool.fill_bytes_total,
            fill_cpu_seconds: pool.fill_cpu.as_secs_f64(),
            pads_wasted: pool.pads_wasted_total,
            filler_idle_class: pool.filler_idle_class,
            max_fill_cpu_percent: pool.max_fill_cpu_percent,
            packets: keys().map(|keys| keys.head.packets).sum(),
            seconds_left: keys().filter_map(|keys| keys.seconds_left).reduce(f64::min),
        }
    }

    fn session_report(&self, live: &LiveSession) -> SessionReport {
        let session = live.status();
        let keys = |direction| {
            let rate = self.rates.of(session.id, direction);
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
        let PeerTerms { has_other_key, valid_until } = self.sources.peer_terms(&live.key());
        SessionReport {
            bytes_per_second: ByDirection {
                send: self.rates.bytes_per_second(session.id, Direction::Send),
                receive: self.rates.bytes_per_second(session.id, Direction::Receive),
            },
            silent_seconds: self.rates.silent_seconds(session.id, Instant::now()),
            session,
            has_other_key,
            valid_until_unix_seconds: valid_until.map(unix_seconds),
            class: class_name(live.handshake().suite).to_owned(),
            keys,
        }
    }

    /// Which suite this host prefers and why; empty if settings name the suites.
    fn suite_preference(&self) -> &'static str {
        match (self.sources.ranks_suites(), has_aes_gcm()) {
            (true, true) => "AES-GCM before ChaCha20: this CPU has AES instructions",
            (true, false) => "ChaCha20 before AES-GCM: this CPU has no AES instructions",
            (false, _) => "",
        }
    }

    /// Why there is no pool: it is turned off, or no suite is faster with it.
    fn why_off(&self, choices: &[Choice]) -> String {
        let setting = |mode: &str| match self.verb {
            "run" => format!("pool = \"{mode}\""),
            _ => format!("--pool {mode}"),
        };
        let needed = choices.iter().filter(|choice| choice.is_needed());
        let best = needed.filter_map(Choice::best);
        let gain = |&(pooled, inline): &(f64, f64)| inline / pooled;
        let Some((pooled, inline)) = best.max_by(|one, two| gain(one).total_cmp(&gain(two))) else {
            return setting("off");
        };
        let micros = |seconds: f64| format!("{:.2} us", seconds * 1e6);
        let (pooled, inline) = (micros(pooled), micros(inline));
        format!("pooled {pooled}, inline {inline}; force with {}", setting("on"))
    }
}
