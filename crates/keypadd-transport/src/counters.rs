//! Counts connections, refusals, dropped datagrams and polling time of an endpoint, across its
//! loops.
//!
//! Knows numbers only: no addresses and no peers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use keypadd_share::Underway;

use crate::{admission::Refusals, cid::Purpose, handshake::Refusal};

/// The loops of an endpoint count as loaded for this long after one of them has carried bulk data.
const LOADED_TIME: Duration = Duration::from_millis(10);

/// Counters that the loops of an endpoint share with its handles.
#[derive(Debug)]
pub(crate) struct Counters {
    epoch: Instant,
    /// When the loops stop counting as loaded, in nanoseconds since `epoch`.
    loaded_until: AtomicU64,
    /// Connections that have not ended, including handshakes.
    pub(crate) connections: Underway,
    /// Clients' connections that have proved a key: sparse, and bulk.
    clients: [Underway; 2],
    /// In the order of [`Refusal`].
    refusals: [AtomicU64; 4],
    datagrams_dropped: AtomicU64,
    /// Received datagrams that were dropped because of their connections' CPU time; also in
    /// `datagrams_dropped`.
    costly_dropped: AtomicU64,
    polling_nanos: AtomicU64,
}

impl Counters {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            epoch: now,
            loaded_until: AtomicU64::default(),
            connections: Underway::default(),
            clients: Default::default(),
            refusals: Default::default(),
            datagrams_dropped: AtomicU64::default(),
            costly_dropped: AtomicU64::default(),
            polling_nanos: AtomicU64::default(),
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Records that a loop has carried bulk data.
    pub(crate) fn note_bulk(&self, now: Instant) {
        self.loaded_until.store(self.nanos(now + LOADED_TIME), Relaxed);
    }

    /// Whether a loop has just carried bulk data.
    pub(crate) fn is_loaded(&self, now: Instant) -> bool {
        self.nanos(now) < self.loaded_until.load(Relaxed)
    }

    /// Clients that have proved their keys.
    pub(crate) fn clients(&self, purpose: Purpose) -> &Underway {
        &self.clients[usize::from(purpose.is_bulk())]
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refusals[refusal as usize].fetch_add(1, Relaxed);
    }

    /// Handshakes that did not complete.
    pub(crate) fn refusals(&self) -> Refusals {
        let count = |refusal| self.refusals[refusal as usize].load(Relaxed);
        Refusals {
            full: count(Refusal::Full),
            displaced: count(Refusal::Displaced),
            timed_out: count(Refusal::TimedOut),
            crowded: count(Refusal::Crowded),
        }
    }

    /// Counts a received datagram that no connection handles.
    pub(crate) fn datagram_dropped(&self) {
        self.datagrams_dropped.fetch_add(1, Relaxed);
    }

    /// Counts a received datagram that no connection handles since those before took too much CPU
    /// time.
    pub(crate) fn costly_datagram_dropped(&self) {
        self.datagram_dropped();
        self.costly_dropped.fetch_add(1, Relaxed);
    }

    /// Adds time that a loop has spent polling.
    pub(crate) fn add_polling(&self, time: Duration) {
        if !time.is_zero() {
            // 2^64 ns are 584 years of one core.
            self.polling_nanos.fetch_add(time.as_nanos() as u64, Relaxed);
        }
    }
}

/// What the loops of an endpoint cost. Outlives the endpoint and does not keep it open.
#[derive(Clone, Debug)]
pub struct LoopMeter {
    loops: usize,
    counters: Arc<Counters>,
}

impl LoopMeter {
    pub(crate) fn new(loops: usize, counters: Arc<Counters>) -> Self {
        Self { loops, counters }
    }

    /// The number of loops.
    pub fn loops(&self) -> usize {
        self.loops
    }

    /// CPU time that all of them have spent polling, successful or not.
    pub fn polling_time(&self) -> Duration {
        Duration::from_nanos(self.counters.polling_nanos.load(Relaxed))
    }

    /// Received datagrams that they dropped because their connections took more than their shares.
    pub fn datagrams_dropped(&self) -> u64 {
        self.counters.datagrams_dropped.load(Relaxed)
    }

    /// Received datagrams that were dropped because those before took too much CPU time: a peer
    /// attacks, or what is usual is set too low.
    pub fn costly_datagrams_dropped(&self) -> u64 {
        self.counters.costly_dropped.load(Relaxed)
    }

    /// Whether both belong to the same endpoint.
    pub fn is_same_endpoint(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.counters, &other.counters)
    }
}
