//! Measures CPU taken by other programs: fillers do not get it, and no model includes it.

use std::time::{Duration, Instant};

use testbed::procstat::machine_taken_seconds;

use crate::interleave::process_cpu;

/// Ten ticks of `/proc/stat`.
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
        let busy_seconds = machine_taken_seconds();
        Self { at: Instant::now(), busy_seconds, own: process_cpu() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_never_use_more_than_all_cores() {
        let since = CpuBaseline::now();
        std::thread::sleep(2 * SHOWN);
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        // Ticks are whole numbers: one of twenty more on each core.
        assert!(since.cores_of_others().is_none_or(|others| others <= cores * 1.5));
    }
}
