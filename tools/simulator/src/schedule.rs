//! Derives a run from its seed: network weather, traffic, memory, key updates.

use std::time::Duration;

use fastrand::Rng;
use keypadd_pool::HEAD_BYTES;

/// How a connection's application writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A few bytes at a time.
    Terminal,
    /// As much as the transport takes.
    Bulk,
    /// Alternating.
    Mixed,
}

/// How the network treats datagrams; probabilities in per mille.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) loss: u32,
    pub(crate) doubling: u32,
    pub(crate) corruption: u32,
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    /// Share of datagrams that arrive much later than the others.
    pub(crate) straggling: u32,
    pub(crate) straggle: Duration,
    /// Larger datagrams are lost.
    pub(crate) mtu: usize,
}

/// A whole run's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) weather: Weather,
    pub(crate) styles: [Style; 2],
    /// Pool memory of each end, bytes.
    pub(crate) budget_bytes: [usize; 2],
    /// Packets on the wire before writing stops.
    pub(crate) packets: u64,
    /// Maximum packets per phase.
    pub(crate) phase_packets: u64,
    /// A key update is forced in one of this many wake-ups of an application.
    pub(crate) update_one_in: u32,
    /// Datagrams per send (GSO).
    pub(crate) batch: usize,
    /// Constant congestion window, in bytes.
    pub(crate) window_bytes: u64,
    pub(crate) packet_threshold: u32,
    /// Connections in the run, two at a time; all but the last are cut off midway.
    pub(crate) connections: usize,
    /// Maximum filler steps after each datagram while a filler works.
    pub(crate) steps: u32,
    /// Maximum datagrams between a filler's changes of mood.
    pub(crate) mood: u32,
    pub(crate) rebinds: u32,
    /// Changes of either end's budget.
    pub(crate) resizes: u32,
    /// Times that a connection leaves its pool for a while.
    pub(crate) switches: u32,
}

/// The pool's unit: a chunk of heads.
const UNIT_BYTES: usize = 64 * HEAD_BYTES;

impl Schedule {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let millis = |rng: &mut Rng, range: std::ops::Range<u64>| {
            Duration::from_micros(rng.u64(range.start * 1000..range.end * 1000))
        };
        // Every third network is calm: faults must not hide what traffic alone does.
        let calm = rng.u32(0..3) == 0;
        let weather = Weather {
            loss: if calm { 0 } else { [5, 20, 80, 300][rng.usize(0..4)] },
            doubling: rng.u32(0..60),
            corruption: if calm { 0 } else { rng.u32(0..30) },
            delay: millis(rng, 1..6),
            jitter: millis(rng, 0..3),
            straggling: rng.u32(20..120),
            straggle: millis(rng, 5..30),
            mtu: [1200, 1300, 1452, 1500][rng.usize(0..4)],
        };
        let style = |rng: &mut Rng| match rng.u32(0..4) {
            0 => Style::Terminal,
            1 => Style::Bulk,
            _ => Style::Mixed,
        };
        Self {
            weather,
            styles: [style(rng), style(rng)],
            budget_bytes: [Self::draw_budget(rng), Self::draw_budget(rng)],
            packets: rng.u64(500..1000),
            phase_packets: rng.u64(60..260),
            update_one_in: rng.u32(2..60),
            batch: [1, 1, 4, 10][rng.usize(0..4)],
            window_bytes: rng.u64(20..300) * 1200,
            packet_threshold: [3, 32, 128][rng.usize(0..3)],
            connections: [1, 1, 2, 3][rng.usize(0..4)],
            steps: rng.u32(1..6),
            mood: rng.u32(50..500),
            rebinds: rng.u32(0..3),
            resizes: rng.u32(0..3),
            switches: rng.u32(0..3),
        }
    }

    /// From a budget without room for a body to one with room for a few per lane.
    pub(crate) fn draw_budget(rng: &mut Rng) -> usize {
        [rng.usize(12..40), rng.usize(40..200)][rng.usize(0..2)] * UNIT_BYTES
    }
}
