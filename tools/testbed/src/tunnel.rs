//! Brings an arm's tunnel up and takes it down.
//!
//! Starts its processes in order, each when the previous one is ready, and proves by a round trip
//! that the tunnel carries data. Every wait has a timeout and ends early if a process exits. Does
//! not know how arms differ.

mod kind;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::cleanup::Cleanup;
use crate::hosts::TwoHosts;
use crate::processes::Processes;
use crate::programs::clear_variables;

pub use kind::{Arm, Kind, Program, Ready, SERVICE_PORT, check_needs};

/// How long a process that is to listen may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether a round trip to this address, from the near host, succeeds.
pub type RoundTripCheck<'a> = &'a (dyn Fn(SocketAddr) -> bool + Sync);

/// A tunnel that is up. Dropping it ends its processes: the near end first, as a user would.
#[derive(Debug)]
pub struct Tunnel {
    /// Where to send traffic, in the near namespace.
    pub address: SocketAddr,
    /// Its ends' processes.
    pub processes: Processes,
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
        let mut tunnel = Self { address, processes: Processes::new(cleanup) };
        let opened = tunnel.start(network, directory, &programs, carries);
        opened.map_err(|error| format!("{error}{}", tunnel.processes.log_tails()))?;
        Ok(tunnel)
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
            let mut command = network.command(program.end, &program.program);
            command.args(&program.arguments);
            clear_variables(&mut command);
            // Directory of keypadd's control socket; the two ends must not share it.
            let runtime = directory.join(format!("{:?}.run", program.end));
            let _ = fs::create_dir(&runtime);
            command.env("RUNTIME_DIRECTORY", &runtime);
            self.processes.start(name.clone(), log.clone(), &mut command)?;
            match &program.ready {
                Ready::Listens(address) => {
                    self.wait(network, &format!("{name}: does not listen"), || {
                        TcpStream::connect_timeout(address, CONNECT_TIMEOUT).map(drop).is_ok()
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

    fn wait(
        &self,
        network: &TwoHosts,
        what: &str,
        attempt: impl Fn() -> bool + Sync,
    ) -> Result<(), String> {
        network.near.inside(|| self.processes.wait(what, &AtomicBool::new(false), &attempt))
    }
}
