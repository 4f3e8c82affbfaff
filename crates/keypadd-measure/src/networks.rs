//! Compares tunnels between two gateways that carry the packets of networks behind them: TCP,
//! packets at fixed times, and their cost.
//!
//! Four hosts in a row are network namespaces; those at the ends know of no tunnel. Each turn has
//! hosts of its own. Needs root. Knows no command line.

mod arms;
mod claims;
mod lab;
mod load;
mod sample;
mod section;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use testbed::Cleanup;

use self::lab::Lab;
use self::sample::{Sample, Taken};
use crate::interleave::OnProgress;
use crate::results::{Section, SectionRun};
use crate::series::{Series, Turn};

pub use arms::NetworkArm;

/// A comparison of tunnels between gateways.
#[derive(Debug)]
pub struct Networks {
    /// What is compared.
    pub arms: Vec<&'static NetworkArm>,
    /// How long each load is measured.
    pub time: Duration,
    /// How often.
    pub rounds: u32,
    /// Determines the order of arms.
    pub seed: u64,
}

impl NetworkArm {
    /// The arms of these names; all if there are none.
    ///
    /// # Errors
    /// One line: an unknown or repeated name.
    pub fn read(names: &[String]) -> Result<Vec<&'static Self>, String> {
        if names.is_empty() {
            return Ok(arms::ARMS.iter().collect());
        }
        let mut chosen: Vec<&'static Self> = Vec::new();
        for name in names {
            let arm = arms::ARMS.iter().find(|arm| arm.name == name).ok_or_else(|| {
                let known = arms::ARMS.iter().map(|arm| arm.name).collect::<Vec<_>>().join(", ");
                format!("{name} is not an arm: expected {known}")
            })?;
            if chosen.iter().any(|it| it.name == name) {
                return Err(format!("arm {name} is given twice"));
            }
            chosen.push(arm);
        }
        Ok(chosen)
    }
}

impl Networks {
    /// Reports what is missing on this machine, before anything is started. What only an arm needs
    /// leaves that arm out.
    ///
    /// # Errors
    /// One line: not root, or a program is missing.
    pub fn check(&self) -> Result<(), String> {
        lab::check()
    }

    /// Runs until everything is measured or `stop` is set; keeps what was measured by then. Blocks.
    pub fn run(
        mut self,
        tell: OnProgress<'_>,
        keep: &dyn Fn(&Section),
        stop: &AtomicBool,
    ) -> SectionRun {
        let left_out: Vec<String> = self.arms.iter().filter_map(|arm| arm.lacks()).collect();
        self.arms.retain(|arm| arm.lacks().is_none());
        let versions: Vec<String> = self.arms.iter().map(|arm| arm.read_version()).collect();
        let cleanup = Arc::new(Cleanup::default());
        let mut taken = Vec::new();
        let ended = self.prepare(&cleanup).and_then(|scratch| {
            let arms: Vec<usize> = (0..self.arms.len()).collect();
            let (rounds, seed) = (self.rounds, self.seed);
            let name = |turn: &Turn| self.arms[turn.arm].name.to_owned();
            let keep = |taken: &[Taken]| {
                keep(&section::section(&self, &versions, taken, &left_out));
                Ok(())
            };
            let take = |turn: &Turn| Ok(self.sample(&cleanup, turn.arm, &scratch, stop));
            Series { rounds, cases: 1, arms: &arms, seed, tell, stop }
                .run(&mut taken, name, take, keep)
        });
        cleanup.run();
        let section = section::section(&self, &versions, &taken, &left_out);
        SectionRun { section, ended_by: ended.err() }
    }

    /// Makes what all rounds share: a directory for each arm.
    fn prepare(&self, cleanup: &Arc<Cleanup>) -> Result<PathBuf, String> {
        let scratch = cleanup.scratch("keypadd-networks")?;
        self.arms.iter().try_for_each(|arm| arm.prepare(&scratch.join(arm.name)))?;
        Ok(scratch)
    }

    fn sample(
        &self,
        cleanup: &Arc<Cleanup>,
        arm: usize,
        scratch: &Path,
        stop: &AtomicBool,
    ) -> Result<Sample, String> {
        let arm = self.arms[arm];
        let lab = Lab::open(cleanup, arm, &scratch.join(arm.name), stop)?;
        let taken = Sample::take(&lab, self.time, stop);
        // If a script has ended, that is the cause of everything else.
        match lab.scripts.failure() {
            Some(failure) => Err(format!("{failure}{}", lab.scripts.log_tails())),
            None => taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(names: &[&str]) -> SectionRun {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let networks = Networks {
            arms: NetworkArm::read(&names).unwrap(),
            time: Duration::from_millis(300),
            rounds: 1,
            seed: 1,
        };
        networks.check().unwrap();
        networks.run(&|_| {}, &|_| {}, &AtomicBool::new(false))
    }

    #[test]
    fn unknown_and_repeated_names_are_refused() {
        let read = |names: &[&str]| {
            NetworkArm::read(&names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
        };
        assert!(read(&["ipsec"]).unwrap_err().contains("expected plain, vxlan"));
        assert!(read(&["plain", "plain"]).unwrap_err().contains("twice"));
        assert_eq!(read(&[]).unwrap().len(), arms::ARMS.len());
    }

    /// As root: `cargo test -p keypadd-measure --lib networks -- --ignored`.
    #[test]
    #[ignore = "needs root"]
    fn a_tunnel_that_shows_what_it_carries_is_not_measured() {
        let cleanup = Arc::new(Cleanup::default());
        let directory = cleanup.scratch("keypadd-networks-test").unwrap();
        for arm in NetworkArm::read(&["plain", "vxlan"].map(str::to_owned)).unwrap() {
            let sealed = NetworkArm { is_clear: false, ..arm.clone() };
            let opened = Lab::open(&cleanup, &sealed, &directory, &AtomicBool::new(false));
            let error = opened.map(drop).unwrap_err();
            assert!(error.starts_with("what it carries passes between the gateways in the clear"));
        }
        cleanup.run();
    }

    /// As root, like the test above.
    #[test]
    #[ignore = "needs root"]
    fn packets_pass_with_and_without_a_tunnel_and_all_loads_are_measured() {
        let routed = run(&["plain", "vxlan"]);
        assert_eq!((routed.ended_by, routed.section.notes), (None, Vec::new()));
        for table in &routed.section.tables[1..] {
            assert_eq!(table.rows.len(), 2);
            for (row, column) in
                table.rows.iter().flat_map(|row| row.cells.iter().zip(&table.columns))
            {
                assert!(
                    row.figure().is_some_and(|it| it.value >= 0.0),
                    "{} {}",
                    table.id,
                    column.name
                );
            }
        }
        let here = run(&["keypadd-pooled", "keypadd-null"]);
        assert_eq!((here.ended_by, here.section.notes), (None, Vec::new()));
        assert!(here.section.verdicts.iter().any(|it| it.claim.contains("pads from the pool")));
    }
}
