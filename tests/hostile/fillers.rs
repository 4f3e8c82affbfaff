//! Tests tunnels whose fillers are stopped by a debugger or starved of CPU: pads are computed
//! inline and no packet waits (I6, I9).

mod host;

use std::fs;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::{self, JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use keypadd_measure::results::Outcome;
use keypadd_measure::statistics::ratio;
use keypadd_measure::verdict::Rule;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::SUITES;
use crate::daemons::{Daemon, watched_desk};
use crate::exchange::{HANG, Job};
use crate::plain::{KnownTextTunnel, start_service};
use crate::tunnel::{LOOK, Tunnel};

/// A thread of another process, stopped until this is dropped (ptrace(2)).
struct StoppedThread {
    release: Option<mpsc::Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl StoppedThread {
    /// Stops only the thread that fills a daemon's pool.
    fn filler_of(daemon: &Daemon) -> nix::Result<Self> {
        let filler = filler_of(daemon).expect("a daemon with a pool has a filler");
        let (stopped, outcome) = mpsc::channel();
        let (release, released) = mpsc::channel();
        // Only the thread that attached can detach.
        let tracer = thread::spawn(move || {
            let attached = ptrace::attach(filler)
                .and_then(|()| waitpid(filler, Some(WaitPidFlag::__WALL)).map(drop));
            stopped.send(attached).unwrap();
            if attached.is_ok() {
                let _: Result<(), _> = released.recv();
                // The process may have exited.
                let _ = ptrace::detach(filler, None);
            }
        });
        outcome.recv().unwrap()?;
        Ok(Self { release: Some(release), tracer: Some(tracer) })
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        self.release = None;
        if let Some(tracer) = self.tracer.take() {
            tracer.join().unwrap();
        }
    }
}

/// Finds the thread that fills a daemon's pool by its name.
fn filler_of(daemon: &Daemon) -> Option<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap());
    let filler = threads.find(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "keypadd-fill\n")
    })?;
    Some(Pid::from_raw(filler.file_name().to_str().unwrap().parse().unwrap()))
}

/// Busy loops that use all CPU available, at least two.
struct Hogs {
    enough: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hogs {
    fn start() -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let count = available_parallelism().map_or(2, |cores| cores.get().max(2));
        let hog = || {
            let enough = Arc::clone(&enough);
            thread::spawn(move || {
                while !enough.load(Relaxed) {
                    spin_loop();
                }
            })
        };
        let threads = (0..count).map(|_| hog()).collect();
        Self { enough, threads }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.enough.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// More than the daemons' pools can cover: of a packet of up to 9,188 bytes, a pad covers 1,472.
const DRAINING_BYTES: usize = 48 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filler_that_is_held_from_outside_costs_pads_and_nothing_else() {
    let mut tunnel = Tunnel::start(SUITES[1], 8).await;
    // What is judged below is beside the pool and the buffers that this much traffic makes.
    tunnel.must_carry(Job::each_way(9, DRAINING_BYTES)).await;
    tunnel.settle().await;
    let verbs = ["serve", "connect"];
    let fillers =
        block_in_place(|| verbs.map(|verb| StoppedThread::filler_of(tunnel.daemon(verb))));
    if fillers.iter().any(|held| matches!(held, Err(Errno::EPERM))) {
        eprintln!("skipped: ptrace is not allowed here");
        return;
    }
    let fillers = fillers.map(|held| held.unwrap());
    let before = verbs.map(|verb| tunnel.figures(verb));
    for seed in 0..2 {
        tunnel.must_carry(Job::each_way(seed, DRAINING_BYTES)).await;
    }
    for (verb, before) in verbs.into_iter().zip(before) {
        let after = tunnel.figures(verb);
        let more = |figure: fn(&Value) -> &Value| {
            figure(&after).as_u64().unwrap() - figure(&before).as_u64().unwrap()
        };
        assert_eq!(
            more(|figures| &figures["pool"]["fill_bytes"]),
            0,
            "{verb}: the filler is not stopped"
        );
        let inline = more(|figures| &figures["keystream_inline_bytes"]);
        assert!(inline >= DRAINING_BYTES as u64, "{verb}: {inline}");
        assert!(more(|figures| &figures["packets"]["send"]["miss"]) > 0, "{verb}");
    }
    drop(fillers);
    let filled = |verb: &str| tunnel.figures(verb)["pool"]["fill_bytes"].as_u64().unwrap();
    let before = verbs.map(filled);
    let deadline = Instant::now() + HANG;
    while verbs.map(filled).iter().zip(before).any(|(now, before)| *now == before) {
        assert!(Instant::now() < deadline, "the filler does not fill after it is resumed");
        tunnel.must_carry(Job::each_way(3, 64 << 10)).await;
        sleep(LOOK).await;
    }
    tunnel.must_be_as_before().await;
}

/// What keeps the fillers from working.
#[derive(Clone, Copy, Debug)]
enum Hindrance {
    Stopped,
    Starved,
}

/// Number of rounds, each with new processes. Effects fixed at process start (heap layout, cores
/// that its threads settle on) last as long as the process and would be mistaken for the pool's.
const ROUNDS: usize = 40;

/// How long the arms alternate in a round. Many short slices measure better than a few long ones:
/// background load comes in bursts.
const ROUND: Duration = Duration::from_secs(3);

/// Target length of half a slice, unless it has too few requests for a percentile.
const HALF_TURN: Duration = Duration::from_millis(50);

/// Minimum requests per slice.
const MIN_REQUESTS: f64 = 200.0;

/// Bytes per request; the reply is as long.
const REQUEST_BYTES: u64 = 64;

/// The 99th percentile of this many round trips, in seconds.
async fn p99(tunnel: &mut KnownTextTunnel, requests: usize) -> f64 {
    let mut took = Vec::with_capacity(requests);
    for _ in 0..requests {
        took.push(tunnel.carry(REQUEST_BYTES, 1).await);
    }
    took.sort();
    took[requests * 99 / 100].as_secs_f64()
}

/// Alternates two tunnels, one with a pool whose filler is hindered and one without a pool. Returns
/// their ratios of rates and of 99th percentiles of round trips.
async fn compare(suite: &str, hindrance: Hindrance) -> [f64; 2] {
    let (desk, service) = (watched_desk(), start_service().await);
    let mut on = KnownTextTunnel::start(&desk, suite, "on", &service).await;
    let mut off = KnownTextTunnel::start(&desk, suite, "off", &service).await;
    let _hogs = matches!(hindrance, Hindrance::Starved).then(Hogs::start);
    let _held = matches!(hindrance, Hindrance::Stopped).then(|| {
        [&on.server, &on.client].map(|daemon| StoppedThread::filler_of(daemon).expect("may trace"))
    });
    for tunnel in [&mut on, &mut off] {
        tunnel.carry(2 * DRAINING_BYTES as u64, 1).await;
    }
    let seconds = off.carry(DRAINING_BYTES as u64, 1).await.as_secs_f64();
    let bytes = DRAINING_BYTES as f64 * HALF_TURN.as_secs_f64() / seconds;
    let mut seconds = 0.0;
    for _ in 0..100 {
        seconds += off.carry(REQUEST_BYTES, 1).await.as_secs_f64();
    }
    let requests = (100.0 * HALF_TURN.as_secs_f64() / seconds).max(MIN_REQUESTS) as usize;
    let mut rates = [const { Vec::new() }; 2];
    let mut p99s = [const { Vec::new() }; 2];
    let until = Instant::now() + ROUND;
    for turn in (0..).take_while(|_| Instant::now() < until) {
        for place in [turn % 2, 1 - turn % 2] {
            let tunnel = if place == 0 { &mut on } else { &mut off };
            rates[place].push(bytes / tunnel.carry(bytes as u64, 1).await.as_secs_f64());
            p99s[place].push(p99(tunnel, requests).await);
        }
    }
    [rates, p99s].map(|[on, off]| ratio(&on, &off).expect("both arms have samples").value)
}

/// Judges every suite and prints its ratios.
async fn must_keep_up(hindrance: Hindrance) {
    let mut missed = Vec::new();
    for suite in SUITES {
        let mut rounds = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            let ratios = compare(suite, hindrance).await;
            println!("{suite}, {hindrance:?}: rates {:.3}, p99s {:.3}", ratios[0], ratios[1]);
            rounds.iter_mut().zip(ratios).for_each(|(of_all, ratio)| of_all.push(ratio));
        }
        let [speed, p99] = rounds.map(|ratios| ratio(&ratios, &[1.0; ROUNDS]));
        let verdicts = [
            Rule::AtLeast(0.97).judge("as fast as --pool off", "ratio of rates", speed.as_ref()),
            Rule::AtMost(1.1).judge("as prompt as --pool off", "ratio of p99s", p99.as_ref()),
        ];
        for verdict in verdicts {
            println!("{suite}, {hindrance:?}: {}: {}", verdict.claim, verdict.because);
            if verdict.outcome != Outcome::Holds {
                missed.push(format!("{suite}: {}: {}", verdict.claim, verdict.because));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes, on a machine that is idle"]
async fn a_tunnel_whose_filler_is_held_is_as_fast_as_one_without_a_pool() {
    must_keep_up(Hindrance::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long proof: minutes, on a machine that is idle"]
async fn a_tunnel_whose_filler_gets_no_cpu_is_as_fast_as_one_without_a_pool() {
    must_keep_up(Hindrance::Starved).await;
}
