//! What the rest of the daemon may know of a connection's keys: faults, levels, phases. No key.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use keypadd_keystream::{Class, Protection};
use keypadd_pool::{Allowance, Direction, Part, PartLevel, Pool};

use crate::fault::KeyFault;
use crate::kx::Group;
use crate::limits::Limits;
use crate::open::Inbound;
use crate::phases::Phases;
use crate::renewal::Renewal;
use crate::seal::Outbound;

/// What `quinn::Connection::handshake_data` holds once 1-RTT keys exist; `peer_identity` tells whether
/// the peer has proved its key.
pub struct HandshakeData {
    /// The suite that was negotiated.
    pub suite: Protection,
    /// The key exchange that was negotiated.
    pub kex: Group,
    /// A view of the connection's keys.
    pub keys: ConnectionKeys,
}

impl HandshakeData {
    /// What the connection may be used for.
    pub fn class(&self) -> Class {
        self.suite.class().max(self.kex.class())
    }

    /// Whether it is there to be measured: bench streams and nothing else go through it.
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
    /// What its peer may hold of a pool, once that is known.
    allowance: Arc<OnceLock<Allowance>>,
}

/// Figures of one direction at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirectionStatus {
    /// Keystream at hand for the first bytes of packets.
    pub head: PartLevel,
    /// Keystream at hand for the rest of packets.
    pub body: PartLevel,
    /// The key phase in use, from 0.
    pub key_phase: u64,
    /// The part of the key's packets that is left before its hard stop, 1.0 to 0.0.
    pub key_budget_left_ratio: f64,
}

impl DirectionStatus {
    /// Of all connections of a session together: what they have in the pool, the latest phase, and the
    /// budget of the keys that are nearest to their end.
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

    /// What the peer may hold of any pool, once it is known.
    pub(crate) fn limit(&self, allowance: Allowance) {
        // A connection has one peer, and its peer one allowance.
        let _ = self.allowance.set(allowance);
    }

    /// Takes pads from this pool from now on, where it serves the connection's suite; without one, makes
    /// them inline. Pads of a pool that is left are wiped. Only for a connection whose peer has proved its
    /// key.
    pub(crate) fn use_pool(&self, pool: Option<&Pool>) {
        let pool = pool.filter(|pool| pool.serves(self.suite));
        let pool = pool.map(|pool| match self.allowance.get() {
            Some(allowance) => pool.for_peer(allowance.clone()),
            None => pool.clone(),
        });
        if let Ok(mut departures) = self.outbound.departures.lock() {
            departures.phases.use_pool(pool.clone());
        }
        if let Ok(mut arrivals) = self.inbound.arrivals.lock() {
            arrivals.phases.use_pool(pool);
        }
    }

    /// Resolves when the connection must be closed at once because of its keys; its packets are
    /// zeros by then, or will be within 64. One waiter at a time.
    pub async fn fault(&self) -> KeyFault {
        self.outbound.fault.wait().await
    }

    /// How long a phase of these keys may be used.
    pub fn age_max(&self) -> Duration {
        Limits::of(self.suite).phase_age
    }

    /// A watch over these keys' bytes and age, from `now` on; see [`Self::age_max`].
    pub fn renewal(&self, age_max: Duration, now: Instant) -> Renewal {
        Renewal::new(self.clone(), age_max, now)
    }

    /// The next phase will be used soon: from the next packet on its heads are made.
    pub(crate) fn expect_update(&self) {
        if let Ok(departures) = self.outbound.departures.lock() {
            departures.phases.expect_update();
        }
    }

    /// The figures of one direction.
    pub fn status(&self, direction: Direction) -> DirectionStatus {
        let limits = Limits::of(self.suite);
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
        match direction {
            Direction::Send => self
                .outbound
                .departures
                .lock()
                .map(|departures| read(&departures.phases))
                .unwrap_or_default(),
            Direction::Receive => self
                .inbound
                .arrivals
                .lock()
                .map(|arrivals| read(&arrivals.phases))
                .unwrap_or_default(),
        }
    }
}
