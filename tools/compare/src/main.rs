//! Compares keypadd with its peers side by side: throughput, CPU time and round trips.
//!
//! Makes two network namespaces, runs every arm once per round in a shuffled order and prints
//! medians, ratios and verdicts. This file runs the steps in order and reports errors; each step is
//! a file. See docs/BENCHMARKING.md, "Compare with ssh, stunnel and socat".

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cli;
mod figures;
mod goals;
mod load;
mod report;
mod rounds;
mod sample;
mod service;
mod versions;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use keypadd_measure::machine::Machine;
use keypadd_measure::results::now;
use keypadd_measure::text::write_table;
use testbed::tunnel::{self, Arm, Kind};
use testbed::{Cleanup, TwoHosts};

use crate::cli::{Cli, Role};
use crate::rounds::{Bench, Record};

/// sshd's chroot before a client has authenticated; Debian's service creates it.
const SSHD_EMPTY_ROOT: &str = "/run/sshd";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.role {
        Some(Role::Service { port }) => service::run(port),
        None => compare(&cli),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(cli: &Cli) -> Result<(), String> {
    let own_path =
        std::env::current_exe().map_err(|error| format!("cannot find this executable: {error}"))?;
    let keypadd = cli.keypadd.clone().unwrap_or_else(|| own_path.with_file_name("keypadd"));
    let arms = cli.parse_arms(&keypadd)?;
    tunnel::check_needs(&arms)?;
    let cleanup = Cleanup::start("compare")?;
    let result = run(cli, &arms, &own_path, &cleanup);
    cleanup.run();
    match cleanup.interrupted() {
        // Any error is a consequence of the interruption, which has been reported.
        Some(number) => std::process::exit(128 + number),
        None => result,
    }
}

fn run(cli: &Cli, arms: &[Arm], own_path: &Path, cleanup: &Arc<Cleanup>) -> Result<(), String> {
    let mut record = Record {
        started: now(),
        machine: Machine::read(),
        mtu: cli.mtu,
        seed: cli.seed.unwrap_or_else(|| fastrand::u64(..)),
        seconds: cli.seconds,
        rounds: Vec::new(),
    };
    // Fail now, rather than after the first round, if the file cannot be written.
    let out = cli.out.as_deref();
    out.map_or(Ok(()), |path| record.write(path))?;
    println!("{}: {}", record.started, record.machine.summary());
    println!(
        "MTU {}, rounds {}, bulk {} s, seed {}\n",
        cli.mtu, cli.rounds, cli.seconds, record.seed
    );
    print!("{}", write_table(&versions::versions(arms), usize::MAX));

    let scratch = cleanup.scratch("compare")?;
    if arms.iter().any(|arm| arm.kind == Kind::Ssh) {
        make_empty_root(cleanup)?;
    }
    let network = &TwoHosts::by_veth(cli.mtu)?;
    let bench = Bench { cleanup, network, scratch, arms };
    bench.start_service(own_path)?;
    bench.prepare()?;
    let result = bench.run(cli.rounds, &mut record, out);
    // Results from before an error are still worth printing.
    if !record.rounds.is_empty() {
        let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
        let judged = arms.iter().filter(|arm| matches!(arm.kind, Kind::Keypadd { .. }));
        let judged: Vec<&str> = judged.map(|arm| arm.name.as_str()).collect();
        print!("{}", report::text(&record.rounds, &names, &judged));
    }
    result
}

fn make_empty_root(cleanup: &Cleanup) -> Result<(), String> {
    let path = Path::new(SSHD_EMPTY_ROOT);
    match DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => cleanup.add_directory(path),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("{SSHD_EMPTY_ROOT}: {error}")),
    }
    Ok(())
}
