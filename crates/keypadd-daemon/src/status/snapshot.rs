//! What a daemon shows of itself at one moment: collected once, then read as JSON, which is the
//! daemon's answer to `keypadd status`, as text and as metrics. Field names are part of the command
//! line's interface: fields may be added, none removed. A field that a released daemon does not
//! send reads as its default.

use std::collections::BTreeMap;

use keypadd_provider::Histogram;
use keypadd_tunnel::{
    ForwardTotals, HeldStatus, LimitCounts, LinkState, NetworkPhase, NetworkStatus, SessionStatus,
};
use serde::{Deserialize, Serialize};

use crate::status::connections::ConnectionCounts;

/// One daemon at one moment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) version: String,
    /// Version of the control socket's protocol.
    pub(crate) control_version: u32,
    pub(crate) pid: u32,
    pub(crate) verb: String,
    pub(crate) place: String,
    pub(crate) public_key: String,
    pub(crate) started_unix_seconds: u64,
    /// Whether its server accepts no new sessions.
    #[serde(default)]
    pub(crate) draining: bool,
    /// How long what is open there may stay; absent if there is no limit.
    pub(crate) drain_left_seconds: Option<u64>,
    pub(crate) sandbox: SandboxReport,
    pub(crate) transport: TransportReport,
    /// Which suite is preferred, and why; empty if settings name the suites.
    pub(crate) suite_preference: String,
    pub(crate) limits: LimitCounts,
    pub(crate) connections: ConnectionCounts,
    pub(crate) memory: MemoryReport,
    pub(crate) hold: HoldReport,
    pub(crate) pool: PoolReport,
    pub(crate) keystream_pool_bytes: u64,
    pub(crate) keystream_inline_bytes: u64,
    pub(crate) packets: ByDirection<PacketsReport>,
    pub(crate) pool_exhaustions: u64,
    pub(crate) open_failures: u64,
    /// Connections that ended because their peer does not know them any more.
    pub(crate) resets: u64,
    pub(crate) replays: u64,
    pub(crate) pad_reuse: u64,
    pub(crate) sessions: Vec<SessionReport>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) networks: Vec<NetworkReport>,
    /// How long sealing and opening take by [`COVERAGES`]; this and what follows is for metrics
    /// alone.
    #[serde(skip)]
    pub(crate) packet_times: ByDirection<[Times; 3]>,
    /// How long each stage of a packet takes.
    #[serde(skip)]
    pub(crate) stage_times: Vec<(&'static str, Times)>,
    /// What forwards have carried.
    #[serde(skip)]
    pub(crate) forwards: Vec<ForwardTotals>,
}

/// How much of a packet's keystream came from the pool, as labels.
pub(crate) const COVERAGES: [&str; 3] = ["hit", "partial", "miss"];

/// Durations of one kind.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Upper bounds in seconds, infinite for the last, each with the count in that bucket only.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum_seconds: f64,
}

impl From<&Histogram> for Times {
    fn from(histogram: &Histogram) -> Self {
        Self { buckets: histogram.buckets().to_vec(), sum_seconds: histogram.sum_seconds() }
    }
}

/// The sandbox.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SandboxReport {
    /// Restrictions in force; none if the sandbox is off.
    pub(crate) holds: Vec<String>,
    /// Restrictions that the kernel, or the privileges of the user who started the daemon, do not
    /// allow.
    pub(crate) lacks: Vec<String>,
}

/// The event loops.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TransportReport {
    pub(crate) loops: usize,
    /// CPU time spent on busy polling that found nothing.
    pub(crate) spin_seconds: f64,
    /// CPU time spent on such polling as a share of one core, since the daemon started.
    pub(crate) spin_ratio: f64,
    /// Datagrams dropped because their connections took more than their shares of a loop.
    pub(crate) datagrams_dropped: u64,
}

/// The memory that the daemon may use, and what may take how much of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct MemoryReport {
    /// The least of this host's memory and the limits of the process's cgroups.
    pub(crate) limit_bytes: u64,
    pub(crate) shares: Vec<ShareReport>,
}

/// A share of the memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShareReport {
    /// What takes it.
    pub(crate) of: String,
    /// Absent if it has no limit.
    pub(crate) max_bytes: Option<u64>,
    pub(crate) used_bytes: u64,
}

/// Connections held while their peer is away.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HoldReport {
    /// Peers that are away.
    pub(crate) peers: Vec<HeldStatus>,
    /// Connections resumed since the daemon started.
    pub(crate) resumed: u64,
    /// Connections that were held but not resumed.
    pub(crate) reset: u64,
}

/// A peer that this daemon connects to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LinkReport {
    pub(crate) peer: String,
    pub(crate) endpoint: String,
    pub(crate) state: LinkState,
    pub(crate) since_unix_seconds: u64,
    /// Why it is down; absent if it has never been up and no attempt has failed.
    pub(crate) cause: Option<String>,
    /// When the next attempt starts; absent during an attempt.
    pub(crate) retry_unix_seconds: Option<u64>,
    /// Reconnects, by what ended the session before.
    pub(crate) reconnects: BTreeMap<String, u64>,
    /// How often its session has got new keys.
    pub(crate) renewals: u64,
    /// When this daemon stops connecting to it, as seconds since 1970.
    pub(crate) valid_until_unix_seconds: Option<u64>,
}

/// The networks behind a peer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NetworkReport {
    pub(crate) peer: String,
    pub(crate) device: String,
    pub(crate) mtu_bytes: u16,
    /// Whether packets pass.
    pub(crate) up: bool,
    /// The session that sends them, by its number.
    pub(crate) session: Option<u64>,
    /// Why they do not pass, if that is known.
    pub(crate) cause: Option<String>,
    /// The networks here that the peer accepts packets from, if it has said so.
    pub(crate) peer_accepts: Option<Vec<String>>,
    pub(crate) packets: ByDirection<u64>,
    pub(crate) bytes: ByDirection<u64>,
    /// Packets to the peer that took several frames.
    pub(crate) fragmented_packets: u64,
    /// Packets whose sender was told that they are too big.
    pub(crate) too_big_packets: u64,
    /// Packets that were marked as having met congestion, since they waited for long.
    pub(crate) marked_packets: u64,
    /// By reason, also those that did not occur.
    pub(crate) dropped: BTreeMap<String, u64>,
}

impl From<NetworkStatus> for NetworkReport {
    fn from(status: NetworkStatus) -> Self {
        let NetworkStatus { peer, device, mtu, phase, session, peer_accepts, counts } = status;
        let cause = match &phase {
            NetworkPhase::Down | NetworkPhase::Up => None,
            NetworkPhase::Refused(why) => Some(format!("refused: {why}")),
            NetworkPhase::DeviceLost(why) => Some(format!("device lost: {why}")),
        };
        let texts = |prefixes: Vec<_>| prefixes.iter().map(ToString::to_string).collect();
        Self {
            peer,
            device,
            mtu_bytes: mtu,
            up: phase == NetworkPhase::Up,
            session,
            cause,
            peer_accepts: peer_accepts.map(texts),
            packets: ByDirection { send: counts.sent_packets, receive: counts.received_packets },
            bytes: ByDirection { send: counts.sent_bytes, receive: counts.received_bytes },
            fragmented_packets: counts.fragmented_packets,
            too_big_packets: counts.too_big_answers,
            marked_packets: counts.marked_packets,
            dropped: counts
                .dropped
                .into_iter()
                .map(|(reason, count)| (reason.label().to_owned(), count))
                .collect(),
        }
    }
}

/// A value for each direction.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ByDirection<T> {
    pub(crate) send: T,
    pub(crate) receive: T,
}

impl<T> ByDirection<T> {
    /// Both values, with the labels of their directions.
    pub(crate) fn both(&self) -> [(&'static str, &T); 2] {
        [("send", &self.send), ("receive", &self.receive)]
    }
}

/// Packets by how much of their keystream came from the pool.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PacketsReport {
    pub(crate) hit: u64,
    pub(crate) partial: u64,
    pub(crate) miss: u64,
    /// Hits among all packets; absent before the first one.
    pub(crate) hit_ratio: Option<f64>,
}

/// The pool.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PoolReport {
    pub(crate) mode: String,
    /// Whether `auto` chose it.
    pub(crate) auto: bool,
    /// Why the pool is off; empty while it is on.
    pub(crate) reason: String,
    /// What `auto` chose for each suite.
    pub(crate) suites: Vec<SuiteReport>,
    pub(crate) budget_bytes: u64,
    pub(crate) filled_bytes: u64,
    pub(crate) locked_bytes: u64,
    /// Unused, above a lowered budget, and not yet returned to the kernel.
    pub(crate) withheld_bytes: u64,
    pub(crate) fill_bytes: u64,
    pub(crate) fill_cpu_seconds: f64,
    pub(crate) pads_wasted: u64,
    pub(crate) filler_idle_class: bool,
    pub(crate) max_fill_cpu_percent: u8,
    /// Short packets, to send and to receive, that the pool has keystream for.
    pub(crate) packets: u64,
    /// How long until the first session runs dry; absent while all are idle.
    pub(crate) seconds_left: Option<f64>,
}

/// What `auto` chose for one suite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SuiteReport {
    pub(crate) suite: String,
    /// Whether its sessions use the pool.
    pub(crate) pays: bool,
    /// Whether sessions use it, or likely will.
    pub(crate) in_use: bool,
    /// The measurements behind the choice.
    pub(crate) seals: Vec<SealReport>,
}

/// How long sealing one payload takes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SealReport {
    pub(crate) payload_bytes: usize,
    pub(crate) pooled_seconds: f64,
    pub(crate) inline_seconds: f64,
}

/// A session.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionReport {
    #[serde(flatten)]
    pub(crate) session: SessionStatus,
    /// Whether the peer is also listed with another key.
    pub(crate) has_other_key: bool,
    /// When the peer is no longer accepted, as seconds since 1970.
    pub(crate) valid_until_unix_seconds: Option<u64>,
    pub(crate) class: String,
    /// Bytes per second over the last two seconds, as UDP payload; absent before two samples.
    pub(crate) bytes_per_second: ByDirection<Option<f64>>,
    /// For how long the peer has not answered what this end has sent; absent if it answers.
    pub(crate) silent_seconds: Option<f64>,
    pub(crate) keys: ByDirection<KeysReport>,
}

/// The keys of one direction of a session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeysReport {
    pub(crate) key_phase: u64,
    pub(crate) key_budget_left_ratio: f64,
    pub(crate) head: LevelReport,
    pub(crate) body: LevelReport,
    /// Over the last seconds; absent before two samples.
    pub(crate) packets_per_second: Option<f64>,
    /// How long the pool lasts at that rate; absent while the session is idle.
    pub(crate) seconds_left: Option<f64>,
}

/// Keystream in the pool.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct LevelReport {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}
