//! Finds by trial the rate at which a pool runs dry. Knows no tunnel and no prediction, only a
//! [`Subject`] that takes packets at a rate.
//!
//! R* is the rate at which pads are made as fast as they are used. A short stage at any rate shows
//! how fast they are made beside it, from the slope of the level; as more traffic never speeds that
//! up, R* lies between that figure and the rate. Each stage narrows the bracket from at least one
//! side. The result is then confirmed: a stage a little below must not run dry, a stage a little
//! above must, both from a nearly empty pool, so that neither lives on reserves.

use super::readings::{DRY_PACKETS, Dry, Reading, packet_rate, ran_dry, slope, speed};

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

/// Durations of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// Seconds of a stage that measures how fast pads are made.
    pub probe_seconds: f64,
    /// Seconds of the longest stage: a pool that is not dry by then lasts.
    pub stage_seconds: f64,
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

/// A rate that was tried, for the plot of rates against levels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tried {
    /// Packets per second, as measured.
    pub rate: f64,
    /// Pads made per second beside them, if the level showed it.
    pub made: Option<f64>,
    /// Whether the pool ran dry.
    pub dry: bool,
    /// Whether its level rose.
    pub rose: bool,
}

impl Tried {
    /// Whether pads were made at least as fast as they were used.
    fn lasts(&self) -> bool {
        !self.dry && self.made.map_or(self.rose, |made| made >= self.rate)
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
/// Maximum stages that narrow the bracket.
const PROBES: usize = 12;
/// The bracket is narrow enough at this share of the rate. Also the maximum difference at which
/// pads count as made as fast as they are used.
const CLOSE: f64 = 0.01;
/// How far a stage stays inside the bracket's ends, as a share of it.
const INSET: f64 = 0.02;
/// Distances of confirming stages from R*, as shares of it; the next one if the previous did not
/// confirm.
const MARGINS: [f64; 3] = [0.03, 0.06, 0.12];
/// Level at which a probe starts, as a share of a full pool: its filler is awake.
const PROBE_LEVEL: f64 = 0.5;
/// Level at which a confirming stage starts: this many packets, or traffic of this many seconds, in
/// which a filler may not be scheduled; at most half a full pool.
const LOW_PACKETS: f64 = 512.0;
const LOW_SECONDS: f64 = 0.05;
/// Above this share of a full pool fillers may sleep, and the level does not show their speed.
const AWAKE_BELOW: f64 = 0.7;
/// How much longer than the level suggests a stage above R* may take to run dry.
const LENIENCE: f64 = 3.0;

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

/// Runs a burst at a rate, from a full pool to `after_seconds` after it is dry.
///
/// # Errors
///
/// When the subject was stopped.
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

    /// Where pads are made as fast as used, interpolated between the nearest rates below and above.
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
            // More than it takes to use up the level and then to lack pads.
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

    /// Measures how fast pads are made beside a rate, from a half-full pool; `None` if it cannot be
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

    /// Brings the pool to a level; returns false if it cannot be emptied that far.
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
            // The last packets may have taken more than intended.
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

/// Moves a guess inside the bracket, off its ends, so that each stage narrows it.
fn within(guess: f64, low: f64, high: f64) -> f64 {
    let inset = (high - low) * INSET;
    if high > low { guess.clamp(low + inset, high - inset) } else { guess }
}

#[cfg(test)]
mod tests;
