//! Records pool level, misses and deliveries during a stage, and derives when the pool ran dry, the
//! fill rate and the throughput. Pure.

/// The state at one moment of a stage; all but level and phase count from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Time, in seconds.
    pub seconds: f64,
    /// Packets whose whole pad is ready, at the end that has fewer.
    pub level: f64,
    /// Packets sent, with or without a whole pad.
    pub packets: u64,
    /// Packets without a whole pad, at the end that has more of them.
    pub missed: u64,
    /// Payload that has arrived.
    pub delivered_bytes: u64,
    /// The key phase in use.
    pub phase: u64,
}

/// A pool is dry once this many packets have lacked pad, four chunks. Single ones may at any time:
/// a retransmission that changes a packet's number, a chunk filled for past numbers.
pub(super) const DRY_PACKETS: u64 = 256;
/// They must be at least this share of all packets since the first of them: a little above R* few
/// packets lack pad, but they keep lacking it.
pub(super) const DRY_SHARE: f64 = 0.01;
/// Packets after a key update in which the new key's pads may still be missing.
pub(super) const REKEY_PACKETS: u64 = 8192;

/// When the pool ran dry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dry {
    /// The reading that shows it.
    pub index: usize,
    /// T*: when the last packets with pads were sent, in seconds.
    pub seconds: f64,
    /// B*: packets with pads until then.
    pub packets: f64,
}

/// When the pool ran dry, if it did. Ignores packets that lack pad right after a key update.
#[must_use]
pub(super) fn ran_dry(readings: &[Reading]) -> Option<Dry> {
    let mut rekeyed_at: Option<u64> = None;
    // The reading before the first packets that lacked pad.
    let mut spell: Option<usize> = None;
    for (at, pair) in readings.windows(2).enumerate() {
        let (before, now) = (pair[0], pair[1]);
        if now.phase != before.phase {
            rekeyed_at = Some(now.packets);
        }
        if rekeyed_at.is_some_and(|rekeyed| now.packets - rekeyed < REKEY_PACKETS) {
            spell = None;
            continue;
        }
        if spell.is_none() && now.missed > before.missed {
            spell = Some(at);
        }
        let Some(begin) = spell else { continue };
        let missed = now.missed - readings[begin].missed;
        if (missed as f64) < DRY_SHARE * (now.packets - readings[begin].packets) as f64 {
            spell = None;
        } else if missed >= DRY_PACKETS {
            return Some(dry_from(begin, &readings[begin..=at + 1]));
        }
    }
    None
}

/// Time within the first interval of a dry spell, from the packets that still had pads.
fn dry_from(index: usize, spell: &[Reading]) -> Dry {
    let (before, now) = (spell[0], spell[1]);
    let packets = (now.packets - before.packets) as f64;
    let with_pads = packets - (now.missed - before.missed) as f64;
    let within = (now.seconds - before.seconds) * with_pads / packets;
    Dry {
        index: index + 1,
        seconds: before.seconds + within,
        packets: (before.packets - before.missed) as f64 + with_pads,
    }
}

/// Packets per second over a stage; `None` if no time passed.
#[must_use]
pub(super) fn packet_rate(readings: &[Reading]) -> Option<f64> {
    rate(readings, |reading| reading.packets as f64)
}

/// Payload received, in bytes per second; `None` if no time passed.
#[must_use]
pub(super) fn speed(readings: &[Reading]) -> Option<f64> {
    rate(readings, |reading| reading.delivered_bytes as f64)
}

fn rate(readings: &[Reading], of: impl Fn(&Reading) -> f64) -> Option<f64> {
    let (first, last) = (readings.first()?, readings.last()?);
    let seconds = last.seconds - first.seconds;
    (seconds > 0.0).then(|| (of(last) - of(first)) / seconds)
}

/// How fast pads were made beside the packets that used them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Filling {
    /// How long this was seen.
    pub seconds: f64,
    /// Packets per second meanwhile.
    pub rate: f64,
    /// Pads made per second.
    pub made: f64,
}

/// Shortest time that shows how fast pads are made: a few turns of the scheduler.
const FILLING_SECONDS_MIN: f64 = 0.02;

/// How fast pads were made, from packets and change of the level, over the readings that show it: the same
/// key, no packet that lacked pad, and a level neither empty nor above `most`, where fillers sleep. `None` if
/// these cover too little time.
#[must_use]
pub(super) fn filling(readings: &[Reading], most: f64) -> Option<Filling> {
    let telling = |reading: &Reading| reading.level > 0.0 && reading.level < most;
    let (mut seconds, mut used, mut change) = (0.0, 0.0, 0.0);
    for pair in readings.windows(2) {
        let (before, now) = (pair[0], pair[1]);
        let same = before.phase == now.phase && before.missed == now.missed;
        if same && telling(&before) && telling(&now) {
            seconds += now.seconds - before.seconds;
            used += (now.packets - before.packets) as f64;
            change += now.level - before.level;
        }
    }
    let (rate, made) = (used / seconds, (used + change) / seconds);
    (seconds >= FILLING_SECONDS_MIN).then_some(Filling { seconds, rate, made })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings every 10 ms at 1,000 packets per second; from a given time on, a share lacks pad.
    fn stage(dry_from: f64, share: f64, phases: &[f64]) -> Vec<Reading> {
        let mut missed = 0.0;
        (0..400)
            .map(|at| {
                let seconds = f64::from(at) * 0.01;
                let dry = (seconds - dry_from).clamp(0.0, 0.01);
                missed += dry * 100_000.0 * share;
                Reading {
                    seconds,
                    level: (1.0 - seconds).max(0.0) * 5000.0,
                    packets: at as u64 * 1000,
                    missed: missed as u64,
                    delivered_bytes: at as u64 * 1_400_000,
                    phase: phases.iter().filter(|change| **change <= seconds).count() as u64,
                }
            })
            .collect()
    }

    #[test]
    fn the_moment_is_found_within_a_reading() {
        let dry = ran_dry(&stage(1.0, 1.0, &[])).unwrap();
        assert!((dry.seconds - 1.0).abs() < 0.002, "{dry:?}");
        assert!((dry.packets - 100_000.0).abs() < 200.0, "{dry:?}");
        let dry = ran_dry(&stage(1.0035, 1.0, &[])).unwrap();
        assert!((dry.seconds - 1.0035).abs() < 0.002, "{dry:?}");
    }

    #[test]
    fn a_few_misses_are_not_a_dry_pool_unless_they_persist() {
        assert_eq!(ran_dry(&stage(1.0, 0.009, &[])), None);
        assert!((ran_dry(&stage(1.0, 0.03, &[])).unwrap().seconds - 1.0).abs() < 0.02);
        let mut three_chunks = stage(9.0, 1.0, &[]);
        for reading in &mut three_chunks {
            reading.missed = (reading.seconds as u64).min(3) * 64;
        }
        assert_eq!(ran_dry(&three_chunks), None);
    }

    #[test]
    fn misses_at_a_key_change_are_not_dryness_unless_they_outlast_it() {
        let mut rekeyed = stage(9.0, 1.0, &[1.0]);
        rekeyed.iter_mut().filter(|reading| reading.seconds > 1.02).for_each(|r| r.missed = 3000);
        assert_eq!(ran_dry(&rekeyed), None);
        let dry = ran_dry(&stage(1.0, 1.0, &[1.0])).unwrap();
        assert!((1.05..1.2).contains(&dry.seconds), "{dry:?}");
    }

    #[test]
    fn how_fast_pads_are_made_is_read_neither_from_full_and_empty_pools_nor_across_key_changes() {
        let mut readings = stage(9.0, 0.0, &[0.5]);
        assert!((filling(&readings, 1e9).unwrap().made - 95_000.0).abs() < 1.0);
        for reading in &mut readings {
            let jump = if reading.phase > 0 { 9000.0 } else { 0.0 };
            reading.level = reading.level.min(4000.0) + jump;
        }
        let made_below = |most| filling(&readings, most).unwrap().made;
        assert!((made_below(3999.0) - 95_000.0).abs() < 1.0, "full, or of the next key");
        assert!((made_below(20_000.0) - 95_000.0).abs() > 1.0, "full is told as steady");
        assert_eq!(filling(&readings[..2], 1e9), None, "too short");
    }

    #[test]
    fn packets_that_lack_pad_do_not_count_as_pads_made() {
        let lacking = stage(0.3, 0.5, &[]);
        let Filling { seconds, rate, made } = filling(&lacking, 1e9).unwrap();
        assert!((seconds - 0.3).abs() < 0.011, "{seconds}");
        assert!((rate - 100_000.0).abs() < 1.0 && (made - 95_000.0).abs() < 1.0, "{rate} {made}");
    }

    #[test]
    fn rates_are_those_between_the_first_and_the_last_reading() {
        let readings = stage(9.0, 0.0, &[]);
        assert!((packet_rate(&readings).unwrap() - 100_000.0).abs() < 1.0);
        assert!((speed(&readings[100..200]).unwrap() - 140e6).abs() < 1e3);
        assert_eq!(packet_rate(&readings[..1]), None);
    }
}
