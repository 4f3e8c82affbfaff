//! Implements `keypadd demo`: runs both ends of tunnels in this process and shows what they are
//! for, in three parts: an outage, keystrokes beside a download, and what pads save.
//!
//! Keys are ephemeral, the kernel picks ports, no file is written. Each part measures, and its
//! verdict follows from what it has measured, for or against keypadd. `--pool` measures arms of the
//! pool instead (`arms.rs`).

mod arms;
mod keystrokes;
mod outage;
mod pads;
mod page;
mod traffic;

use std::io::{self, Write};
use std::num::NonZeroU64;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::shutdown::Shutdown;
use keypadd_keystream::{CipherEngine, Suite};
use keypadd_traffic::{LinkSettings, TunnelArm};
use serde::Serialize;

use crate::command_line::DemoArgs;
use keystrokes::Keystrokes;
use outage::Outage;
use pads::Pads;
use page::Page;

/// The line of the first two parts: 20 Mbit/s, and 20 ms there and back.
const LINE: LinkSettings = LinkSettings {
    delay: Duration::from_millis(10),
    bits_per_second: NonZeroU64::new(20_000_000),
    ipv6: false,
};

/// Runs the three parts, or as many as there is time for before `shutdown`, and prints the results.
///
/// # Errors
/// Exit 1: a part could not run, or a byte was altered. Poor results are not an error.
pub(crate) async fn run(args: DemoArgs, shutdown: Shutdown) -> Result<(), Error> {
    if args.pool {
        return arms::run(args, shutdown).await;
    }
    let mut page = if args.json { Page::silent() } else { Page::new() };
    let mut report = Report::default();
    let ended = tokio::select! {
        ended = run_parts(&mut page, &mut report) => ended.map(|()| true),
        _ = shutdown.requested() => Ok(false),
    };
    report.complete = ended?;
    if args.json {
        return print(&report);
    }
    if report.complete {
        page.line("Next: two hosts in a minute, README.md. More of the pool: keypadd demo --pool.");
    } else {
        page.keep(["Interrupted. Any part above is complete."]);
    }
    Ok(())
}

async fn run_parts(page: &mut Page, report: &mut Report) -> Result<(), Error> {
    page.line("Both ends of a tunnel in this process: no root, no files, about 20 seconds.");
    let outage = report.outage.insert(outage::run(page).await?);
    page.conclude(outage.lines(), &outage.verdict());
    let keystrokes = report.keystrokes.insert(keystrokes::run(page).await?);
    page.conclude(keystrokes.lines(), &keystrokes.verdict());
    let pads = report.pads.insert(pads::run(page).await?);
    page.conclude(pads.lines(), &pads.verdict());
    Ok(())
}

/// A tunnel with the default suite and no pool.
fn tunnel() -> TunnelArm {
    let suite = Suite::default().protection();
    TunnelArm { suite, pool: false, engine: CipherEngine::default() }
}

/// The results as `--json` prints them; a part that was not reached is `null`.
#[derive(Debug, Default, Serialize)]
struct Report {
    complete: bool,
    outage: Option<Outage>,
    keystrokes: Option<Keystrokes>,
    pads: Option<Pads>,
}

fn print(report: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| failed(format!("cannot write the results: {error}")))?;
    writeln!(io::stdout().lock(), "{text}")
        .map_err(|error| failed(format!("cannot write to standard output: {}", system(&error))))
}

fn failed(cause: impl Into<String>) -> Error {
    Error::new(Exit::Runtime, format!("demo: {}", cause.into()))
}
