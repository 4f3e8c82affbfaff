//! Soaks tunnels of three suites over a bad network: moves the client, cuts the path again and
//! again, and checks that memory stays flat (T-21).
//!
//! `KEYPADD_SOAK_MINUTES` sets the duration, 3 by default. Plots each daemon's memory to
//! `soak-memory.svg` in cargo's temporary directory for tests; the last line prints the path.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{env, fs};

use keypadd_measure::machine::Machine;
use keypadd_measure::report;
use keypadd_measure::results::{Axis, Curve, Plot, Results, Run, SCHEMA, Section, Style};
use testbed::LineSettings;
use tokio::task::{JoinHandle, JoinSet, block_in_place};
use tokio::time::{Instant, interval, sleep};

use crate::SUITES;
use crate::exchange::{Job, Outcome};
use crate::networks::everything;
use crate::tunnel::{Tunnel, resident_bytes};

/// Maximum average growth of a daemon's memory per hour: T-21's bound for a day.
const GROWTH_BYTES_PER_HOUR_MAX: f64 = 1_048_576.0;
/// Allowance on top in a run of any length: buffers that an allocator keeps after a burst. Without
/// it runs of minutes could not be judged; over a day it is negligible.
const GROWTH_BYTES_AT_ONCE_MAX: f64 = 6.0 * 1_048_576.0;
/// The leading share of a run that is excluded while memory settles.
const WARM_UP: f64 = 1.0 / 3.0;
/// Pieces of a run whose means give the interval of its growth: each of a two hours' run is longer
/// than a round, so that what one piece has more of memory says little about the next.
const PIECES: usize = 16;
/// Student's t for 95 % on both sides and [`PIECES`] - 2 degrees of freedom.
const T_95: f64 = 2.145;
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Longer than the default peer timeout, 30 s.
const CUT: Duration = Duration::from_secs(40);
/// Enough for a bulk connection of its own, and in some rounds for a 3DES key update.
const BULK_BYTES: usize = 16 << 20;

/// Seconds since the start, and bytes at that time.
type Samples = Vec<[f64; 2]>;

/// Event counts of a tunnel.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    exact: u64,
    reset: u64,
    reconnects: u64,
    key_updates: u64,
}

/// Reads a process's memory every second until aborted.
fn sample(pid: u32, began: Instant) -> (Arc<Mutex<Samples>>, JoinHandle<()>) {
    let samples = Arc::new(Mutex::new(Samples::new()));
    let written = Arc::clone(&samples);
    let task = tokio::spawn(async move {
        let mut ticks = interval(SAMPLE_EVERY);
        loop {
            ticks.tick().await;
            let now = began.elapsed().as_secs_f64();
            written.lock().unwrap().push([now, resident_bytes(pid) as f64]);
        }
    });
    (samples, task)
}

/// One round: impairments, an address change, a bulk transfer, an outage.
async fn round(tunnel: &mut Tunnel, tally: &mut Tally) {
    let seed = tally.rounds * 100;
    let mut jobs = Vec::new();
    tunnel.relay.set_both(everything());
    for seed in seed..seed + 3 {
        jobs.push(tunnel.carry(Job::each_way(seed, 256 << 10)).await);
    }
    tunnel.relay.set_both(LineSettings::default());
    tunnel.relay.rebind().unwrap();
    jobs.push(tunnel.carry(Job::each_way(seed + 3, BULK_BYTES)).await);
    tally.key_updates += tunnel.key_phases();

    tunnel.relay.set_both(LineSettings { cut: true, ..<_>::default() });
    let (cut_off, ()) = tokio::join!(tunnel.carry(Job::each_way(seed + 4, 1 << 20)), async {
        sleep(CUT).await;
        tunnel.relay.set_both(LineSettings::default());
    });
    jobs.push(cut_off);
    block_in_place(|| tunnel.hear_reconnected());
    tally.reconnects += 1;
    tunnel.must_recover(Job::each_way(seed + 5, 64 << 10)).await;
    tunnel.quiet().await;

    let exact = jobs.iter().filter(|outcome| **outcome == Outcome::Exact).count() as u64;
    tally.exact += exact + 1;
    tally.reset += jobs.len() as u64 - exact;
    tally.rounds += 1;
}

/// The samples after the warm-up.
fn warm(samples: &Samples) -> Samples {
    let end = samples.last().map_or(0.0, |sample| sample[0]);
    samples.iter().copied().filter(|[at, _]| *at >= WARM_UP * end).collect()
}

/// Mean time and mean bytes.
fn mean(samples: &[[f64; 2]]) -> [f64; 2] {
    [0, 1].map(|of| samples.iter().map(|one| one[of]).sum::<f64>() / samples.len() as f64)
}

/// Growth in bytes per second, by least squares.
fn slope(samples: &[[f64; 2]]) -> f64 {
    let [at, bytes] = mean(samples);
    let covariance: f64 = samples.iter().map(|one| (one[0] - at) * (one[1] - bytes)).sum();
    covariance / spread(samples)
}

/// The sum of the squared distances of all times from their mean.
fn spread(samples: &[[f64; 2]]) -> f64 {
    let [at, _] = mean(samples);
    samples.iter().map(|one| (one[0] - at).powi(2)).sum()
}

/// Growth in bytes per second after the warm-up, from the means of [`PIECES`], and half of its
/// 95 % interval.
fn slope_with_margin(samples: &Samples) -> (f64, f64) {
    let warm = warm(samples);
    let pieces = warm.chunks(warm.len().div_ceil(PIECES)).map(mean).collect::<Vec<_>>();
    let (slope, [at, bytes]) = (slope(&pieces), mean(&pieces));
    let residue = |one: &[f64; 2]| (one[1] - bytes - slope * (one[0] - at)).powi(2);
    let variance = pieces.iter().map(residue).sum::<f64>() / (PIECES - 2) as f64;
    (slope, T_95 * (variance / spread(&pieces)).sqrt())
}

/// A daemon's growth after the warm-up, and the growth allowed.
fn growth(samples: &Samples) -> (f64, f64) {
    let seconds = samples.last().map_or(0.0, |sample| sample[0]) * (1.0 - WARM_UP);
    let may = GROWTH_BYTES_PER_HOUR_MAX * seconds / 3600.0 + GROWTH_BYTES_AT_ONCE_MAX;
    (slope(&warm(samples)) * seconds, may)
}

#[test]
fn memory_that_grows_is_told_from_memory_that_does_not() {
    let minutes = |seconds: u32, bytes: fn(f64) -> f64| -> Samples {
        (0..seconds).map(|second| [second.into(), bytes(second.into())]).collect()
    };
    let leaks = |samples: Samples| {
        let (grown, may) = growth(&samples);
        grown > may
    };
    let start = |second: f64| 2e7 + 3e7 * (second / 100.0).min(1.0);
    assert!(!leaks(minutes(600, start)), "start-up");
    assert!(!leaks(minutes(600, |second| 4e7 + 5e6 * (second / 7.0).sin())), "fluctuation");
    assert!(leaks(minutes(600, |second| 4e7 + 2e4 * second)), "20 kB a second");
    assert!(leaks(minutes(86_400, |second| 4e7 + 600.0 * second)), "2 MB an hour for a day");
    assert!(!leaks(minutes(86_400, |second| 4e7 + 200.0 * second)), "0.7 MB an hour");
}

#[test]
fn the_interval_of_a_slope_holds_it_and_narrows_as_a_run_gets_longer() {
    // As rounds of 97 s do.
    let run = |seconds: u32| -> Samples {
        let bytes = |at: f64| 4e7 + 100.0 * at + 1e6 * (at * std::f64::consts::TAU / 97.0).sin();
        (0..seconds).map(|second| [second.into(), bytes(second.into())]).collect()
    };
    let [short, long] = [1_800, 7_200].map(|seconds| slope_with_margin(&run(seconds)));
    for (slope, margin) in [short, long] {
        assert!((slope - 100.0).abs() <= margin, "{slope} +- {margin}");
    }
    assert!(long.1 < short.1 / 4.0, "{short:?} {long:?}");
}

fn draw(curves: Vec<Curve>, minutes: f64) -> String {
    let (x, y) = (Axis::linear("time", "min"), Axis::linear("memory", "MiB"));
    let mut plot = Plot::new("memory", "Memory of both ends, not counting files", x, y);
    plot.curves = curves;
    let mut section = Section::new("soak", "Soak", "Does memory stay flat?");
    section.plots = vec![plot];
    let run = Run {
        title: format!("soak of {minutes} min"),
        version: env!("CARGO_PKG_VERSION").into(),
        command_line: String::new(),
        seed: 0,
        started: String::new(),
        ended: None,
        complete: true,
        ended_by: None,
        emulated: Vec::new(),
    };
    let sections = vec![section];
    let results = Results { schema: SCHEMA, run, machine: Machine::read(), sections };
    let files = report::files(&results);
    files.into_iter().find(|file| file.path.ends_with(".svg")).unwrap().contents
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes, or the hours that KEYPADD_SOAK_MINUTES says"]
async fn memory_stays_flat_under_faults_reconnects_and_key_updates() {
    let minutes = env::var("KEYPADD_SOAK_MINUTES").map_or(3.0, |text| text.parse().unwrap());
    let length = Duration::from_secs_f64(minutes * 60.0);
    let mut tunnels = JoinSet::new();
    for suite in SUITES {
        tunnels.spawn(async move {
            let mut tunnel = Tunnel::start(suite, 21).await;
            let began = Instant::now();
            let ends = ["serve", "connect"].map(|verb| {
                let (samples, task) = sample(tunnel.daemon(verb).pid(), began);
                (format!("{verb}, {suite}"), samples, task)
            });
            let mut tally = Tally::default();
            while began.elapsed() < length {
                round(&mut tunnel, &mut tally).await;
            }
            println!("{suite}: {tally:?}");
            assert!(tally.exact > tally.reset && tally.key_updates > 0, "{suite}: {tally:?}");
            let samples = ends.map(|(name, samples, task)| {
                task.abort();
                (name, samples.lock().unwrap().clone())
            });
            tunnel.must_be_sound().await;
            samples
        });
    }
    let mut ends = Vec::new();
    while let Some(done) = tunnels.join_next().await {
        ends.extend(done.unwrap());
    }
    ends.sort_by(|one, other| one.0.cmp(&other.0));

    let to_picture = |[at, bytes]: [f64; 2]| [at / 60.0, bytes / 1_048_576.0];
    let curve = |(name, samples): &(String, Samples)| {
        Curve::new(name, Style::Line, samples.iter().copied().map(to_picture).collect())
    };
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak-memory.svg");
    fs::write(&picture, draw(ends.iter().map(curve).collect(), minutes)).unwrap();
    let mut leaks = Vec::new();
    for (name, samples) in &ends {
        let (grown, may) = growth(samples);
        let last = samples.last().unwrap()[1];
        println!("{name}: {last:.0} bytes, grown by {grown:.0} of {may:.0} allowed");
        let (slope, margin) = slope_with_margin(samples);
        let [slope, margin] = [slope, margin].map(|bytes| bytes * 3600.0 / 1024.0);
        println!("{name}: slope {slope:+.0} +- {margin:.0} KiB an hour (95 %)");
        leaks.extend((grown > may).then_some(name));
    }
    println!("picture: {}", picture.display());
    assert!(leaks.is_empty(), "memory grows: {leaks:?}");
}
