//! Compares keypadd with kernel TCP and stunnel on emulated paths: bulk, keystrokes during it, and
//! queue length, at several round-trip times, rates and losses.
//!
//! Both ends are separate hosts (network namespaces) that run the shipped program; between them
//! lies [`testbed::Path`]. Each turn has a fresh tunnel. Needs root. Knows no command line.

mod arms;
mod cases;
mod goals;
mod lines;
mod plots;
mod sample;
mod section;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use testbed::tunnel::{SERVICE_PORT, check_needs};
use testbed::{Cleanup, End, Path, TwoHosts};

use self::sample::{Sample, Taken};
use crate::interleave::OnProgress;
use crate::load::Service;
use crate::results::{Section, SectionRun};
use crate::series::{Series, Turn};

pub use arms::{PathArm, PathArms};
pub use cases::{LineRate, PathCase, PathCases};
pub use testbed::line::LossPlace;

/// MTU of the path's devices.
const MTU: u32 = 1500;

/// Tunnels use ports upwards from here, near and far, below the ephemeral range.
const PORTS: (u16, u16) = (10_000, 20_000);

/// A comparison on emulated paths.
#[derive(Debug)]
pub struct Paths {
    /// What is compared.
    pub arms: Vec<PathArm>,
    /// The cases to compare them on.
    pub cases: Vec<PathCase>,
    /// How long the steady state is measured, after the start-up.
    pub time: Duration,
    /// How often.
    pub rounds: u32,
    /// Determines the order of arms and all losses.
    pub seed: u64,
}

/// The test bed that samples are taken on.
struct Bed {
    cleanup: Arc<Cleanup>,
    hosts: TwoHosts,
    path: Path,
    service: Service,
    directory: std::path::PathBuf,
}

impl Paths {
    /// Reports what is missing on this machine, before anything is started.
    ///
    /// # Errors
    /// One line: not root, or a program is missing.
    pub fn check(&self) -> Result<(), String> {
        let tunnels: Vec<_> = self.arms.iter().map(|arm| arm.tunnel.clone()).collect();
        check_needs(&tunnels)
    }

    /// Runs until everything is measured or `stop` is set; keeps what was measured by then. Blocks.
    pub fn run(
        &self,
        tell: OnProgress<'_>,
        keep: &dyn Fn(&Section),
        stop: &AtomicBool,
    ) -> SectionRun {
        let mut taken = Vec::new();
        let mut left_out = Vec::new();
        let cleanup = Arc::new(Cleanup::default());
        let ended = self.bed(&cleanup).and_then(|bed| {
            let arms = arms::available(&self.arms, &bed.hosts, &mut left_out)?;
            let (rounds, cases, seed) = (self.rounds, self.cases.len(), self.seed);
            let name = |turn: &Turn| {
                format!("{}: {}", self.cases[turn.case], self.arms[turn.arm].tunnel.name)
            };
            let keep = |taken: &[Taken]| {
                keep(&section::section(self, taken, &left_out));
                Ok(())
            };
            let take = |turn: &Turn| Ok(bed.sample(self, turn, stop));
            Series { rounds, cases, arms: &arms, seed, tell, stop }
                .run(&mut taken, name, take, keep)
        });
        cleanup.run();
        SectionRun { section: section::section(self, &taken, &left_out), ended_by: ended.err() }
    }

    fn bed(&self, cleanup: &Arc<Cleanup>) -> Result<Bed, String> {
        let directory = cleanup.scratch("keypadd-paths")?;
        for arm in &self.arms {
            let prepared = arm.tunnel.kind.prepare(&directory.join(&arm.tunnel.name));
            prepared.map_err(|error| format!("{}: {error}", arm.tunnel.name))?;
        }
        let (hosts, path) = TwoHosts::by_path(MTU, self.seed)?;
        arms::tune(&hosts)?;
        let listener = hosts.far.inside(|| {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT))
                .map_err(|error| error.to_string())
        })?;
        let service = Service::start(listener).map_err(|error| format!("a thread: {error}"))?;
        Ok(Bed { cleanup: Arc::clone(cleanup), hosts, path, service, directory })
    }
}

impl Bed {
    /// Renews both directions of the line, with losses or without.
    fn lay(&self, case: &PathCase, seed: u64) {
        for (end, seed) in [(End::Near, seed), (End::Far, seed.wrapping_add(1))] {
            self.path.renew(end, case.settings(end, false), seed);
        }
    }

    fn sample(&self, paths: &Paths, turn: &Turn, stop: &AtomicBool) -> Sample {
        let (arm, case) = (&paths.arms[turn.arm], &paths.cases[turn.case]);
        self.lay(case, turn.seed);
        let offset = (turn.nth % 10_000) as u16;
        let ports = (PORTS.0 + offset, PORTS.1 + offset);
        let taken = Sample::take(self, arm, case, paths.time, ports, stop);
        // Connections that have ended tell each other so before the next arm begins.
        self.lay(case, turn.seed);
        std::thread::sleep(2 * case.rtt);
        taken.unwrap_or_else(Sample::failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As root: `cargo test -p keypadd-measure --lib path -- --ignored`.
    #[test]
    #[ignore = "needs root"]
    fn a_line_of_20_mbit_and_40_ms_measures_as_such() {
        let arms = PathArms { names: vec!["tcp-cubic".into()], extra: Vec::new() };
        let cases = PathCases {
            mbits: vec![LineRate::both(20)],
            rtts: vec![Duration::from_millis(40)],
            losses: vec![0.0],
            loss_place: LossPlace::default(),
            two_way: false,
        };
        let paths = Paths {
            arms: arms.read("/k".as_ref()).unwrap(),
            cases: cases.all(),
            time: Duration::from_secs(2),
            rounds: 1,
            seed: 1,
        };
        let run = paths.run(&|_| {}, &|_| {}, &AtomicBool::new(false));
        assert_eq!(run.ended_by, None);
        let figures = |id: &str| -> Vec<f64> {
            let table = run.section.tables.iter().find(|table| table.id == id).unwrap();
            let cells = &table.rows.last().unwrap().cells;
            cells.iter().map(|cell| cell.figure().unwrap().value).collect()
        };
        let bulk = figures("bulk-1");
        assert!(bulk.iter().all(|mbit| (15.0..20.0).contains(mbit)), "{bulk:?}");
        assert!(figures("p50-1").iter().all(|ms| *ms >= 40.0), "{:?}", figures("p50-1"));
    }
}
