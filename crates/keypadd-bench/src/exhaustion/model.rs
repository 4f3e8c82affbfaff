//! What a pool can bear, computed from a calibration: no figure of the run it predicts goes in.
//!
//! Fillers are of class SCHED_IDLE: they get the CPU that nobody else wants. With both ends of a tunnel
//! on one machine of `C` cores, two fillers share it with the traffic. Traffic of `r` packets a second
//! takes `r c(r)` CPU seconds a second at both ends together (`c` falls with the rate: wake-ups and
//! system calls serve several packets at once), a background load takes the share `b` of every core, and each of `n`
//! fillers gets
//!
//! ```text
//! s(r) = min(1, max(0, C (1 - b) - r c(r)) / n)        cores
//! ```
//!
//! A whole pad is a head and, for packets that are longer than one, a body. A filler makes `g_h` heads
//! or `g_b` bodies in a CPU second, heads first. So whole pads are made at
//!
//! ```text
//! f(r) = s(r) / (1/g_h + 1/g_b)                        pads a second
//! ```
//!
//! **R*** is where `f(r) = r`. `f` does not rise, so there is one such rate at most, found by bisection.
//!
//! **T*(r)** at a rate above R*: a full pool's filler sleeps for its first `w` packets. Then it gets `s(r)`,
//! and heads come before bodies:
//!
//! ```text
//! bodies are made at   g_b max(0, s - r/g_h),   heads at   g_h s
//! T* = w/r + the lesser, over both parts, of   (level - w) / (r - made)
//! ```
//!
//! and **B* = r T***. What the model leaves out: the rest of the machine; the little that an idle class
//! gets of a busy core; that a key change throws away the pads of the old key.

/// What was measured before the run. Packets are full ones of the traffic that is predicted for.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Cores that traffic and fillers share.
    pub cores: f64,
    /// The share of every core that a background load takes, 0 to 1.
    pub background: f64,
    /// Fillers on this machine that these packets need pads of: one, or two with both ends here.
    pub fillers: f64,
    /// Pads a filler makes in a CPU second, if it makes nothing else: heads, then bodies; `None` for
    /// a part that these packets do not need.
    pub pads_per_cpu_second: [Option<f64>; 2],
    /// What traffic costs with pads at hand, all ends on this machine together.
    pub traffic: TrafficCost,
    /// Pads at hand before the first byte, of the end that has fewer: heads, then bodies.
    pub level: [f64; 2],
    /// Packets that a full pool serves before its filler wakes.
    pub asleep_packets: f64,
}

/// CPU time of a packet by the rate of packets.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficCost {
    /// Packets a second, and CPU seconds a packet; in the order of the rates, at least one.
    points: Vec<[f64; 2]>,
}

/// What the model says of a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Burst {
    /// The pool is not emptied at this rate.
    Lasts,
    /// It is, after so long and so many packets.
    Dry {
        /// T*, in seconds.
        seconds: f64,
        /// B*, in packets.
        packets: f64,
    },
}

impl TrafficCost {
    /// From rates and costs as measured, at least one; `None` of none, or if a figure is not above zero.
    #[must_use]
    pub fn new(mut points: Vec<[f64; 2]>) -> Option<Self> {
        let positive = |figure: &f64| figure.is_finite() && *figure > 0.0;
        if points.is_empty() || !points.iter().flatten().all(positive) {
            return None;
        }
        points.sort_by(|one, other| one[0].total_cmp(&other[0]));
        Some(Self { points })
    }

    /// CPU seconds a packet at a rate: between two measured rates by the line between the CPU seconds
    /// a second that they take, outside of them as at the nearest.
    #[must_use]
    pub fn at(&self, rate: f64) -> f64 {
        let above = self.points.partition_point(|[at, _]| *at <= rate);
        let (Some(&[low, low_cost]), Some(&[high, high_cost])) =
            (self.points.get(above.wrapping_sub(1)), self.points.get(above))
        else {
            return self.points[above.saturating_sub(1)][1];
        };
        let (low_share, high_share) = (low * low_cost, high * high_cost);
        (low_share + (high_share - low_share) * (rate - low) / (high - low)) / rate
    }

    /// The points as they were measured.
    #[must_use]
    pub fn points(&self) -> &[[f64; 2]] {
        &self.points
    }
}

impl Calibration {
    /// The share of a core that each filler gets beside so many packets a second.
    #[must_use]
    pub fn share(&self, rate: f64) -> f64 {
        let traffic = if rate > 0.0 { rate * self.traffic.at(rate) } else { 0.0 };
        let idle = self.cores * (1.0 - self.background) - traffic;
        (idle.max(0.0) / self.fillers).min(1.0)
    }

    /// CPU seconds that a filler spends on one whole pad.
    fn pad_cost(&self) -> f64 {
        self.pads_per_cpu_second.iter().flatten().map(|pads| 1.0 / pads).sum()
    }

    /// Whole pads made a second beside so many packets a second.
    #[must_use]
    pub fn filled(&self, rate: f64) -> f64 {
        self.share(rate) / self.pad_cost()
    }

    /// R*, in packets a second: 0 if nothing is left for fillers.
    #[must_use]
    pub fn sustained(&self) -> f64 {
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

    /// T* and B* of a rate, from a full pool.
    #[must_use]
    pub fn burst(&self, rate: f64) -> Burst {
        let share = self.share(rate);
        let [heads, bodies] = self.pads_per_cpu_second;
        let head_work = heads.map_or(0.0, |heads| rate / heads);
        let made = [
            heads.map(|heads| share * heads),
            bodies.map(|bodies| (share - head_work).max(0.0) * bodies),
        ];
        let seconds = made
            .into_iter()
            .zip(self.level)
            .filter_map(|(made, level)| self.dry_after(rate, made?, level))
            .fold(f64::INFINITY, f64::min);
        if seconds.is_finite() {
            Burst::Dry { seconds, packets: seconds * rate }
        } else {
            Burst::Lasts
        }
    }

    /// When one part is used up that is being made at so many pads a second.
    fn dry_after(&self, rate: f64, made: f64, level: f64) -> Option<f64> {
        if level <= self.asleep_packets {
            return Some(level / rate);
        }
        let asleep = self.asleep_packets / rate;
        (rate > made).then(|| asleep + (level - self.asleep_packets) / (rate - made))
    }
}

/// Halvings: more than a double has bits.
const BISECTIONS: u32 = 64;

#[cfg(test)]
mod tests;
