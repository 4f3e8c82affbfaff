//! Runs the experiment: calibrates every case, saves the predictions, and only then sends the
//! traffic that they predict. Repetitions are the outer loop, so that drift affects all cases
//! alike.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use keypadd_traffic::TunnelArm;

use super::calibration::calibrate;
use super::cell::Cell;
use super::finder::{Patience, burst, find};
use super::model::Calibration;
use super::section::section;
use super::tunnel::{Ended, Tunnel};
use crate::arm::Arm;
use crate::background::{Background, cores};
use crate::interleave::{OnProgress, Progress};
use crate::others::CpuBaseline;
use crate::path::{PathSettings, Place};
use crate::results::{Section, SectionRun};

/// Maximum time per visit of a case, after which a load ends by itself.
const VISIT_MAX: Duration = Duration::from_secs(600);

/// Parameters of the experiment.
#[derive(Clone, Debug)]
pub struct Exhaustion {
    /// Where the far end is and how to reach it; pool sizes come from `pools_bytes`.
    pub path: PathSettings,
    /// Suites and backends; each has a pool here whatever it says.
    pub arms: Vec<TunnelArm>,
    /// Memory of each end's pool.
    pub pools_bytes: Vec<usize>,
    /// Background loads as shares of every core, 0 to 1.
    pub backgrounds: Vec<f64>,
    /// Repetitions per case.
    pub repetitions: u32,
    /// How long to try.
    pub patience: Patience,
}

impl Exhaustion {
    /// Runs until complete or until `stop` is set; keeps what was measured by then. `save` gets the
    /// predictions before the first byte that they predict. Blocks; needs a runtime around it.
    pub fn run(
        &self,
        tell: OnProgress<'_>,
        save: &dyn Fn(&Section),
        stop: &AtomicBool,
    ) -> SectionRun {
        let mut visits = Visits { settings: self, tell, stop, cells: Vec::new() };
        let ended = visits.all(save);
        let section = section(&visits.cells, self.repetitions);
        SectionRun { section, ended_by: ended.err().map(|ended| ended.to_string()) }
    }
}

struct Visits<'a> {
    settings: &'a Exhaustion,
    tell: OnProgress<'a>,
    stop: &'a AtomicBool,
    cells: Vec<Cell>,
}

impl<'a> Visits<'a> {
    fn all(&mut self, save: &dyn Fn(&Section)) -> Result<(), Ended> {
        for &arm in &self.settings.arms {
            for &pool_bytes in &self.settings.pools_bytes {
                self.predict(TunnelArm { pool: true, ..arm }, pool_bytes)?;
            }
        }
        save(&section(&self.cells, self.settings.repetitions));
        for repetition in 0..self.settings.repetitions {
            for cell in 0..self.cells.len() {
                self.visit(cell, repetition)?;
            }
        }
        Ok(())
    }

    /// Calibrates an arm without a load, and reads the level under each load.
    fn predict(&mut self, arm: TunnelArm, pool_bytes: usize) -> Result<(), Ended> {
        self.doing(format!("{}: calibration, pool {} MiB", Arm::Tunnel(arm), pool_bytes >> 20));
        let since = CpuBaseline::now();
        let mut tunnel = self.open(arm, pool_bytes)?;
        let fillers = match self.settings.path.place {
            Place::Here | Place::Hosts { .. } => 2.0,
            Place::There { .. } => 1.0,
        };
        let patience = &self.settings.patience;
        let calibrated = calibrate(&mut tunnel, cores().len() as f64, fillers, patience)?;
        tunnel.close()?;
        let others = since.cores_of_others();
        let Some(calibrated) = calibrated else { return Ok(()) };
        for &background in &self.settings.backgrounds {
            let load = Background::start(background, VISIT_MAX);
            let mut tunnel = self.open(arm, pool_bytes)?;
            let level = tunnel.rest()?;
            tunnel.close()?;
            drop(load);
            let calibration = Calibration { background, level, ..calibrated.model.clone() };
            let mut cell = Cell::new(
                arm,
                pool_bytes,
                calibration,
                calibrated.packet_bytes,
                calibrated.fastest,
                patience.stage_seconds,
            );
            cell.others.extend(others);
            self.cells.push(cell);
        }
        Ok(())
    }

    /// One repetition of one case: R*, then its bursts.
    fn visit(&mut self, nth: usize, repetition: u32) -> Result<(), Ended> {
        let Cell { arm, pool_bytes, calibration, packet_bytes, fastest, .. } = &self.cells[nth];
        let (arm, pool_bytes) = (*arm, *pool_bytes);
        let (packet_bytes, fastest) = (*packet_bytes, *fastest);
        let name = self.cells[nth].name();
        let of = format!("{} of {}", repetition + 1, self.settings.repetitions);
        let load = Background::start(calibration.background, VISIT_MAX);
        self.doing(format!("{name}: looking for R*, {of}"));
        let since = CpuBaseline::now();
        let mut tunnel = self.open(arm, pool_bytes)?;
        (tunnel.packet_bytes, tunnel.fastest) = (packet_bytes, fastest);
        let patience = self.settings.patience;
        let found = find(&mut tunnel, &patience)?;
        self.cells[nth].found.push(found);
        for burst_nth in 0..self.cells[nth].bursts.len() {
            let rate = self.cells[nth].bursts[burst_nth].0;
            let mbit = self.cells[nth].mbit(rate);
            self.doing(format!("{name}: a burst at {mbit:.0} Mbit/s, {of}"));
            let found = burst(&mut tunnel, rate, &patience)?;
            self.cells[nth].bursts[burst_nth].1.push(found);
        }
        tunnel.close()?;
        drop(load);
        self.cells[nth].others.extend(since.cores_of_others());
        Ok(())
    }

    fn open(&self, arm: TunnelArm, pool_bytes: usize) -> Result<Tunnel<'a>, Ended> {
        let settings = PathSettings { pool_budget_bytes: pool_bytes, ..self.settings.path.clone() };
        Tunnel::open(Arm::Tunnel(arm), settings, self.stop)
    }

    fn doing(&self, what: String) {
        (self.tell)(&Progress::Doing(what));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering::Relaxed;

    use keypadd_keystream::{CipherBackend, Suite};
    use keypadd_provider::KeyExchange;
    use tokio::task::block_in_place;

    use super::*;

    fn settings() -> Exhaustion {
        let suite = Suite::TRIPLE_DES_CTR_HMAC_SHA1.protection();
        let engine = CipherBackend::Auto.engine().unwrap();
        Exhaustion {
            path: PathSettings { kex: KeyExchange::X25519.into(), ..PathSettings::default() },
            arms: vec![TunnelArm { suite, pool: true, engine }],
            pools_bytes: vec![1 << 20],
            backgrounds: vec![0.0],
            repetitions: 10_000,
            patience: Patience {
                burst_seconds: 0.05,
                probe_seconds: 0.1,
                stage_seconds: 0.3,
                after_seconds: 0.02,
            },
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn predictions_are_saved_before_anything_is_measured_and_a_run_that_is_stopped_keeps_it()
    {
        // What the section contained when predictions were saved: how many, how many measured.
        let saved = Mutex::new(Vec::new());
        let save = |section: &Section| {
            let measured = section.predictions.iter().filter(|it| it.measured.is_some());
            saved.lock().unwrap().push((section.predictions.len(), measured.count()));
        };
        let stop = AtomicBool::new(false);
        let stop_in_the_second = |progress: &Progress| {
            stop.fetch_or(progress.to_string().contains("R*, 2 of"), Relaxed);
        };
        let exhausted = block_in_place(|| settings().run(&stop_in_the_second, &save, &stop));
        let saved = saved.into_inner().unwrap();
        assert_eq!(exhausted.ended_by.as_deref(), Some("it was interrupted"));
        assert!(matches!(saved[..], [(predictions, 0)] if predictions > 0), "{saved:?}");
        assert_eq!(exhausted.section.predictions.len(), saved[0].0);
        let cells = &exhausted.section.tables[0].rows[0].cells;
        let samples = |nth: usize| cells[nth].figure().map(|it| it.samples.len());
        assert_eq!(samples(6), Some(1), "one search for R*");
        assert_eq!(samples(7), Some(2), "that of the calibration, and that of the search");
    }
}
