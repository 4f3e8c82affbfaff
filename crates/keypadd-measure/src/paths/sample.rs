//! Measures one arm on one emulated line, and records the sample.
//!
//! Connections are made while the line loses nothing. Then losses, bulk and small messages start
//! together; only time separates start-up from steady state.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use testbed::End;
use testbed::path::Moment;
use testbed::tunnel::Tunnel;

use super::Bed;
use super::arms::PathArm;
use super::cases::PathCase;
use crate::load::{self, Bulk, Pings, ReceiveLog, wait_until, words};
use crate::statistics::nearest_rank;

/// One interval of the plots over time.
pub(super) const BIN: Duration = Duration::from_millis(50);

pub(super) type Taken = crate::series::Taken<Sample>;

/// What one arm did in one case.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Bulk payload in the steady state, Mbit/s: from the far host, and to it if bulk goes both
    /// ways.
    pub(super) down_mbit: Option<f64>,
    pub(super) up_mbit: Option<f64>,
    /// Bulk payload in the start-up, Mbit/s.
    pub(super) start_up_mbit: Option<f64>,
    /// Latency of small messages due in the steady state, milliseconds.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// How long packets waited for the bottleneck in the steady state, milliseconds: mean over the
    /// intervals of the longest wait.
    pub(super) queue_ms: Option<f64>,
    /// CPU of both ends, in percent of a core; `None` for an arm without programs.
    pub(super) cpu_percent: Option<f64>,
    /// The direction of bulk over time, by [`BIN`].
    pub(super) trace: Vec<Bin>,
    /// What went wrong, if anything. The figures are still those that were measured.
    pub(super) failure: Option<String>,
}

/// The line in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bin {
    /// Its middle, in seconds after the start.
    pub(super) at: f64,
    /// Bytes of IP packets that arrived, as Mbit/s.
    pub(super) mbit: f64,
    /// The longest that a packet waited, in milliseconds.
    pub(super) queue_ms: f64,
}

/// The traffic of a sample.
struct Traffic {
    pings: Pings,
    down: Bulk,
    up: Option<Bulk>,
}

impl Sample {
    /// A sample that measured nothing, for this reason.
    pub(super) fn failed(failure: String) -> Self {
        Self { failure: Some(failure), ..Self::default() }
    }

    /// Takes a sample.
    ///
    /// # Errors
    /// One line: the tunnel does not come up, or carries nothing.
    pub(super) fn take(
        bed: &Bed,
        arm: &PathArm,
        case: &PathCase,
        time: Duration,
        ports: (u16, u16),
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        arm.tune(&bed.hosts)?;
        let directory = bed.directory.join(arm.name());
        let tunnel =
            Tunnel::open(&bed.cleanup, &bed.hosts, &arm.tunnel, &directory, ports, &load::carries)?;
        let connect = || bed.hosts.near.inside(|| load::connect(tunnel.address).map_err(words));
        let (echo, down) = (connect()?, connect()?);
        Pings::prove(&echo).map_err(words)?;
        let up = case.two_way.then(connect).transpose()?;
        let up = up.map(|stream| Bulk::up(stream, &bed.service)).transpose().map_err(words)?;

        for end in [End::Near, End::Far] {
            bed.path.set(end, case.settings(end, true));
            drop(bed.path.take_trace(end));
        }
        let start = Instant::now();
        let traffic = Traffic {
            pings: Pings::start(echo, case.ping_interval()).map_err(words)?,
            down: Bulk::down(down).map_err(words)?,
            up,
        };
        traffic.up.as_ref().map_or(Ok(()), Bulk::send).map_err(words)?;
        let steady = start + case.start_up();
        wait_until(steady, stop)?;
        let cpu = tunnel.processes.cpu_seconds();
        wait_until(steady + time, stop)?;
        let end = Instant::now();
        let cpu = tunnel.processes.cpu_seconds().zip(cpu).map(|(after, before)| after - before);
        let trace = bed.path.take_trace(End::Far);
        let mut sample = Self::of(&traffic, [start, steady, end], &trace);
        sample.cpu_percent = cpu.map(|cpu| cpu * 100.0 / (end - steady).as_secs_f64());
        let ended = |bulk: &Bulk| bulk.received.failure();
        let failure = tunnel.processes.failure().or_else(|| ended(&traffic.down));
        sample.failure = failure.or_else(|| traffic.up.as_ref().and_then(ended));
        Ok(sample)
    }

    fn of(traffic: &Traffic, [start, steady, end]: [Instant; 3], trace: &[Moment]) -> Self {
        let mbit = |received: &Arc<ReceiveLog>, from: Instant, until: Instant| {
            received.bytes(from, until) as f64 * 8.0 / (until - from).as_secs_f64() / 1e6
        };
        let mut times: Vec<f64> =
            traffic.pings.times(steady, end).iter().map(|it| it.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let within: Vec<f64> = trace
            .iter()
            .filter(|moment| moment.from >= steady && moment.from < end)
            .map(|moment| moment.wait.as_secs_f64() * 1e3)
            .collect();
        let queue_ms = within.iter().sum::<f64>() / within.len() as f64;
        Self {
            down_mbit: Some(mbit(&traffic.down.received, steady, end)),
            up_mbit: traffic.up.as_ref().map(|up| mbit(&up.received, steady, end)),
            start_up_mbit: Some(mbit(&traffic.down.received, start, steady)),
            p50_ms: nearest_rank(&times, 0.5),
            p99_ms: nearest_rank(&times, 0.99),
            queue_ms: (!within.is_empty()).then_some(queue_ms),
            trace: bins(trace, start, end),
            ..Self::default()
        }
    }
}

/// Summarizes moments by interval.
fn bins(trace: &[Moment], start: Instant, end: Instant) -> Vec<Bin> {
    let count = (end.saturating_duration_since(start).as_nanos() / BIN.as_nanos()) as usize;
    let width = BIN.as_secs_f64();
    let bin = |nth| Bin { at: (nth as f64 + 0.5) * width, mbit: 0.0, queue_ms: 0.0 };
    let mut bins: Vec<Bin> = (0..count).map(bin).collect();
    for moment in trace {
        let Some(after) = moment.from.checked_duration_since(start) else { continue };
        if let Some(bin) = bins.get_mut((after.as_nanos() / BIN.as_nanos()) as usize) {
            bin.mbit += moment.arrived_bytes as f64 * 8.0 / width / 1e6;
            bin.queue_ms = bin.queue_ms.max(moment.wait.as_secs_f64() * 1e3);
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_add_up_to_the_rate_and_the_longest_wait_of_their_interval() {
        let start = Instant::now();
        let moment = |after_ms, arrived_bytes, wait_ms| Moment {
            from: start + Duration::from_millis(after_ms),
            arrived_bytes,
            wait: Duration::from_millis(wait_ms),
            dropped: 0,
        };
        let trace = [
            moment(0, 100_000, 3),
            moment(20, 150_000, 1),
            moment(120, 1_000, 9),
            moment(900, 1, 1),
        ];
        let bins = bins(&trace, start, start + Duration::from_millis(160));
        let expected = [(0.025, 40.0, 3.0), (0.075, 0.0, 0.0), (0.125, 0.16, 9.0)];
        assert_eq!(bins.len(), expected.len());
        for (bin, (at, mbit, queue_ms)) in bins.iter().zip(expected) {
            assert!((bin.at - at).abs() < 1e-9 && (bin.mbit - mbit).abs() < 1e-9, "{bin:?}");
            assert!((bin.queue_ms - queue_ms).abs() < 1e-9, "{bin:?}");
        }
    }
}
