//! Runs the rounds: every arm once in each, in an order shuffled from a seed.
//!
//! Each arm gets a fresh tunnel on its own ports, which is taken down before the next one starts.
//! Rewrites the JSON file after every round. Does not judge what it records.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use keypadd_measure::machine::Machine;
use keypadd_measure::{Progress, Series, SeriesTurn, Taken};
use serde::Serialize;
use testbed::tunnel::{Arm, SERVICE_PORT, Tunnel};
use testbed::{Cleanup, End, TwoHosts};

use crate::figures::{
    BESIDE_DOWN_P50, BESIDE_UP_P50, BULK_DOWN, BULK_UP, Figure, Round, SMALL_P50,
};
use crate::load::Echo;
use crate::sample::Sample;

/// Tunnels use ports upwards from here, near and far, below the ephemeral range.
const NEAR_PORTS: u16 = 10_000;
const FAR_PORTS: u16 = 20_000;
/// Number of ports each end cycles through.
const PORTS: usize = 10_000;
/// Timeout for starting the traffic service.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything recorded, as `--out` writes it.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    pub(crate) started: String,
    pub(crate) machine: Machine,
    pub(crate) mtu: u32,
    pub(crate) seed: u64,
    /// Seconds that each bulk transfer takes.
    pub(crate) seconds: f64,
    /// Complete rounds only.
    pub(crate) rounds: Vec<Round>,
}

impl Record {
    /// Writes it as JSON.
    ///
    /// # Errors
    /// One line: the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The test bed for rounds.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) cleanup: &'a Arc<Cleanup>,
    pub(crate) network: &'a TwoHosts,
    /// Holds a directory per arm, named after it.
    pub(crate) scratch: PathBuf,
    pub(crate) arms: &'a [Arm],
}

impl Bench<'_> {
    /// Starts the traffic service in the far namespace and waits until it answers.
    ///
    /// # Errors
    /// One line: it does not start, or does not answer within 10 s.
    pub(crate) fn start_service(&self, own_path: &Path) -> Result<(), String> {
        let mut service = self.network.command(End::Far, own_path.as_os_str());
        let id = self.cleanup.spawn(service.arg("service").arg(SERVICE_PORT.to_string()))?;
        self.network.near.inside(|| {
            let until = Instant::now() + SERVICE_TIMEOUT;
            while let Err(error) = Echo::open((TwoHosts::FAR, SERVICE_PORT).into(), 128) {
                if let Some(status) = self.cleanup.ended(id) {
                    return Err(format!("the traffic service has ended ({status})"));
                }
                if Instant::now() > until {
                    return Err(format!("the traffic service does not answer: {error}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        })
    }

    /// Creates each arm's keys and files.
    ///
    /// # Errors
    /// One line: the arm, and what failed.
    pub(crate) fn prepare(&self) -> Result<(), String> {
        self.arms.iter().try_for_each(|arm| {
            let prepared = arm.kind.prepare(&self.scratch.join(&arm.name));
            prepared.map_err(|error| format!("{}: {error}", arm.name))
        })
    }

    /// Runs `count` rounds and adds each complete one to the record.
    ///
    /// # Errors
    /// The round, the arm and what failed, with the last lines of the logs. The record keeps
    /// earlier rounds.
    pub(crate) fn run(
        &self,
        count: u32,
        record: &mut Record,
        out: Option<&Path>,
    ) -> Result<(), String> {
        let (seed, seconds) = (record.seed, record.seconds);
        let arms: Vec<usize> = (0..self.arms.len()).collect();
        let (tell, stop) = (&|_: &Progress| (), &AtomicBool::new(false));
        let series = Series { rounds: count, cases: 1, arms: &arms, seed, tell, stop };
        let name = |turn: &SeriesTurn| self.arms[turn.arm].name.clone();
        let take = |turn: &SeriesTurn| {
            let (arm, offset) = (&self.arms[turn.arm], (turn.nth % PORTS) as u16);
            let ports = (NEAR_PORTS + offset, FAR_PORTS + offset);
            let round = turn.round + 1;
            let sample = self.sample(arm, ports, seconds);
            let sample = sample.map_err(|error| format!("round {round}, {}: {error}", arm.name))?;
            progress(round, count, arm, &sample);
            Ok((arm.name.clone(), sample))
        };
        let keep = |taken: &[Taken<(String, Sample)>]| {
            let of_round = taken.rchunks(self.arms.len()).next().unwrap_or_default();
            record.rounds.push(Round {
                order: of_round.iter().map(|it| it.sample.0.clone()).collect(),
                samples: of_round.iter().map(|it| it.sample.clone()).collect(),
            });
            out.map_or(Ok(()), |path| record.write(path))
        };
        series.run(&mut Vec::new(), name, take, keep)
    }

    fn sample(&self, arm: &Arm, ports: (u16, u16), seconds: f64) -> Result<Sample, String> {
        let directory = self.scratch.join(&arm.name);
        let carries = |address| Echo::open(address, 128).is_ok();
        let tunnel = Tunnel::open(self.cleanup, self.network, arm, &directory, ports, &carries)?;
        let duration = Duration::from_secs_f64(seconds);
        let sample = self.network.near.inside(|| Sample::measure(&tunnel, duration));
        sample.map_err(|error| {
            // If a process died, that is the cause of everything else.
            let cause = tunnel.processes.failure().map(|it| format!("{it}: ")).unwrap_or_default();
            format!("{cause}{error}{}", tunnel.processes.log_tails())
        })
    }
}

/// Prints one line on standard error for each sample, so that a long run shows progress.
fn progress(number: u32, count: u32, arm: &Arm, sample: &Sample) {
    let figure = |figure: Figure| (figure.of)(sample).unwrap_or(f64::NAN);
    eprintln!(
        "round {number}/{count} {:<10} {:5.2} down {:5.2} up Gbit/s, RTT {:4.0} us, \
         beside bulk {:5.0} down {:5.0} up",
        arm.name,
        figure(BULK_DOWN),
        figure(BULK_UP),
        figure(SMALL_P50),
        figure(BESIDE_DOWN_P50),
        figure(BESIDE_UP_P50),
    );
}
