//! Predicts from a calibration when a pool runs dry. Uses no result of the run that it predicts.
//!
//! Fillers run in class SCHED_IDLE: they get only idle CPU. With both ends of a tunnel on one
//! machine with `C` cores, two fillers share it with the traffic. Traffic of `r` packets per second
//! takes `r c(r)` CPU seconds per second at both ends together (`c` falls with the rate: wake-ups
//! and system calls serve several packets at once; and it is higher beside fillers that do not rest, as
//! at R*, than after a full pool), a background load takes the share `b` of every core, and each of `n`
//! fillers gets
//!
//! ```text
//! s(r) = min(1, max(C (1 - b) - r c(r), C 3/1027) / n)        cores
//! ```
//!
//! where 3/1027 is what the kernel grants the class beside a task that never sleeps. Of such a CPU second
//! a filler makes `g` whole pads, heads and bodies, so pads are made at `f(r) = s(r) g` per second. `g`
//! includes what is lost of it: to unequal shares of two fillers, to pads made too late, to the kernel.
//!
//! **R*** is where `f(r) = r`. `f` does not rise, so there is one such rate, found by bisection.
//!
//! **T*(r)** at a rate above R*: the filler of a full pool sleeps for its first `w` packets of `L`,
//! then
//!
//! ```text
//! T* = w/r + (L - w) / (r - f(r))        B* = r T*
//! ```
//!
//! The model ignores the rest of the machine. Key updates take no pads from a stream without pause.

/// Measurements before the run. Packets are full ones of the predicted traffic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Calibration {
    /// Cores that traffic and fillers share.
    pub cores: f64,
    /// Share of every core taken by a background load, 0 to 1.
    pub background: f64,
    /// Fillers on this machine that make pads for these packets: one, or two with both ends here.
    pub fillers: f64,
    /// Whole pads that a filler makes per CPU second left to it.
    pub pads_per_cpu_second: f64,
    /// CPU cost of traffic with ready pads from a full pool, at all ends on this machine.
    pub traffic: TrafficCost,
    /// The cost of traffic beside fillers that do not rest.
    pub beside_fillers: TrafficCost,
    /// Packets with ready pads before the first byte, at the end that has fewer.
    pub level: f64,
    /// Packets that a full pool serves before its filler wakes.
    pub asleep_packets: f64,
}

/// CPU time per packet, by packet rate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrafficCost {
    /// Packets per second, and CPU seconds per packet; sorted by rate, at least one.
    points: Vec<[f64; 2]>,
}

/// The model's prediction for a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Burst {
    /// The pool is not emptied at this rate.
    Lasts,
    /// The pool is dry after this time and this many packets.
    Dry {
        /// T*, in seconds.
        seconds: f64,
        /// B*, in packets.
        packets: f64,
    },
}

impl TrafficCost {
    /// From rates and costs as measured, at least one; `None` of none, or if a figure is not above
    /// zero.
    #[must_use]
    pub(super) fn new(mut points: Vec<[f64; 2]>) -> Option<Self> {
        let positive = |figure: &f64| figure.is_finite() && *figure > 0.0;
        if points.is_empty() || !points.iter().flatten().all(positive) {
            return None;
        }
        points.sort_by(|one, other| one[0].total_cmp(&other[0]));
        Some(Self { points })
    }

    /// CPU seconds per packet at a rate: interpolates linearly the CPU seconds per second between
    /// two measured rates; outside of them, uses the nearest.
    #[must_use]
    pub(super) fn at(&self, rate: f64) -> f64 {
        let above = self.points.partition_point(|[at, _]| *at <= rate);
        let (Some(&[low, low_cost]), Some(&[high, high_cost])) =
            (self.points.get(above.wrapping_sub(1)), self.points.get(above))
        else {
            return self.points[above.saturating_sub(1)][1];
        };
        let (low_share, high_share) = (low * low_cost, high * high_cost);
        (low_share + (high_share - low_share) * (rate - low) / (high - low)) / rate
    }
}

impl Calibration {
    /// Cores left idle by traffic that takes this many, and by the background load.
    #[must_use]
    pub(super) fn idle(&self, traffic: f64) -> f64 {
        self.cores * (1.0 - self.background) - traffic
    }

    /// Share of a core that traffic which takes this many leaves to each filler.
    #[must_use]
    pub(super) fn share(&self, traffic: f64) -> f64 {
        (self.idle(traffic).max(self.cores * IDLE_CLASS_SHARE) / self.fillers).min(1.0)
    }

    /// Whole pads made per second beside this packet rate, by fillers that do not rest.
    #[must_use]
    pub(super) fn filled(&self, rate: f64) -> f64 {
        self.share(rate * self.beside_fillers.at(rate)) * self.pads_per_cpu_second
    }

    /// Whole pads made per second during a burst.
    #[must_use]
    pub(super) fn filled_in_burst(&self, rate: f64) -> f64 {
        self.share(rate * self.traffic.at(rate)) * self.pads_per_cpu_second
    }

    /// R*, in packets per second.
    #[must_use]
    pub(super) fn sustained(&self) -> f64 {
        let (mut low, mut high) = (0.0, self.filled(0.0));
        for _ in 0..BISECTIONS {
            let middle = f64::midpoint(low, high);
            if self.filled(middle) >= middle {
                low = middle;
            } else {
                high = middle;
            }
        }
        f64::midpoint(low, high)
    }

    /// T* and B* at a rate, from a full pool.
    #[must_use]
    pub(super) fn burst(&self, rate: f64) -> Burst {
        let asleep = self.asleep_packets.min(self.level);
        let made = self.filled_in_burst(rate);
        let awake = match self.level - asleep {
            0.0 => 0.0,
            _ if rate <= made => return Burst::Lasts,
            left => left / (rate - made),
        };
        let seconds = asleep / rate + awake;
        Burst::Dry { seconds, packets: seconds * rate }
    }
}

/// Share of a core that a SCHED_IDLE task gets beside one that never sleeps: weights 3 and 1,024
/// (Linux, kernel/sched: WEIGHT_IDLEPRIO, nice 0).
const IDLE_CLASS_SHARE: f64 = 3.0 / 1027.0;
/// Halvings: more than the bits of a double.
const BISECTIONS: u32 = 64;

#[cfg(test)]
mod tests;
