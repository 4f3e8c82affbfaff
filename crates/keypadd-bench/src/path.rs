//! An arm that is up: something to connect to, and the counters of what is behind it.
//!
//! Both ends of a tunnel in this process over UDP, on loopback, with a link in between or on hosts that the
//! kernel tells apart, or the near end of one to a server that permits measurements; each end, and the
//! service behind it, on a host of its own. Keys of the moment for the former; nothing here touches a file
//! or a port that somebody chose.

mod open;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::CipherEngine;
use keypadd_pool::Direction;
use keypadd_provider::{
    ConnectionKeys, DirectionStatus, Group, KeyExchange, PrivateKey, PublicKey,
};
use keypadd_tunnel::{ClientError, LiveSession, ServerAddress, TransportSettings};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::arm::Arm;
use crate::counts::Gauges;
use crate::exchange::Exchange;
use crate::host::Host;
use crate::link::{Link, Relay};
use crate::namespace::FourHosts;
use crate::quota::Quota;
use crate::requester::{Broken, Requester, Requests};

/// Longest wait for both ends to say goodbye.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// What goes through both connections of a session before anything counts, a step at a time: it ends
/// quinn's first key phase, which is short at random, and lets congestion control and path MTU settle.
const WARM_UP_BULK: Exchange = Exchange::new(256 << 10, 256 << 10);
/// The same for the connection that carries keystrokes.
const WARM_UP_SPARSE: Exchange = Exchange::new(64, 64);
/// Length of a step.
const WARM_UP_STEP: Duration = Duration::from_millis(20);
/// Longest time for all of it.
const WARM_UP_TIME: Duration = Duration::from_secs(5);

/// A filler that made nothing for this long sleeps.
const FILLER_AT_REST: Duration = Duration::from_millis(50);

/// Where the far end is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In this process.
    Here,
    /// In this process, on hosts of their own; whoever measures does so from the client.
    Hosts {
        /// The hosts.
        hosts: Arc<FourHosts>,
        /// How much of a core each of the two gateways has; `None`: as much as there is.
        processor: Option<f64>,
    },
    /// A server that permits measurements.
    There {
        /// Where it is.
        server: ServerAddress,
        /// Its key.
        peer: PublicKey,
        /// Ours.
        key: Arc<PrivateKey>,
    },
}

/// What all arms of a run have in common.
#[derive(Clone, Debug)]
pub struct PathSettings {
    /// Where the far end is.
    pub place: Place,
    /// Memory for keystream at each end of an arm that has a pool.
    pub pool_budget_bytes: usize,
    /// The key exchange.
    pub kex: Group,
    /// Windows and congestion control.
    pub transport: TransportSettings,
    /// What computes keystream at the far end, if it runs here and that is not what the arm says.
    pub far_engine: Option<CipherEngine>,
    /// What lies between ends that are [`Here`](Place::Here).
    pub link: Link,
}

/// Both ends in this process and nothing in between, no memory for pools, and what daemons do.
impl Default for PathSettings {
    fn default() -> Self {
        Self {
            place: Place::Here,
            pool_budget_bytes: 0,
            kex: KeyExchange::default().into(),
            transport: TransportSettings::default(),
            far_engine: None,
            link: Link::default(),
        }
    }
}

/// Why a path does not come up.
#[derive(Debug, thiserror::Error)]
#[error("{arm}: {cause}")]
pub struct PathError {
    /// The arm.
    pub arm: Arm,
    /// Why.
    pub cause: PathFault,
}

/// What keeps a path from coming up.
#[derive(Debug, thiserror::Error)]
pub enum PathFault {
    /// The server cannot be reached, or the two ends do not accept each other.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No service answers behind the tunnel.
    #[error(transparent)]
    Service(#[from] Broken),
    /// This machine lacks something, in words.
    #[error("{0}")]
    Here(String),
}

/// One end, and how it is told to end.
#[derive(Debug)]
struct RunningEnd {
    host: Host,
    stop: watch::Sender<()>,
}

/// An arm that is up. Dropped, it is gone at once; [`close`](Self::close) lets the ends say goodbye.
#[derive(Debug)]
pub struct Path {
    arm: Arm,
    address: SocketAddr,
    gauges: Gauges,
    sessions: Vec<Arc<LiveSession>>,
    /// The near one first.
    ends: Vec<RunningEnd>,
    /// Answers until it is dropped.
    _service: Option<Host>,
    /// Held for as long as something comes through.
    _relay: Option<Relay>,
    /// After the ends, whose threads they hold back.
    _quotas: Vec<Arc<Quota>>,
}

impl Path {
    /// Brings an arm up and warms it.
    ///
    /// # Errors
    /// No memory, no free port, no handshake, or the far end does not let us measure.
    pub async fn open(arm: Arm, settings: &PathSettings) -> Result<Self, PathError> {
        let path = Self::open_cold(arm, settings).await?;
        path.warm_up().await.map_err(|cause| PathError { arm, cause: cause.into() })?;
        Ok(path)
    }

    /// Brings an arm up, and nothing more: its first key phase and slow start lie ahead.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn open_cold(arm: Arm, settings: &PathSettings) -> Result<Self, PathError> {
        let opened = match arm {
            Arm::Tcp => open::tcp(settings).await,
            Arm::Tunnel(tunnel) => open::tunnel(tunnel, settings).await,
        };
        opened.map_err(|cause| PathError { arm, cause })
    }

    /// What it carries traffic by.
    pub fn arm(&self) -> Arm {
        self.arm
    }

    /// Where to connect to; a service answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counters of the ends that run here.
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// The keys of the ends that run here, of all their connections, the near end first; none without
    /// a tunnel.
    pub fn keys(&self) -> Vec<Vec<&ConnectionKeys>> {
        self.sessions.iter().map(|session| session.keys().collect()).collect()
    }

    /// Packets whose whole pad is at hand, where that is least: the near end sends and the far one, if
    /// it runs here, receives (`up`), or the reverse. `None` without a pool.
    pub fn packets_at_hand(&self, up: bool) -> Option<u64> {
        let ways = match up {
            true => [Direction::Send, Direction::Receive],
            false => [Direction::Receive, Direction::Send],
        };
        let at_hand = |(keys, way): (Vec<&ConnectionKeys>, Direction)| {
            let status = DirectionStatus::of_all(keys, way);
            status.head.packets.min(status.body.packets)
        };
        let least = self.keys().into_iter().zip(ways).map(at_hand).min();
        least.filter(|_| self.arm.has_pool())
    }

    /// Waits until the fillers have made nothing for a while, which is when all pools are full. False
    /// if `patience` was too short, as it is without idle CPU; and while a first phase lasts, which ends
    /// at any moment and takes its pads along.
    pub async fn rest(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let filled = self.gauges.filled_bytes();
            sleep(FILLER_AT_REST).await;
            let at_rest = self.gauges.filled_bytes() == filled && self.gauges.fillers_sleep();
            if at_rest && self.has_heads() {
                return self.is_past_first_phase();
            }
            if Instant::now() > deadline {
                return false;
            }
        }
    }

    /// Whether every direction has pads for keystrokes; which of them has how many long ones is for the
    /// pool to say.
    fn has_heads(&self) -> bool {
        let ways = [Direction::Send, Direction::Receive];
        let has_some =
            |keys: &ConnectionKeys| ways.iter().all(|&way| keys.status(way).head.packets > 0);
        !self.arm.has_pool() || self.keys().into_iter().flatten().all(has_some)
    }

    /// Whether a packet's tag did not verify or a pad was to be used twice: a bug, or a network that
    /// damages packets.
    pub fn has_faults(&self) -> bool {
        self.gauges.faults() > 0
    }

    /// Ends what runs here.
    pub async fn close(mut self) {
        let gone = async {
            // The near one first: one that is left by its server says so and calls again.
            for end in &mut self.ends {
                let _ = end.stop.send(());
                end.host.rest().await;
            }
        };
        let _ = timeout(CLOSE_TIME, gone).await;
    }

    async fn warm_up(&self) -> Result<(), Broken> {
        tokio::try_join!(self.warm_up_by(WARM_UP_BULK), self.warm_up_by(WARM_UP_SPARSE))?;
        Ok(())
    }

    /// Repeats an exchange, each when the one before is answered, until all connections are warm.
    async fn warm_up_by(&self, exchange: Exchange) -> Result<(), Broken> {
        let deadline = Instant::now() + WARM_UP_TIME;
        let mut requester = Requester::open(self.address).await?.at_most(1);
        while !self.is_warm() && Instant::now() < deadline {
            let requests = Requests::WithoutPause(exchange, WARM_UP_STEP);
            (requester, ()) = requester.run(requests, Instant::now(), (), |(), _| ()).await?;
        }
        Ok(())
    }

    /// Whether every session has its bulk connection, and no connection is in its first key phase.
    fn is_warm(&self) -> bool {
        self.sessions.iter().all(|session| session.keys().count() > 1) && self.is_past_first_phase()
    }

    fn is_past_first_phase(&self) -> bool {
        self.keys().iter().flatten().all(|keys| keys.status(Direction::Send).key_phase > 0)
    }
}
