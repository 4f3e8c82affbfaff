//! Runs the experiment: calibrates every case, saves the predictions, and only then sends the
//! traffic that they predict. Repetitions are the outer loop, so that drift affects all cases
//! alike.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use keypadd_traffic::TunnelArm;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

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
use crate::results::Section;

/// Seconds that a burst continues after the pool is dry.
const AFTER_SECONDS: f64 = 1.0;
/// Calibration at a rate near R*, as a multiple of a probe.
const NEAR_PROBES: f64 = 12.0;
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

/// The result.
#[derive(Clone, Debug)]
pub struct ExhaustionRun {
    /// All measurements.
    pub section: Section,
    /// Why it ended early; `None` if it did not.
    pub ended_by: Option<String>,
}

/// Messages from the measuring thread.
enum RunMessage {
    Progress(Progress),
    /// The predictions are made; nothing is sent before this is answered.
    Predicted(Box<Section>, std::sync::mpsc::Sender<()>),
}

impl Exhaustion {
    /// Runs until complete or until `stop` resolves; keeps what was measured by then. `save` gets
    /// the predictions before the first byte that they predict.
    pub async fn run(
        &self,
        tell: OnProgress<'_>,
        save: &(dyn Fn(&Section) + Sync),
        stop: impl Future<Output = ()>,
    ) -> ExhaustionRun {
        let (say, mut said) = mpsc::unbounded_channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let mut visits = Visits {
            settings: self.clone(),
            runtime: Handle::current(),
            stop: Arc::clone(&stopped),
            say,
            cells: Vec::new(),
        };
        let mut measuring = tokio::task::spawn_blocking(move || {
            let ended_by = visits.all().err().map(|ended| ended.to_string());
            (visits.cells, ended_by)
        });
        let mut stop = std::pin::pin!(stop);
        let (cells, ended_by) = loop {
            tokio::select! {
                biased;
                Some(word) = said.recv() => match word {
                    RunMessage::Progress(progress) => tell(&progress),
                    RunMessage::Predicted(section, saved) => {
                        save(&section);
                        // A send fails only if the waiting thread has ended.
                        let _ = saved.send(());
                    }
                },
                done = &mut measuring => break done.unwrap_or_else(|_| {
                    (Vec::new(), Some("the measurement thread panicked".into()))
                }),
                () = &mut stop, if !stopped.load(Relaxed) => stopped.store(true, Relaxed),
            }
        };
        ExhaustionRun { section: section(&cells, self.repetitions), ended_by }
    }
}

struct Visits {
    settings: Exhaustion,
    runtime: Handle,
    stop: Arc<AtomicBool>,
    say: mpsc::UnboundedSender<RunMessage>,
    cells: Vec<Cell>,
}

impl Visits {
    fn all(&mut self) -> Result<(), Ended> {
        for arm in self.settings.arms.clone() {
            for pool_bytes in self.settings.pools_bytes.clone() {
                self.predict(TunnelArm { pool: true, ..arm }, pool_bytes)?;
            }
        }
        let (saved, answered) = std::sync::mpsc::channel();
        let predicted = Box::new(section(&self.cells, self.settings.repetitions));
        let _ = self.say.send(RunMessage::Predicted(predicted, saved));
        let _ = answered.recv();
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
        let Patience { probe_seconds, stage_seconds } = self.settings.patience;
        let seconds = probe_seconds * NEAR_PROBES;
        let calibrated = calibrate(&mut tunnel, cores().len() as f64, fillers, seconds)?;
        tunnel.close()?;
        let others = since.cores_of_others();
        let Some(calibrated) = calibrated else { return Ok(()) };
        for background in self.settings.backgrounds.clone() {
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
                stage_seconds,
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
            let found = burst(&mut tunnel, rate, AFTER_SECONDS, &patience)?;
            self.cells[nth].bursts[burst_nth].1.push(found);
        }
        tunnel.close()?;
        drop(load);
        self.cells[nth].others.extend(since.cores_of_others());
        Ok(())
    }

    fn open(&self, arm: TunnelArm, pool_bytes: usize) -> Result<Tunnel, Ended> {
        let settings = PathSettings { pool_budget_bytes: pool_bytes, ..self.settings.path.clone() };
        let (runtime, stop) = (self.runtime.clone(), Arc::clone(&self.stop));
        Tunnel::open(Arm::Tunnel(arm), settings, runtime, stop)
    }

    fn doing(&self, what: String) {
        // Nobody listens any more: the run was abandoned, and the flag says so.
        let _ = self.say.send(RunMessage::Progress(Progress::Doing(what)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use keypadd_keystream::{CipherBackend, Suite};
    use keypadd_provider::KeyExchange;

    use super::*;

    fn settings(repetitions: u32) -> Exhaustion {
        let suite = Suite::TRIPLE_DES_CTR_HMAC_SHA1.protection();
        let engine = CipherBackend::Auto.engine().unwrap();
        Exhaustion {
            path: PathSettings { kex: KeyExchange::X25519.into(), ..PathSettings::default() },
            arms: vec![TunnelArm { suite, pool: true, engine }],
            pools_bytes: vec![4 << 20],
            backgrounds: vec![0.0],
            repetitions,
            patience: Patience { probe_seconds: 0.1, stage_seconds: 0.3 },
        }
    }

    /// What the section contained when predictions were saved: how many, how many measured.
    async fn run(
        settings: Exhaustion,
        stop: impl Future<Output = ()>,
    ) -> (ExhaustionRun, Vec<(usize, usize)>) {
        let saved = Mutex::new(Vec::new());
        let save = |section: &Section| {
            let measured = section.predictions.iter().filter(|it| it.measured.is_some());
            saved.lock().unwrap().push((section.predictions.len(), measured.count()));
        };
        let exhausted = settings.run(&|_| (), &save, stop).await;
        (exhausted, saved.into_inner().unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn predictions_are_saved_before_anything_is_measured() {
        let (exhausted, saved) = run(settings(1), std::future::pending()).await;
        assert_eq!(exhausted.ended_by, None);
        assert!(matches!(saved[..], [(predictions, 0)] if predictions > 0), "{saved:?}");
        assert_eq!(exhausted.section.predictions.len(), saved[0].0);
        let capacity = &exhausted.section.tables[0].rows[0].cells[6];
        assert!(matches!(capacity, crate::results::Cell::Figure(it) if it.samples.len() == 1));
        let others = &exhausted.section.tables[0].rows[0].cells[7];
        assert!(
            matches!(others, crate::results::Cell::Figure(it) if it.samples.len() == 2),
            "that of the calibration, and that of the search: {others:?}"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_run_that_is_stopped_keeps_what_it_has() {
        let (tell_saved, saved) = tokio::sync::oneshot::channel();
        let tell_saved = Mutex::new(Some(tell_saved));
        let save = |_: &Section| {
            let _ = tell_saved.lock().unwrap().take().map(|tell| tell.send(()));
        };
        let stop = async {
            let _ = saved.await;
        };
        let exhausted = settings(10_000).run(&|_| (), &save, stop).await;
        assert_eq!(exhausted.ended_by.as_deref(), Some("it was interrupted"));
        assert!(!exhausted.section.predictions.is_empty());
    }
}
