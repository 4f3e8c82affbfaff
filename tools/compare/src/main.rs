//! Compares keypadd with its peers side by side: throughput, CPU time and round trips.
//!
//! Makes two network namespaces, runs every arm once per round in a shuffled order and prints medians,
//! ratios and verdicts. This file runs the steps in order and reports errors; each step is a file. See
//! docs/BENCHMARKING.md, "Compare with ssh, stunnel and socat".

mod arms;
mod cleanup;
mod cli;
mod load;
mod network;
mod procstat;
mod sample;
mod service;
mod tunnel;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;

use crate::arms::{Arm, SERVICE_PORT};
use crate::cleanup::Cleanup;
use crate::cli::{Cli, Role};
use crate::network::{End, Network};
use crate::sample::Sample;
use crate::tunnel::Tunnel;

/// Tunnels use ports upwards from here, near and far, below the ephemeral range.
const NEAR_PORTS: u16 = 10_000;
const FAR_PORTS: u16 = 20_000;
/// How many ports each end may use before they are used again.
const PORTS: usize = 10_000;

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
    let keypadd = match &cli.keypadd {
        Some(path) => path.clone(),
        None => own_path()?.with_file_name("keypadd"),
    };
    let arms = cli.parse_arms(&keypadd)?;
    check_needs(&arms)?;
    let cleanup = Cleanup::start()?;
    let result = run(cli, &arms, &cleanup);
    cleanup.run();
    result
}

fn run(cli: &Cli, arms: &[Arm], cleanup: &Arc<Cleanup>) -> Result<(), String> {
    let scratch = std::env::temp_dir().join(format!("compare-{}", std::process::id()));
    std::fs::create_dir(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    cleanup.add_directory(&scratch);
    let network = Network::create(cleanup, cli.mtu)?;
    let mut service = network.command(End::Far, own_path()?.as_os_str());
    cleanup.spawn(service.arg("service").arg(SERVICE_PORT.to_string()))?;
    for arm in arms {
        arm.kind
            .prepare(&scratch.join(&arm.name))
            .map_err(|error| format!("{}: {error}", arm.name))?;
    }
    if arms.iter().any(|arm| arm.kind == arms::Kind::Ssh) {
        make_privilege_separation_directory(cleanup)?;
    }
    let seed = cli.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    println!("seed {seed}");
    let mut used = 0;
    for round in 0..cli.rounds {
        let mut order: Vec<&Arm> = arms.iter().collect();
        random.shuffle(&mut order);
        for arm in order {
            let offset = u16::try_from(used % PORTS).map_err(|error| error.to_string())?;
            used += 1;
            let ports = (NEAR_PORTS + offset, FAR_PORTS + offset);
            let failed = |error: String| format!("round {}, {}: {error}", round + 1, arm.name);
            let directory = scratch.join(&arm.name);
            let tunnel = Tunnel::open(cleanup, &network, arm, &directory, ports).map_err(failed)?;
            let duration = Duration::from_secs_f64(cli.seconds);
            let sample = network.inside_near(|| Sample::measure(&tunnel, duration));
            let sample =
                sample.map_err(|error| failed(format!("{error}{}", tunnel.log_tails())))?;
            println!(
                "{:8} down {:.2} up {:.2} Gbit/s, rtt128 p50 {:.0} p99 {:.0} us, rtt1k p50 {:.0}, \
                 beside down p50 {:.0} p99 {:.0}, up p50 {:.0} p99 {:.0}, idle cpu {:?}",
                arm.name,
                sample.download.gbit_per_second(),
                sample.upload.gbit_per_second(),
                sample.small.p50_us,
                sample.small.p99_us,
                sample.large.p50_us,
                sample.beside_download.round_trips.p50_us,
                sample.beside_download.round_trips.p99_us,
                sample.beside_upload.round_trips.p50_us,
                sample.beside_upload.round_trips.p99_us,
                sample.idle_cpu,
            );
            println!("         {}", serde_json::to_string(&sample).unwrap_or_default());
        }
    }
    Ok(())
}

/// Checks root and programs, before anything is started.
fn check_needs(arms: &[Arm]) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root, for network namespaces".into());
    }
    let ours = [("ip", "iproute2"), ("setpriv", "util-linux")];
    for (program, package) in ours.iter().chain(arms.iter().flat_map(|arm| arm.kind.needs())) {
        if arms::find(program).is_none() {
            return Err(format!("{program} is missing: apt-get install {package}"));
        }
    }
    for arm in arms {
        if let arms::Kind::Keypadd { program, .. } = &arm.kind
            && !Path::new(program).is_file()
        {
            let program = program.display();
            return Err(format!("{}: no {program}: cargo build --release, or --keypadd", arm.name));
        }
    }
    Ok(())
}

/// Makes the directory that sshd changes its root to, where the system's own service has not.
fn make_privilege_separation_directory(cleanup: &Cleanup) -> Result<(), String> {
    let path = Path::new("/run/sshd");
    match DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => cleanup.add_directory(path),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("{}: {error}", path.display())),
    }
    Ok(())
}

fn own_path() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("own path: {error}"))
}
