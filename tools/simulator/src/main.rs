//! Runs many seeds of each suite and reports what was counted: the long proof.
//!
//!     cargo run --release -p simulator -- [--suite NAME]... [--packets N] [--seeds N] [--from SEED]
//!                                         [--minutes N] [--jobs N] [--through loops|quinn]
//!
//! Runs the shipped event loops unless `--through quinn` selects quinn-proto alone. By default at
//! least 10^7 packets and 10^4 seeds of each suite. `--minutes` limits each suite and makes it a
//! part of the proof, as the last line then says. Exit code 1: something was found, or packets of a
//! class were too few. A finding ends the suite and names its seed, which `--suite NAME --from
//! SEED --seeds 1` repeats; `RUST_LOG=quinn_proto=trace` in the environment then logs what quinn
//! did to standard error.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_keystream::Suite;
use simulator::{Counts, Outcome, run, run_loops};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The proof's size, per suite.
const PACKETS: u64 = 10_000_000;
const SEEDS: u64 = 10_000;
const REPORT_EVERY: Duration = Duration::from_secs(30);

struct Arguments {
    suites: Vec<Suite>,
    packets: u64,
    seeds: Option<u64>,
    from: u64,
    minutes: Option<u64>,
    jobs: u64,
    run: fn(Suite, u64) -> Outcome,
}

impl Arguments {
    fn parse() -> Result<Self, String> {
        let mut arguments = Self {
            suites: Vec::new(),
            packets: PACKETS,
            seeds: None,
            from: 0,
            minutes: None,
            jobs: 1,
            run: run_loops,
        };
        let mut words = std::env::args().skip(1);
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{flag}: `{value}` is no number"));
            match flag.as_str() {
                "--suite" => {
                    arguments.suites.push(value.parse().map_err(|error| format!("{error}"))?);
                }
                "--packets" => arguments.packets = number()?,
                "--seeds" => arguments.seeds = Some(number()?),
                "--from" => arguments.from = number()?,
                "--minutes" => arguments.minutes = Some(number()?),
                "--jobs" => arguments.jobs = number()?.max(1),
                "--through" => {
                    arguments.run = match value.as_str() {
                        "loops" => run_loops,
                        "quinn" => run,
                        _ => return Err(format!("{flag}: `{value}` is neither loops nor quinn")),
                    }
                }
                _ => return Err(format!("unknown flag {flag}; see the head of main.rs")),
            }
        }
        if arguments.suites.is_empty() {
            arguments.suites = Suite::ALL.to_vec();
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let filter = std::env::var("RUST_LOG").ok().and_then(|filter| filter.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR));
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE);
    log.with_writer(std::io::stderr).finish().with(filter).init();
    let results: Vec<bool> =
        arguments.suites.iter().map(|&suite| run_suite(suite, &arguments)).collect();
    ExitCode::from(u8::from(results.contains(&false)))
}

/// Runs seeds until both goals are reached or time is up; true if nothing was found.
fn run_suite(suite: Suite, arguments: &Arguments) -> bool {
    let (began, next) = (Instant::now(), AtomicU64::new(arguments.from));
    let sum = Mutex::new((Counts::default(), Instant::now()));
    let found = AtomicU64::new(0);
    let enough = |counts: &Counts| {
        let late = arguments.minutes.is_some_and(|most| began.elapsed().as_secs() >= most * 60);
        let seeds_done = counts.runs >= arguments.seeds.unwrap_or(SEEDS);
        late || seeds_done && (arguments.seeds.is_some() || counts.packets >= arguments.packets)
    };
    let work = || {
        loop {
            if found.load(Relaxed) > 0 || enough(&sum.lock().expect("no panic").0) {
                return;
            }
            let seed = next.fetch_add(1, Relaxed);
            let Ok(Outcome { counts, findings, .. }) =
                catch_unwind(|| (arguments.run)(suite, seed))
            else {
                println!("{suite}, seed {seed}: a panic");
                found.fetch_add(1, Relaxed);
                return;
            };
            for finding in &findings {
                println!("{suite}, seed {seed}: {finding}");
            }
            found.fetch_add(findings.len() as u64, Relaxed);
            let mut sum = sum.lock().expect("no panic");
            sum.0.add(&counts);
            if sum.1.elapsed() >= REPORT_EVERY {
                println!("{suite}, {} s: {}", began.elapsed().as_secs(), sum.0);
                sum.1 = Instant::now();
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(work);
        }
    });
    let counts = sum.into_inner().expect("no panic").0;
    let shares =
        counts.shares().map(|(name, share)| format!("{name} {:.1} %", share as f64 / 10.0));
    println!("{suite}, {} s, all: {counts}", began.elapsed().as_secs());
    println!("{suite}: {}", shares.join(", "));
    // A single seed is a replay, which may lack a class.
    let scarce = if arguments.seeds == Some(1) { Vec::new() } else { counts.scarce() };
    if !scarce.is_empty() {
        println!("{suite}: too few packets of a class: {}", scarce.join(", "));
    }
    let whole = counts.runs >= SEEDS && counts.packets >= PACKETS;
    let extent = if whole { "the whole proof" } else { "a part of the proof" };
    let sound = found.load(Relaxed) == 0 && scarce.is_empty();
    println!("{suite}: {extent}, {}", if sound { "nothing found" } else { "FAILED" });
    sound
}
