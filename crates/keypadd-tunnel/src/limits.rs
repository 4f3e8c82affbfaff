//! Holds the limits that all servers and clients of a daemon share, counts what they refused and
//! what forwards carried, and shares out the places of a session's connections. Knows no sessions.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use keypadd_provider::PublicKey;
use keypadd_share::{Begun, Rates, Underway};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use self::{
    descriptors::{DescriptorBudget, OF_CONNECTION},
    local_ports::LocalPorts,
    memory::MemoryShares,
    open_connections::{ConnectionState, ConnectionStatus, OpenConnections},
    peer_log::PeerLog,
    traffic::{ForwardTotals, Traffic},
};
use crate::net::host_ports::HostPorts;

pub(crate) mod descriptors;
pub(crate) mod local_ports;
pub(crate) mod memory;
pub(crate) mod open_connections;
pub(crate) mod peer_log;
pub(crate) mod places;
pub(crate) mod traffic;

/// How long a daemon that is being replaced waits for connections that are being opened.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Descriptors, local ports and log lines, shared by everything that peers can cause to use them.
#[derive(Debug, Default)]
pub struct SharedLimits {
    pub(crate) descriptors: DescriptorBudget,
    pub(crate) log: PeerLog,
    /// Lines about targets that close without a byte, by peer and target.
    pub(crate) mute_targets: Rates<(PublicKey, String)>,
    pub(crate) local_ports: LocalPorts,
    /// Lines about targets to which a peer may use no more local ports.
    pub(crate) local_port_lines: Rates<String>,
    pub(crate) traffic: Traffic,
    pub(crate) open_connections: OpenConnections,
    /// What a socket of a forward may have received and not yet read, if that is limited.
    pub(crate) socket_bytes: Option<usize>,
    log_connections: AtomicBool,
    sessions_refused: AtomicU64,
    frames_delayed: AtomicU64,
    /// Connections that are being opened: from the request for a stream until the event loop has
    /// been told to carry it. Only those that it carries can be held.
    opening: Underway,
}

/// What the limits have refused or delayed since the daemon started, and what is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitCounts {
    /// Descriptors that forwards may use together.
    pub descriptors_max: usize,
    /// Descriptors set aside for them now.
    pub descriptors: usize,
    /// Forwarded connections and listeners refused for lack of descriptors.
    pub descriptors_refused: u64,
    /// Sessions refused because their key had too many.
    pub sessions_refused: u64,
    /// Control frames read late because they came too fast.
    pub frames_delayed: u64,
    /// Log lines not written because their peer had caused too many.
    pub log_lines_suppressed: u64,
}

impl SharedLimits {
    /// Limits for this process: its own listeners and forwards may use `files` descriptors
    /// together, without the reserve, a function of those that the listeners leave, and forwards no
    /// more than their share of the memory allows.
    pub fn new(files: usize, reserved: fn(usize) -> usize, memory: &MemoryShares) -> Self {
        let of_memory = memory.forwards_max().saturating_mul(OF_CONNECTION);
        let descriptors = DescriptorBudget::new(files, reserved, of_memory);
        Self { descriptors, socket_bytes: memory.socket_bytes(), ..Self::default() }
    }

    /// These limits with the local ports of this host.
    pub fn with_local_ports(self, host: HostPorts) -> Self {
        Self { local_ports: LocalPorts::new(host), ..self }
    }

    /// Whether each forwarded connection is logged from now on.
    pub fn set_log_connections(&self, log: bool) {
        self.log_connections.store(log, Ordering::Relaxed);
    }

    pub(crate) fn logs_connections(&self) -> bool {
        self.log_connections.load(Ordering::Relaxed)
    }

    /// The counts now.
    pub fn counts(&self) -> LimitCounts {
        let (descriptors, descriptors_refused) = self.descriptors.counts();
        LimitCounts {
            descriptors_max: self.descriptors.total(),
            descriptors,
            descriptors_refused,
            sessions_refused: self.sessions_refused.load(Ordering::Relaxed),
            frames_delayed: self.frames_delayed.load(Ordering::Relaxed),
            log_lines_suppressed: self.log.suppressed(),
        }
    }

    /// What each forward has carried since the daemon started.
    pub fn forwards(&self) -> Vec<ForwardTotals> {
        self.traffic.totals()
    }

    /// The forwarded connections and UDP flows that there are now, the oldest first.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.open_connections.list()
    }

    /// How far each of them has come.
    pub fn connection_states(&self) -> Vec<ConnectionState> {
        self.open_connections.states()
    }

    /// Logs how many lines of each peer were suppressed since the last call, and forgets targets
    /// without a connection; call it once a minute.
    pub fn report_suppressed(&self) {
        self.log.report();
        self.local_ports.forget(Instant::now());
    }

    /// Counts a connection as being opened.
    pub fn opening(&self) -> Begun {
        self.opening.begin()
    }

    /// Waits a moment for the connections that are being opened, of all peers: only those that are
    /// open can be held.
    pub async fn settled(&self) {
        let _ = timeout(SETTLE_TIMEOUT, self.opening.none()).await;
    }

    pub(crate) fn count_refused_session(&self) {
        self.sessions_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_delayed_frame(&self) {
        self.frames_delayed.fetch_add(1, Ordering::Relaxed);
    }
}
