//! Brings an arm's tunnel up and takes it down.
//!
//! Starts its processes in order, each when the previous one is ready, and proves by a round trip
//! that the tunnel carries data. Every wait has a timeout and ends early if a process exits. Does
//! not know how arms differ.

mod kind;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cleanup::Cleanup;
use crate::hosts::TwoHosts;
use crate::procstat;
use crate::programs::{clear_variables, create_log, log_tail};

pub use kind::{Arm, Kind, Program, Ready, SERVICE_PORT, check_needs};

/// Timeout of each step of bringing a tunnel up.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Retry interval.
const RETRY: Duration = Duration::from_millis(20);

/// Whether a round trip to this address, from the near host, succeeds.
pub type RoundTripCheck<'a> = &'a (dyn Fn(SocketAddr) -> bool + Sync);

/// A tunnel that is up. Dropping it ends its processes.
#[derive(Debug)]
pub struct Tunnel {
    cleanup: Arc<Cleanup>,
    /// Where to send traffic, in the near namespace.
    pub address: SocketAddr,
    processes: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    id: u32,
    name: String,
    log: PathBuf,
}

impl Tunnel {
    /// Starts an arm's processes; returns once `carries` reports a round trip.
    ///
    /// # Errors
    /// What failed, and the last lines of the logs.
    pub fn open(
        cleanup: &Arc<Cleanup>,
        network: &TwoHosts,
        arm: &Arm,
        directory: &Path,
        ports: (u16, u16),
        carries: RoundTripCheck<'_>,
    ) -> Result<Self, String> {
        let (programs, address) = arm.kind.programs(directory, ports)?;
        let mut tunnel = Self { cleanup: Arc::clone(cleanup), address, processes: Vec::new() };
        let opened = tunnel.start(network, directory, &programs, carries);
        opened.map_err(|error| format!("{error}{}", tunnel.log_tails()))?;
        Ok(tunnel)
    }

    /// CPU seconds of both ends so far; `None` for an arm without processes.
    pub fn cpu_seconds(&self) -> Option<f64> {
        let ids: Vec<u32> = self.processes.iter().map(|process| process.id).collect();
        (!ids.is_empty()).then(|| procstat::cpu_seconds(&ids))
    }

    /// Describes the process that has ended, if one has.
    pub fn failure(&self) -> Option<String> {
        self.processes.iter().find_map(|process| {
            let status = self.cleanup.ended(process.id)?;
            Some(format!("{} has ended ({status})", process.name))
        })
    }

    /// The last lines of each process's log, indented.
    pub fn log_tails(&self) -> String {
        let mut tails = String::new();
        for process in &self.processes {
            tails += &log_tail(&process.name, &process.log);
        }
        tails
    }

    fn start(
        &mut self,
        network: &TwoHosts,
        directory: &Path,
        programs: &[Program],
        carries: RoundTripCheck<'_>,
    ) -> Result<(), String> {
        for program in programs {
            let name = Path::new(&program.program).file_name().unwrap_or_default();
            let name = format!("{} ({:?} end)", name.to_string_lossy(), program.end);
            let log = directory.join(format!("{:?}.log", program.end));
            let [file, copy] = create_log(&log)?;
            let mut command = network.command(program.end, &program.program);
            command.args(&program.arguments).stdout(file).stderr(copy);
            clear_variables(&mut command);
            // Directory of keypadd's control socket; the two ends must not share it.
            let runtime = directory.join(format!("{:?}.run", program.end));
            let _ = fs::create_dir(&runtime);
            command.env("RUNTIME_DIRECTORY", &runtime);
            let id = self.cleanup.spawn(&mut command)?;
            self.processes.push(Process { id, name: name.clone(), log: log.clone() });
            match &program.ready {
                Ready::Listens(address) => {
                    self.wait(network, &format!("{name}: does not listen"), || {
                        TcpStream::connect_timeout(address, START_TIMEOUT).map(drop).is_ok()
                    })?
                }
                Ready::Logs(text) => self.wait(network, &format!("{name}: not ready"), || {
                    fs::read_to_string(&log).is_ok_and(|log| log.contains(text))
                })?,
                Ready::Carries => {}
            }
        }
        let address = self.address;
        self.wait(network, "the tunnel carries no data", || carries(address))
    }

    /// Retries until it succeeds, a process exits or time is up.
    fn wait(
        &self,
        network: &TwoHosts,
        what: &str,
        attempt: impl Fn() -> bool + Sync,
    ) -> Result<(), String> {
        network.near.inside(|| {
            let until = Instant::now() + START_TIMEOUT;
            while !attempt() {
                if let Some(failure) = self.failure() {
                    return Err(failure);
                }
                if Instant::now() > until {
                    return Err(format!("{what} after {} s", START_TIMEOUT.as_secs()));
                }
                std::thread::sleep(RETRY);
            }
            Ok(())
        })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // The near end first, as a user would.
        for process in self.processes.iter().rev() {
            self.cleanup.end(process.id);
        }
    }
}
