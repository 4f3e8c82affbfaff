//! Runs one arm of the demo (connect, fill the pool, typing, bursts, sustained bulk, close) and
//! publishes results as it goes. Knows nothing of drawing.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use keypadd_cli::error::Error;
use keypadd_keystream::CipherEngine;
use keypadd_traffic::{Counts, Due, Path, TunnelArm};
use tokio::sync::watch;
use tokio::time::sleep;

use super::measured::{ARMS, Arm, Measured};
use super::{BURST_BYTES, BURSTS};
use crate::verbs::demo::failed;
use crate::verbs::demo::traffic::{self, LatencyRecorder, Typed};

/// Memory for keystream at each end, filled by conventional 3DES in about two seconds of CPU: more
/// than a burst takes, in both directions.
const POOL_BUDGET_BYTES: usize = 16 << 20;

/// Least payload of a full-size packet.
const PACKET_PAYLOAD_BYTES: u64 = 1_350;

/// How long the tunnel is idle before every measurement, with or without a pool.
const SILENCE: Duration = Duration::from_millis(200);
/// Time that an arm may spend on waiting for its pool to be full.
const FILL_TIME: Duration = Duration::from_millis(2_500);

/// Time that all bursts together may take.
const BURST_TIME: Duration = Duration::from_millis(1_500);

/// After the bursts the sender continues: this long to use up what is left in the pool ...
const BEYOND_LEAD: Duration = Duration::from_millis(250);
/// ... and this long to measure the rate without it.
const BEYOND_TIME: Duration = Duration::from_millis(750);

/// How often figures are published while a stage runs.
const PUBLISH_EVERY: Duration = Duration::from_millis(200);

/// What an arm is doing.
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
            Self::Connecting => "connecting, warming up",
            Self::Filling => "waiting for the pool to fill",
            Self::Typing => "typing",
            Self::Bursts => "bursts of bulk data",
            Self::Beyond => "sustained bulk data",
            Self::Closing => "closing",
        })
    }
}

/// Everything known at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    /// The arm that runs and what it is at; `None` before the first and after the last.
    pub(super) now: Option<(Arm, Stage)>,
    pub(super) rows: [Measured; ARMS.len()],
}

/// What is the same for every arm.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// When keys are pressed.
    pub(super) schedule: Vec<Due>,
    /// What computes 3DES.
    pub(super) engine: CipherEngine,
}

/// Runs the arm `ARMS[nth]`. Dropping the future ends it immediately.
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
    let tunnel =
        TunnelArm { suite: arm.suite.protection(), pool: arm.pool, engine: workload.engine };
    let path = Path::here(tunnel, POOL_BUDGET_BYTES).await;
    let path = path.map_err(|error| failed(format!("{arm}: {error}")))?;
    let latencies = LatencyRecorder::default();
    let mut record = Record { nth, board, path: &path, latencies: &latencies, counted_from: None };

    stage(Stage::Filling);
    let mut patience = FILL_TIME;
    let mut was_full = record.during(fill(&path, &mut patience)).await;

    stage(Stage::Typing);
    record.counted_from = Some(path.gauges().counts());
    let filler_cpu_before = path.gauges().filler_cpu();
    let typing = traffic::type_keys(&path, workload.schedule.clone(), latencies.clone());
    record.during(typing).await?;
    let filler_cpu_typing = path.gauges().filler_cpu().saturating_sub(filler_cpu_before);
    record.note(|row| row.filler_cpu_typing = filler_cpu_typing);

    let mut rates = Vec::new();
    let mut time_left = BURST_TIME;
    while rates.len() < BURSTS && !time_left.is_zero() {
        stage(Stage::Filling);
        was_full &= record.during(fill(&path, &mut patience)).await;
        stage(Stage::Bursts);
        let start = Instant::now();
        rates.push(record.during(traffic::burst(&path, BURST_BYTES)).await?);
        time_left = time_left.saturating_sub(start.elapsed());
        record.note(|row| row.burst_mbit = Some(median(&rates)));
    }
    record.note(|row| row.pool_was_full = was_full);
    record.freeze_counts();

    stage(Stage::Beyond);
    let beyond = record.during(traffic::flood(&path, BEYOND_LEAD, BEYOND_TIME)).await?;
    record.note(|row| row.beyond_mbit = Some(beyond));

    stage(Stage::Closing);
    if path.has_faults() {
        return Err(failed("packets did not verify: this is a bug, please report it"));
    }
    path.close().await.map_err(|void| failed(format!("{arm}: {void}")))
}

/// Lets the tunnel be idle and, if there is a pool, waits until it is full and its fillers sleep,
/// for at most `patience`. Returns false if that was too short, or if the pool lacks pads for a
/// burst.
async fn fill(path: &Path, patience: &mut Duration) -> bool {
    sleep(SILENCE).await;
    let start = Instant::now();
    let at_rest = path.rest(*patience).await;
    *patience = patience.saturating_sub(start.elapsed());
    let packets = BURST_BYTES.div_ceil(PACKET_PAYLOAD_BYTES);
    at_rest && path.packets_at_hand(true).is_none_or(|at_hand| at_hand >= packets)
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Writes an arm's row on the board.
struct Record<'a> {
    nth: usize,
    board: &'a watch::Sender<Board>,
    path: &'a Path,
    latencies: &'a LatencyRecorder,
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
        let gauges = self.path.gauges();
        self.note(|row| {
            row.filler_cpu = gauges.filler_cpu();
            row.keystrokes = Typed::of(&self.latencies.so_far());
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
