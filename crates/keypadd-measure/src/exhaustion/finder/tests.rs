//! Tests the search for thresholds with synthetic pools whose thresholds are known.

use super::*;

const STEP_SECONDS: f64 = 0.005;
const PACKET_BYTES: f64 = 1400.0;

/// Pads made per second beside this many packets per second.
type Made = fn(f64) -> f64;

/// A pool that makes pads at a given rate beside the traffic.
struct Synthetic {
    capacity: f64,
    fastest: f64,
    made: Made,
    /// Multiple of that, by seconds since the stage began.
    pace: fn(f64) -> f64,
    /// Packets that lack pad at the beginning of the next stages, one figure per stage.
    holes: Vec<f64>,
    /// Packets by which a refill is seen too late.
    overshoot: f64,
    /// Relative deviation of a step's pads from that.
    noise: f64,
    /// Packets per key; the next key starts with an empty pool.
    phase_packets: Option<f64>,
    random: fastrand::Rng,
    level: f64,
    sent: f64,
    /// Packets that lacked pad.
    missed: f64,
    offers_left: Option<u32>,
}

impl Synthetic {
    fn new(capacity: f64, fastest: f64, made: Made) -> Self {
        Self {
            capacity,
            fastest,
            made,
            pace: |_| 1.0,
            holes: Vec::new(),
            overshoot: 0.0,
            noise: 0.0,
            phase_packets: None,
            random: fastrand::Rng::with_seed(5),
            level: 0.0,
            sent: 0.0,
            missed: 0.0,
            offers_left: None,
        }
    }
}

impl Subject for Synthetic {
    type Ended = &'static str;

    fn fastest(&self) -> f64 {
        self.fastest
    }

    fn refill(&mut self, packets: f64) -> Result<f64, Self::Ended> {
        if (self.made)(0.0) > 0.0 && self.level < packets {
            self.level = (packets + self.overshoot).min(self.capacity);
        }
        Ok(self.level)
    }

    fn offer(
        &mut self,
        rate: f64,
        seconds: f64,
        enough: &mut dyn FnMut(&[Reading]) -> bool,
    ) -> Result<Vec<Reading>, Self::Ended> {
        if let Some(left) = &mut self.offers_left {
            *left = left.checked_sub(1).ok_or("the peer was lost")?;
        }
        let rate = rate.min(self.fastest);
        let phase = |sent: f64, of: Option<f64>| of.map_or(0, |of| (sent / of) as u64);
        let mut readings = vec![Reading {
            level: self.level,
            phase: phase(self.sent, self.phase_packets),
            ..Reading::default()
        }];
        let (mut now, mut sent, mut missed) = (0.0, 0.0, 0.0);
        let mut hole = self.holes.pop().unwrap_or(0.0);
        let mut asleep = self.level > self.capacity * 0.75;
        while now < seconds && !enough(&readings) {
            now += STEP_SECONDS;
            let packets = rate * STEP_SECONDS;
            (sent, self.sent) = (sent + packets, self.sent + packets);
            asleep &= self.level > self.capacity * 0.75;
            let uneven = 1.0 + self.noise * (2.0 * self.random.f64() - 1.0);
            let made = match asleep {
                true => 0.0,
                false => (self.made)(rate) * (self.pace)(now) * STEP_SECONDS * uneven,
            };
            let before = readings[readings.len() - 1].phase;
            let phase = phase(self.sent, self.phase_packets);
            if phase != before {
                self.level = 0.0;
            }
            let level = self.level + made - packets;
            missed += (-level).clamp(0.0, packets) + hole.min(packets);
            hole = (hole - packets).max(0.0);
            self.level = level.clamp(self.level.min(0.0), self.capacity);
            readings.push(Reading {
                seconds: now,
                level: self.level.max(0.0),
                packets: sent as u64,
                missed: missed as u64,
                delivered_bytes: (sent * PACKET_BYTES) as u64,
                phase,
            });
        }
        self.missed += missed;
        Ok(readings)
    }
}

const PATIENCE: Patience =
    Patience { burst_seconds: 0.5, probe_seconds: 1.0, stage_seconds: 8.0, after_seconds: 1.0 };

fn found(pool: &mut Synthetic) -> (f64, f64, f64) {
    found_with(pool, &PATIENCE)
}

fn found_with(pool: &mut Synthetic, patience: &Patience) -> (f64, f64, f64) {
    let found = find(pool, patience).unwrap();
    match found.sustained {
        Sustained::Found { rate, lasts: Some(lasts), runs_dry: Some(runs_dry) } => {
            (rate, lasts, runs_dry)
        }
        other => panic!("{other:?} after {:?}", found.tried),
    }
}

#[test]
fn a_known_threshold_is_found_and_confirmed_from_both_sides() {
    let pools: [(f64, f64, Made); 6] = [
        (7_000.0, 150_000.0, |_| 7_000.0),
        (60_000.0, 150_000.0, |_| 60_000.0),
        (140_000.0, 150_000.0, |_| 140_000.0),
        (400.0, 150_000.0, |_| 400.0),
        // Traffic takes from the fillers: 100,000 - r / 2 = r at two thirds of it.
        (100_000.0 / 1.5, 150_000.0, |rate| (100_000.0 - rate / 2.0).max(0.0)),
        // And all of it: nothing is made at the fastest rate.
        (80_000.0 / 1.6, 300_000.0, |rate| (80_000.0 - 0.6 * rate).max(0.0)),
    ];
    for (threshold, fastest, made) in pools {
        for capacity in [4096.0, 32_768.0] {
            for noise in [0.0, 0.3] {
                let mut pool = Synthetic { noise, ..Synthetic::new(capacity, fastest, made) };
                // Few packets take long to use up a level.
                let stage_seconds = PATIENCE.stage_seconds.max(24_000.0 / threshold);
                let patience = Patience { stage_seconds, ..PATIENCE };
                let (rate, lasts, runs_dry) = found_with(&mut pool, &patience);
                let case = format!("{threshold} with {capacity} packets and noise {noise}");
                assert!((rate / threshold - 1.0).abs() < 0.02, "{rate} instead of {case}");
                assert!(lasts < threshold && threshold < runs_dry, "{lasts} {runs_dry}: {case}");
                assert!(runs_dry / lasts < 1.15, "{lasts} {runs_dry}: {case}");
            }
        }
    }
}

#[test]
fn a_guess_at_which_the_pool_cannot_be_emptied_is_raised() {
    // Nothing is made at the fastest rate, which says little of the threshold.
    let made: Made = |rate| (540_000.0 - 2.0 * rate).max(0.0);
    let mut pool = Synthetic { overshoot: 2000.0, ..Synthetic::new(32_768.0, 300_000.0, made) };
    let (rate, lasts, runs_dry) = found(&mut pool);
    assert!((rate / 180_000.0 - 1.0).abs() < 0.02, "{rate}");
    assert!(runs_dry / lasts < 1.15, "{lasts} {runs_dry}");
}

#[test]
fn key_changes_that_empty_the_pool_do_not_move_the_threshold() {
    for made in [(|_| 7_000.0) as Made, |_| 90_000.0] {
        let mut pool = Synthetic {
            phase_packets: Some(65_536.0),
            noise: 0.1,
            ..Synthetic::new(32_768.0, 150_000.0, made)
        };
        let (rate, _, _) = found(&mut pool);
        assert!((rate / made(0.0) - 1.0).abs() < 0.03, "{rate}");
    }
}

#[test]
fn a_filler_that_is_absent_for_a_moment_does_not_make_a_rate_run_dry() {
    // Longer than a nearly empty pool lasts, once a second.
    let pace = |now: f64| if (0.02..0.09).contains(&(now % 1.0)) { 0.0 } else { 1.0 };
    let mut pool = Synthetic { pace, ..Synthetic::new(32_768.0, 150_000.0, |_| 60_000.0) };
    let (rate, lasts, runs_dry) = found(&mut pool);
    assert!((rate / (60_000.0 * 0.93) - 1.0).abs() < 0.02, "{rate}");
    assert!(runs_dry / lasts < 1.1, "{lasts} {runs_dry}");
}

#[test]
fn a_stage_that_begins_in_a_hole_is_repeated() {
    let mut pool = Synthetic::new(32_768.0, 150_000.0, |_| 60_000.0);
    // Taken from the end: the first stage, and then every third.
    pool.holes = (0..199).map(|nth| if nth % 3 == 0 { 20_000.0 } else { 0.0 }).collect();
    let (rate, lasts, runs_dry) = found(&mut pool);
    assert!((rate / 60_000.0 - 1.0).abs() < 0.02, "{rate}");
    assert!(runs_dry / lasts < 1.1, "{lasts} {runs_dry}");
}

#[test]
fn a_hole_tells_neither_that_the_fastest_rate_empties_the_pool_nor_which_rate_does() {
    let mut pool = Synthetic::new(32_768.0, 150_000.0, |_| 151_000.0);
    pool.holes = vec![20_000.0];
    let found = find(&mut pool, &PATIENCE).unwrap();
    assert!(matches!(found.sustained, Sustained::AtLeast { .. }), "{found:?}");

    let mut pool = Synthetic::new(32_768.0, 150_000.0, |_| 60_000.0);
    // Taken from the end: the first stage, and the first probe.
    pool.holes = vec![20_000.0, 0.0];
    let [first, hole, next, ..] = find(&mut pool, &PATIENCE).unwrap().tried[..] else { panic!() };
    assert!(hole.hole && hole.made.is_none(), "{hole:?}");
    let guess = first.guess();
    assert!((hole.rate / (AROUND[0] * guess) - 1.0).abs() < 0.01, "{hole:?} {guess}");
    assert!((next.rate / (AROUND[1] * guess) - 1.0).abs() < 0.01, "{next:?} {guess}");
}

#[test]
fn a_pool_is_emptied_also_at_a_rate_that_lasts_and_not_beyond_the_level() {
    for level in [16_000.0, 512.0] {
        let mut pool = Synthetic::new(32_000.0, 150_000.0, |_| 10_000.0);
        pool.level = pool.capacity;
        assert_eq!(bring_to(&mut pool, level, 9_000.0, 8.0), Ok(true), "{level}");
        assert_eq!((pool.level, pool.missed), (level, 0.0));
    }
}

#[test]
fn long_stages_that_contradict_the_line_move_the_threshold() {
    for (short, long) in [(1.1, 1.0), (1.0, 1.1)] {
        let pace: fn(f64) -> f64 = match short > long {
            true => |now| if now < 1.1 { 1.1 } else { 1.0 },
            false => |now| if now < 1.1 { 1.0 } else { 1.1 },
        };
        let mut pool = Synthetic { pace, ..Synthetic::new(32_768.0, 150_000.0, |_| 60_000.0) };
        let (rate, lasts, runs_dry) = found(&mut pool);
        assert!((rate / (60_000.0 * long) - 1.0).abs() < 0.04, "{rate} instead of {long}");
        assert!(lasts <= rate && rate <= runs_dry, "{lasts} {rate} {runs_dry}");
    }
}

#[test]
fn the_line_never_rises_and_hardly_heeds_rates_far_off() {
    let crossing = |points: &[(f64, f64)]| {
        let tried =
            |&(rate, made)| Tried { rate, made: Some(made), seconds: 1.0, dry: false, hole: false };
        crossing(&points.iter().map(tried).collect::<Vec<_>>(), 100.0).unwrap()
    };
    assert!((crossing(&[(90.0, 110.0), (110.0, 90.0)]) - 100.0).abs() < 1e-9);
    assert!((crossing(&[(90.0, 100.0), (110.0, 110.0)]) - 105.0).abs() < 1e-9);
    assert!((crossing(&[(95.0, 105.0), (105.0, 95.0), (300.0, 200.0)]) - 100.0).abs() < 1.0);
}

#[test]
fn a_threshold_beyond_what_can_be_offered_is_not_made_up() {
    let mut pool = Synthetic::new(32_768.0, 150_000.0, |_| 151_000.0);
    let found = find(&mut pool, &PATIENCE).unwrap();
    let Sustained::AtLeast { rate } = found.sustained else { panic!("{found:?}") };
    assert!((rate / 150_000.0 - 1.0).abs() < 0.001, "{rate}");
    assert_eq!(found.tried.len(), 1);
}

#[test]
fn a_pool_that_never_fills_is_offered_nothing() {
    let mut pool =
        Synthetic { offers_left: Some(0), ..Synthetic::new(32_768.0, 150_000.0, |_| 0.0) };
    let found = find(&mut pool, &PATIENCE).unwrap();
    assert_eq!(found.sustained, Sustained::NeverFills);
    assert_eq!(found.capacity, 0.0);
}

#[test]
fn a_burst_lasts_as_long_as_level_and_rates_say() {
    let mut pool = Synthetic::new(32_768.0, 150_000.0, |_| 10_000.0);
    let burst = burst(&mut pool, 50_000.0, &PATIENCE).unwrap();
    let dry = burst.dry.unwrap();
    // A quarter with the filler asleep, the rest at 40,000 a second.
    let seconds = 8192.0 / 50_000.0 + 24_576.0 / 40_000.0;
    assert!((dry.seconds / seconds - 1.0).abs() < 0.01, "{dry:?} instead of {seconds}");
    assert!((dry.packets / (50_000.0 * seconds) - 1.0).abs() < 0.01, "{dry:?}");
    assert!((burst.bytes / (dry.packets * PACKET_BYTES) - 1.0).abs() < 0.02, "{}", burst.bytes);
    assert!((burst.rate / 50_000.0 - 1.0).abs() < 0.01);
    assert!((burst.speed_after.unwrap() / 70e6 - 1.0).abs() < 0.01);
    let last = burst.readings.last().unwrap().seconds;
    assert!((0.9..1.2).contains(&(last - dry.seconds)), "read until {last}");
}

#[test]
fn a_burst_below_the_threshold_lasts() {
    let mut pool = Synthetic::new(32_768.0, 150_000.0, |_| 10_000.0);
    let burst = burst(&mut pool, 9_900.0, &PATIENCE).unwrap();
    assert_eq!(burst.dry, None);
    assert_eq!(burst.speed_after, None);
}

#[test]
fn a_subject_that_ends_ends_the_search() {
    for offers in [0, 1, 3] {
        let mut pool =
            Synthetic { offers_left: Some(offers), ..Synthetic::new(4096.0, 1e5, |_| 7000.0) };
        assert_eq!(find(&mut pool, &PATIENCE), Err("the peer was lost"));
    }
}
