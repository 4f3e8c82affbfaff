//! Scales axes: maps values to positions, and chooses the ticks and their labels.
//!
//! Pure: knows nothing of markup. Log axes omit values that are not above zero.

use crate::figure;
use crate::results::Scale;

/// A linear axis need not start at zero if its values differ by less than this share of the
/// largest: zero would only flatten them.
const ZERO_MATTERS: f64 = 0.25;

/// From this many decades on, a log axis has labels only at powers of ten.
const DECADES_PLAIN: f64 = 3.0;

/// From this many decades on, lines between powers of ten would merge into gray.
const DECADES_FAINT: f64 = 6.0;

const DIGITS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
const ONE_TWO_FIVE: &[f64] = &[1.0, 2.0, 5.0];
const TENS: &[f64] = &[1.0];

/// One axis of a plot.
#[derive(Clone, Debug)]
pub(super) struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    /// Positions of labels, ascending.
    pub(super) ticks: Vec<f64>,
    /// Positions of faint lines between them.
    pub(super) faint: Vec<f64>,
}

impl Ruler {
    /// An axis that covers all `figures`, with about `labels` labels; `None` if none of them can be
    /// placed.
    pub(super) fn over(
        scale: Scale,
        figures: impl IntoIterator<Item = f64>,
        labels: usize,
    ) -> Option<Self> {
        let placed = figures.into_iter().filter(|figure| has_place(scale, *figure));
        let (low, high) = placed.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), figure| {
            (low.min(figure), high.max(figure))
        });
        if low > high {
            return None;
        }
        Some(match scale {
            Scale::Linear => Self::even(low, high, labels),
            Scale::Log => Self::by_powers(low, high, labels),
        })
    }

    fn even(low: f64, high: f64, labels: usize) -> Self {
        let (mut low, mut high) = (low, high);
        if low > 0.0 && high - low >= ZERO_MATTERS * high {
            low = 0.0;
        } else if high < 0.0 && high - low >= ZERO_MATTERS * -low {
            high = 0.0;
        }
        if low == high {
            let room = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            (low, high) = (if low == 0.0 { 0.0 } else { low - room }, high + room);
        }
        let step = nice_step((high - low) / labels.max(2) as f64);
        // The last label may lie below the largest value by less than half a step.
        let first = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        let count = (last - first) as usize;
        let ticks: Vec<f64> = (0..=count).map(|n| (first + n as f64) * step).collect();
        Self { scale: Scale::Linear, low: first * step, high: last * step, ticks, faint: vec![] }
    }

    fn by_powers(low: f64, high: f64, labels: usize) -> Self {
        let (low, high) = if high / low < 1.5 { (low / 1.3, high * 1.3) } else { (low, high) };
        let decades = (high / low).log10();
        if decades < 0.8 {
            // Too short for powers: evenly spaced labels on a log axis.
            let step = nice_step((high - low) / labels.max(2) as f64);
            let first = ((low / step).floor() * step).max(low / 1.1);
            let last = (high / step - 1e-9).ceil() * step;
            let ticks = (1..)
                .map(|n| n as f64 * step)
                .skip_while(|tick| *tick < first)
                .take_while(|tick| *tick <= last * (1.0 + 1e-9))
                .collect();
            return Self { scale: Scale::Log, low: first, high: last, ticks, faint: vec![] };
        }
        let marks = |digits: &'static [f64]| {
            let powers = (low.log10().floor() as i32 - 1)..=(high.log10().ceil() as i32 + 1);
            powers.flat_map(move |power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
        };
        let first = marks(ONE_TWO_FIVE).take_while(|mark| *mark <= low * 1.0001).last();
        let last = marks(ONE_TWO_FIVE).find(|mark| *mark >= high * 0.9999);
        let (first, last) = (first.unwrap_or(low), last.unwrap_or(high));
        let inside = |mark: &f64| *mark >= first * 0.9999 && *mark <= last * 1.0001;
        let labeled = if decades <= DECADES_PLAIN { ONE_TWO_FIVE } else { TENS };
        let mut ticks: Vec<f64> = marks(labeled).filter(inside).collect();
        if ticks.len() > labels * 3 / 2 {
            let tens: Vec<f64> = marks(TENS).filter(inside).collect();
            ticks = tens.iter().copied().step_by(tens.len().div_ceil(labels.max(2))).collect();
        }
        let between = if decades <= DECADES_FAINT { DIGITS } else { &[] };
        let faint = marks(between).filter(inside).filter(|mark| !ticks.contains(mark)).collect();
        Self { scale: Scale::Log, low: first, high: last, ticks, faint }
    }

    /// Position of a value, from 0 at the lower end to 1 at the upper, clamped to the ends; `None`
    /// if it cannot be placed.
    pub(super) fn place(&self, figure: f64) -> Option<f64> {
        has_place(self.scale, figure).then(|| {
            let place = match self.scale {
                Scale::Linear => (figure - self.low) / (self.high - self.low),
                Scale::Log => (figure / self.low).ln() / (self.high / self.low).ln(),
            };
            place.clamp(0.0, 1.0)
        })
    }

    /// Like [`Self::place`], for the end of an interval: a value that cannot be placed goes to the
    /// end of the axis beyond which it lies.
    pub(super) fn place_end(&self, figure: f64, lower: bool) -> f64 {
        self.place(figure).unwrap_or(if lower { 0.0 } else { 1.0 })
    }

    /// The labels of [`Self::ticks`], as short as they remain distinct.
    pub(super) fn labels(&self) -> Vec<String> {
        let largest = self.ticks.iter().fold(0.0f64, |largest, tick| largest.max(tick.abs()));
        self.ticks.iter().map(|tick| label(*tick, largest, &self.ticks, self.scale)).collect()
    }
}

fn has_place(scale: Scale, figure: f64) -> bool {
    figure.is_finite() && (scale == Scale::Linear || figure > 0.0)
}

/// 1, 2 or 5 times a power of ten, the next above `rough`.
fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| nice * power >= rough * 0.9999);
    nice.unwrap_or(10.0) * power
}

fn label(tick: f64, largest: f64, ticks: &[f64], scale: Scale) -> String {
    let (unit, letter) = match if scale == Scale::Log { tick.abs() } else { largest } {
        size if size >= 1e12 => return format!("{tick:e}").replace('-', "−"),
        size if size >= 1e9 => (1e9, "G"),
        size if size >= 1e6 => (1e6, "M"),
        size if size >= 1e5 => (1e3, "k"),
        size if size > 0.0 && size < 1e-4 => return format!("{tick:e}").replace('-', "−"),
        _ => (1.0, ""),
    };
    if tick == 0.0 {
        return "0".to_owned();
    }
    let step = match scale {
        Scale::Log => tick.abs(),
        Scale::Linear => ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(largest, f64::min),
    };
    let decimals = (-(step / unit * 1.0001).log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{:.decimals$}", (tick / unit).abs());
    let sign = if tick < 0.0 { "−" } else { "" };
    format!("{sign}{}{letter}", figure::group(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(figures: &[f64]) -> Ruler {
        Ruler::over(Scale::Linear, figures.iter().copied(), 6).unwrap()
    }

    fn powers(figures: &[f64]) -> Ruler {
        Ruler::over(Scale::Log, figures.iter().copied(), 6).unwrap()
    }

    #[test]
    fn an_even_axis_begins_at_zero_unless_that_would_flatten_its_figures() {
        assert_eq!(even(&[40.0, 95.0]).ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let near = even(&[1.0, 1.02]);
        assert!(near.ticks[0] > 0.9, "{near:?}");
    }

    #[test]
    fn an_axis_by_powers_has_its_ends_at_round_figures() {
        let ruler = powers(&[27.0, 1800.0]);
        assert_eq!(ruler.labels(), ["20", "50", "100", "200", "500", "1000", "2000"]);
        assert_eq!(ruler.place(20.0), Some(0.0));
        assert!((ruler.place(200.0).unwrap() - 0.5).abs() < 1e-9);
        let wide = powers(&[1.0, 1e7]);
        assert_eq!(wide.labels(), ["1", "10", "100", "1000", "10,000", "100k", "1M", "10M"]);
    }

    #[test]
    fn an_axis_of_three_hundred_decades_has_no_thousand_lines() {
        let ruler = powers(&[f64::MIN_POSITIVE, 1e3]);
        assert!(ruler.ticks.len() + ruler.faint.len() < 20, "{ruler:?}");
    }

    #[test]
    fn what_is_not_finite_or_not_above_zero_has_no_place_on_an_axis_by_powers() {
        let ruler = powers(&[0.0, f64::NAN, -1.0, 1.0, 100.0]);
        assert_eq!(ruler.place(0.0), None);
        assert_eq!(ruler.place(f64::NAN), None);
        assert_eq!(ruler.place_end(-1.0, true), 0.0);
        assert!(Ruler::over(Scale::Log, [0.0, f64::INFINITY], 6).is_none());
    }

    #[test]
    fn one_figure_alone_has_an_axis() {
        for figure in [0.0, 5.0, -3.0, 1e-9, 1e12] {
            let ruler = even(&[figure]);
            assert!(ruler.ticks.len() >= 2, "{ruler:?}");
            let place = ruler.place(figure).unwrap();
            assert!((0.0..=1.0).contains(&place));
        }
        assert!(powers(&[7.0]).ticks.len() >= 2);
    }

    #[test]
    fn labels_are_short_and_differ() {
        for figures in [[0.0, 2.5e6], [0.0, 0.003], [1.0, 1.004], [-20.0, 30.0], [0.0, 9e5]] {
            let labels = even(&figures).labels();
            let mut distinct = labels.clone();
            distinct.dedup();
            assert_eq!(labels, distinct);
            assert!(labels.iter().all(|label| label.chars().count() <= 7), "{labels:?}");
        }
    }

    #[test]
    fn every_axis_has_labels_within_reason() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..2000 {
            let low = 10f64.powf(random.f64() * 12.0 - 6.0);
            let high = low * 10f64.powf(random.f64() * 8.0);
            for ruler in [even(&[low, high]), powers(&[low, high])] {
                assert!((1..=13).contains(&ruler.ticks.len()), "{low} to {high}: {ruler:?}");
                assert!(ruler.ticks.is_sorted(), "{ruler:?}");
            }
        }
    }
}
