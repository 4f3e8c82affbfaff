//! Measures bulk data: a burst from a full pool, then one or more continuous streams; reports
//! throughput and the pool's level.

use std::future::Future;
use std::time::{Duration, Instant};

use keypadd_traffic::{Answered, Broken, Due, Exchange, Path, Requester, Requests};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::interleave::{Runs, Workload};
use crate::results::{Axis, Curve, Plot, Section, Style, Table};
use crate::statistics::mean_of_finite;
use crate::workload::terminal::LEAD;
use crate::workload::{Claims, Figure, Ratio, costs, ratios, samples, verdicts};

/// Data per answer that reports how much has arrived. Small, so that a stream ends soon after its
/// time.
pub(super) const STEP_BYTES: u64 = 256 << 10;

/// So many streams that run beside something else, in words.
pub(super) fn streams_beside(streams: u32) -> String {
    match streams {
        1 => "one stream".to_owned(),
        more => format!("{more} streams"),
    }
}

/// How often the pool's level is read.
const READ_EVERY: Duration = Duration::from_millis(10);

/// Averaging interval of a curve's points.
const BIN_SECONDS: f64 = 0.05;

/// Bulk transfer.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Concurrent connections.
    pub streams: u32,
    /// Duration of the continuous stream in each turn.
    pub time: Duration,
    /// Bytes of the preceding burst.
    pub burst_bytes: u64,
    /// Whether data goes from here to the far end, or back.
    pub up: bool,
}

/// One turn.
#[derive(Clone, Debug)]
pub struct BulkMeasured {
    /// Rate of the burst, up to the arrival of its last byte, Mbit/s.
    pub burst_mbit: f64,
    /// Rate of all continuous streams together, Mbit/s.
    pub mbit: f64,
    /// Arrivals in order: seconds from the start, and bytes.
    pub arrivals: Vec<(f64, u64)>,
    /// Packets with whole pads ready, by seconds from the start; empty without a pool.
    pub levels: Vec<[f64; 2]>,
}

impl Workload for Bulk {
    type Measured = BulkMeasured;

    async fn once(&self, path: &Path, _: u32) -> Result<BulkMeasured, Broken> {
        let burst_mbit = self.burst(path).await?;
        let start = Instant::now() + LEAD;
        let flood = flood(path, self.streams, self.step(), self.time, start);
        let (arrivals, levels) = with_levels(flood, path, self.up, start).await;
        let arrivals = arrivals?;
        Ok(BulkMeasured { burst_mbit, mbit: rate_mbit(&arrivals), arrivals, levels })
    }

    fn offered(&self) -> Vec<Due> {
        Vec::new()
    }

    fn figures(&self) -> Vec<Figure<BulkMeasured>> {
        let figure = |of, value: fn(&BulkMeasured) -> f64| Figure {
            of,
            claims: Claims::Ratio(Ratio { name: "ratio of rates", less_is_better: false }),
            value: Box::new(move |measured| Some(value(measured))),
        };
        vec![
            figure("A burst", |measured| measured.burst_mbit),
            figure("Bulk without a pause", |measured| measured.mbit),
        ]
    }

    fn section(&self, runs: &Runs<BulkMeasured>) -> Section {
        let arms = runs.measured();
        let streams = match self.streams {
            1 => "1 stream".to_owned(),
            more => format!("{more} streams at once"),
        };
        let way = match self.up {
            true => "from here to the far end",
            false => "from the far end to here",
        };
        let mut section = Section::of_page(
            "bulk",
            include_str!("bulk.md"),
            &[
                ("burst", &(self.burst_bytes as f64 / f64::from(1 << 20))),
                ("streams", &streams),
                ("seconds", &self.time.as_secs_f64()),
                ("way", &way),
            ],
        );
        let bursts = samples(&arms, |measured| Some(measured.burst_mbit));
        let rates = samples(&arms, |measured| Some(measured.mbit));
        section.verdicts = verdicts(&self.figures(), runs);
        section.notes = runs.notes();
        let rows = bursts.iter().zip(&rates).map(|(bursts, rates)| (bursts.0, (bursts, rates)));
        section.tables = vec![
            Table::of("rates", "Payload that arrived", "arm", rows)
                .column("burst", "Mbit/s", |(bursts, _)| mean_of_finite(&bursts.1))
                .column("without a pause", "Mbit/s", |(_, rates)| mean_of_finite(&rates.1))
                .end(),
            ratios("burst-ratios", "Burst over that of the base lines, round by round", &bursts),
            ratios("ratios", "Rate without a pause over that of the base lines", &rates),
            costs(&arms),
        ];
        let time = || Axis::linear("time", "s");
        let mut rate = Plot::new("rate", "Rate over time", time(), Axis::log("rate", "Mbit/s"));
        rate.caption = "The first round; each point is the average of 50 ms.".into();
        let mut level = Plot::new(
            "level",
            "The pool over time",
            time(),
            Axis::linear("packets with pads ready", "packets"),
        );
        level.caption =
            "The first round, at the end that has least. At 0 every packet waits for the cipher."
                .into();
        for (arm, turns) in &arms {
            let Some(turn) = turns.first() else { continue };
            let BulkMeasured { arrivals, levels, .. } = &turn.measured;
            rate.curves.push(Curve::new(&arm.to_string(), Style::Line, binned(arrivals)));
            if arm.has_pool() {
                level.curves.push(Curve::new(&arm.to_string(), Style::Line, levels.clone()));
            }
        }
        section.plots = vec![rate, level];
        section
    }
}

impl Bulk {
    fn step(&self) -> Exchange {
        if self.up { Exchange::new(STEP_BYTES, 1) } else { Exchange::new(0, STEP_BYTES) }
    }

    async fn burst(&self, path: &Path) -> Result<f64, Broken> {
        let requester = Requester::open(path.address()).await?;
        let exchange = match self.up {
            true => Exchange::new(self.burst_bytes, 1),
            false => Exchange::new(0, self.burst_bytes),
        };
        let schedule = vec![Due { at: Duration::ZERO, exchange }];
        let (start, tell) = (Instant::now(), |last: &mut Duration, answered: Answered| {
            *last = answered.at;
        });
        let (_, took) = requester.run(Requests::At(schedule), start, Duration::ZERO, tell).await?;
        Ok(self.burst_bytes as f64 * 8.0 / 1e6 / took.as_secs_f64())
    }
}

/// Sends continuously on this many connections; returns arrivals of all together.
pub async fn flood(
    path: &Path,
    streams: u32,
    step: Exchange,
    time: Duration,
    start: Instant,
) -> Result<Vec<(f64, u64)>, Broken> {
    let mut running = JoinSet::new();
    for _ in 0..streams {
        let requester = Requester::open(path.address()).await?;
        let bytes = step.request_bytes().max(step.response_bytes());
        let tell = move |arrivals: &mut Vec<(f64, u64)>, answered: Answered| {
            arrivals.push((answered.at.as_secs_f64(), bytes));
        };
        running.spawn(requester.run(Requests::WithoutPause(step, time), start, Vec::new(), tell));
    }
    let mut all = Vec::new();
    while let Some(ended) = running.join_next().await {
        let ended = ended.map_err(|_| Broken::fault())?;
        all.extend(ended?.1);
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(all)
}

/// Payload rate, Mbit/s, from the start to the last arrival.
pub fn rate_mbit(arrivals: &[(f64, u64)]) -> f64 {
    let bytes: u64 = arrivals.iter().map(|(_, bytes)| bytes).sum();
    arrivals.last().map_or(0.0, |(end, _)| bytes as f64 * 8.0 / 1e6 / end)
}

/// Runs `work` and reads the pool's level until it ends.
async fn with_levels<T>(
    work: impl Future<Output = T>,
    path: &Path,
    up: bool,
    start: Instant,
) -> (T, Vec<[f64; 2]>) {
    let mut levels = Vec::new();
    let mut ticks = interval(READ_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return (done, levels),
            _ = ticks.tick() => {
                let at = Instant::now().checked_duration_since(start);
                if let (Some(at), Some(packets)) = (at, path.packets_at_hand(up)) {
                    levels.push([at.as_secs_f64(), packets as f64]);
                }
            }
        }
    }
}

/// The rate in each time bin but the last, incomplete one.
fn binned(arrivals: &[(f64, u64)]) -> Vec<[f64; 2]> {
    let bins = arrivals.last().map_or(0, |(end, _)| (end / BIN_SECONDS) as usize);
    let mut mbit = vec![0.0; bins];
    for (at, bytes) in arrivals {
        if let Some(bin) = mbit.get_mut((at / BIN_SECONDS) as usize) {
            *bin += *bytes as f64 * 8.0 / 1e6 / BIN_SECONDS;
        }
    }
    let middle = |nth: usize| (nth as f64 + 0.5) * BIN_SECONDS;
    mbit.into_iter().enumerate().map(|(nth, mbit)| [middle(nth), mbit]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_arrived_when() {
        let arrivals = [(0.01, 125_000), (0.06, 125_000), (0.12, 250_000)];
        assert!((rate_mbit(&arrivals) - 4.0 / 0.12).abs() < 1e-9);
        let bins = binned(&arrivals);
        assert_eq!(bins.len(), 2);
        assert!(bins.iter().all(|[_, mbit]| (mbit - 20.0).abs() < 1e-9), "{bins:?}");
        assert_eq!(rate_mbit(&[]), 0.0);
    }
}
