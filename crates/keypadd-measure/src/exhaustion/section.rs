//! Builds the experiment's section: predictions beside results, tables, plots, verdicts. Pure:
//! contrary results give contrary verdicts.

mod plots;
mod tables;
mod verdicts;

use super::cell::Cell;
use super::finder::{BurstFound, Sustained};
use super::model::Burst;
use crate::results::{Estimate, Prediction, Section};
use crate::statistics::mean;

/// The section for these cases, before the run or after any part of it.
pub(crate) fn section(cells: &[Cell], repetitions: u32) -> Section {
    let words = &[("repetitions", &repetitions as &dyn std::fmt::Display)];
    let mut section = Section::of_page("exhaustion", include_str!("section.md"), words);
    let predictions: Vec<Judged> = cells.iter().flat_map(predictions).collect();
    section.verdicts = verdicts::all(cells, &predictions);
    section.predictions = predictions.into_iter().map(|it| it.prediction).collect();
    section.tables = tables::all(cells);
    for (nth, cell) in cells.iter().enumerate() {
        section.plots.extend(plots::of(nth, cell));
    }
    section.notes = cells.iter().flat_map(notes).collect();
    section
}

/// A prediction, and whether it is to be judged.
struct Judged {
    prediction: Prediction,
    /// Idle cores according to the model.
    idle: f64,
    /// Whether no other program took any.
    is_quiet: bool,
    /// Whether it is R* without a load.
    is_unloaded_rate: bool,
}

/// The predictions of a case, with results so far.
fn predictions(cell: &Cell) -> Vec<Judged> {
    let model = &cell.calibration;
    let sustained = model.sustained();
    let from = format!(
        "f(r) = r with {:.0} pads per CPU second, {:.1} µs a packet, {:.0} cores, load {:.0} %, {:.0} fillers",
        model.pads_per_cpu_second,
        model.beside_fillers.at(sustained) * 1e6,
        model.cores,
        model.background * 100.0,
        model.fillers,
    );
    let name = cell.name();
    let mut of_rate =
        Prediction::new(&format!("R*, {name}"), "Mbit/s", cell.mbit(sustained), &from);
    if let Some(measured) = mean(&cell.sustained_mbit()).filter(|it| it.value > 0.0) {
        of_rate.compare(measured);
    }
    let judged = |prediction, idle| {
        let is_quiet = cell.is_quiet();
        Judged { prediction, idle, is_quiet, is_unloaded_rate: false }
    };
    let of_rate = judged(of_rate, model.idle(sustained * model.beside_fillers.at(sustained)));
    let mut all = vec![Judged { is_unloaded_rate: model.background == 0.0, ..of_rate }];
    for (rate, found) in &cell.bursts {
        let Burst::Dry { seconds, packets } = model.burst(*rate) else { continue };
        let at = format!("at {:.0} Mbit/s, {name}", cell.mbit(*rate));
        let from = format!(
            "a level of {:.0} packets, the first {:.0} before fillers wake, then {:.0} pads a second",
            model.level,
            model.asleep_packets,
            model.filled_in_burst(*rate),
        );
        let mut time = Prediction::new(&format!("T* {at}"), "s", seconds, &from);
        let megabytes = packets * cell.packet_bytes / 1e6;
        let mut bytes = Prediction::new(&format!("B* {at}"), "MB", megabytes, &from);
        if let Some(measured) = times(found) {
            time.compare(measured);
        }
        if let Some(measured) = payloads(cell, found) {
            bytes.compare(measured);
        }
        let idle = model.idle(rate * model.traffic.at(*rate));
        all.extend([time, bytes].map(|prediction| judged(prediction, idle)));
    }
    all
}

/// T* in seconds; skips bursts that a key update cut short.
fn times(found: &[BurstFound]) -> Option<Estimate> {
    let whole = found.iter().filter(|burst| !rekeyed(burst));
    mean(&whole.filter_map(|burst| Some(burst.dry?.seconds)).collect::<Vec<_>>())
}

/// B* in MB.
fn payloads(cell: &Cell, found: &[BurstFound]) -> Option<Estimate> {
    let whole = found.iter().filter(|burst| !rekeyed(burst));
    let megabytes = whole.filter_map(|burst| Some(burst.dry?.packets * cell.packet_bytes / 1e6));
    mean(&megabytes.collect::<Vec<_>>())
}

/// Whether the key changed before the pool ran dry.
fn rekeyed(burst: &BurstFound) -> bool {
    let until = burst.dry.map_or(burst.readings.len(), |dry| dry.index);
    let first = burst.readings.first().map(|reading| reading.phase);
    burst.readings[..until.min(burst.readings.len())].last().map(|reading| reading.phase) != first
}

/// Caveats of a case.
fn notes(cell: &Cell) -> Vec<String> {
    let (mut notes, name) = (Vec::new(), cell.name());
    if let Some(others) = cell.others.iter().copied().reduce(f64::max).filter(|_| !cell.is_quiet())
    {
        notes.push(format!(
            "{name}: other programs took up to {others:.1} cores, which no prediction knew of; its predictions are \
             not judged."
        ));
    }
    if let Some(rate) = cell.at_least_mbit() {
        notes.push(format!(
            "{name}: R* was not reached: {rate:.0} Mbit/s, the fastest that could be offered, did not empty the pool."
        ));
    }
    let never = cell.found.iter().filter(|it| it.sustained == Sustained::NeverFills).count();
    if never > 0 {
        notes.push(format!(
            "{name}: the pool did not fill in {never} of {} tries.",
            cell.found.len()
        ));
    }
    for (rate, found) in &cell.bursts {
        let cut = found.iter().filter(|burst| rekeyed(burst)).count();
        if cut > 0 {
            notes.push(format!(
                "{name}: in {cut} of {} bursts at {:.0} Mbit/s a key change took the pads; they are left out.",
                found.len(),
                cell.mbit(*rate)
            ));
        }
        let lasted = found.iter().filter(|burst| burst.dry.is_none()).count();
        if lasted > 0 {
            notes.push(format!(
                "{name}: {lasted} of {} bursts at {:.0} Mbit/s did not empty the pool.",
                found.len(),
                cell.mbit(*rate)
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
