//! Implements `keypadd demo`: runs both ends of a tunnel in this process over UDP on loopback, and
//! prints measurements and verdicts.
//!
//! Keys are ephemeral, the kernel picks ports, no file is written. Verdicts follow the
//! measurements, for or against the pool.

mod arm;
mod measured;
mod screen;
mod traffic;
mod verdict;

use std::io::{self, Write};
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::shutdown::Shutdown;
use keypadd_keystream::{CipherBackend, CipherEngine, Suite, cpu_features};
use keypadd_provider::seal_times;
use serde::Serialize;
use tokio::sync::watch;

use crate::command_line::DemoArgs;
use arm::{Board, Workload};
use measured::{ARMS, Measured};
use screen::Screen;
use traffic::SCREEN_BYTES;

/// How long keys are pressed in an arm.
const TYPING_TIME: Duration = Duration::from_secs(3);

/// Keys a second, on average: ten quick typists.
const KEYS_PER_SECOND: u32 = 100;

/// Bulk data for which the pool has pads, also when its filler has just gone to sleep.
const BURST_BYTES: u64 = 3 << 20;

/// Bursts in an arm; the table shows their median.
const BURSTS: usize = 3;

/// If fillers worked for more than this part of the typing, they kept a core awake, which affects
/// latency.
const FILLERS_ASLEEP: f64 = 0.02;

/// Runs the three arms, or as many as there is time for before `shutdown`, and prints the results.
///
/// # Errors
/// Exit 1: an arm could not run, or a byte was altered. Poor results are not an error.
pub(crate) async fn run(args: DemoArgs, shutdown: Shutdown) -> Result<(), Error> {
    let workload = Workload {
        schedule: traffic::schedule(TYPING_TIME, KEYS_PER_SECOND),
        engine: args.cipher_backend,
    };
    let (board, shown) = watch::channel(Board::default());
    let screen = (!args.json).then(Screen::new);
    let painter = screen.map(|screen| {
        introduce(&screen, args.cipher_backend);
        tokio::spawn(screen.follow(shown.clone()))
    });
    let ended = tokio::select! {
        ended = run_arms(&workload, &board) => ended.map(|()| true),
        _ = shutdown.requested() => Ok(false),
    };
    drop(board);
    let rows = shown.borrow().rows.clone();
    match painter {
        Some(painter) => {
            let screen = painter.await.map_err(|_| failed("the table could not be drawn"))?;
            conclude(&screen, &rows, args.cipher_backend, ended?);
        }
        None => print(&Report::new(&rows, args.cipher_backend, ended?))?,
    }
    Ok(())
}

async fn run_arms(workload: &Workload, board: &watch::Sender<Board>) -> Result<(), Error> {
    for nth in 0..ARMS.len() {
        arm::run(nth, workload, board).await?;
    }
    Ok(())
}

fn introduce(screen: &Screen, engine: CipherEngine) {
    screen.line("Both ends of a tunnel in this process, over UDP on loopback; no file is written.");
    screen.line("Typing, then bulk: 3DES with a pool, 3DES without, AES with one; about 20 s.");
    screen.line(&format!("3DES by {engine}; the CPU has {}.", cpu_features().join(" ")));
    screen.line("");
}

fn conclude(screen: &Screen, rows: &[Measured; ARMS.len()], engine: CipherEngine, complete: bool) {
    screen.line("");
    screen.line(&format!(
        "{KEYS_PER_SECOND} keys a second; timed from when each was due until its {SCREEN_BYTES} B \
            screen.\n\
         Bursts are {} MiB, for which a full pool has pads; \"beyond\" is without a pause.\n\
         Packets and pads (keystream): typing and bursts. Filler CPU s: the whole arm.",
        BURST_BYTES >> 20,
    ));
    screen.line("");
    if !complete {
        screen.line("Interrupted; results so far:");
    }
    screen.line("Verdicts (2.00x is twice as fast):");
    for line in verdict::verdicts(rows) {
        screen.line(&line);
    }
    screen.line("");
    for caveat in caveats(rows).into_iter().chain(cost_of_default()) {
        screen.line(&caveat);
    }
    if engine.backend() == CipherBackend::DesCrate {
        let ours = CipherBackend::Auto.chosen();
        screen.line(&format!(
            "This 3DES is the conventional one, a block at a time. The daemons compute it by \
                {ours},\n\
             which needs a pool less; --cipher-backend auto shows it."
        ));
    }
    screen.line(
        "3DES is used here because it is slow; it is insecure (legacy): use the default, \
            aes-256-gcm.\n\
         Next, two hosts in a minute: `keypadd --help`, or README.md.",
    );
}

/// What a pad saves with the default suite on this CPU, which no arm shows: round trips and bursts
/// of AES take far longer in the kernel than in the cipher.
fn cost_of_default() -> Option<String> {
    let suite = Suite::default();
    let [.., long] = seal_times(suite.into(), CipherEngine::default())?;
    Some(format!(
        "On this CPU sealing {} bytes with {suite} takes {} ns with a pad and {} ns without.",
        long.bytes,
        long.pooled.as_nanos(),
        long.inline.as_nanos(),
    ))
}

/// What the reader should know before trusting the verdicts.
fn caveats(rows: &[Measured; ARMS.len()]) -> Vec<String> {
    let mut lines = vec![
        "One run, one machine: other load and idle cores' wake-ups affect these results."
            .to_owned(),
    ];
    for (arm, row) in
        ARMS.iter().zip(rows).filter(|(arm, row)| arm.pool && row.burst_mbit.is_some())
    {
        if !row.pool_was_full {
            lines.push(format!("{arm}: too little idle CPU, the pool was not full."));
        }
        let busy = row.filler_cpu_typing.as_secs_f64() / TYPING_TIME.as_secs_f64();
        if busy > FILLERS_ASLEEP {
            let percent = busy * 100.0;
            lines.push(format!(
                "{arm}: the filler ran for {percent:.0} % of the typing test, which affects \
                    latency."
            ));
        }
    }
    lines
}

/// The demo's figures as `--json` prints them.
#[derive(Serialize)]
struct Report<'a> {
    complete: bool,
    cpu_features: Vec<&'static str>,
    cipher_backend: &'static str,
    arms: Vec<ArmReport<'a>>,
}

#[derive(Serialize)]
struct ArmReport<'a> {
    suite: &'static str,
    pool: bool,
    #[serde(flatten)]
    measured: &'a Measured,
    verdict: String,
}

impl<'a> Report<'a> {
    fn new(rows: &'a [Measured; ARMS.len()], engine: CipherEngine, complete: bool) -> Self {
        let arms = ARMS.into_iter().zip(rows).zip(verdict::verdicts(rows));
        let arms = arms.map(|((arm, measured), verdict)| ArmReport {
            suite: arm.suite.name(),
            pool: arm.pool,
            measured,
            verdict,
        });
        Self {
            complete,
            cpu_features: cpu_features(),
            cipher_backend: engine.backend().name(),
            arms: arms.collect(),
        }
    }
}

fn print(report: &Report<'_>) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| failed(format!("cannot write the results: {error}")))?;
    writeln!(io::stdout().lock(), "{text}")
        .map_err(|error| failed(format!("cannot write to standard output: {}", system(&error))))
}

fn failed(cause: impl Into<String>) -> Error {
    Error::new(Exit::Runtime, format!("demo: {}", cause.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caveats_that_weaken_a_verdict_are_printed() {
        let good = Measured { burst_mbit: Some(1.0), pool_was_full: true, ..Measured::default() };
        let bad = Measured {
            filler_cpu_typing: Duration::from_millis(300),
            pool_was_full: false,
            ..good.clone()
        };
        let plain = caveats(&[good.clone(), good.clone(), good.clone()]);
        let lines = caveats(&[bad, good.clone(), good]);
        assert_eq!(lines[..plain.len()], plain);
        assert_eq!(
            lines[plain.len()..],
            [
                "3des-ctr-hmac-sha1, pool on: too little idle CPU, the pool was not full.",
                "3des-ctr-hmac-sha1, pool on: the filler ran for 10 % of the typing test, which \
                    affects latency.",
            ]
        );
    }

    #[test]
    fn json_names_every_arm_with_units() {
        let rows = Default::default();
        let json =
            serde_json::to_value(Report::new(&rows, CipherEngine::default(), false)).unwrap();
        assert_eq!(json["complete"], false);
        assert_eq!(json["cipher_backend"], CipherBackend::Auto.chosen().name());
        assert_eq!(json["arms"][1]["suite"], "3des-ctr-hmac-sha1");
        assert_eq!(json["arms"][1]["pool"], false);
        assert_eq!(json["arms"][2]["filler_cpu_seconds"], 0.0);
    }
}
