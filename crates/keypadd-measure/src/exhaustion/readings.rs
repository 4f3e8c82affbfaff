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
    // The reading before the first packets that lacked pad.
    let mut spell: Option<usize> = None;
    for (at, pair) in settled(readings).enumerate() {
        let Some((before, now)) = pair else {
            spell = None;
            continue;
        };
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

/// Packets that lacked pad, other than right after a key update.
#[must_use]
pub(super) fn lacking(readings: &[Reading]) -> f64 {
    settled(readings).flatten().map(|(before, now)| (now.missed - before.missed) as f64).sum()
}

/// Pads of the level at the start that were used and not made again; zero once the key has changed.
#[must_use]
pub(super) fn used_up(readings: &[Reading]) -> f64 {
    match (readings.first(), readings.last()) {
        (Some(first), Some(last)) if first.phase == last.phase => first.level - last.level,
        _ => 0.0,
    }
}

/// Whether packets lacked pad before half as many were sent as had pads at first: near a key update some of
/// those are the next key's, and a pool that was emptied may have pads for later packets only.
#[must_use]
pub(super) fn begins_in_hole(readings: &[Reading]) -> bool {
    let Some(first) = readings.first() else { return false };
    let lacks = readings.iter().find(|reading| reading.missed > 0);
    lacks.is_some_and(|it| it.phase == first.phase && it.packets as f64 <= first.level / 2.0)
}

/// Neighboring readings; `None` for those right after a key update.
fn settled(readings: &[Reading]) -> impl Iterator<Item = Option<(Reading, Reading)>> {
    let mut rekeyed_at: Option<u64> = None;
    readings.windows(2).map(move |pair| {
        let (before, now) = (pair[0], pair[1]);
        if now.phase != before.phase {
            rekeyed_at = Some(now.packets);
        }
        let is_new = rekeyed_at.is_some_and(|rekeyed| now.packets - rekeyed < REKEY_PACKETS);
        (!is_new).then_some((before, now))
    })
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

/// Above this share of a full pool fillers may have stopped; those that have sleep until its level is below the
/// second.
pub(super) const ASLEEP_ABOVE: f64 = 0.95;
const AWAKE_BELOW: f64 = 0.7;

/// How fast pads were made, from packets and change of the level, over the readings that show it: the same
/// key, no packet that lacked pad, and a level that is neither empty nor tells that fillers sleep beside a pool
/// that holds `full` packets. `None` if these cover too little time.
#[must_use]
pub(super) fn filling(readings: &[Reading], full: f64) -> Option<Filling> {
    let (mut seconds, mut used, mut change) = (0.0, 0.0, 0.0);
    // At first nothing tells since when the level has been where it is.
    let mut asleep = readings.first().is_some_and(|first| first.level >= full * AWAKE_BELOW);
    for pair in readings.windows(2) {
        let (before, now) = (pair[0], pair[1]);
        asleep = now.level >= full * if asleep { AWAKE_BELOW } else { ASLEEP_ABOVE };
        let same = before.phase == now.phase && before.missed == now.missed;
        if same && !asleep && before.level > 0.0 && now.level > 0.0 {
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
    fn packets_that_lacked_pad_are_counted_but_for_those_after_a_key_change() {
        assert_eq!(lacking(&stage(9.0, 1.0, &[])), 0.0);
        assert!((lacking(&stage(1.0, 0.5, &[])) - 150_000.0).abs() < 1000.0);
        let rekeyed = lacking(&stage(1.0, 0.5, &[2.0]));
        assert!((rekeyed - (150_000.0 - REKEY_PACKETS as f64 / 2.0)).abs() < 1000.0, "{rekeyed}");
    }

    #[test]
    fn packets_that_lack_pad_beside_pads_are_in_a_hole_and_those_after_a_key_change_are_not() {
        let at = |dry_from, phases| {
            let mut readings = stage(dry_from, 1.0, phases);
            readings.iter_mut().for_each(|reading| reading.level = 50_000.0);
            begins_in_hole(&readings)
        };
        assert!(at(0.1, &[]));
        assert!(!at(0.1, &[0.05]) && !at(0.4, &[]) && !at(9.0, &[]));
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
        let mut rekeyed = readings.clone();
        rekeyed.iter_mut().filter(|it| it.phase == 0).for_each(|it| it.level += 500.0);
        assert!((filling(&rekeyed, 1e9).unwrap().made - 95_000.0).abs() < 1.0);
        for reading in &mut readings {
            let jump = if reading.phase > 0 { 9000.0 } else { 0.0 };
            reading.level = reading.level.min(4000.0) + jump;
        }
        let made_of = |full| filling(&readings, full).unwrap().made;
        assert!((made_of(4000.0) - 95_000.0).abs() < 1.0, "full, or of the next key");
        assert!((made_of(20_000.0) - 95_000.0).abs() > 1.0, "full is told as steady");
        assert_eq!(filling(&readings[..2], 1e9), None, "too short");
    }

    #[test]
    fn fillers_that_have_filled_a_pool_are_not_read_until_it_is_far_from_full() {
        // Up to full within a second, then asleep, then awake again from 70 % on.
        let levels = (0..100)
            .map(|at| f64::from(at) * 10.0)
            .chain((0..60).map(|at| 1000.0 - f64::from(at) * 10.0));
        let readings: Vec<Reading> = levels
            .enumerate()
            .map(|(at, level)| Reading {
                seconds: at as f64 * 0.01,
                level,
                packets: at as u64 * 100,
                ..Reading::default()
            })
            .collect();
        let Filling { seconds, made, .. } = filling(&readings, 1000.0).unwrap();
        assert!((seconds - 0.94 - 0.29).abs() < 0.03, "{seconds}");
        assert!((made - 11_000.0 + 2000.0 * 0.29 / 1.23).abs() < 100.0, "{made}");
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
