//! Implements `keypadd demo --pool`: keystrokes and bulk data through 3DES with a pool and without,
//! and through AES with one, over UDP on loopback.

mod arm;
mod measured;
mod screen;
mod verdict;

use std::time::Duration;

use keypadd_cli::error::Error;
use keypadd_cli::shutdown::Shutdown;
use keypadd_keystream::{CipherBackend, CipherEngine, cpu_features};
use serde::Serialize;
use tokio::sync::watch;

use super::page::Page;
use super::traffic::{self, SCREEN_BYTES};
use super::{failed, print};
use crate::command_line::DemoArgs;
use arm::{Board, Workload};
use measured::{ARMS, Arm, Measured};

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
pub(super) async fn run(args: DemoArgs, shutdown: Shutdown) -> Result<(), Error> {
    let workload = Workload {
        schedule: traffic::schedule(TYPING_TIME, KEYS_PER_SECOND),
        engine: args.cipher_backend,
    };
    let (board, shown) = watch::channel(Board::default());
    let painter = (!args.json).then(|| {
        let mut page = Page::new();
        introduce(&mut page, args.cipher_backend);
        tokio::spawn(screen::follow(page, shown.clone()))
    });
    let ended = tokio::select! {
        ended = run_arms(&workload, &board) => ended.map(|()| true),
        _ = shutdown.requested() => Ok(false),
    };
    drop(board);
    let rows = shown.borrow().rows.clone();
    match painter {
        Some(painter) => {
            let mut page = painter.await.map_err(|_| failed("the table could not be drawn"))?;
            conclude(&mut page, &rows, args.cipher_backend, ended?);
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

fn introduce(page: &mut Page, engine: CipherEngine) {
    page.line("Both ends of a tunnel in this process, over UDP on loopback; no file is written.");
    page.line("Typing, then bulk: 3DES with a pool, 3DES without, AES with one; about 20 s.");
    page.line(&format!("3DES by {engine}; the CPU has {}.", cpu_features().join(" ")));
    page.line("");
}

fn conclude(page: &mut Page, rows: &[Measured; ARMS.len()], engine: CipherEngine, complete: bool) {
    page.line("");
    page.line(&format!(
        "{KEYS_PER_SECOND} keys a second; timed from when each was due until its {SCREEN_BYTES} B \
            screen.\n\
         Bursts are {} MiB, for which a full pool has pads; \"beyond\" is without a pause.\n\
         Packets and pads (keystream): typing and bursts. Filler CPU s: the whole arm.",
        BURST_BYTES >> 20,
    ));
    page.line("");
    if !complete {
        page.line("Interrupted; results so far:");
    }
    page.line("Verdicts (2.00x is twice as fast):");
    for line in verdict::verdicts(rows) {
        page.line(&line);
    }
    page.line("");
    for caveat in caveats(rows) {
        page.line(&caveat);
    }
    if engine.backend() == CipherBackend::DesCrate {
        let ours = CipherBackend::Auto.chosen();
        page.line(&format!(
            "This 3DES is the conventional one, a block at a time. The daemons compute it by \
                {ours},\n\
             which needs a pool less; --cipher-backend auto shows it."
        ));
    }
    page.line(
        "3DES is used here because it is slow; it is insecure (legacy): use the default, \
            aes-256-gcm.\n\
         Next, two hosts in a minute: `keypadd --help`, or README.md.",
    );
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
        // Where the pool makes no difference to what is measured, it need not be full.
        if !row.pool_was_full && arm.suite == Arm::SLOW {
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
        let not_full = Measured { pool_was_full: false, ..good.clone() };
        assert_eq!(caveats(&[good.clone(), good.clone(), not_full]), plain);
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
