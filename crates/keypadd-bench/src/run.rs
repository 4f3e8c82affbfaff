//! Checks a workload's flags, runs the workload, and prints and saves the results. The measuring is
//! in `keypadd-measure`.

use std::sync::Arc;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::keyfile;
use keypadd_cli::manual;
use keypadd_cli::refusal::explain;
use keypadd_cli::shutdown::Shutdown;
use keypadd_keystream::CipherEngine;
use keypadd_measure::results::Section;
use keypadd_measure::{
    Arm, Bulk, CipherRate, Exhaustion, FileMix, Files, INTERRUPTED, Kex, Mixed, OfferError,
    PathError, PathSettings, Patience, Place, Plan, Progress, Runs, Suites, Terminal, Typing,
    Voice, Workload, rehearse, take_turns, try_out,
};
use keypadd_papers::{Effort, Paper, Reproduction};
use keypadd_traffic::{PathFault, TunnelArm};
use keypadd_tunnel::TransportSettings;

use crate::cli::{
    BenchWorkload, BulkArgs, Direction, ExhaustionArgs, FilesArgs, KexArgs, MixedArgs, OnOff,
    ReproduceArgs, SuitesArgs, TerminalArgs, TunnelFlags, TurnFlags, TypingFlags, VoiceArgs,
    definition,
};
use crate::keeping::Keeping;
use crate::{networks, paths};

/// Bytes of a key and of its echo, if a rate is given and no size.
const KEY_BYTES: u64 = 64;

/// Default typists; and those of `--quick`, whose turns are so short that it takes more for as many
/// keys.
const TYPISTS: [u32; 2] = [20, 200];

/// Default rounds of handshakes.
const KEX_ROUNDS: u32 = 10;

/// Default rounds where verdicts end the run: more than any time suffices for.
const ROUNDS_MOST: u32 = 100_000;

/// Default time for a run that verdicts end; and that of `--quick`.
const TIMES: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(60)];

/// Default rounds for exhaustion, whose rounds take minutes, background loads and longest test at a
/// rate; and those of `--quick`.
const EXHAUSTION_ROUNDS: [u32; 2] = [3, 1];
const EXHAUSTION_LOADS: [&[f64]; 2] = [&[0.0, 0.5, 1.0], &[0.0]];
const EXHAUSTION_TIMES: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(1)];

/// Default rounds for suites, whose rounds take a second or two.
const SUITES_ROUNDS: u32 = 5;

/// Most requests of a turn: all are drawn in advance, about 32 bytes each.
const REQUESTS_MOST: f64 = 4e6;

/// Most handshakes of a turn's open loop: unfinished ones stay in memory, about 100 KiB each.
const HANDSHAKES_MOST: f64 = 2e4;

/// A rate's time in exhaustion, divided by the interval between checks of the filler.
const PROBES_IN_A_STAGE: f64 = 8.0;

/// Seconds of bursts per rate that exhaustion is calibrated at, and that a burst continues after the
/// pool is dry.
const BURST_SECONDS: f64 = 0.5;
const AFTER_SECONDS: f64 = 1.0;

/// Runs one workload on every arm.
///
/// # Errors
/// Exit 2: arms, traffic or a directory that make no sense. Exit 3: no usable key file. Exits 4 and
/// 5: the server rejects us or does not answer. Exit 1: an arm does not come up, or the run ended
/// early for a reason other than `shutdown`; measurements so far are still printed and saved.
pub(crate) async fn run(workload: BenchWorkload, shutdown: Shutdown) -> Result<(), Error> {
    match workload {
        BenchWorkload::Terminal(args) => {
            let TerminalArgs { typing, time, turns } = *args;
            let time = turn_time(time, &turns, [3000, 250]);
            refuse_more(typing.rate.unwrap_or_default(), time, REQUESTS_MOST)?;
            let typing = read_typing(typing, turns.quick);
            let workload = Terminal { typing, time, seed: turns.run.report.seed };
            measure("keypadd bench terminal", &workload, turns, shutdown).await
        }
        BenchWorkload::Bulk(args) => {
            let BulkArgs { streams, time, burst, direction, turns } = *args;
            let time = turn_time(time, &turns, [2000, 300]);
            let workload =
                Bulk { streams, time, burst_bytes: burst, up: direction == Direction::Up };
            measure("keypadd bench bulk", &workload, turns, shutdown).await
        }
        BenchWorkload::Mixed(args) => {
            let MixedArgs { typing, streams, time, turns } = *args;
            let time = turn_time(time, &turns, [3000, 500]);
            refuse_more(typing.rate.unwrap_or_default(), time, REQUESTS_MOST)?;
            let typing = read_typing(typing, turns.quick);
            let terminal = Terminal { typing, time, seed: turns.run.report.seed };
            let workload = Mixed { terminal, streams };
            measure("keypadd bench mixed", &workload, turns, shutdown).await
        }
        BenchWorkload::Voice(args) => {
            let VoiceArgs { streams, time, turns } = *args;
            let workload = Voice { time: turn_time(time, &turns, [3000, 500]), streams };
            measure("keypadd bench voice", &workload, turns, shutdown).await
        }
        BenchWorkload::Files(args) => {
            let FilesArgs { clients, file, rate, time, turns } = *args;
            let time = turn_time(time, &turns, [2000, 300]);
            let most = clients.iter().copied().max().unwrap_or(0);
            refuse_more(rate * f64::from(most), time, REQUESTS_MOST)?;
            let mix = FileMix { files: file };
            let workload =
                Files { clients, mix, per_second: rate, time, seed: turns.run.report.seed };
            measure("keypadd bench files", &workload, turns, shutdown).await
        }
        BenchWorkload::Exhaustion(args) => exhaust(*args, shutdown).await,
        BenchWorkload::Kex(args) => shake_hands(*args, shutdown).await,
        BenchWorkload::Suites(args) => compare_suites(*args, shutdown).await,
        BenchWorkload::Paths(args) => paths::run(*args, shutdown).await,
        BenchWorkload::Networks(args) => networks::run(args, shutdown).await,
        BenchWorkload::Reproduce(args) => reproduce(*args, shutdown).await,
        BenchWorkload::Man(args) => manual::write(definition(), args.directory),
    }
}

/// The time of a turn: the given one, or the default in milliseconds, or that of `--quick`.
fn turn_time(given: Option<Duration>, turns: &TurnFlags, [full, quick]: [u64; 2]) -> Duration {
    given.unwrap_or_else(|| Duration::from_millis(if turns.quick { quick } else { full }))
}

/// Refuses a turn that would offer more than fits in memory.
fn refuse_more(per_second: f64, time: Duration, most: f64) -> Result<(), Error> {
    let offered = per_second * time.as_secs_f64();
    match offered > most {
        true => Err(Error::new(Exit::Usage, format!("--rate: {offered:.0} per turn is too many"))
            .hint(format!(
                "at most {most:.0}: lower the rate or shorten --time; add rounds to measure longer"
            ))),
        false => Ok(()),
    }
}

fn read_typing(flags: TypingFlags, quick: bool) -> Typing {
    match flags.rate {
        Some(per_second) => Typing::Fixed { per_second, bytes: flags.size.unwrap_or(KEY_BYTES) },
        None => {
            Typing::Human { typists: flags.typists.unwrap_or_else(|| TYPISTS[usize::from(quick)]) }
        }
    }
}

async fn measure<W: Workload>(
    title: &str,
    workload: &W,
    TurnFlags { tunnel, pools, quick, time_budget, run }: TurnFlags,
    shutdown: Shutdown,
) -> Result<(), Error> {
    let settings = path_settings(&tunnel, pools.pool_budget)?;
    let keeping = Keeping::begin(title, &run.report, emulated(&tunnel))?;
    rehearse(&workload.offered(), &settings).await.map_err(offer_error)?;
    let meter = keeping.meter();
    let tell = |progress: &Progress| meter.show(progress);
    let arms = arms(&tunnel, &pools.pool);
    let tried = tokio::select! {
        tried = try_out(&arms, &settings, &tell) => tried,
        _ = shutdown.requested() => return keeping.end(Vec::new(), Some(INTERRUPTED)),
    };
    tried.map_err(|error| path_error(error, &settings))?;
    let plan = Plan {
        rounds: run.rounds.unwrap_or(ROUNDS_MOST),
        time: Some(time_budget.unwrap_or_else(|| TIMES[usize::from(quick)])),
        seed: run.report.seed,
        tell: &tell,
    };
    let keep = |runs: &Runs<W::Measured>| keeping.save_so_far(|| workload.section(runs));
    let runs = take_turns(workload, &arms, &settings, plan, keep, interrupted(&shutdown)).await;
    keeping.end(vec![workload.section(&runs)], runs.ended_by.as_deref())
}

async fn exhaust(args: ExhaustionArgs, shutdown: Shutdown) -> Result<(), Error> {
    let ExhaustionArgs { pool_budget, mut background, time, quick, tunnel, run } = args;
    let effort = usize::from(quick);
    let time = time.unwrap_or_else(|| EXHAUSTION_TIMES[effort]);
    if background.is_empty() {
        background.extend(EXHAUSTION_LOADS[effort]);
    }
    let arms = Arm::all(&tunnel.suite, &[true], &engines(&tunnel));
    let pooled = arms.into_iter().filter_map(|arm| match arm {
        Arm::Tunnel(arm) if arm.pool => Some(arm),
        _ => None,
    });
    let arms: Vec<TunnelArm> = pooled.collect();
    if arms.is_empty() {
        return Err(Error::new(Exit::Usage, "--suite: none of these suites uses keystream")
            .hint("for example --suite 3des-ctr-hmac-sha1"));
    }
    let experiment = Exhaustion {
        path: path_settings(&tunnel, 0)?,
        arms,
        pools_bytes: pool_budget,
        backgrounds: background,
        repetitions: run.rounds.unwrap_or_else(|| EXHAUSTION_ROUNDS[effort]),
        patience: Patience {
            burst_seconds: BURST_SECONDS,
            probe_seconds: time.as_secs_f64() / PROBES_IN_A_STAGE,
            stage_seconds: time.as_secs_f64(),
            after_seconds: AFTER_SECONDS,
        },
    };
    let keeping = Keeping::begin("keypadd bench exhaustion", &run.report, emulated(&tunnel))?;
    keeping
        .measure_blocking(shutdown, move |tell, keep, stop| experiment.run(tell, keep, stop))
        .await
}

async fn shake_hands(args: KexArgs, shutdown: Shutdown) -> Result<(), Error> {
    let KexArgs { kex, handshakes, rate, time, run } = args;
    refuse_more(rate, time, HANDSHAKES_MOST)?;
    let experiment = Kex {
        groups: kex,
        rounds: run.rounds.unwrap_or(KEX_ROUNDS),
        handshakes,
        per_second: rate,
        time,
        seed: run.report.seed,
    };
    let keeping = Keeping::begin("keypadd bench kex", &run.report, Vec::new())?;
    experiment.rehearse().await.map_err(offer_error)?;
    let meter = keeping.meter();
    let tell = |progress: &Progress| meter.show(progress);
    let ran = experiment.run(&tell, interrupted(&shutdown)).await;
    keeping.end(vec![ran.section], ran.ended_by.as_deref())
}

async fn compare_suites(args: SuitesArgs, shutdown: Shutdown) -> Result<(), Error> {
    let SuitesArgs { suite, cipher_backend, pool_budget, rtt, run } = args;
    let experiment = Suites {
        suites: suite,
        engine: cipher_backend,
        pool_bytes: pool_budget,
        rounds: run.rounds.unwrap_or(SUITES_ROUNDS),
        round_trip: rtt,
    };
    let keeping = Keeping::begin("keypadd bench suites", &run.report, Vec::new())?;
    let meter = keeping.meter();
    let tell = |progress: &Progress| meter.show(progress);
    let ran = experiment.run(&tell, interrupted(&shutdown)).await;
    keeping.end(vec![ran.section], ran.ended_by.as_deref())
}

async fn reproduce(args: ReproduceArgs, shutdown: Shutdown) -> Result<(), Error> {
    let asked = |paper: &Paper| args.paper.iter().any(|it| it.0.contains(paper));
    let reproduction = Reproduction {
        papers: Paper::ALL.into_iter().filter(asked).collect(),
        effort: if args.quick { Effort::Quick } else { Effort::Full },
        seed: args.report.seed,
        time: args.time_budget,
    };
    let mut keeping = Keeping::resume("keypadd bench reproduce", &args.report)?;
    let started = keeping.notebook(reproduction.effort)?.started();
    keeping.started(started);
    let ran = {
        let notebook = keeping.notebook(reproduction.effort)?;
        if !notebook.is_empty() {
            eprintln!("resuming: {} parts are already measured", notebook.len());
        }
        let meter = keeping.meter();
        let tell = |progress: &Progress| meter.show(progress);
        let keep = |sections: Vec<Section>| keeping.save_sections_so_far(sections);
        reproduction.run(&notebook, &tell, &keep, interrupted(&shutdown)).await
    };
    keeping.end(ran.sections, ran.ended_by.as_deref())
}

fn offer_error(error: OfferError) -> Error {
    Error::new(Exit::Usage, error.to_string()).hint("lower the rate or the number of clients")
}

async fn interrupted(shutdown: &Shutdown) {
    shutdown.requested().await;
}

/// Plain TCP first, if possible: the machine's own cost.
fn arms(flags: &TunnelFlags, pools: &[OnOff]) -> Vec<Arm> {
    let pools: Vec<bool> = pools.iter().map(|mode| *mode == OnOff::On).collect();
    let tcp = flags.server.is_none().then_some(Arm::Tcp);
    let tunnels = Arm::all(&flags.suite, &pools, &engines(flags));
    tcp.into_iter().chain(tunnels).collect()
}

fn engines(flags: &TunnelFlags) -> Vec<CipherEngine> {
    let paced = |engine: &CipherEngine| match flags.emulate_cipher_rate {
        Some(rate) => engine.at_pace(CipherRate::new(rate)),
        None => *engine,
    };
    flags.cipher_backend.iter().map(paced).collect()
}

/// What differs from real use.
fn emulated(flags: &TunnelFlags) -> Vec<String> {
    let end = if flags.server.is_some() { ", at the near end" } else { "" };
    let slowed = |rate| format!("keystream slowed to {rate} bytes a second of CPU{end}");
    flags.emulate_cipher_rate.map(slowed).into_iter().collect()
}

fn path_settings(flags: &TunnelFlags, pool_budget_bytes: usize) -> Result<PathSettings, Error> {
    let place = match (&flags.server, flags.peer) {
        (Some(server), Some(peer)) => {
            let path = flags.key.clone().map_or_else(keyfile::default_path, Ok)?;
            Place::There { server: server.clone(), peer, key: Arc::new(keyfile::read(&path)?) }
        }
        (Some(_), None) => {
            return Err(Error::new(Exit::Usage, "--peer is missing: the server's public key")
                .hint("`keypadd pubkey`, run on the server, prints it"));
        }
        (None, Some(_)) => {
            return Err(Error::new(Exit::Usage, "--peer requires a server").hint(
                "HOST --peer PUBKEY measures against HOST; without both, both ends run here",
            ));
        }
        (None, None) => Place::Here,
    };
    let defaults = TransportSettings::default();
    let transport = TransportSettings {
        congestion: flags.congestion,
        spin: flags.spin,
        loops: flags.loops.unwrap_or(defaults.loops),
        ..defaults
    };
    let kex = flags.kex.into();
    Ok(PathSettings { place, pool_budget_bytes, kex, transport, ..PathSettings::default() })
}

fn path_error(error: PathError, settings: &PathSettings) -> Error {
    let cause = error.to_string();
    match (error.cause, &settings.place) {
        (PathFault::Client(error), Place::There { peer, key, .. }) => {
            explain(error, key.public(), &[*peer])
        }
        (PathFault::Service(_), Place::There { .. }) => {
            let cause = format!("{}: the server does not permit benchmarks", error.arm);
            Error::new(Exit::Runtime, cause).hint("start it with --permit-bench")
        }
        _ => Error::new(Exit::Runtime, cause),
    }
}
