//! Measures the model's inputs before the run: what traffic costs with ready pads, what fillers make
//! beside it, capacity of a full pool, and how much of it is used before its filler wakes.
//!
//! First come bursts from a full pool, each after a rest in which it refills; they give a first estimate of
//! R*. At R* no CPU is idle, and a packet costs more: every wake-up interrupts a filler, and both share
//! caches. So costs for R* are measured in that state, at rates a little below the estimate, from a pool low
//! enough that its fillers never rest; and the rate at which pads become ready, at the end that has fewer: two
//! fillers do not share idle CPU evenly. The cost of traffic is this process's CPU time, minus that of the
//! fillers. Rates are paced, as those of the run are: data offered without a limit travels in larger
//! trains, which cost less.

use std::time::{Duration, Instant};

use keypadd_traffic::Gauges;

use super::finder::{Patience, Subject, bring_to};
use super::model::{Calibration, TrafficCost};
use super::readings::{ASLEEP_ABOVE, filling};
use super::tunnel::{Ended, Tunnel};
use crate::interleave::process_cpu;

/// Share of a full pool used by a burst.
const BURST_SHARE: f64 = 0.6;
/// Maximum time for the bursts of a rate with the rests between them, as a multiple of their own.
const BURST_TIMES_MAX: f64 = 8.0;
/// Rates of the bursts, as shares of the maximum.
const RATES: [f64; 5] = [0.8, 0.5, 0.2, 0.05, 0.01];
/// Rates beside busy fillers, as shares of R* as known by then. The first improves the estimate, the second
/// predicts.
const NEAR: [f64; 2] = [0.8, 0.9];
/// They are at most this share of the maximum, so that they can be paced.
const PACED_MAX: f64 = 0.8;
/// Level at which such a stage begins, as a share of a full pool.
const LEVEL: f64 = 0.25;
/// The level at which it ends if the pool empties, as a share of a full pool.
const LEVEL_MIN: f64 = 0.05;
/// Its first seconds, while data gets going, are left out.
const STARTING: f64 = 0.01;
/// Packets that lack pad in such a stage, as a share of all, above which it is left out: they cost more.
const LACKING_MAX: f64 = 0.01;
/// Time that stages of one rate are to show, as a multiple of a probe's.
const NEAR_PROBES: f64 = 12.0;
/// Maximum time for these stages of one rate, as a multiple of the time that they are to show.
const NEAR_TIMES_MAX: f64 = 4.0;
/// Rate at which the filler is observed waking up, as a share of the maximum.
const WAKING_RATE: f64 = 0.05;

/// Measurements of one arm without a background load.
#[derive(Clone, Debug)]
pub(crate) struct Calibrated {
    /// The model's inputs, but for the load and the level.
    pub model: Calibration,
    /// Maximum packets per second that can be offered.
    pub fastest: f64,
    /// Payload bytes per packet of paced traffic.
    pub packet_bytes: f64,
}

/// Measures; leaves the tunnel with a full pool. `None` if pools do not fill or no packet got through.
pub(crate) fn calibrate(
    tunnel: &mut Tunnel<'_>,
    cores: f64,
    fillers: f64,
    patience: &Patience,
) -> Result<Option<Calibrated>, Ended> {
    tunnel.rest()?;
    let burst_seconds = patience.burst_seconds;
    let mut bursts = Bursts { seconds: burst_seconds, pads: 0.0, filler_cpu: 0.0 };
    let Some(fastest) = bursts.at(tunnel, f64::INFINITY)? else { return Ok(None) };
    (tunnel.fastest, tunnel.packet_bytes) = (fastest.rate, fastest.packet_bytes);
    let mut points = Vec::new();
    for share in RATES {
        let Some(burst) = bursts.at(tunnel, tunnel.fastest * share)? else { return Ok(None) };
        points.push([burst.rate, burst.cpu_per_packet]);
    }
    let asleep_packets = asleep(tunnel, burst_seconds * 10.0)?;
    let filled = bursts.pads > 0.0 && bursts.filler_cpu > 0.0;
    let Some(traffic) = TrafficCost::new(points).filter(|_| filled) else { return Ok(None) };
    let mut model = Calibration {
        cores,
        background: 0.0,
        fillers,
        pads_per_cpu_second: bursts.pads / bursts.filler_cpu,
        beside_fillers: traffic.clone(),
        traffic,
        level: 0.0,
        asleep_packets,
    };
    let full = tunnel.rest()?;
    let seconds = patience.probe_seconds * NEAR_PROBES;
    for share in NEAR {
        let rate = (model.sustained() * share).min(tunnel.fastest * PACED_MAX);
        // A pool too small for its fillers to be busy shows nothing: what bursts showed stays.
        if let Some(near) = Near::at(tunnel, rate, full, seconds)?
            && let Some(beside_fillers) = TrafficCost::new(vec![[near.rate, near.cpu_per_packet]])
        {
            let share = model.share(near.rate * near.cpu_per_packet);
            model.pads_per_cpu_second = near.made / share;
            model.beside_fillers = beside_fillers;
        }
    }
    tunnel.rest()?;
    let packet_bytes = tunnel.packet_bytes;
    Ok(Some(Calibrated { model, fastest: fastest.rate, packet_bytes }))
}

/// Bursts at several rates, and what fillers did during all of them.
struct Bursts {
    /// Seconds of those of one rate. A fast filler lets a pool be emptied many times meanwhile.
    seconds: f64,
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
    fn at(&mut self, tunnel: &mut Tunnel<'_>, rate: f64) -> Result<Option<Burst>, Ended> {
        let (began, most) =
            (Instant::now(), Duration::from_secs_f64(self.seconds * BURST_TIMES_MAX));
        let (mut cpu, mut packets, mut bytes) = (0.0, 0.0, 0.0);
        // Packets and seconds while data was offered, without the last data's way.
        let (mut came, mut seconds) = (0.0, 0.0);
        while seconds < self.seconds && began.elapsed() < most {
            let least = tunnel.rest()? * (1.0 - BURST_SHARE);
            let before = Spent::now(tunnel);
            let readings = tunnel.offer(rate, self.seconds, &mut |readings| {
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

/// A rate beside fillers that do not rest.
struct Near {
    /// Packets per second.
    rate: f64,
    /// CPU seconds per packet, without the fillers'.
    cpu_per_packet: f64,
    /// Pads that became ready per second.
    made: f64,
}

impl Near {
    /// Offers a rate from a low level, again and again, until it has shown for this long how fast pads are made;
    /// `None` if it never did.
    fn at(
        tunnel: &mut Tunnel<'_>,
        rate: f64,
        full: f64,
        seconds: f64,
    ) -> Result<Option<Self>, Ended> {
        let began = Instant::now();
        let (mut cpu, mut packets) = (0.0, 0.0);
        let (mut bytes, mut packets_of_bytes) = (0.0, 0.0);
        let (mut used, mut pads, mut shown) = (0.0, 0.0, 0.0);
        let gauges = tunnel.path().gauges().clone();
        let most = Duration::from_secs_f64(seconds * NEAR_TIMES_MAX);
        while shown < seconds && began.elapsed() < most {
            bring_to(tunnel, full * LEVEL, rate, seconds)?;
            let (bytes_before, packets_before) = (tunnel.sent_bytes(), tunnel.packets());
            // The reading to count from with the CPU time by then, and the CPU time at the last one.
            let (mut first, mut last) = (None, 0.0);
            let readings = tunnel.offer(rate, f64::INFINITY, &mut |readings| {
                let Some(now) = readings.last().filter(|now| now.seconds >= STARTING) else {
                    return false;
                };
                let (from, _) =
                    *first.get_or_insert_with(|| (readings.len() - 1, traffic_cpu(&gauges)));
                let levels = full * LEVEL_MIN..full * ASLEEP_ABOVE;
                let ends =
                    !levels.contains(&now.level) || now.seconds - readings[from].seconds > seconds;
                if ends {
                    last = traffic_cpu(&gauges);
                }
                ends
            })?;
            let Some((from, cpu_before)) = first else { continue };
            let readings = &readings[from..];
            let [Some(before), Some(now)] = [readings.first(), readings.last()] else { continue };
            let Some(filling) = filling(readings, full) else { continue };
            let sent = (now.packets - before.packets) as f64;
            if (now.missed - before.missed) as f64 > sent * LACKING_MAX {
                continue;
            }
            cpu += last - cpu_before;
            packets += sent;
            bytes += (tunnel.sent_bytes() - bytes_before) as f64;
            packets_of_bytes += (tunnel.packets() - packets_before) as f64;
            used += filling.rate * filling.seconds;
            pads += filling.made * filling.seconds;
            shown += filling.seconds;
        }
        if pads <= 0.0 {
            return Ok(None);
        }
        tunnel.packet_bytes = bytes / packets_of_bytes;
        Ok(Some(Self { rate: used / shown, cpu_per_packet: cpu / packets, made: pads / shown }))
    }
}

/// CPU seconds of this process, without the fillers'.
fn traffic_cpu(gauges: &Gauges) -> f64 {
    process_cpu().saturating_sub(gauges.filler_cpu()).as_secs_f64()
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
    fn now(tunnel: &Tunnel<'_>) -> Self {
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

/// Packets that a full pool serves before any filler starts, within so many seconds.
fn asleep(tunnel: &mut Tunnel<'_>, seconds: f64) -> Result<f64, Ended> {
    tunnel.rest()?;
    let gauges = tunnel.path().gauges().clone();
    let filled = gauges.filled_bytes();
    let readings = tunnel
        .offer(tunnel.fastest * WAKING_RATE, seconds, &mut |_| gauges.filled_bytes() != filled)?;
    Ok(readings.last().map_or(0.0, |last| last.packets as f64))
}
