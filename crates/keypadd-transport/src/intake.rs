//! Shares a loop's time out among the connections, strangers and newcomers whose datagrams arrive.
//!
//! A batch of datagrams of one connection begins a share. Those that come while the share lasts are
//! handled at once; later ones wait, each connection's by themselves ([`backlog`]), and a
//! stranger's always do, as do newcomers ([`newcomers`]). A connection is charged for what its
//! share took, and one that takes too much CPU time has its datagrams dropped ([`handling_cost`]).
//! [`Step`] says what each step of a round may take. Knows keys, sizes and times; no packets, no
//! endpoint.

pub(crate) mod backlog;
pub(crate) mod handling_cost;
pub(crate) mod newcomers;

use std::time::{Duration, Instant};

use self::{
    backlog::Backlog,
    handling_cost::{CostMeter, ExcessCost, Handled},
    newcomers::Newcomers,
};
use crate::{splice::Key, time_share::TimeShare};

/// The steps of a round that do what peers ask for, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Reads datagrams from the socket.
    Receive,
    /// Handles the datagrams of one connection as they are read.
    Handle,
    /// Handles datagrams that have waited for their connections' shares.
    Backlog,
    /// Drives connections: they write to sockets, read from them, and end streams.
    Deliver,
    /// Handles packets of strangers, whose handshakes have begun.
    Strangers,
    /// Begins handshakes of newcomers, once the strangers' packets are handled.
    Newcomers,
}

impl Step {
    /// How long the step may take in a round.
    pub(crate) const fn time(self) -> Duration {
        Duration::from_micros(match self {
            // At least, as bulk takes: a flood of small batches would wait in the socket, before
            // everyone's datagrams.
            Self::Receive => 2_000,
            // Divided by the number of connections so far.
            Self::Handle => 1_000,
            // Divided by the number of connections that wait.
            Self::Backlog => 500,
            // Divided by the number of connections to drive. Less than receiving takes, so that
            // what a peer sends in excess waits for its window and not in the socket, before
            // everyone's datagrams.
            Self::Deliver => 500,
            // The two begin together, after all else: half of what handshakes may take is for
            // those that have begun.
            Self::Strangers => 125,
            Self::Newcomers => 250,
        })
    }
}

/// What limits how much a connection takes from the others of its loop.
pub(crate) struct Clocks {
    /// Measures what its datagrams cost.
    pub(crate) costs: CostMeter,
    /// Times what it handles and delivers in a round.
    pub(crate) shares: fn() -> Instant,
}

/// A connection whose share of a loop's time is metered.
pub(crate) trait Metered {
    /// Whether it is a client that has not proved a key yet.
    fn is_stranger(&self) -> bool;

    /// Whether it carries bulk data.
    fn is_bulk(&self) -> bool;

    /// Frames received so far.
    fn frames_received(&self) -> u64;

    /// The number of the newest packet of this end that its peer has acknowledged.
    fn acknowledged(&self) -> u64;

    /// CPU time that opening a KiB of datagrams takes.
    fn opening_cost(&self) -> Duration;

    fn account(&mut self) -> &mut Account;
}

/// What a connection has taken of its loop's time.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// CPU time beyond the usual that its datagrams have taken.
    pub(crate) excess: ExcessCost,
    /// The last round in which its datagrams were handled, and how long that took.
    round: u64,
    handled_for: Duration,
}

/// Datagrams of one connection that are handled together.
#[derive(Debug)]
pub(crate) struct BatchShare {
    key: Key,
    origin: Origin,
    began: Option<Instant>,
    /// `None` while costs are not measured.
    reading: Option<Reading>,
    time: TimeShare,
    /// Bytes of the datagrams that were handled.
    bytes: u64,
}

/// Where the datagrams of a share come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A connection's have just been read.
    Socket,
    /// A stranger's have just been read.
    Stranger,
    /// A connection's or stranger's have waited.
    Waiting,
}

/// What was measured when a share began.
#[derive(Clone, Copy, Debug)]
struct Reading {
    cpu: Duration,
    frames: u64,
    acknowledged: u64,
}

impl BatchShare {
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Counts a datagram of this many bytes that was handled, and returns whether to stop after it.
    pub(crate) fn is_used_up(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        self.time.is_used_up()
    }
}

/// When a datagram is handled, if at all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision<D> {
    Now(D),
    /// The datagram waits for a later step or round.
    Later,
    /// Too many of its connection wait.
    Dropped,
}

/// The datagrams `D` and newcomers `N` that wait for a loop's time, and who has had how much of it.
pub(crate) struct Intake<D, N> {
    /// `None` in tests without a clock: nobody is limited.
    pub(crate) clocks: Option<Clocks>,
    /// Rounds so far, and connections whose datagrams this one has handled.
    round: u64,
    handling: u32,
    /// Datagrams that wait for their connections' shares.
    pub(crate) backlog: Backlog<D>,
    /// Datagrams of clients that have not proved a key yet.
    pub(crate) strangers: Backlog<D>,
    /// Clients whose handshakes have not begun.
    pub(crate) newcomers: Newcomers<N>,
}

impl<D, N> Intake<D, N> {
    /// One in which so many bytes may wait, of peers and of strangers each.
    pub(crate) fn new(waiting_bytes: u64) -> Self {
        Self {
            clocks: None,
            round: 0,
            handling: 0,
            backlog: Backlog::new(waiting_bytes),
            strangers: Backlog::new(waiting_bytes),
            newcomers: Newcomers::new(),
        }
    }

    /// Begins a round in which datagrams are handled.
    pub(crate) fn begin_round(&mut self) {
        (self.round, self.handling) = (self.round + 1, 0);
    }

    /// A share of this length that begins when it is first asked whether it is used up.
    pub(crate) fn share(&self, time: Duration) -> TimeShare {
        TimeShare::new(self.clock(), time)
    }

    /// The shares of these steps, which begin together, now.
    pub(crate) fn shares<const N_STEPS: usize>(
        &self,
        steps: [Step; N_STEPS],
    ) -> [TimeShare; N_STEPS] {
        let began = self.now();
        steps.map(|step| self.share(step.time()).since(began))
    }

    fn clock(&self) -> Option<fn() -> Instant> {
        self.clocks.as_ref().map(|clocks| clocks.shares)
    }

    fn now(&self) -> Option<Instant> {
        self.clock().map(|clock| clock())
    }

    /// Begins a connection's share for datagrams that have just been read.
    pub(crate) fn begin(
        &mut self,
        key: Key,
        connection: &mut impl Metered,
        now: Instant,
    ) -> BatchShare {
        let (mut origin, mut left) = (Origin::Socket, Duration::ZERO);
        if connection.is_stranger() {
            origin = Origin::Stranger;
        } else if !self.backlog.holds(key) {
            let account = connection.account();
            if account.round != self.round {
                (account.round, account.handled_for) = (self.round, Duration::ZERO);
                self.handling += 1;
            }
            let time = Step::Handle.time() / self.handling.max(1);
            left = time.saturating_sub(account.handled_for);
        }
        BatchShare { origin, ..self.begin_waiting(key, Some(connection), left, now) }
    }

    /// Begins a connection's share for datagrams that have waited. The connection may be gone.
    pub(crate) fn begin_waiting(
        &self,
        key: Key,
        connection: Option<&mut impl Metered>,
        time: Duration,
        now: Instant,
    ) -> BatchShare {
        let began = self.now();
        let time = if time.is_zero() { TimeShare::none() } else { self.share(time).since(began) };
        let cpu = self.clocks.as_ref().and_then(|clocks| clocks.costs.begin(now));
        // Frames are counted only while a connection is measured.
        let reading = cpu.zip(connection).map(|(cpu, connection)| Reading {
            cpu,
            frames: connection.frames_received(),
            acknowledged: connection.acknowledged(),
        });
        BatchShare { key, origin: Origin::Waiting, began, reading, time, bytes: 0 }
    }

    /// Decides when to handle a datagram of this many bytes that has just been read.
    pub(crate) fn decide(&mut self, share: &BatchShare, datagram: D, bytes: usize) -> Decision<D> {
        if !share.time.is_over() {
            return Decision::Now(datagram);
        }
        let waiting = match share.origin {
            Origin::Stranger => &mut self.strangers,
            Origin::Socket | Origin::Waiting => &mut self.backlog,
        };
        if waiting.push(share.key, datagram, bytes) { Decision::Later } else { Decision::Dropped }
    }

    /// Charges a connection for what it has handled in its share; returns whether to warn of it.
    pub(crate) fn end(
        &mut self,
        share: &BatchShare,
        connection: &mut impl Metered,
        now: Instant,
    ) -> bool {
        let (Some(Clocks { costs, shares }), Some(began)) = (&mut self.clocks, share.began) else {
            return false;
        };
        let took = shares().saturating_duration_since(began);
        let (frames, acknowledged) = share.reading.map_or((0, 0), |before| {
            let frames = connection.frames_received() - before.frames;
            (frames, connection.acknowledged().saturating_sub(before.acknowledged))
        });
        let handled = Handled {
            datagrams: share.time.calls(),
            bytes: share.bytes,
            took,
            is_bulk: connection.is_bulk(),
            frames,
            acknowledged,
            opening: connection.opening_cost(),
        };
        let excess = costs.excess(share.reading.map(|before| before.cpu), handled, now);
        let account = connection.account();
        if share.origin != Origin::Waiting {
            account.handled_for += took;
        }
        account.excess.charge(excess, now);
        !excess.is_zero() && account.excess.is_too_high(now) && costs.may_warn(now)
    }

    /// Whether clients wait for a part of their handshakes.
    pub(crate) fn has_strangers(&self) -> bool {
        !self.strangers.is_empty() || !self.newcomers.is_empty()
    }
}

#[cfg(test)]
mod tests;
