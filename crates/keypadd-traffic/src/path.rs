//! Holds a running path to the bench service: an address to connect to, and the counters of the
//! ends in this process. Warms the path up and waits for full pools; `ends` starts its parts.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use keypadd_pool::{Direction, Pool};
use keypadd_provider::{ConnectionKeys, Meters};
use keypadd_tunnel::{ClientError, LiveSession, LoopMeter, Sessions};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::counts::Gauges;
use crate::exchange::Exchange;
use crate::host::Host;
use crate::requester::{Broken, Requester, Requests};

/// Longest wait for both ends to say goodbye.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// What goes through the first connection of a session until there is the other one: long enough to
/// be bulk data however fast it goes.
const WARM_UP_FIRST: Exchange = Exchange::new(1 << 20, 1 << 20);
/// What goes through the bulk connection before anything counts, a step at a time: it lets
/// congestion control and path MTU settle.
const WARM_UP_BULK: Exchange = Exchange::new(256 << 10, 256 << 10);
/// What goes through the sparse connection before anything counts.
const WARM_UP_SPARSE: Exchange = Exchange::new(64, 64);
/// Length of a step and of the pause after it, and fewest steps. Fillers that are outrun for longer
/// than a step rest for a while.
const WARM_UP_STEP: Duration = Duration::from_millis(10);
const WARM_UP_STEPS: u32 = 6;
/// Longest time for all of it.
const WARM_UP_TIME: Duration = Duration::from_secs(5);

/// A filler that made nothing for this long sleeps.
const FILLER_AT_REST: Duration = Duration::from_millis(50);

/// What keeps a path from coming up.
#[derive(Debug, thiserror::Error)]
pub enum PathFault {
    /// The server cannot be reached, or the two ends do not accept each other.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No service answers behind the tunnel.
    #[error(transparent)]
    Service(#[from] Broken),
    /// The path was taken for an attack while it came up.
    #[error(transparent)]
    Void(#[from] Void),
    /// This machine lacks something, in words.
    #[error("{0}")]
    Here(String),
}

/// What was measured is void: an end has taken the other's datagrams for an attack, and dropped
/// some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("void: an end took the other's packets for an attack")]
pub struct Void;

/// An end of a tunnel that is up.
#[derive(Debug)]
pub struct End {
    pub(crate) host: Host,
    pub(crate) stop: watch::Sender<()>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) pool: Option<Pool>,
    pub(crate) sessions: Sessions,
    pub(crate) loops: LoopMeter,
}

impl End {
    /// Its one session.
    pub(crate) fn session(&self) -> Result<Arc<LiveSession>, PathFault> {
        let gone = || PathFault::Here("the tunnel closed as soon as it was up".into());
        self.sessions.live().pop().ok_or_else(gone)
    }
}

/// Where a way begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For connections.
    pub tcp: SocketAddr,
    /// For datagrams.
    pub udp: SocketAddr,
}

/// A way for traffic. Dropped, it is gone at once; [`close`](Self::close) lets the ends say
/// goodbye.
#[derive(Debug)]
pub struct Path {
    addresses: Addresses,
    gauges: Gauges,
    sessions: Vec<Arc<LiveSession>>,
    /// The near one first.
    ends: Vec<End>,
    /// Answers until it is dropped; `None` if it is elsewhere.
    service: Option<Host>,
    /// After the ends, whose way or threads it holds.
    _between: Box<dyn Debug + Send + Sync>,
}

impl Path {
    /// A way to `service` through `ends`, the near one first, which begins at
    /// `addresses`. It needs what is `between`, such as a relay, for as long as it is up.
    ///
    /// # Errors
    /// An end has lost its session.
    pub fn new(
        addresses: Addresses,
        ends: Vec<End>,
        service: Option<Host>,
        between: impl Debug + Send + Sync + 'static,
    ) -> Result<Self, PathFault> {
        Ok(Self {
            addresses,
            gauges: Gauges {
                meters: ends.iter().map(|end| Arc::clone(&end.meters)).collect(),
                pools: ends.iter().filter_map(|end| end.pool.clone()).collect(),
            },
            sessions: ends.iter().map(End::session).collect::<Result<_, _>>()?,
            ends,
            service,
            _between: Box::new(between),
        })
    }

    /// Where to connect to; a service answers.
    pub fn address(&self) -> SocketAddr {
        self.addresses.tcp
    }

    /// Where to send datagrams; the same service answers.
    pub fn udp_address(&self) -> SocketAddr {
        self.addresses.udp
    }

    /// Whether the service runs in this process, and so has its clock.
    pub fn has_one_clock(&self) -> bool {
        self.service.is_some()
    }

    /// The counters of the ends that run here.
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// The keys of the ends that run here, of all their connections, the near end first; none
    /// without a tunnel.
    pub fn keys(&self) -> Vec<Vec<&ConnectionKeys>> {
        self.sessions.iter().map(|session| session.keys().collect()).collect()
    }

    /// How many handshakes the near end's sessions have taken so far: one, and one for each session
    /// that continued another, with renewed keys or after a loss. 0 without a tunnel.
    pub fn handshakes(&self) -> u32 {
        let Some((near, first)) = self.ends.first().zip(self.sessions.first()) else { return 0 };
        let newest = near.sessions.live().iter().map(|session| session.epoch()).max();
        newest.map_or(1, |newest| newest.saturating_sub(first.epoch()) + 1)
    }

    /// Packets of bulk streams whose whole pad is ready, where that is least: the near end sends
    /// and the far one, if it runs here, receives (`up`), or the reverse. `None` without a pool.
    pub fn packets_at_hand(&self, up: bool) -> Option<u64> {
        let ways = match up {
            true => [Direction::Send, Direction::Receive],
            false => [Direction::Receive, Direction::Send],
        };
        let at_hand = |(keys, way): (Vec<&ConnectionKeys>, Direction)| {
            // A session's last connection carries its bulk streams, and none but its own pads serve
            // it.
            let status = keys.last().map(|keys| keys.status(way)).unwrap_or_default();
            status.head.packets.min(status.body.packets)
        };
        let least = self.keys().into_iter().zip(ways).map(at_hand).min();
        least.filter(|_| self.has_pool())
    }

    /// Waits until the fillers have made nothing for a while, which is when all pools are full and
    /// divided by the traffic so far: meanwhile idle connections give back what others need more.
    /// False if `patience` was too short, as it is without idle CPU; and while a first phase lasts,
    /// which ends at any moment and takes its pads along.
    pub async fn rest(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            self.keys().into_iter().flatten().for_each(ConnectionKeys::give_back);
            let filled = self.gauges.filled_bytes();
            sleep(FILLER_AT_REST).await;
            let at_rest = self.gauges.filled_bytes() == filled && self.gauges.fillers_are_done();
            if at_rest && self.has_heads() {
                return self.is_past_first_phase();
            }
            if Instant::now() > deadline {
                return false;
            }
        }
    }

    fn has_pool(&self) -> bool {
        !self.gauges.pools.is_empty()
    }

    /// Whether every direction has pads for keystrokes; which of them has how many long ones is for
    /// the pool to say.
    fn has_heads(&self) -> bool {
        let ways = [Direction::Send, Direction::Receive];
        let has_some =
            |keys: &ConnectionKeys| ways.iter().all(|&way| keys.status(way).head.packets > 0);
        !self.has_pool() || self.keys().into_iter().flatten().all(has_some)
    }

    /// Whether a packet's tag did not verify or a pad was to be used twice: a bug, or a network
    /// that damages packets.
    pub fn has_faults(&self) -> bool {
        self.gauges.faults() > 0
    }

    /// Ends what runs here. Says goodbye to a far end elsewhere; where both run here, nobody needs
    /// to hear it.
    ///
    /// # Errors
    /// An end that runs here has dropped the other's datagrams as too costly.
    pub async fn close(mut self) -> Result<(), Void> {
        if let [near] = &mut self.ends[..] {
            let _ = near.stop.send(());
            let _ = timeout(CLOSE_TIME, near.host.rest()).await;
        }
        self.valid()
    }

    /// Whether what was measured through it so far is valid.
    ///
    /// # Errors
    /// The figures are not valid, as for [`close`](Self::close).
    pub fn valid(&self) -> Result<(), Void> {
        match self.ends.iter().any(|end| end.loops.costly_datagrams_dropped() > 0) {
            true => Err(Void),
            false => Ok(()),
        }
    }

    /// Sends through it for a few steps, and until no connection is in its first key phase: quinn's
    /// lasts for up to a thousand packets, at random, and is ended here as soon as all connections
    /// are up.
    ///
    /// # Errors
    /// Nothing comes through.
    pub async fn warm_up(&self) -> Result<(), Broken> {
        let updated = OnceLock::new();
        let update = || {
            if let Some(near) = self.sessions.first() {
                near.update_keys();
            }
        };
        let is_warm = || {
            self.has_bulk() && {
                updated.get_or_init(update);
                self.is_past_first_phase()
            }
        };
        let bulk = || if self.has_bulk() { WARM_UP_BULK } else { WARM_UP_FIRST };
        let sparse = || WARM_UP_SPARSE;
        tokio::try_join!(self.warm_up_by(&bulk, &is_warm), self.warm_up_by(&sparse, &is_warm))?;
        Ok(())
    }

    /// Repeats an exchange, each when the one before is answered, for a step after the other, until
    /// all connections are warm.
    async fn warm_up_by(
        &self,
        exchange: &(dyn Fn() -> Exchange + Sync),
        is_warm: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Broken> {
        let deadline = Instant::now() + WARM_UP_TIME;
        let mut requester = Requester::open(self.address()).await?.at_most(1);
        for step in 0.. {
            if (is_warm() && step >= WARM_UP_STEPS) || Instant::now() >= deadline {
                break;
            }
            let requests = Requests::WithoutPause(exchange(), WARM_UP_STEP);
            (requester, ()) = requester.run(requests, Instant::now(), (), |(), _| ()).await?;
            sleep(WARM_UP_STEP).await;
        }
        Ok(())
    }

    /// Whether every session has its bulk connection.
    fn has_bulk(&self) -> bool {
        self.sessions.iter().all(|session| session.keys().count() > 1)
    }

    fn is_past_first_phase(&self) -> bool {
        self.keys().iter().flatten().all(|keys| keys.status(Direction::Send).key_phase > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use keypadd_keystream::{CipherEngine, Pace, Suite};
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::TunnelArm;

    /// CPU time that the keystream of a long packet takes once it is slow.
    const SLOW: Duration = Duration::from_millis(20);
    /// Keystream of an acknowledgment is shorter.
    const LONG_BYTES: usize = 200;

    /// Makes keystream slow from when it is set, and may declare so before.
    struct Slow {
        is_set: Arc<AtomicBool>,
        declared: Duration,
    }

    fn thread_cpu() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    impl Pace for Slow {
        fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
            let began = thread_cpu();
            make();
            let is_slow = bytes >= LONG_BYTES && self.is_set.load(Relaxed);
            while is_slow && thread_cpu() - began < SLOW {
                std::hint::spin_loop();
            }
        }

        fn longest(&self, bytes: usize) -> Duration {
            self.declared * bytes.div_ceil(LONG_BYTES) as u32
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_warm_path_has_both_connections_past_their_first_phase_and_its_pools_fill() {
        let suite = Suite::AES_128_CTR_HMAC_SHA256.protection();
        let arm = TunnelArm { suite, pool: true, engine: CipherEngine::default() };
        let path = Path::here(arm, 2 << 20).await.unwrap();
        for of_end in path.keys() {
            assert_eq!(of_end.len(), 2);
            assert!(of_end.iter().all(|keys| keys.status(Direction::Send).key_phase > 0));
        }
        while !path.rest(WARM_UP_TIME).await {}
        path.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cipher_that_is_slower_than_declared_voids_what_is_measured() {
        for (declared, outcome) in [(SLOW, Ok(())), (Duration::ZERO, Err(Void))] {
            let is_set = Arc::new(AtomicBool::new(false));
            let slow = Slow { is_set: Arc::clone(&is_set), declared };
            let engine = CipherEngine::default().at_pace(slow);
            let suite = Suite::AES_128_CTR_HMAC_SHA256.protection();
            let path = Path::here(TunnelArm { suite, pool: false, engine }, 0).await.unwrap();
            let requester = Requester::open(path.address()).await.unwrap();
            is_set.store(true, Relaxed);
            let exchange = Exchange::new(1_000, 1_000);
            let (requester, _) = requester.one_by_one(exchange, 5, Duration::ZERO).await.unwrap();
            is_set.store(false, Relaxed);
            drop(requester);
            assert_eq!(path.close().await, outcome);
        }
    }
}
