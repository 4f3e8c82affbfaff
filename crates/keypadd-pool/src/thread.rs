//! The filler's thread: a loop around [`Filler::step`] that lets everybody else go first.
//!
//! It takes class SCHED_IDLE, or the lowest priority where that is refused; where both are, it does not
//! run at all, because it would take time from others. It sleeps when there is nothing to do and when
//! it has spent its share. When it ends without being told to, lanes run dry, packets are made inline,
//! and the log and the pool's figures say why.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use crate::cpu_share::WHOLE_CORE;
use crate::filler::{Filler, Step};
use crate::shared::FillerShared;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::thread;

/// How far a filler stands back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Class SCHED_IDLE: it runs when nothing else wants the CPU.
    Idle,
    /// Nice 19.
    Low,
    /// As everybody else: the kernel refused.
    Ordinary,
}

/// Why a filler has ended; packets are made inline since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillerFault {
    /// An internal error.
    Failed,
    /// The kernel refused to let it stand back.
    NotIdle,
}

impl FillerFault {
    /// In words that follow "pool off: ".
    pub fn reason(self) -> &'static str {
        match self {
            Self::Failed => "the filler has failed",
            Self::NotIdle => "the kernel refused the filler SCHED_IDLE and nice 19",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Failed, Self::NotIdle].into_iter().find(|fault| *fault as u8 + 1 == code)
    }
}

/// What a filler's thread asks of the kernel. The pool uses [`Kernel`]; a test may use one that refuses
/// or fails.
pub trait FillerHost: Send + 'static {
    /// Lets the calling thread stand back behind all others.
    fn stand_back(&mut self) -> Priority;

    /// CPU time that the calling thread has spent.
    fn cpu_time(&mut self) -> Duration;

    /// Time that has passed since any one moment.
    fn now(&mut self) -> Duration;
}

/// The system that the process runs on.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    started: Instant,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl FillerHost for Kernel {
    fn stand_back(&mut self) -> Priority {
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        match set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle) {
            Ok(()) => Priority::Idle,
            Err(error) => {
                tracing::warn!(?error, "the kernel refused SCHED_IDLE to a filler");
                let nice = rustix::process::setpriority_process(None, 19);
                if nice.is_ok() { Priority::Low } else { Priority::Ordinary }
            }
        }
    }

    fn cpu_time(&mut self) -> Duration {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
    }

    fn now(&mut self) -> Duration {
        self.started.elapsed()
    }
}

/// Fills until the pool is dropped. `alive` comes first, so that it goes last: who sees that the filler
/// has ended finds that it takes no orders.
pub(crate) fn run(alive: Alive, mut filler: Filler, mut host: impl FillerHost) {
    let shared = Arc::clone(&alive.0);
    // Set here, not by the spawner: a wake-up needs the handle before the first sleep.
    let _ = shared.thread.set(thread::current());
    shared.thread_id.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
    match host.stand_back() {
        Priority::Idle => shared.idle_class.store(true, Relaxed),
        Priority::Low => {}
        Priority::Ordinary => {
            shared.fault.store(FillerFault::NotIdle as u8 + 1, Relaxed);
            tracing::error!("no pool: {}; pads are made inline", FillerFault::NotIdle.reason());
            return;
        }
    }
    loop {
        if filler.has_no_work() || shared.max_cpu_percent.load(Relaxed) < WHOLE_CORE {
            let spent = host.cpu_time();
            shared.fill_cpu_nanos.store(spent.as_nanos() as u64, Relaxed);
            filler.spent(spent);
        }
        match filler.step(host.now()) {
            Step::Worked => {}
            Step::Idle => thread::park(),
            Step::Resting(rest) => park_for(rest),
            Step::Stopped => break,
        }
    }
}

#[cfg(not(loom))]
fn park_for(rest: Duration) {
    thread::park_timeout(rest);
}

/// A model has no time, and no test of it a limit.
#[cfg(loom)]
fn park_for(_: Duration) {
    thread::yield_now();
}

/// Says that a filler lives, and when it stops without being told to, why pads are made inline.
pub(crate) struct Alive(Arc<FillerShared>);

impl Alive {
    pub(crate) fn new(shared: Arc<FillerShared>) -> Self {
        shared.alive.store(true, Relaxed);
        Self(shared)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fault.store(FillerFault::Failed as u8 + 1, Relaxed);
            tracing::error!("no pool: {}; pads are made inline", FillerFault::Failed.reason());
        }
        self.0.alive.store(false, Release);
    }
}
