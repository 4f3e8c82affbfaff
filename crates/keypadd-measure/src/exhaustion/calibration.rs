//! Measures the model's inputs before the run: filler speed, cost of traffic with ready pads,
//! capacity of a full pool, and how much of it is used before its filler wakes.
//!
//! Runs short bursts from a full pool, each followed by a rest in which it refills. CPU time is
//! this process's, minus that of the fillers, from the burst's first byte to the end of the rest.

use super::finder::Subject;
use super::model::TrafficCost;
use super::readings::packet_rate;
use super::tunnel::{Ended, Tunnel};
use crate::interleave::process_cpu;

/// Share of a full pool used by a burst.
const BURST_SHARE: f64 = 0.6;
/// Longest burst, in seconds.
const BURST_SECONDS: f64 = 0.5;
/// Rates of the bursts, as shares of the maximum.
const RATES: [f64; 5] = [1.0, 0.5, 0.2, 0.05, 0.01];
/// Rate at which the filler is observed waking up, as a share of the maximum.
const WAKING_RATE: f64 = 0.05;

/// Measurements of one arm without a background load.
#[derive(Clone, Debug)]
pub(crate) struct Calibrated {
    /// Whole pads that a filler generates per CPU second, while those of all ends here are busy.
    pub pads_per_cpu_second: f64,
    /// Cost of traffic, all ends here together.
    pub traffic: TrafficCost,
    /// Packets that a full pool serves before its filler wakes.
    pub asleep_packets: f64,
    /// Maximum packets per second that can be offered.
    pub fastest: f64,
    /// Payload bytes per packet at full speed.
    pub packet_bytes: f64,
}

/// Measures; leaves the tunnel with a full pool. `None` if pools do not fill or no packet got
/// through.
pub(crate) fn calibrate(tunnel: &mut Tunnel) -> Result<Option<Calibrated>, Ended> {
    let capacity = tunnel.rest()?;
    let (mut points, mut fastest, mut packet_bytes) = (Vec::new(), 0.0, 0.0);
    let filled = tunnel.path().gauges().filled_bytes();
    let filler_cpu = tunnel.path().gauges().filler_cpu();
    for share in RATES {
        tunnel.rest()?;
        let rate = if share < 1.0 { fastest * share } else { f64::INFINITY };
        let before = (traffic_cpu(tunnel), tunnel.packets(), tunnel.sent_bytes());
        let readings = tunnel.offer(rate, BURST_SECONDS, &mut |readings| {
            readings.last().is_some_and(|now| now.packets as f64 > capacity * BURST_SHARE)
        })?;
        tunnel.rest()?;
        let packets = (tunnel.packets() - before.1) as f64;
        let Some(came) = packet_rate(&readings).filter(|came| *came > 0.0) else {
            return Ok(None);
        };
        if share == 1.0 {
            fastest = came;
            packet_bytes = (tunnel.sent_bytes() - before.2) as f64 / packets;
            (tunnel.fastest, tunnel.packet_bytes) = (fastest, packet_bytes);
        }
        points.push([came, (traffic_cpu(tunnel) - before.0) / packets]);
    }
    let gauges = tunnel.path().gauges();
    let pads = (gauges.filled_bytes() - filled) as f64 / keypadd_pool::PAD_BYTES as f64;
    let cpu = (gauges.filler_cpu() - filler_cpu).as_secs_f64();
    let asleep_packets = asleep(tunnel)?;
    tunnel.rest()?;
    let traffic = TrafficCost::new(points);
    Ok(traffic.filter(|_| pads > 0.0 && cpu > 0.0).map(|traffic| Calibrated {
        pads_per_cpu_second: pads / cpu,
        traffic,
        asleep_packets,
        fastest,
        packet_bytes,
    }))
}

/// Packets that a full pool serves before any filler starts.
fn asleep(tunnel: &mut Tunnel) -> Result<f64, Ended> {
    tunnel.rest()?;
    let gauges = tunnel.path().gauges().clone();
    let filled = gauges.filled_bytes();
    let readings = tunnel.offer(tunnel.fastest * WAKING_RATE, BURST_SECONDS * 10.0, &mut |_| {
        gauges.filled_bytes() != filled
    })?;
    Ok(readings.last().map_or(0.0, |last| last.packets as f64))
}

/// CPU seconds of this process minus its fillers'. Exact while they sleep.
fn traffic_cpu(tunnel: &Tunnel) -> f64 {
    process_cpu().saturating_sub(tunnel.path().gauges().filler_cpu()).as_secs_f64()
}
