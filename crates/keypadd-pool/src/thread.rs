//! Runs the filler in a thread of the lowest priority.
//!
//! The thread sets its class to SCHED_IDLE, or its priority to nice 19 if that is refused; if both
//! are, it exits rather than take CPU time from others. It sleeps when there is nothing to do, its
//! CPU share is spent, or bulk outruns it on busy CPUs. If it exits unexpectedly, lanes run dry,
//! keystream is generated inline, and the log and [`PoolSnapshot`](crate::PoolSnapshot) say why.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id, thread_schedule_policy,
};

use crate::cpu_share::WHOLE_CORE;
use crate::filler::{Filler, Step};
use crate::filler_state::FillerState;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::thread;

/// The scheduling priority that a filler got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Class SCHED_IDLE: runs only when nothing else wants the CPU.
    Idle,
    /// Nice 19.
    Low,
    /// Normal priority: the kernel refused both.
    Ordinary,
}

/// Why a filler ended. Keystream is generated inline from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillerFault {
    /// The filler panicked.
    Failed,
    /// The kernel refused to lower its priority.
    NotIdle,
}

impl FillerFault {
    /// The reason, to follow "pool off: ".
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

/// What a filler's thread needs of the operating system. Tests replace [`Kernel`] by hosts that
/// refuse or fail.
pub trait FillerHost: Send + 'static {
    /// Lowers the priority of the calling thread below all others.
    fn lower_priority(&mut self) -> Priority;

    /// The CPU time of the calling thread.
    fn cpu_time(&mut self) -> Duration;

    /// The time since some fixed moment.
    fn now(&mut self) -> Duration;
}

/// The real operating system.
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
    fn lower_priority(&mut self) -> Priority {
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
        // It also sets the niceness to 0, which the kernel refuses to a program that began with
        // more.
        let is_idle = || thread_schedule_policy().is_ok_and(|policy| policy == idle);
        match set {
            Err(error) if !is_idle() => {
                tracing::warn!(?error, "the kernel refused SCHED_IDLE to the pool filler");
                let nice = rustix::process::setpriority_process(None, 19);
                if nice.is_ok() { Priority::Low } else { Priority::Ordinary }
            }
            _ => Priority::Idle,
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

/// Fills until the pool is dropped. `alive` is the first parameter so that it is dropped last: once
/// the filler reads as ended, it takes no orders.
pub(crate) fn run(alive: Alive, mut filler: Filler, mut host: impl FillerHost) {
    let state = Arc::clone(&alive.0);
    // Set by this thread, not its creator: wake-ups need it before the first sleep.
    let _ = state.thread.set(thread::current());
    state.thread_id.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
    match host.lower_priority() {
        Priority::Idle => state.idle_class.store(true, Relaxed),
        Priority::Low => {}
        Priority::Ordinary => {
            state.fault.store(FillerFault::NotIdle as u8 + 1, Relaxed);
            tracing::error!(
                "pool off: {}; generating keystream inline",
                FillerFault::NotIdle.reason()
            );
            return;
        }
    }
    loop {
        if filler.has_no_work() || state.max_cpu_percent.load(Relaxed) < WHOLE_CORE {
            let spent = host.cpu_time();
            state.fill_cpu_nanos.store(spent.as_nanos() as u64, Relaxed);
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

/// Loom models no time, and no loom test sets a CPU limit.
#[cfg(loom)]
fn park_for(_: Duration) {
    thread::yield_now();
}

/// Marks the filler as alive until dropped, and logs it if it panics.
pub(crate) struct Alive(Arc<FillerState>);

impl Alive {
    pub(crate) fn new(state: Arc<FillerState>) -> Self {
        state.alive.store(true, Relaxed);
        Self(state)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fault.store(FillerFault::Failed as u8 + 1, Relaxed);
            tracing::error!(
                "pool off: {}; generating keystream inline",
                FillerFault::Failed.reason()
            );
        }
        self.0.alive.store(false, Release);
    }
}
