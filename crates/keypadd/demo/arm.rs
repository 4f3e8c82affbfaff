//! One arm of the demo from handshake to goodbye: the order of its stages, their lengths, and which
//! stretch of it each figure covers. Publishes what is measured as it goes; knows nothing of drawing.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::CipherEngine;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ends::Ends;
use super::measured::{ARMS, Arm, Counts, Latencies, Measured};
use super::traffic::{self, Bulk, Pattern, Schedule};
use super::{BURST_BYTES, BURSTS, failed};
use crate::error::{Error, system};

/// What goes through before anything counts, a step at a time: it ends quinn's first key phase, which
/// is short at random, and lets congestion control and path MTU settle.
const WARM_UP_STEP_BYTES: u64 = 256 << 10;
/// Time for it.
const WARM_UP_TIME: Duration = Duration::from_millis(1_200);

/// Every measurement begins on a tunnel that has been silent for this long, with or without a pool.
const SILENCE: Duration = Duration::from_millis(200);
/// A filler that made nothing for this long, with the pads of a burst at hand, sleeps.
const FILLER_AT_REST: Duration = Duration::from_millis(50);
/// Time that an arm may spend on waiting for its pool to be full.
const FILL_TIME: Duration = Duration::from_millis(2_500);

/// Time that all bursts together may take.
const BURST_TIME: Duration = Duration::from_millis(1_500);

/// After the bursts the sender goes on: this long until what is left in the pool is gone ...
const BEYOND_LEAD: Duration = Duration::from_millis(250);
/// ... and this long to see what is then left of the speed.
const BEYOND_TIME: Duration = Duration::from_millis(750);

/// How often figures are published while a stage runs.
const PUBLISH_EVERY: Duration = Duration::from_millis(200);

/// What an arm is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Filling,
    Typing,
    Bursts,
    Beyond,
    Closing,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "shaking hands, warming up",
            Self::Filling => "nothing is sent until the fillers sleep",
            Self::Typing => "typing",
            Self::Bursts => "bursts of bulk data",
            Self::Beyond => "bulk data without a pause",
            Self::Closing => "saying goodbye",
        })
    }
}

/// All that is known at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    /// The arm that runs and what it is at; `None` before the first and after the last.
    pub(super) now: Option<(Arm, Stage)>,
    pub(super) rows: [Measured; ARMS.len()],
}

/// What is the same for every arm.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) pattern: Arc<Pattern>,
    pub(super) schedule: Arc<Schedule>,
    /// What computes 3DES.
    pub(super) engine: CipherEngine,
}

/// Runs the arm `ARMS[nth]`. Dropping the future ends it at once.
///
/// # Errors
/// The tunnel does not come up, breaks, or alters a byte.
pub(super) async fn run(
    nth: usize,
    workload: &Workload,
    board: &watch::Sender<Board>,
) -> Result<(), Error> {
    let arm = ARMS[nth];
    let stage = |stage| board.send_modify(|board| board.now = Some((arm, stage)));
    stage(Stage::Connecting);
    let Workload { pattern, schedule, engine } = workload;
    let (keys, keys_at) = listen().await?;
    let (sink, sink_at) = listen().await?;
    let (arrivals, arrived) = watch::channel(traffic::Arrived::default());
    let mut far_hosts = JoinSet::new();
    far_hosts.spawn(traffic::answer_keys(keys));
    far_hosts.spawn(traffic::swallow(sink, Arc::clone(pattern), arrivals));

    let ends = Ends::open(arm, *engine, [keys_at, sink_at]).await?;
    let [typing_at, bulk_at] = ends.forwards;
    let latencies = Latencies::new();
    let mut record = Record { nth, board, ends: &ends, latencies: &latencies, counted_from: None };
    let mut bulk = Bulk::open(bulk_at, Arc::clone(pattern), arrived).await?;
    warm_up(&ends, &mut bulk).await?;

    stage(Stage::Filling);
    let mut patience = FILL_TIME;
    let mut was_full = record.during(fill(&ends, &mut patience)).await;

    stage(Stage::Typing);
    record.counted_from = Some(ends.gauges.counts());
    let filler_cpu_before = ends.gauges.filler_cpu();
    let typing =
        traffic::type_keys(typing_at, Arc::clone(schedule), Arc::clone(pattern), latencies.clone());
    record.during(typing).await?;
    let filler_cpu_typing = ends.gauges.filler_cpu().saturating_sub(filler_cpu_before);
    record.note(|row| row.filler_cpu_typing = filler_cpu_typing);

    let mut rates = Vec::new();
    let mut time_left = BURST_TIME;
    while rates.len() < BURSTS && !time_left.is_zero() {
        stage(Stage::Filling);
        was_full &= record.during(fill(&ends, &mut patience)).await;
        stage(Stage::Bursts);
        let start = Instant::now();
        rates.push(record.during(bulk.burst(BURST_BYTES, start + time_left)).await?);
        time_left = time_left.saturating_sub(start.elapsed());
        record.note(|row| row.burst_mbit = Some(median(&rates)));
    }
    record.note(|row| row.pool_was_full = was_full);
    record.freeze_counts();

    stage(Stage::Beyond);
    let beyond = record.during(bulk.flood(BEYOND_LEAD, BEYOND_TIME)).await?;
    record.note(|row| row.beyond_mbit = Some(beyond));

    stage(Stage::Closing);
    if ends.gauges.faults() > 0 {
        return Err(failed("packets did not verify: this is a bug, please report it"));
    }
    ends.close().await;
    Ok(())
}

async fn listen() -> Result<(TcpListener, std::net::SocketAddr), Error> {
    let bind = async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bind.await.map_err(|error: std::io::Error| {
        failed(format!("cannot listen on 127.0.0.1: {}", system(&error)))
    })
}

async fn warm_up(ends: &Ends, bulk: &mut Bulk) -> Result<(), Error> {
    let deadline = Instant::now() + WARM_UP_TIME;
    while !ends.past_first_phase() && Instant::now() < deadline {
        bulk.burst(WARM_UP_STEP_BYTES, deadline).await?;
    }
    Ok(())
}

/// Lets the tunnel be silent and, where there is a pool, waits until it is full and its fillers sleep,
/// as long as `patience` lasts. False if that was too short.
async fn fill(ends: &Ends, patience: &mut Duration) -> bool {
    sleep(SILENCE).await;
    if ends.gauges.pools.is_empty() {
        return true;
    }
    loop {
        let filled = ends.gauges.filled_bytes();
        sleep(FILLER_AT_REST).await;
        if ends.has_pads_for(BURST_BYTES) && ends.gauges.filled_bytes() == filled {
            return true;
        }
        *patience = patience.saturating_sub(FILLER_AT_REST);
        if patience.is_zero() {
            return false;
        }
    }
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Writes an arm's row on the board.
struct Record<'a> {
    nth: usize,
    board: &'a watch::Sender<Board>,
    ends: &'a Ends,
    latencies: &'a Latencies,
    /// The counters when counting began; `None` before and after.
    counted_from: Option<Counts>,
}

impl Record<'_> {
    /// Publishes figures while `work` runs, and once after it.
    async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut ticks = tokio::time::interval(PUBLISH_EVERY);
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    self.publish();
                    return done;
                }
                _ = ticks.tick() => self.publish(),
            }
        }
    }

    fn publish(&self) {
        let gauges = &self.ends.gauges;
        self.note(|row| {
            row.filler_cpu = gauges.filler_cpu();
            row.keystrokes = self.latencies.summary();
            if let Some(from) = self.counted_from {
                row.traffic = gauges.counts().since(from);
            }
        });
    }

    fn freeze_counts(&mut self) {
        self.publish();
        self.counted_from = None;
    }

    fn note(&self, change: impl FnOnce(&mut Measured)) {
        self.board.send_modify(|board| change(&mut board.rows[self.nth]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_wild_burst() {
        assert_eq!(median(&[2_000.0, 1.0, 2_100.0]), 2_000.0);
        assert_eq!(median(&[7.0]), 7.0);
    }
}
