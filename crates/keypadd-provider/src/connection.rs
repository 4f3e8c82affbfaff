//! Shows the state of a connection's keys to the rest of the daemon: faults, levels, phases. Never
//! a key.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keypadd_keystream::{Class, Protection};
use keypadd_pool::{Direction, Part, PartLevel, Pool, PoolAllowance};

use crate::fault::KeyFault;
use crate::identity::PublicKey;
use crate::kx::Group;
use crate::limits::KeyLimits;
use crate::open::Inbound;
use crate::phases::Phases;
use crate::seal::Outbound;
use crate::session_token::Channel;

/// The content of `quinn::Connection::handshake_data` once 1-RTT keys exist. Only `peer_identity`
/// tells whether the peer has proved its key.
pub struct HandshakeData {
    /// The negotiated suite.
    pub suite: Protection,
    /// The negotiated key exchange.
    pub kex: Group,
    /// A view of the connection's keys.
    pub keys: ConnectionKeys,
    /// CPU time that opening a KiB takes on this machine ([`opening_cost`](crate::opening_cost)).
    pub opening_cost: Duration,
}

/// The content of `quinn::Connection::peer_identity` once the handshake is complete.
#[derive(Clone, Debug)]
pub struct ProvedPeer {
    /// The key that the peer has proved.
    pub key: PublicKey,
    /// The connection, for proofs of tokens.
    pub channel: Channel,
}

impl HandshakeData {
    /// What the connection may be used for.
    pub fn class(&self) -> Class {
        self.suite.class().max(self.kex.class())
    }

    /// Whether the connection is for measurements only: it reaches nothing of this host.
    pub fn measures_only(&self) -> bool {
        self.class() == Class::Measure
    }
}

/// A view of one connection's keys; clones see the same connection.
#[derive(Clone)]
pub struct ConnectionKeys {
    suite: Protection,
    outbound: Arc<Outbound>,
    inbound: Arc<Inbound>,
    /// The limit of its peer, once known.
    allowance: Arc<OnceLock<PoolAllowance>>,
}

/// The state of one direction at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirectionStatus {
    /// Precomputed keystream for the first bytes of packets.
    pub head: PartLevel,
    /// Precomputed keystream for the rest of packets.
    pub body: PartLevel,
    /// The key phase in use, from 0.
    pub key_phase: u64,
    /// The fraction of the key's packets left before its hard limit, 1.0 to 0.0.
    pub key_budget_left_ratio: f64,
}

impl DirectionStatus {
    /// Combines all connections of a session: the sum of their keystream, the latest phase, and the
    /// lowest key budget.
    pub fn of_all<'a>(
        keys: impl IntoIterator<Item = &'a ConnectionKeys>,
        direction: Direction,
    ) -> Self {
        let add = |one: PartLevel, other: PartLevel| PartLevel {
            bytes: one.bytes + other.bytes,
            packets: one.packets + other.packets,
        };
        let each = keys.into_iter().map(|keys| keys.status(direction));
        each.reduce(|one, other| Self {
            head: add(one.head, other.head),
            body: add(one.body, other.body),
            key_phase: one.key_phase.max(other.key_phase),
            key_budget_left_ratio: one.key_budget_left_ratio.min(other.key_budget_left_ratio),
        })
        .unwrap_or_default()
    }
}

impl ConnectionKeys {
    pub(crate) fn new(suite: Protection, outbound: Arc<Outbound>, inbound: Arc<Inbound>) -> Self {
        Self { suite, outbound, inbound, allowance: Arc::default() }
    }

    pub(crate) fn directions(&self) -> (&Arc<Outbound>, &Arc<Inbound>) {
        (&self.outbound, &self.inbound)
    }

    /// Sets what the peer may hold of any pool.
    pub(crate) fn limit(&self, allowance: PoolAllowance) {
        // Set once: a connection has one peer, which has one allowance.
        let _ = self.allowance.set(allowance);
    }

    pub(crate) fn suite(&self) -> Protection {
        self.suite
    }

    /// Takes pads from this pool from now on; without one, generates them inline. Wipes the pads of
    /// the former pool. Only for a connection whose peer has proved its key.
    pub(crate) fn use_pool(&self, pool: Option<&Pool>) {
        let pool = pool.map(|pool| match self.allowance.get() {
            Some(allowance) => pool.for_peer(allowance.clone()),
            None => pool.clone(),
        });
        if let Ok(mut sending) = self.outbound.sending.lock() {
            sending.phases.use_pool(pool.clone());
        }
        if let Ok(mut receiving) = self.inbound.receiving.lock() {
            receiving.phases.use_pool(pool);
        }
    }

    /// Resolves when a key fault requires the connection to be closed at once; its packets are all
    /// zeros by then, or will be within 64 packets. One waiter at a time.
    pub async fn fault(&self) -> KeyFault {
        self.outbound.fault.wait().await
    }

    /// The maximum age of a phase of these keys.
    pub fn age_max(&self) -> Duration {
        KeyLimits::of(self.suite).phase_age
    }

    /// Counts a stateless reset (RFC 9000 10.3), which has ended the connection: its bytes came as
    /// a packet that did not open, and are not forged.
    pub fn count_reset(&self) {
        self.inbound.count_reset();
    }

    /// Announces that the next phase is due: from the next packet on, its heads are precomputed.
    pub(crate) fn expect_update(&self) {
        if let Ok(sending) = self.outbound.sending.lock() {
            sending.phases.expect_update();
        }
    }

    /// Gives back the pads that other connections need more, as its next packet would: an idle
    /// connection has none.
    pub fn give_back(&self) {
        if let Ok(mut sending) = self.outbound.sending.lock() {
            sending.phases.give_back();
        }
        if let Ok(mut receiving) = self.inbound.receiving.lock() {
            receiving.phases.give_back();
        }
    }

    /// The state of one direction.
    pub fn status(&self, direction: Direction) -> DirectionStatus {
        let limits = KeyLimits::of(self.suite);
        let read = |phases: &Phases| {
            let (key_phase, packets) = phases.progress();
            let left = limits.hard_stop.saturating_sub(packets);
            DirectionStatus {
                head: phases.level(Part::Head),
                body: phases.level(Part::Body),
                key_phase,
                key_budget_left_ratio: left as f64 / limits.hard_stop as f64,
            }
        };
        let status = match direction {
            Direction::Send => self.outbound.sending.lock().ok().map(|it| read(&it.phases)),
            Direction::Receive => self.inbound.receiving.lock().ok().map(|it| read(&it.phases)),
        };
        status.unwrap_or_default()
    }
}
