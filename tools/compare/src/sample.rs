//! Measures one arm once, for one round.
//!
//! The order is fixed: warm up, bulk both ways, idle round trips, round trips during bulk both
//! ways, idle CPU. All of it runs on one thread in the near namespace, with a second one for bulk
//! during round trips. Does not know which arm it measures, nor what is good.

use std::time::{Duration, Instant};

use serde::Serialize;
use testbed::procstat;
use testbed::tunnel::Tunnel;

use crate::load::{self, Bulk, Direction, Echo, RoundTrips, Until};

/// How long the warm-up transfer lasts.
const WARM_UP: Duration = Duration::from_millis(500);
/// Pause between measurements, for a tunnel to settle.
const SETTLE: Duration = Duration::from_millis(100);
/// Idle round trips end at this number or after this time.
const IDLE_ROUND_TRIPS: Until = Until { count: 2000, elapsed: Duration::from_secs(1) };
/// Round trips that are not recorded, on each new connection.
const UNRECORDED: Until = Until { count: 50, elapsed: Duration::from_secs(1) };
/// How long bulk runs before round trips during it are recorded.
const BULK_LEAD: Duration = Duration::from_millis(300);
/// Pause before the idle CPU: socat's children linger for half a second.
const IDLE_SETTLE: Duration = Duration::from_millis(700);
/// How long the CPU of a tunnel without connections is measured.
const IDLE_CPU: Duration = Duration::from_millis(500);
/// Round trips during bulk are made back to back, and once more at 1,000 a second: the faster a
/// tunnel answers, the more of the machine back-to-back round trips take from its bulk.
const BACK_TO_BACK: Duration = Duration::ZERO;
const PACED: Duration = Duration::from_millis(1);
/// Message sizes of idle round trips.
const SMALL_BYTES: usize = 128;
const LARGE_BYTES: usize = 1024;

/// What one arm did in one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) download: Bulk,
    pub(crate) upload: Bulk,
    /// Idle round trips of 128 B.
    pub(crate) small: RoundTrips,
    /// Idle round trips of 1 KiB.
    pub(crate) large: RoundTrips,
    pub(crate) beside_download: UnderLoad,
    pub(crate) beside_upload: UnderLoad,
    /// The same with round trips at a fixed rate.
    pub(crate) paced_download: UnderLoad,
    pub(crate) paced_upload: UnderLoad,
    /// CPU seconds per second of a tunnel without connections.
    pub(crate) idle_cpu: Option<f64>,
    /// Share of the machine's CPU time that other programs used during the measurement.
    pub(crate) others_cpu: f64,
}

/// Round trips of 128 B on one connection while bulk data uses another.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct UnderLoad {
    pub(crate) round_trips: RoundTrips,
    pub(crate) bulk: Bulk,
}

impl Sample {
    /// Measures a tunnel with bulk transfers of `duration`. Call in the near namespace.
    ///
    /// # Errors
    /// One line: which measurement failed, and how.
    pub(crate) fn measure(tunnel: &Tunnel, duration: Duration) -> Result<Self, String> {
        let (start, others) = (Instant::now(), others_cpu_seconds());
        let cpu = || tunnel.processes.cpu_seconds();
        let bulk = |direction, duration| {
            let bulk = load::bulk(tunnel.address, direction, duration, &cpu);
            std::thread::sleep(SETTLE);
            bulk
        };
        let warm_up = |direction| bulk(direction, WARM_UP / 2);
        warm_up(Direction::Download).map_err(|error| format!("warm-up: {error}"))?;
        warm_up(Direction::Upload).map_err(|error| format!("warm-up: {error}"))?;
        let download = bulk(Direction::Download, duration)?;
        let upload = bulk(Direction::Upload, duration)?;
        let small = idle_round_trips(tunnel, SMALL_BYTES)?;
        let large = idle_round_trips(tunnel, LARGE_BYTES)?;
        let beside = |direction, interval| beside(tunnel, direction, duration, interval);
        let beside_download = beside(Direction::Download, BACK_TO_BACK)?;
        let beside_upload = beside(Direction::Upload, BACK_TO_BACK)?;
        let paced_download = beside(Direction::Download, PACED)?;
        let paced_upload = beside(Direction::Upload, PACED)?;
        std::thread::sleep(IDLE_SETTLE);
        let before = cpu();
        std::thread::sleep(IDLE_CPU);
        let idle_cpu = cpu().zip(before).map(|(after, before)| after - before);
        let idle_cpu = idle_cpu.map(|seconds| seconds / IDLE_CPU.as_secs_f64());
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let others = (others_cpu_seconds() - others) / start.elapsed().as_secs_f64() / cores;
        Ok(Self {
            download,
            upload,
            small,
            large,
            beside_download,
            beside_upload,
            paced_download,
            paced_upload,
            idle_cpu,
            others_cpu: others.clamp(0.0, 1.0),
        })
    }
}

/// CPU seconds of all programs but this one, its children and theirs: what they use explains much
/// of the range on a shared machine.
fn others_cpu_seconds() -> f64 {
    procstat::machine_cpu_seconds() - procstat::cpu_seconds(&[std::process::id()])
}

fn idle_round_trips(tunnel: &Tunnel, size: usize) -> Result<RoundTrips, String> {
    let mut echo = Echo::open(tunnel.address, size)?;
    echo.measure(UNRECORDED, BACK_TO_BACK)?;
    echo.measure(IDLE_ROUND_TRIPS, BACK_TO_BACK)
}

fn beside(
    tunnel: &Tunnel,
    direction: Direction,
    duration: Duration,
    interval: Duration,
) -> Result<UnderLoad, String> {
    let mut echo = Echo::open(tunnel.address, SMALL_BYTES)?;
    echo.measure(UNRECORDED, BACK_TO_BACK)?;
    let cpu = || tunnel.processes.cpu_seconds();
    let measured = std::thread::scope(|scope| {
        // Both threads are in the near namespace: a thread starts in that of its parent.
        let bulk =
            scope.spawn(|| load::bulk(tunnel.address, direction, BULK_LEAD + duration, &cpu));
        std::thread::sleep(BULK_LEAD);
        let round_trips = echo.measure(Until { count: usize::MAX, elapsed: duration }, interval);
        let bulk = bulk.join().unwrap_or_else(|_| Err("the bulk thread panicked".into()));
        Ok(UnderLoad { round_trips: round_trips?, bulk: bulk? })
    });
    std::thread::sleep(SETTLE);
    measured.map_err(|error: String| format!("round trips beside bulk: {error}"))
}
