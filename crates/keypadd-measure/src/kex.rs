//! Measures the cost of a handshake by key exchange: time, CPU, bytes, datagrams and round trips.
//!
//! Two endpoints of this process complete handshakes over UDP on loopback, with the shipped packet
//! protection and no tunnel: first sequentially, then at a fixed rate regardless of earlier ones. A
//! relay between them that holds every datagram back for a known time counts datagrams, bytes and
//! round trips.

mod ends;
mod section;

use std::future::Future;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use keypadd_provider::Group;
use keypadd_traffic::{Latencies, Link, LinkSettings};
use tokio::task::JoinSet;

use crate::interleave::{INTERRUPTED, OnProgress, Progress, process_cpu};
use crate::rehearsal::OfferError;
use crate::results::SectionRun;

pub use ends::Ends;

/// Handshakes through the relay per group: few, because their traffic hardly differs.
const RELAYED: u32 = 5;

/// Handshakes per group before measuring, to estimate their CPU cost.
const REHEARSED: u32 = 10;

/// How long the relay holds each datagram back: long compared to a handshake's computation.
const HELD_BACK: Duration = Duration::from_millis(20);

/// Parameters.
#[derive(Clone, Debug)]
pub struct Kex {
    /// The key exchanges.
    pub groups: Vec<Group>,
    /// Rounds, with one turn per group.
    pub rounds: u32,
    /// Sequential handshakes per turn.
    pub handshakes: u32,
    /// Handshakes per second of the open loop.
    pub per_second: f64,
    /// Duration of the open loop in each turn.
    pub time: Duration,
    /// Seed of the order of turns.
    pub seed: u64,
}

/// All results of one group.
#[derive(Clone, Debug)]
struct Measured {
    group: Group,
    wire: Option<Wire>,
    turns: Vec<Turn>,
}

/// Average traffic of one handshake, both ways together.
#[derive(Clone, Copy, Debug, Default)]
struct Wire {
    /// UDP payload from the client and to it.
    bytes: [f64; 2],
    datagrams: [f64; 2],
    /// Until the client may send, and until both may.
    round_trips: [f64; 2],
}

/// One turn.
#[derive(Clone, Debug, Default)]
struct Turn {
    /// Until the client may send, and until it knows that the server may, sequentially.
    ready: Latencies,
    done: Latencies,
    /// CPU of both ends per handshake, in microseconds.
    cpu_us: f64,
    /// Like `done`, in the open loop, from the time that each was due.
    open_loop: Latencies,
    /// Handshakes of the open loop that failed.
    failed: u64,
}

/// When a handshake completed, from its start.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    ready: Duration,
    done: Duration,
}

impl Kex {
    /// Checks that this machine can compute this many handshakes per second, for every group.
    ///
    /// # Errors
    /// They need more CPU than its cores have.
    pub async fn rehearse(&self) -> Result<(), OfferError> {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        for &group in &self.groups {
            let failed = |cause| OfferError::Failed(format!("{group}: {cause}"));
            let ends = Ends::new(group).await.map_err(failed)?;
            let cpu = one_by_one(&ends, REHEARSED).await.map_err(failed)?.cpu_us;
            if cpu * self.per_second > cores as f64 * 1e6 {
                let millis = cpu / 1e3;
                return Err(OfferError::TooManyHandshakes { group, millis, cores });
            }
        }
        Ok(())
    }

    /// Runs until complete or until `stop` resolves; keeps what was measured by then.
    pub async fn run(&self, tell: OnProgress<'_>, stop: impl Future<Output = ()>) -> SectionRun {
        let empty = |&group| Measured { group, wire: None, turns: Vec::new() };
        let mut measured: Vec<Measured> = self.groups.iter().map(empty).collect();
        let ended_by = tokio::select! {
            ended = self.all(tell, &mut measured) => ended.err(),
            () = stop => Some(INTERRUPTED.into()),
        };
        SectionRun { section: section::section(self, &measured), ended_by }
    }

    async fn all(&self, tell: OnProgress<'_>, measured: &mut [Measured]) -> Result<(), String> {
        let mut ends = Vec::new();
        for of_group in &mut *measured {
            let group = of_group.group;
            tell(&Progress::Doing(format!("{group}: bytes and round trips")));
            let of = |cause| format!("{group}: {cause}");
            let pair = Ends::new(group).await.map_err(of)?;
            of_group.wire = Some(wire(&pair).await.map_err(of)?);
            ends.push(pair);
        }
        let mut random = fastrand::Rng::with_seed(self.seed);
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..ends.len()).collect();
            random.shuffle(&mut order);
            for nth in order {
                let of_group = &mut measured[nth];
                let what = format!("round {} of {}: {}", round + 1, self.rounds, of_group.group);
                tell(&Progress::Doing(what));
                let turn = self.turn(&ends[nth]).await;
                of_group.turns.push(turn.map_err(|cause| format!("{}: {cause}", of_group.group))?);
            }
        }
        Ok(())
    }

    async fn turn(&self, ends: &Ends) -> Result<Turn, String> {
        let mut turn = one_by_one(ends, self.handshakes).await?;
        let (start, mut running) = (Instant::now(), JoinSet::new());
        for nth in 0..(self.time.as_secs_f64() * self.per_second) as u32 {
            let due = start + Duration::from_secs_f64(f64::from(nth) / self.per_second);
            tokio::time::sleep_until(due.into()).await;
            let ends = ends.clone();
            running.spawn(async move {
                let late = due.elapsed();
                ends.shake_hands(None).await.map(|times| late + times.done)
            });
        }
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(Ok(latency)) => turn.open_loop.record(latency),
                _ => turn.failed += 1,
            }
        }
        Ok(turn)
    }
}

/// Sequential handshakes: the first half of a turn, and the rehearsal.
async fn one_by_one(ends: &Ends, handshakes: u32) -> Result<Turn, String> {
    let mut turn = Turn::default();
    // The first one runs with cold caches and does not count.
    ends.shake_hands(None).await?;
    let cpu = process_cpu();
    for _ in 0..handshakes {
        let times = ends.shake_hands(None).await?;
        turn.ready.record(times.ready);
        turn.done.record(times.done);
    }
    let cpu = process_cpu().saturating_sub(cpu);
    turn.cpu_us = cpu.as_secs_f64() * 1e6 / f64::from(handshakes);
    Ok(turn)
}

/// Measures through a relay; elapsed time, in units of the relay's delay, gives round trips.
async fn wire(ends: &Ends) -> Result<Wire, String> {
    let mut sum = Wire::default();
    let link = Link::new(LinkSettings { delay: HELD_BACK, ..LinkSettings::default() });
    for _ in 0..RELAYED {
        let (address, relay) = link.udp(ends.server()).map_err(|error| error.to_string())?;
        let times = ends.shake_hands(Some(address)).await?;
        for (way, seen) in relay.iter().flat_map(|relay| relay.counts()).enumerate() {
            sum.bytes[way] += seen.bytes as f64 / f64::from(RELAYED);
            sum.datagrams[way] += seen.datagrams as f64 / f64::from(RELAYED);
        }
        let trips = |time: Duration| time.as_secs_f64() / (2.0 * HELD_BACK.as_secs_f64());
        sum.round_trips[0] += trips(times.ready) / f64::from(RELAYED);
        sum.round_trips[1] += trips(times.done) / f64::from(RELAYED);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests;
