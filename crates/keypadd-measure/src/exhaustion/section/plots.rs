//! Plots the pool level over time, and the rate at which it neither rises nor falls.

use crate::exhaustion::cell::Cell;
use crate::exhaustion::model::Burst;
use crate::results::{Axis, Curve, Mark, Plot, Style};
use crate::statistics::mean;

/// Maximum points per curve.
const POINTS_MAX: usize = 400;

/// The plots of one case, once there is data.
pub(super) fn of(nth: usize, cell: &Cell) -> impl Iterator<Item = Plot> {
    level(nth, cell).into_iter().chain(rates(nth, cell))
}

/// Levels of the first repetition's bursts, with the predicted times of running dry.
fn level(nth: usize, cell: &Cell) -> Option<Plot> {
    let mut plot = Plot::new(
        &format!("level-{}", nth + 1),
        &format!("The pool during bursts: {}", cell.name()),
        Axis::linear("time", "s"),
        Axis::linear("packets with pads ready", "packets"),
    );
    plot.caption = "Each curve is a burst from a full pool, of the first repetition: how many packets still \
                    find their pads ready. T* is the time until none does, and from then on packets wait \
                    for the cipher; B* is the payload sent by then. Upright lines: T* as predicted before \
                    the run."
        .into();
    for (rate, found) in &cell.bursts {
        let Some(burst) = found.first() else { continue };
        let every = burst.readings.len().div_ceil(POINTS_MAX).max(1);
        let points =
            burst.readings.iter().step_by(every).map(|reading| [reading.seconds, reading.level]);
        let label = format!("{:.0} Mbit/s", cell.mbit(*rate));
        plot.curves.push(Curve::new(&label, Style::Line, points.collect()));
        if let Burst::Dry { seconds, .. } = cell.calibration.burst(*rate) {
            plot.marks.push(Mark::at_x(seconds, &format!("T* at {label}")));
        }
    }
    (!plot.curves.is_empty()).then_some(plot)
}

/// Rate at which pads are made beside every rate tried, against the rate at which they are used.
fn rates(nth: usize, cell: &Cell) -> Option<Plot> {
    let mut plot = Plot::new(
        &format!("rates-{}", nth + 1),
        &format!("Rate against pool: {}", cell.name()),
        Axis::log("offered", "Mbit/s"),
        Axis::log("pads made, as payload", "Mbit/s"),
    );
    plot.caption = "R* is the highest rate that the pool bears for any time: pads are made as fast as packets \
                    use them, where the lines cross. To the left of it the pool fills, to the right it \
                    empties; how long that takes is T*, and what is sent meanwhile B*."
        .into();
    let tried = cell.found.iter().flat_map(|found| &found.tried);
    let mut points: Vec<[f64; 2]> =
        tried.filter_map(|it| Some([cell.mbit(it.rate), cell.mbit(it.made?)])).collect();
    if points.is_empty() {
        return None;
    }
    points.sort_by(|one, other| one[0].total_cmp(&other[0]));
    let (low, high) = (points[0][0] / 2.0, cell.mbit(cell.fastest));
    let steps = 60;
    let rates = (0..=steps).map(|step| low * (high / low).powf(f64::from(step) / f64::from(steps)));
    let rates: Vec<f64> = rates.collect();
    let predicted = |rate: &f64| {
        [*rate, cell.mbit(cell.calibration.filled(rate * 1e6 / 8.0 / cell.packet_bytes))]
    };
    let used = rates.iter().map(|rate| [*rate, *rate]).collect();
    plot.curves = vec![
        Curve::new("made, predicted", Style::Line, rates.iter().map(predicted).collect()),
        Curve::new("used", Style::Line, used),
        Curve::new("made, measured", Style::Points, points),
    ];
    plot.marks = vec![Mark::at_x(cell.mbit(cell.calibration.sustained()), "R* predicted")];
    if let Some(measured) = mean(&cell.sustained_mbit()).filter(|it| it.value > 0.0) {
        plot.marks.push(Mark::at_x(measured.value, "R*"));
    }
    Some(plot)
}
