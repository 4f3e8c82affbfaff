//! Measures keypadd at scale: many forwards, many clients, a gateway and its restart, unread streams,
//! replayed packets, unfinished handshakes.
//!
//! Runs the claims in order against daemons that it starts on loopback, prints a table of figures
//! with their goals, and fails if a goal is missed. This file runs the steps and reports errors;
//! each claim is a file. See docs/BENCHMARKING.md, "Scale and load".

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cli;
mod clients;
mod daemon;
mod forwards;
mod gateway;
mod handshakes;
mod initial;
mod own_clients;
mod replays;
mod service;
mod stalled;
mod table;
mod traffic;

use std::process::ExitCode;
use std::time::SystemTime;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

use crate::cli::{Claim, Cli, Role};
use crate::table::Table;

/// The result of a claim: rows of the table, or why it could not be measured.
type Outcome<T> = Result<T, String>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = raise_descriptor_limit(cli.descriptors()) {
        eprintln!("scale: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(|error| format!("cannot start its event loop: {error}"));
    let result = result.and_then(|runtime| {
        let result = runtime.block_on(async {
            match &cli.role {
                Some(Role::Service) => service::run().await.map(|()| true),
                None => run(&cli).await,
            }
        });
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scale: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every goal was met.
async fn run(cli: &Cli) -> Outcome<bool> {
    let keypadd = cli.keypadd()?;
    let mut table = Table::default();
    println!("{}", head());
    println!("keypadd: {} ({})", daemon::version(&keypadd).await?, keypadd.display());
    for claim in cli.claims() {
        let rows = match claim {
            Claim::Forwards => forwards::measure(cli, &keypadd).await,
            Claim::Clients => clients::measure(cli, &keypadd).await,
            Claim::Gateway => gateway::measure(cli, &keypadd).await,
            Claim::Stalled => stalled::measure(cli, &keypadd).await,
            Claim::Replays => replays::measure(cli, &keypadd).await,
            Claim::Handshakes => handshakes::measure(cli, &keypadd).await,
        };
        // A failure in one claim does not affect the others.
        table.section(&claim.title(cli), rows);
    }
    Ok(table.holds())
}

/// Date, kernel and processor.
fn head() -> String {
    let file = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = file("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown", |(_, name)| name.trim());
    let load = file("/proc/loadavg");
    format!(
        "{}, Linux {}, {} x {model}, load {}",
        humantime::format_rfc3339_seconds(SystemTime::now()),
        file("/proc/sys/kernel/osrelease").trim(),
        std::thread::available_parallelism().map_or(0, usize::from),
        load.split(' ').take(3).collect::<Vec<_>>().join(" "),
    )
}

/// Raises the limit of open files to what the run needs: the hard limit, too, if root.
fn raise_descriptor_limit(needed: u64) -> Outcome<()> {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if maximum >= needed {
        return setrlimit(Resource::Nofile, raised)
            .map_err(|error| format!("RLIMIT_NOFILE: {error}"));
    }
    let more = Rlimit { current: Some(needed), maximum: Some(needed) };
    setrlimit(Resource::Nofile, more).map_err(|error| {
        format!("{needed} open files are needed, {maximum} allowed (ulimit -Hn): {error}")
    })
}
