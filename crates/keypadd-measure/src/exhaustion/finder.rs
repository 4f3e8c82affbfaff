//! Finds by trial the rate at which a pool runs dry. Knows no tunnel and no prediction, only a
//! [`Subject`] that takes packets at a rate.
//!
//! R* is the rate at which pads are made as fast as they are used. A short stage at any rate shows
//! how fast they are made beside it, from packets and level. R* is where the line through all stages,
//! by least squares, meets the rate: idle CPU comes unevenly, so no single stage decides. The result
//! is then confirmed by longer stages from a nearly empty pool, which cannot live on reserves: one a
//! little below must last, one a little above must run dry. Where they contradict the line, they are
//! moved until R* lies between them, and the nearer one counts.

use super::readings::{
    DRY_PACKETS, DRY_SHARE, Dry, Reading, begins_in_hole, filling, lacking, packet_rate, ran_dry,
    speed, used_up,
};

/// A pool under traffic.
pub(super) trait Subject {
    /// Why a stage was cut short: the user stopped it, or the peer was lost.
    type Ended;

    /// Maximum packets per second that can be offered.
    fn fastest(&self) -> f64;

    /// Waits without traffic until this many packets have their pads ready, or the level stops
    /// rising; returns the level, in packets.
    ///
    /// # Errors
    ///
    /// When it was stopped.
    fn refill(&mut self, packets: f64) -> Result<f64, Self::Ended>;

    /// Offers this many packets per second, for this many seconds or until `enough` accepts the
    /// readings so far.
    ///
    /// # Errors
    ///
    /// When it was stopped.
    fn offer(
        &mut self,
        rate: f64,
        seconds: f64,
        enough: &mut dyn FnMut(&[Reading]) -> bool,
    ) -> Result<Vec<Reading>, Self::Ended>;
}

/// Durations of calibration and search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// Seconds of bursts from a full pool, per rate of the calibration.
    pub burst_seconds: f64,
    /// Seconds of a stage that measures how fast pads are made.
    pub probe_seconds: f64,
    /// Seconds of the longest stage: a pool that is not dry by then lasts.
    pub stage_seconds: f64,
    /// Seconds that a burst continues after the pool is dry.
    pub after_seconds: f64,
}

/// R*, in packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sustained {
    /// The pool never fills, even without traffic.
    NeverFills,
    /// The maximum traffic does not empty it.
    AtLeast {
        /// The rate that it reached.
        rate: f64,
    },
    /// Pads are made as fast as they are used.
    Found {
        /// The rate.
        rate: f64,
        /// A rate at which a nearly empty pool lasted; `None` if it lasted at none that was tried.
        lasts: Option<f64>,
        /// A rate at which it ran dry; `None` if it did so at none that was tried.
        runs_dry: Option<f64>,
    },
}

impl Sustained {
    /// The rates that confirm R*: one that lasted, one that ran dry.
    pub(super) fn sides(&self) -> [Option<f64>; 2] {
        match *self {
            Self::Found { lasts, runs_dry, .. } => [lasts, runs_dry],
            Self::NeverFills | Self::AtLeast { .. } => [None, None],
        }
    }
}

/// A rate that was tried, for the plot of rates against levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tried {
    /// Packets per second, as measured.
    pub rate: f64,
    /// Pads made per second beside them, if the level showed it.
    pub made: Option<f64>,
    /// How long it showed it, in seconds.
    pub seconds: f64,
    /// Whether the pool ran dry.
    pub dry: bool,
    /// Whether it ended at once, because the ready pads were not those of its packets.
    pub hole: bool,
}

impl Tried {
    /// What this stage alone says of R*: as more traffic never speeds filling up, it lies between the rate
    /// and what is made beside it.
    fn guess(&self) -> f64 {
        match self.made {
            Some(made) => (self.rate * made.max(self.rate * LEAST_SHARE)).sqrt(),
            None if self.dry => self.rate / 2.0,
            None => self.rate * 2.0,
        }
    }
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// Level of a full pool, in packets.
    pub capacity: f64,
    /// R*.
    pub sustained: Sustained,
    /// All rates tried.
    pub tried: Vec<Tried>,
}

/// A burst from a full pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BurstFound {
    /// Packets per second while pads lasted.
    pub rate: f64,
    /// T* and B*; `None` if the pool lasted.
    pub dry: Option<Dry>,
    /// Payload bytes up to then.
    pub bytes: f64,
    /// The speed after, in bytes per second; `None` if the pool lasted.
    pub speed_after: Option<f64>,
    /// All readings.
    pub readings: Vec<Reading>,
}

/// As many packets as fit.
const FULL: f64 = f64::INFINITY;
/// A pool that holds fewer packets than this without traffic counts as not filling: four chunks.
const LEAST_PACKETS: f64 = 256.0;
/// Stages that look for R*, as far as each shows for its whole length how fast pads are made; at most
/// [`PROBES_MAX`].
const PROBES: f64 = 16.0;
/// Maximum stages that look for R*.
const PROBES_MAX: usize = 32;
/// Rates of these stages in turn, as multiples of R* as known by then: a line needs points apart.
const AROUND: [f64; 3] = [1.0, 0.9, 1.1];
/// A stage whose rate is off R* by this share counts half in the line: CPU time per packet, and with
/// it what fillers get, is a line only near R*.
const NEAR: f64 = 0.2;
/// The least that pads made beside the fastest rate say about R*, as a share of that rate.
const LEAST_SHARE: f64 = 0.01;
/// Distances of confirming stages from the line's R*, as shares of it; the next ones while R* does not lie
/// between two stages.
const MARGINS: [f64; 3] = [0.03, 0.06, 0.12];
/// Level at which a probe starts, as a share of a full pool: its filler is awake.
const PROBE_LEVEL: f64 = 0.5;
/// Level at which a confirming stage starts: this many packets, or traffic of this many seconds, in
/// which a filler may not be scheduled; at most half a full pool.
const LOW_PACKETS: f64 = 512.0;
const LOW_SECONDS: f64 = 0.02;
/// Repetitions of a stage that began in a hole.
const HOLES_MAX: usize = 4;
/// Rate at which a pool is emptied, as a multiple of the rate of the stage that follows.
const EMPTYING: f64 = 4.0;

/// Finds R*.
///
/// # Errors
///
/// When the subject was stopped.
pub(super) fn find<S: Subject>(subject: &mut S, patience: &Patience) -> Result<Found, S::Ended> {
    let capacity = subject.refill(FULL)?;
    let mut search = Search { subject, patience, capacity, tried: Vec::new() };
    let sustained = if capacity < LEAST_PACKETS { Sustained::NeverFills } else { search.run()? };
    Ok(Found { capacity, sustained, tried: search.tried })
}

/// Runs a burst at a rate, from a full pool until a while after it is dry.
///
/// # Errors
///
/// When the subject was stopped.
pub(super) fn burst<S: Subject>(
    subject: &mut S,
    rate: f64,
    patience: &Patience,
) -> Result<BurstFound, S::Ended> {
    subject.refill(FULL)?;
    let mut end = None;
    let Patience { stage_seconds, after_seconds, .. } = *patience;
    let readings = subject.offer(rate, stage_seconds + after_seconds, &mut |readings| {
        let now = readings.last().map_or(0.0, |reading| reading.seconds);
        if end.is_none() && (ran_dry(readings).is_some() || now >= stage_seconds) {
            end = Some(now + after_seconds);
        }
        end.is_some_and(|end| now >= end)
    })?;
    let dry = ran_dry(&readings);
    let index = dry.map_or(readings.len(), |dry| dry.index);
    let (full, after) = readings.split_at(index.min(readings.len()));
    Ok(BurstFound {
        rate: packet_rate(full).unwrap_or(rate),
        dry,
        bytes: full.last().map_or(0.0, |reading| reading.delivered_bytes as f64),
        speed_after: dry.and_then(|_| speed(after)),
        readings,
    })
}

struct Search<'a, S> {
    subject: &'a mut S,
    patience: &'a Patience,
    capacity: f64,
    tried: Vec<Tried>,
}

impl<S: Subject> Search<'_, S> {
    fn run(&mut self) -> Result<Sustained, S::Ended> {
        let fastest = self.subject.fastest();
        let stage = self.long_stage(FULL, fastest)?;
        if !stage.dry && !stage.hole {
            return Ok(Sustained::AtLeast { rate: stage.rate });
        }
        let (mut guess, mut seconds) = (stage.guess(), 0.0);
        for nth in 0..PROBES_MAX {
            let rate = guess * AROUND[nth % AROUND.len()];
            let Some(stage) = self.probe(rate)? else {
                // The pool lasted at the rate that was to empty it.
                let lasted = rate * EMPTYING;
                if lasted >= fastest {
                    break;
                }
                guess = lasted;
                continue;
            };
            guess = match crossing(&self.tried, guess) {
                Some(rate) => rate.min(fastest),
                // A stage that began in a hole says nothing.
                None if stage.hole => guess,
                None => stage.guess().min(fastest),
            };
            seconds += stage.seconds;
            if seconds >= PROBES * self.patience.probe_seconds {
                break;
            }
        }
        self.confirm(guess)
    }

    /// Tries rates a little below and a little above, and farther off until R* lies between a rate that
    /// lasted and one that ran dry.
    fn confirm(&mut self, rate: f64) -> Result<Sustained, S::Ended> {
        let (mut lasts, mut runs_dry): (Option<f64>, Option<f64>) = (None, None);
        let low = LOW_PACKETS.max(rate * LOW_SECONDS).min(self.capacity / 2.0);
        for margin in MARGINS {
            for to in [rate * (1.0 - margin), rate * (1.0 + margin)] {
                let is_known =
                    lasts.is_some_and(|it| to <= it) || runs_dry.is_some_and(|it| to >= it);
                if is_known || lasts.is_some() && runs_dry.is_some() {
                    continue;
                }
                let stage = self.long_stage(low, to)?;
                *(if stage.dry { &mut runs_dry } else { &mut lasts }) = Some(to);
            }
        }
        // The stages decide where they contradict the line.
        let rate = rate.max(lasts.unwrap_or(rate)).min(runs_dry.unwrap_or(rate));
        Ok(Sustained::Found { rate, lasts, runs_dry })
    }

    /// Runs a long stage from a level; again if that began in a hole.
    fn long_stage(&mut self, level: f64, rate: f64) -> Result<Tried, S::Ended> {
        let seconds = self.patience.stage_seconds;
        for _ in 0..HOLES_MAX {
            bring_to(self.subject, level, rate, seconds)?;
            let stage = self.stage(rate, seconds)?;
            if !stage.hole {
                return Ok(stage);
            }
            self.subject.refill(self.capacity * PROBE_LEVEL)?;
        }
        bring_to(self.subject, level, rate, seconds)?;
        self.stage(rate, seconds)
    }

    /// Measures how fast pads are made beside a rate, from a half-full pool; `None` if it cannot be
    /// emptied that far.
    fn probe(&mut self, rate: f64) -> Result<Option<Tried>, S::Ended> {
        let seconds = self.patience.stage_seconds;
        if !bring_to(self.subject, self.capacity * PROBE_LEVEL, rate, seconds)? {
            return Ok(None);
        }
        self.stage(rate, self.patience.probe_seconds).map(Some)
    }

    /// Offers a rate until so many packets have lacked pad that the pool counts as dry however the rest goes.
    /// A short spell does not decide: fillers wait for an idle CPU, and a nearly empty pool has no reserve.
    fn stage(&mut self, rate: f64, seconds: f64) -> Result<Tried, S::Ended> {
        let most = (DRY_SHARE * rate * seconds).max(DRY_PACKETS as f64);
        let dry = |readings: &[Reading]| lacking(readings) >= most;
        let mut ends = |readings: &[Reading]| dry(readings) || begins_in_hole(readings);
        let readings = self.subject.offer(rate, seconds, &mut ends)?;
        let filling = filling(&readings, self.capacity);
        let tried = Tried {
            rate: filling.map(|it| it.rate).or_else(|| packet_rate(&readings)).unwrap_or(rate),
            made: filling.map(|it| it.made),
            seconds: filling.map_or(0.0, |it| it.seconds),
            dry: lacking(&readings) + used_up(&readings) >= most,
            hole: begins_in_hole(&readings),
        };
        self.tried.push(tried);
        Ok(tried)
    }
}

/// Brings the pool to a level, for a stage at this rate; returns false if it cannot be emptied that far within
/// this time.
pub(super) fn bring_to<S: Subject>(
    subject: &mut S,
    level: f64,
    rate: f64,
    seconds: f64,
) -> Result<bool, S::Ended> {
    if subject.refill(level)? > level {
        let mut below = |readings: &[Reading]| {
            readings.last().is_some_and(|reading| reading.level <= level)
                || ran_dry(readings).is_some()
        };
        // No faster than it takes, so that it ends near the level.
        let rate = (rate * EMPTYING).min(subject.fastest());
        let readings = subject.offer(rate, seconds, &mut below)?;
        if !below(&readings) {
            return Ok(false);
        }
        // The last packets may have taken more than intended.
        subject.refill(level)?;
    }
    Ok(true)
}

/// The rate at which pads are made as fast as they are used, from the line through what was made beside
/// each rate. Stages count by their length, and those far from `near`, a first guess, for less. `None` if
/// fewer than two stages showed it.
fn crossing(tried: &[Tried], near: f64) -> Option<f64> {
    let points: Vec<(f64, f64, f64)> = tried
        .iter()
        .filter_map(|it| {
            let far = (it.rate / near - 1.0) / NEAR;
            Some((it.rate, it.made?, it.seconds / (1.0 + far * far)))
        })
        .collect();
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|&(rate, made, weight)| weight * of(rate, made)).sum()
    };
    let weights = sum(&|_, _| 1.0);
    let (rate, made) = (sum(&|rate, _| rate) / weights, sum(&|_, made| made) / weights);
    let spread = sum(&|it, _| (it - rate) * (it - rate));
    // More traffic never speeds filling up.
    let slope = (sum(&|it, its| (it - rate) * (its - made)) / spread).min(0.0);
    let crossing = (made - slope * rate) / (1.0 - slope);
    (points.len() >= 2 && crossing > 0.0).then_some(crossing)
}

#[cfg(test)]
mod tests;
