//! Finds by trial the rate at which a pool runs dry. Knows no tunnel and no prediction, only a [`Subject`]
//! that takes packets at a rate.
//!
//! R* is where pads are made as fast as they are used. A short stage at any rate tells how fast they are
//! made beside it, from the slope of the level; as they are made no faster beside more traffic, R*
//! lies between that figure and the rate. Each stage narrows the bracket from one side at least. What
//! comes out is then tried: a stage a little below must not run dry, a stage a little above must, both
//! from a pool that is nearly empty already, so that neither lives on what was saved up.

use super::readings::{DRY_PACKETS, Dry, Reading, packet_rate, ran_dry, slope, speed};

/// What can be offered traffic.
pub(super) trait Subject {
    /// Why a stage could not be ended: the user's wish, or a peer that was lost.
    type Ended;

    /// Packets a second that can be offered at most.
    fn fastest(&self) -> f64;

    /// Waits without traffic until so many packets have their pads ready, or the level rises no
    /// more; the level then, in packets.
    ///
    /// # Errors
    ///
    /// When it was ended.
    fn refill(&mut self, packets: f64) -> Result<f64, Self::Ended>;

    /// Offers packets at a rate a second, for so many seconds or until `enough` says so of what has been
    /// read up to then.
    ///
    /// # Errors
    ///
    /// When it was ended.
    fn offer(
        &mut self,
        rate: f64,
        seconds: f64,
        enough: &mut dyn FnMut(&[Reading]) -> bool,
    ) -> Result<Vec<Reading>, Self::Ended>;
}

/// How long to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// Seconds of a stage that tells how fast pads are made.
    pub probe_seconds: f64,
    /// Seconds of the longest stage: a pool that has not run dry by then lasts.
    pub stage_seconds: f64,
}

/// R*, in packets a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sustained {
    /// The pool never fills, even without traffic.
    NeverFills,
    /// The fastest traffic that can be offered does not empty it.
    AtLeast {
        /// Which came to so much.
        rate: f64,
    },
    /// Pads are made as fast as they are used.
    Found {
        /// At this rate.
        rate: f64,
        /// A rate at which a nearly empty pool did not run dry; `None` if it did at all that were tried.
        lasts: Option<f64>,
        /// A rate at which it did; `None` if it did at none that was tried.
        runs_dry: Option<f64>,
    },
}

/// A rate that was tried, for the picture of rates against levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tried {
    /// Packets a second, as they came.
    pub rate: f64,
    /// Pads made a second beside them, if the level told.
    pub made: Option<f64>,
    /// Whether the pool ran dry.
    pub dry: bool,
    /// Whether it held more in the end than at the beginning.
    pub rose: bool,
}

impl Tried {
    /// Whether pads were made at least as fast as they were used.
    fn lasts(&self) -> bool {
        !self.dry && self.made.map_or(self.rose, |made| made >= self.rate)
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// The level of a full pool, in packets.
    pub capacity: f64,
    /// R*.
    pub sustained: Sustained,
    /// Every rate that was tried on the way.
    pub tried: Vec<Tried>,
}

/// A burst from a full pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BurstFound {
    /// Packets a second while there were pads.
    pub rate: f64,
    /// T* and B*; `None` if the pool lasted.
    pub dry: Option<Dry>,
    /// Payload up to then, in bytes.
    pub bytes: f64,
    /// The speed after, in bytes a second; `None` if the pool lasted.
    pub speed_after: Option<f64>,
    /// All that was read.
    pub readings: Vec<Reading>,
}

/// As many packets as there is room for.
const FULL: f64 = f64::INFINITY;
/// A pool that holds fewer packets than this when left alone does not fill: four chunks.
const LEAST_PACKETS: f64 = 256.0;
/// Stages that narrow the bracket, at most.
const PROBES: usize = 12;
/// The bracket is narrow enough at this share of the rate, and pads are made as fast as they are used
/// when the two differ by no more.
const CLOSE: f64 = 0.01;
/// How far off the ends of the bracket a stage keeps, as a share of it.
const INSET: f64 = 0.02;
/// How far from R* the stages that confirm it lie, as shares of it; the next if the one before did not.
const MARGINS: [f64; 3] = [0.03, 0.06, 0.12];
/// The level that a probe begins at, as a share of a full pool: its filler is awake.
const PROBE_LEVEL: f64 = 0.5;
/// The level that a confirming stage begins at: so many packets, or the traffic of so many seconds, in
/// which a filler may not be scheduled; and no more than half a full pool.
const LOW_PACKETS: f64 = 512.0;
const LOW_SECONDS: f64 = 0.05;
/// Above this share of a full pool fillers may sleep, and the level says nothing of how fast they are.
const AWAKE_BELOW: f64 = 0.7;
/// How much longer than the level suggests a stage above R* may take to run dry.
const LENIENCE: f64 = 3.0;

/// Finds R*.
///
/// # Errors
///
/// When the subject was ended.
pub(super) fn find<S: Subject>(subject: &mut S, patience: &Patience) -> Result<Found, S::Ended> {
    let capacity = subject.refill(FULL)?;
    let mut search = Search { subject, patience, capacity, tried: Vec::new() };
    let sustained = if capacity < LEAST_PACKETS { Sustained::NeverFills } else { search.run()? };
    Ok(Found { capacity, sustained, tried: search.tried })
}

/// A burst at a rate, from a full pool to `after_seconds` past its end.
///
/// # Errors
///
/// When the subject was ended.
pub(super) fn burst<S: Subject>(
    subject: &mut S,
    rate: f64,
    after_seconds: f64,
    patience: &Patience,
) -> Result<BurstFound, S::Ended> {
    subject.refill(FULL)?;
    let mut end = None;
    let readings =
        subject.offer(rate, patience.stage_seconds + after_seconds, &mut |readings| {
            let now = readings.last().map_or(0.0, |reading| reading.seconds);
            if end.is_none() && (ran_dry(readings).is_some() || now >= patience.stage_seconds) {
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
        let seconds = self.patience.stage_seconds;
        let stage = self.stage(fastest, seconds, |readings| ran_dry(readings).is_some())?;
        if !stage.dry {
            return Ok(Sustained::AtLeast { rate: stage.rate });
        }
        // No rate is known to last yet; the pool ran dry at this one.
        let (mut low, mut high) = (0.0, stage.rate);
        let mut guess = stage.made.unwrap_or(high / 2.0);
        for _ in 0..PROBES {
            let rate = within(guess, low, high);
            let Some(stage) = self.probe(rate)? else { break };
            if stage.lasts() {
                low = stage.rate.max(low);
            } else {
                high = stage.rate.min(high);
            }
            guess =
                self.crossing(low, high).or(stage.made).unwrap_or_else(|| f64::midpoint(low, high));
            if (guess / stage.rate - 1.0).abs() <= CLOSE || high / low - 1.0 <= CLOSE {
                break;
            }
        }
        self.confirm(guess)
    }

    /// Where pads are made as fast as used, on the line between the nearest rates below and above.
    fn crossing(&self, low: f64, high: f64) -> Option<f64> {
        let told = |rate: f64| {
            let tried = self.tried.iter().rev().find(|tried| tried.rate == rate)?;
            Some((rate, tried.made? - rate))
        };
        let ((low, more), (high, less)) = (told(low)?, told(high)?);
        (more > less).then(|| low + (high - low) * more / (more - less))
    }

    /// Tries rates a little below and a little above.
    fn confirm(&mut self, rate: f64) -> Result<Sustained, S::Ended> {
        let (mut lasts, mut runs_dry) = (None, None);
        let low = LOW_PACKETS.max(rate * LOW_SECONDS).min(self.capacity / 2.0);
        for margin in MARGINS {
            // As long as it takes to use up the level and then to lack pads, and more.
            let packets = LENIENCE * (low + DRY_PACKETS as f64);
            let seconds = (packets / (rate * margin)).min(self.patience.stage_seconds).max(1.0);
            for below in [true, false] {
                if (if below { lasts } else { runs_dry }).is_some() {
                    continue;
                }
                let to = if below { rate * (1.0 - margin) } else { rate * (1.0 + margin) };
                self.bring_to(low)?;
                let stage = self.stage(to, seconds, |readings| ran_dry(readings).is_some())?;
                match (below, stage.dry) {
                    (true, false) => lasts = Some(stage.rate),
                    (false, true) => runs_dry = Some(stage.rate),
                    _ => {}
                }
            }
        }
        Ok(Sustained::Found { rate, lasts, runs_dry })
    }

    /// How fast pads are made beside a rate, from a pool that is half full; `None` if it cannot be
    /// emptied that far.
    fn probe(&mut self, rate: f64) -> Result<Option<Tried>, S::Ended> {
        if !self.bring_to(self.capacity * PROBE_LEVEL)? {
            return Ok(None);
        }
        let most = self.capacity * AWAKE_BELOW;
        let enough = |readings: &[Reading]| {
            let level = readings.last().map_or(0.0, |reading| reading.level);
            level >= most || ran_dry(readings).is_some()
        };
        self.stage(rate, self.patience.probe_seconds, enough).map(Some)
    }

    /// Brings the pool to a level; false if it cannot be emptied that far.
    fn bring_to(&mut self, level: f64) -> Result<bool, S::Ended> {
        if self.subject.refill(level)? > level {
            let mut below = |readings: &[Reading]| {
                readings.last().is_some_and(|reading| reading.level <= level)
            };
            let fastest = self.subject.fastest();
            let readings = self.subject.offer(fastest, self.patience.stage_seconds, &mut below)?;
            if !below(&readings) {
                return Ok(false);
            }
            // The last packets may have taken more than was meant.
            self.subject.refill(level)?;
        }
        Ok(true)
    }

    fn stage(
        &mut self,
        rate: f64,
        seconds: f64,
        mut enough: impl FnMut(&[Reading]) -> bool,
    ) -> Result<Tried, S::Ended> {
        let readings = self.subject.offer(rate, seconds, &mut enough)?;
        let came = packet_rate(&readings).unwrap_or(rate);
        let made = slope(&readings, self.capacity * AWAKE_BELOW).map(|slope| slope + came);
        let level = |reading: Option<&Reading>| reading.map_or(0.0, |reading| reading.level);
        let tried = Tried {
            rate: came,
            made,
            dry: ran_dry(&readings).is_some(),
            rose: level(readings.last()) > level(readings.first()),
        };
        self.tried.push(tried);
        Ok(tried)
    }
}

/// A guess inside the bracket, off its ends, so that each stage narrows it.
fn within(guess: f64, low: f64, high: f64) -> f64 {
    let inset = (high - low) * INSET;
    if high > low { guess.clamp(low + inset, high - inset) } else { guess }
}

#[cfg(test)]
mod tests;
