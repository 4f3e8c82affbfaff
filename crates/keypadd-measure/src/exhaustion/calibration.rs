//! Measures the model's inputs before the run: filler speed, cost of traffic with ready pads,
//! capacity of a full pool, and how much of it is used before its filler wakes.
//!
//! Runs bursts from a full pool, each after a rest in which it refills. The cost of traffic is this process's
//! CPU time during them, minus that of the fillers; filler speed is theirs meanwhile: traffic and fillers share
//! caches, and both cost more beside each other. Rates are paced, as those of the run are: data offered without
//! a limit travels in larger trains, which cost less.

use std::time::{Duration, Instant};

use super::finder::Subject;
use super::model::TrafficCost;
use super::tunnel::{Ended, Tunnel};
use crate::interleave::process_cpu;

/// Share of a full pool used by a burst.
const BURST_SHARE: f64 = 0.6;
/// Seconds of bursts per rate. A fast filler lets a pool be emptied many times meanwhile.
const BURST_SECONDS: f64 = 0.5;
/// Maximum time for them with the rests between them.
const BURSTS_MAX: Duration = Duration::from_secs(4);
/// Rates of the bursts, as shares of the maximum.
const RATES: [f64; 5] = [0.8, 0.5, 0.2, 0.05, 0.01];
/// Rate at which the filler is observed waking up, as a share of the maximum.
const WAKING_RATE: f64 = 0.05;

/// Measurements of one arm without a background load.
#[derive(Clone, Debug)]
pub(crate) struct Calibrated {
    /// Whole pads that a filler generates per CPU second beside traffic.
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
    tunnel.rest()?;
    let mut bursts = Bursts::default();
    let Some(fastest) = bursts.at(tunnel, f64::INFINITY)? else { return Ok(None) };
    (tunnel.fastest, tunnel.packet_bytes) = (fastest.rate, fastest.packet_bytes);
    let mut points = Vec::new();
    for share in RATES {
        let Some(burst) = bursts.at(tunnel, tunnel.fastest * share)? else { return Ok(None) };
        points.push([burst.rate, burst.cpu_per_packet]);
    }
    let asleep_packets = asleep(tunnel)?;
    tunnel.rest()?;
    let traffic = TrafficCost::new(points);
    let filled = bursts.pads > 0.0 && bursts.filler_cpu > 0.0;
    Ok(traffic.filter(|_| filled).map(|traffic| Calibrated {
        pads_per_cpu_second: bursts.pads / bursts.filler_cpu,
        traffic,
        asleep_packets,
        fastest: fastest.rate,
        packet_bytes: fastest.packet_bytes,
    }))
}

/// What fillers did during all bursts.
#[derive(Default)]
struct Bursts {
    pads: f64,
    filler_cpu: f64,
}

/// Bursts at one rate.
struct Burst {
    /// Packets per second.
    rate: f64,
    /// CPU seconds per packet, without the fillers'.
    cpu_per_packet: f64,
    packet_bytes: f64,
}

impl Bursts {
    /// Offers a rate, again and again from a full pool. `None` if no packet got through.
    fn at(&mut self, tunnel: &mut Tunnel, rate: f64) -> Result<Option<Burst>, Ended> {
        let began = Instant::now();
        let (mut cpu, mut packets, mut bytes) = (0.0, 0.0, 0.0);
        // Packets and seconds while data was offered, without the last data's way.
        let (mut came, mut seconds) = (0.0, 0.0);
        while seconds < BURST_SECONDS && began.elapsed() < BURSTS_MAX {
            let least = tunnel.rest()? * (1.0 - BURST_SHARE);
            let before = Spent::now(tunnel);
            let readings = tunnel.offer(rate, BURST_SECONDS, &mut |readings| {
                let level = readings.last().map_or(0.0, |now| now.level);
                // One reading shows no rate.
                readings.len() > 1 && level < least
            })?;
            let spent = Spent::now(tunnel);
            let filler_cpu = spent.filler_cpu - before.filler_cpu;
            self.filler_cpu += filler_cpu;
            self.pads += spent.pads - before.pads;
            cpu += spent.cpu - before.cpu - filler_cpu;
            packets += spent.packets - before.packets;
            bytes += spent.bytes - before.bytes;
            if let (Some(first), Some(last)) = (readings.first(), readings.last()) {
                came += (last.packets - first.packets) as f64;
                seconds += last.seconds - first.seconds;
            }
        }
        let (rate, cpu_per_packet) = (came / seconds, cpu / packets);
        let burst = Burst { rate, cpu_per_packet, packet_bytes: bytes / packets };
        Ok((came > 0.0 && packets > 0.0).then_some(burst))
    }
}

/// Counters at one moment.
struct Spent {
    /// CPU seconds of this process.
    cpu: f64,
    filler_cpu: f64,
    pads: f64,
    packets: f64,
    bytes: f64,
}

impl Spent {
    fn now(tunnel: &Tunnel) -> Self {
        let gauges = tunnel.path().gauges();
        Self {
            cpu: process_cpu().as_secs_f64(),
            filler_cpu: gauges.filler_cpu().as_secs_f64(),
            pads: gauges.filled_bytes() as f64 / keypadd_pool::PAD_BYTES as f64,
            packets: tunnel.packets() as f64,
            bytes: tunnel.sent_bytes() as f64,
        }
    }
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
