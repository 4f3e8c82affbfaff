//! Generates background CPU load: one pinned thread per core, busy for a given share of the time.
//!
//! Normal-priority threads take the idle CPU that fillers need; idle-class threads only keep cores
//! awake. Stops when dropped, or after a maximum time.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_pool::{FillerHost, Kernel, Priority};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// One cycle of work and rest: longer than the kernel's time slice, shorter than any pool lasts.
const PERIOD: Duration = Duration::from_millis(8);

/// The load. Ends when dropped.
#[derive(Debug)]
pub struct Background {
    stop: Arc<AtomicBool>,
}

impl Background {
    /// Uses `share` (0 to 1) of every core available to this process, for at most `longest`.
    pub fn start(share: f64, longest: Duration) -> Self {
        Self::of(share, longest, || true)
    }

    /// Keeps every core awake for at most `longest`, with idle-class threads like fillers. A core
    /// that sleeps takes longer to wake than a packet to be encrypted; where fillers of one arm are
    /// busy, this keeps the cores of all arms awake alike.
    pub fn awake(longest: Duration) -> Self {
        Self::of(1.0, longest, || Kernel::default().lower_priority() != Priority::Ordinary)
    }

    fn of(share: f64, longest: Duration, may_work: fn() -> bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let end = Instant::now() + longest;
        if share > 0.0 {
            for core in cores() {
                let stop = Arc::clone(&stop);
                // Without a thread the load is lower, which the results show.
                let _ = thread::Builder::new().name("keypadd-load".into()).spawn(move || {
                    if may_work() {
                        work(core, share.min(1.0), end, &stop);
                    }
                });
            }
        }
        Self { stop }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// The cores of this process, by number.
pub(crate) fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

fn work(core: usize, share: f64, end: Instant, stop: &AtomicBool) {
    let mut only = CpuSet::new();
    only.set(core);
    // If refused, the kernel places it like any thread.
    let _ = sched_setaffinity(None, &only);
    let mut begun = Instant::now();
    while !stop.load(Relaxed) && begun < end {
        while begun.elapsed() < PERIOD.mul_f64(share) && !stop.load(Relaxed) {
            spin_loop();
        }
        let next = begun + PERIOD;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        begun = next.max(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::process_cpu;

    /// Average number of cores used by this process over this time.
    fn taken(over: Duration) -> f64 {
        let (start, cpu) = (Instant::now(), process_cpu());
        thread::sleep(over);
        (process_cpu() - cpu).as_secs_f64() / start.elapsed().as_secs_f64()
    }

    #[test]
    fn a_load_works_while_it_is_held_and_ends_with_its_time() {
        let load = Background::start(1.0, Duration::from_secs(60));
        // Other tests and programs may take their part; some of it is ours.
        let busy = taken(Duration::from_millis(300));
        assert!(busy > 0.05, "{busy} cores");
        let stop = Arc::downgrade(&load.stop);
        drop(load);
        let deadline = Instant::now() + Duration::from_secs(10);
        while stop.strong_count() > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(stop.strong_count(), 0, "threads outlive the load");

        let load = Background::start(0.5, Duration::from_millis(20));
        let deadline = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&load.stop) > 1 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(&load.stop), 1, "threads outlive their time");
    }

    #[test]
    fn a_zero_load_starts_no_thread() {
        let load = Background::start(0.0, Duration::from_secs(60));
        assert_eq!(Arc::strong_count(&load.stop), 1);
    }
}
