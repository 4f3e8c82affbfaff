//! Detects that the host slept, that its clock was set, or that it is a restored or moved machine.
//!
//! Connections from before a jump must not be used after it: a restored copy would use their
//! keystream a second time (docs/argument.md, "Clocks that jump"). [`jump`] compares two
//! [`Readings`]: `monitor` twice a second, and `egress_gate` before each send.

use std::{fmt, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Two clocks that diverge by more than this between two checks have jumped. Slewing (adjtime(3),
/// NTP) makes them diverge by a quarter of a millisecond at most.
const DIVERGENCE_MAX_NANOS: i128 = 1_000_000_000;

/// The clocks at one moment, in nanoseconds from different origins, and what the hypervisor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readings {
    /// Time that the system has run (CLOCK_MONOTONIC).
    pub monotonic_nanos: i128,
    /// Time that it has run or slept (CLOCK_BOOTTIME).
    pub boottime_nanos: i128,
    /// Time of day, since 1970 (CLOCK_REALTIME).
    pub realtime_nanos: i128,
    /// The disruption marker of the VM clock; `None` without one.
    pub vm_disruption: Option<u64>,
    /// New VM generation IDs announced so far.
    pub vm_generations: u64,
}

/// A source of readings.
pub trait Clocks: fmt::Debug + Send + Sync {
    /// Reads all clocks.
    fn read(&self) -> Readings;
}

/// The clocks of the system (clock_gettime(2)), without a hypervisor's signals.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClocks;

impl Clocks for SystemClocks {
    fn read(&self) -> Readings {
        let nanos = |id| {
            let time = clock_gettime(id);
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        };
        Readings {
            monotonic_nanos: nanos(ClockId::Monotonic),
            boottime_nanos: nanos(ClockId::Boottime),
            realtime_nanos: nanos(ClockId::Realtime),
            vm_disruption: None,
            vm_generations: 0,
        }
    }
}

/// A clock jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// The hypervisor restored, cloned or moved this machine.
    Machine,
    /// The system slept for this long.
    Slept(Duration),
    /// The time of day advanced by this much more than time passed.
    Forward(Duration),
    /// The time of day went back by this much.
    Backward(Duration),
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("the hypervisor restored, cloned or moved this machine"),
            Self::Slept(time) => write!(f, "the system slept for {:.1} s", time.as_secs_f64()),
            Self::Forward(time) => {
                write!(f, "the clock jumped forward by {:.1} s", time.as_secs_f64())
            }
            Self::Backward(time) => {
                write!(f, "the clock jumped backward by {:.1} s", time.as_secs_f64())
            }
        }
    }
}

/// Compares two readings; returns the jump between them, if any.
pub(crate) fn jump(before: &Readings, now: &Readings) -> Option<Jump> {
    let passed = now.monotonic_nanos - before.monotonic_nanos;
    let slept = now.boottime_nanos - before.boottime_nanos - passed;
    let set = now.realtime_nanos - before.realtime_nanos - passed;
    let time =
        |nanos: i128| Duration::from_nanos(u64::try_from(nanos.unsigned_abs()).unwrap_or(u64::MAX));
    let machine = |readings: &Readings| (readings.vm_disruption, readings.vm_generations);
    match () {
        () if machine(before) != machine(now) => Some(Jump::Machine),
        () if slept.abs() > DIVERGENCE_MAX_NANOS => Some(Jump::Slept(time(slept))),
        () if set > DIVERGENCE_MAX_NANOS => Some(Jump::Forward(time(set))),
        () if set < -DIVERGENCE_MAX_NANOS => Some(Jump::Backward(time(set))),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    const START: Readings = Readings {
        monotonic_nanos: 100 * SECOND,
        boottime_nanos: 250 * SECOND,
        realtime_nanos: 1_700_000_000 * SECOND,
        vm_disruption: Some(3),
        vm_generations: 1,
    };

    /// `START` plus an offset for each clock.
    fn later(monotonic: i128, boottime: i128, realtime: i128) -> Readings {
        Readings {
            monotonic_nanos: START.monotonic_nanos + monotonic,
            boottime_nanos: START.boottime_nanos + boottime,
            realtime_nanos: START.realtime_nanos + realtime,
            ..START
        }
    }

    #[test]
    fn elapsed_time_of_any_length_is_not_a_jump() {
        for passed in [0, SECOND / 2, 30 * SECOND, 86_400 * SECOND] {
            assert_eq!(jump(&START, &later(passed, passed, passed)), None);
        }
    }

    #[test]
    fn clocks_may_diverge_by_a_second() {
        assert_eq!(jump(&START, &later(SECOND / 2, 3 * SECOND / 2, SECOND / 2)), None);
        assert_eq!(jump(&START, &later(SECOND / 2, SECOND / 2, -SECOND / 2)), None);
    }

    #[test]
    fn a_sleep_differs_from_a_clock_that_was_set() {
        // The time of day advances while the system sleeps.
        let slept = jump(&START, &later(SECOND / 2, 9 * SECOND / 2, 9 * SECOND / 2));
        assert_eq!(slept, Some(Jump::Slept(Duration::from_secs(4))));
        let set = jump(&START, &later(SECOND / 2, SECOND / 2, 7 * SECOND / 2));
        assert_eq!(set, Some(Jump::Forward(Duration::from_secs(3))));
        let back = jump(&START, &later(SECOND / 2, SECOND / 2, -3 * SECOND / 2));
        assert_eq!(back, Some(Jump::Backward(Duration::from_secs(2))));
    }

    #[test]
    fn a_process_restored_on_a_system_with_less_uptime_has_jumped() {
        let restored = jump(&START, &later(-90 * SECOND, -90 * SECOND, 600 * SECOND));
        assert_eq!(restored, Some(Jump::Forward(Duration::from_secs(690))));
    }

    #[test]
    fn a_machine_that_was_restored_has_jumped_though_its_clocks_go_on() {
        let now = later(SECOND / 2, SECOND / 2, SECOND / 2);
        for restored in [
            Readings { vm_disruption: Some(4), ..now },
            Readings { vm_disruption: None, ..now },
            Readings { vm_generations: 2, ..now },
        ] {
            assert_eq!(jump(&START, &restored), Some(Jump::Machine), "{restored:?}");
        }
    }

    #[test]
    fn system_clocks_do_not_jump_by_themselves() {
        let before = SystemClocks.read();
        assert_eq!(jump(&before, &SystemClocks.read()), None);
    }
}
