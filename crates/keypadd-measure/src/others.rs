//! Measures CPU taken by other programs: fillers do not get it, and no model includes it.

use std::time::{Duration, Instant};

use crate::interleave::process_cpu;

/// Ticks per second of `/proc/stat`, the same on every Linux (proc(5), USER_HZ).
const TICKS: f64 = 100.0;

/// Ten ticks.
const SHOWN: Duration = Duration::from_millis(100);

/// The reading to count from.
#[derive(Debug)]
pub struct CpuBaseline {
    at: Instant,
    busy_seconds: Option<f64>,
    own: Duration,
}

impl CpuBaseline {
    /// The reading now.
    #[must_use]
    pub fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").ok();
        Self {
            at: Instant::now(),
            busy_seconds: stat.and_then(|stat| busy_seconds(&stat)),
            own: process_cpu(),
        }
    }

    /// Average cores taken by others since then; `None` where the kernel does not say, or for so
    /// short a time that its ticks show nothing.
    pub fn cores_of_others(&self) -> Option<f64> {
        let now = Self::now();
        let busy = now.busy_seconds? - self.busy_seconds?;
        let own = now.own.saturating_sub(self.own).as_secs_f64();
        let time = now.at.duration_since(self.at);
        (time >= SHOWN).then(|| ((busy - own) / time.as_secs_f64()).max(0.0))
    }
}

/// CPU seconds that all cores have been busy, including time stolen by a hypervisor.
fn busy_seconds(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Option<Vec<f64>> = line.split_whitespace().map(|ticks| ticks.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; user already includes guests.
    match ticks?[..] {
        [user, nice, system, _, _, irq, softirq, steal, ..] => {
            Some((user + nice + system + irq + softirq + steal) / TICKS)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_excludes_idle_and_iowait() {
        let stat = "cpu  100 20 30 9999 8888 4 5 600 70 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_seconds(stat), Some(7.59));
        assert_eq!(busy_seconds("cpu  1 2 x"), None);
        assert_eq!(busy_seconds("intr 1"), None);
    }

    #[test]
    fn other_programs_never_use_more_than_all_cores() {
        let since = CpuBaseline::now();
        std::thread::sleep(2 * SHOWN);
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        // Ticks are whole numbers: one of twenty more on each core.
        assert!(since.cores_of_others().is_none_or(|others| others <= cores * 1.5));
    }
}
