//! What the experiment says: predictions beside figures, tables, pictures, verdicts. Pure: contrary figures
//! give contrary verdicts.

use keypadd_keystream::CipherBackend;

use super::cell::Cell;
use super::finder::{BurstFound, Sustained};
use super::model::Burst;
use crate::results::{
    Axis, Cell as Entry, Curve, Estimate, Mark, Outcome, Plot, Prediction, Section, Style, Table,
    Verdict,
};
use crate::statistics::{mean, ratio};
use crate::verdict::Rule;

/// Errors of predictions up to this are as good as was promised.
const ERROR_PERCENT_MAX: f64 = 5.0;
/// Cores that must be idle for a prediction to be judged by it.
const IDLE_CORES_MIN: f64 = 1.0;
/// How many times the sustained rate of the conventional cipher a bitsliced one is to reach.
const BACKENDS_APART: f64 = 15.0;
/// The share of R* that a pool may keep when every core is busy.
const FULL_LOAD_SHARE: f64 = 0.02;
/// Most points of a curve.
const POINTS_MAX: usize = 400;

/// All that is known of the cases, before the run or after any part of it.
pub(crate) fn section(cells: &[Cell], repetitions: u32) -> Section {
    let mut section = Section::new(
        "exhaustion",
        "Exhaustion",
        "Above which sustained rate does the pool run dry, how soon does it, and how fast is it then?",
    );
    section.method = vec![
        format!(
            "R* is the highest rate at which pads are made as fast as they are used; T* and B* are the time \
             and the payload from a full pool to the first packets without pads. Each case was tried {repetitions} \
             times, all cases in turn. R* was found from the slope of the level at several rates, \
             then confirmed: a nearly empty pool must last a little below it and run dry a little above."
        ),
        "The predictions come from a calibration before the run, and were saved before the first byte of it: \
         what a filler makes in a CPU second, what traffic costs, the level before the first byte, the cores \
         and the load. Fillers get what traffic and load leave of the cores. Rates are of payload."
            .into(),
    ];
    let predictions: Vec<Judged> = cells.iter().flat_map(predictions).collect();
    section.verdicts = verdicts(cells, &predictions);
    section.predictions = predictions.into_iter().map(|it| it.prediction).collect();
    section.tables = vec![sustained_table(cells), bursts_table(cells), calibration_table(cells)];
    for (nth, cell) in cells.iter().enumerate() {
        section.plots.extend(level_plot(nth, cell));
        section.plots.extend(rate_plot(nth, cell));
    }
    section.notes = cells.iter().flat_map(notes).collect();
    section
}

/// A prediction, and what says whether it is to be judged.
struct Judged {
    prediction: Prediction,
    /// Cores that are idle then, by the model.
    idle: f64,
    /// Whether nobody else took any.
    is_quiet: bool,
}

/// What is predicted of a case, with what the run showed by now.
fn predictions(cell: &Cell) -> Vec<Judged> {
    let model = &cell.calibration;
    let sustained = model.sustained();
    let from = format!(
        "f(r) = r with {:.0} pads per CPU second, {:.1} µs a packet, {:.0} cores, load {:.0} %, {:.0} fillers",
        model.pads_per_cpu_second,
        model.traffic.at(sustained) * 1e6,
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
    let judged = |prediction, idle| Judged { prediction, idle, is_quiet: cell.is_quiet() };
    let mut all = vec![judged(of_rate, model.idle(sustained))];
    for (rate, found) in &cell.bursts {
        let Burst::Dry { seconds, packets } = model.burst(*rate) else { continue };
        let at = format!("at {:.0} Mbit/s, {name}", cell.mbit(*rate));
        let from = format!(
            "a level of {:.0} packets, the first {:.0} before fillers wake, then {:.0} pads a second",
            model.level,
            model.asleep_packets,
            model.filled(*rate),
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
        all.extend([time, bytes].map(|prediction| judged(prediction, model.idle(*rate))));
    }
    all
}

/// T* in seconds; bursts that a key change cut short tell nothing of it.
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

fn verdicts(cells: &[Cell], predictions: &[Judged]) -> Vec<Verdict> {
    let mut verdicts = vec![accuracy(predictions), confirmed(cells)];
    verdicts.extend(backends(cells));
    verdicts.extend(full_load(cells));
    verdicts
}

/// Whether the predictions were as good as was promised, where it was.
fn accuracy(predictions: &[Judged]) -> Verdict {
    let judged: Vec<(&Prediction, f64)> = predictions
        .iter()
        .filter(|it| it.idle >= IDLE_CORES_MIN && it.is_quiet)
        .filter_map(|it| Some((&it.prediction, it.prediction.error_percent?)))
        .collect();
    let worst = judged.iter().max_by(|one, other| one.1.abs().total_cmp(&other.1.abs()));
    let (outcome, because) = match worst {
        None => (Outcome::CannotTell, "no such case was measured undisturbed".into()),
        Some((prediction, error)) => {
            let outcome = match error.abs() <= ERROR_PERCENT_MAX {
                true => Outcome::Holds,
                false => Outcome::DoesNotHold,
            };
            let far = judged.iter().filter(|(_, error)| error.abs() > ERROR_PERCENT_MAX).count();
            let because = format!(
                "{far} of {} predictions are off by more; the worst is {}, by {error:+.1} %",
                judged.len(),
                prediction.name
            );
            (outcome, because)
        }
    };
    Verdict {
        claim: "With a core left idle, R*, T* and B* are predicted before the run.".into(),
        rule: format!(
            "Holds if every prediction lies within {ERROR_PERCENT_MAX} % of what was measured, where traffic and load \
             leave at least one core idle and other programs take nothing worth mentioning."
        ),
        outcome,
        because,
        beside: None,
    }
}

/// Whether every R* that was found stood the trial.
fn confirmed(cells: &[Cell]) -> Verdict {
    let (mut found, mut stood) = (0, 0);
    for cell in cells {
        for search in &cell.found {
            if let Sustained::Found { lasts, runs_dry, .. } = search.sustained {
                found += 1;
                stood += usize::from(lasts.is_some() && runs_dry.is_some());
            }
        }
    }
    let outcome = match (found, stood) {
        (0, _) => Outcome::CannotTell,
        (found, stood) if found == stood => Outcome::Holds,
        _ => Outcome::DoesNotHold,
    };
    Verdict {
        claim: "R* is a threshold: the pool lasts a little below it and runs dry a little above.".into(),
        rule: "Holds if, in every search that found an R*, a nearly empty pool did not run dry at a rate up to \
               12 % below it and did at a rate up to 12 % above."
            .into(),
        outcome,
        because: format!("{stood} of {found} were confirmed from both sides"),
        beside: None,
    }
}

/// How far apart the conventional cipher and the bitsliced one are, suite by suite without a load.
fn backends(cells: &[Cell]) -> Vec<Verdict> {
    let idle = |cell: &&Cell| cell.calibration.background == 0.0;
    let conventional = |cell: &&Cell| cell.arm.engine.backend() == CipherBackend::DesCrate;
    let mut verdicts = Vec::new();
    for base in cells.iter().filter(idle).filter(conventional) {
        let others = cells.iter().filter(idle).filter(|cell| {
            cell.arm.suite == base.arm.suite
                && cell.pool_bytes == base.pool_bytes
                && !conventional(cell)
        });
        for cell in others {
            let claim = format!(
                "{}: the sustained rate of {} is at least {BACKENDS_APART} times that of the des crate.",
                cell.arm.suite,
                cell.arm.engine.backend()
            );
            let rates: Vec<f64> = cell.found.iter().filter_map(|it| reached(cell, it)).collect();
            let base = base.sustained_mbit();
            let rounds = rates.len().min(base.len());
            let ratio = ratio(&rates[..rounds], &base[..rounds]);
            verdicts.push(Rule::AtLeast(BACKENDS_APART).judge(
                &claim,
                "ratio of R*",
                ratio.as_ref(),
            ));
        }
    }
    verdicts
}

/// R*, or what it is at least, in Mbit/s.
fn reached(cell: &Cell, found: &super::finder::Found) -> Option<f64> {
    match found.sustained {
        Sustained::Found { rate, .. } | Sustained::AtLeast { rate } => Some(cell.mbit(rate)),
        Sustained::NeverFills => None,
    }
}

/// The scheme's real limit: nothing is precomputed where no CPU is idle.
fn full_load(cells: &[Cell]) -> Vec<Verdict> {
    let at = |background: f64| {
        move |cell: &&Cell| (cell.calibration.background - background).abs() < 1e-9
    };
    let mut verdicts = Vec::new();
    for idle in cells.iter().filter(at(0.0)) {
        let same = |cell: &&Cell| cell.arm == idle.arm && cell.pool_bytes == idle.pool_bytes;
        let Some(full) = cells.iter().filter(at(1.0)).find(same) else { continue };
        let claim = format!("{}: with no idle CPU the pool sustains nothing.", idle.pool_name());
        let free: Vec<f64> = idle.found.iter().filter_map(|it| reached(idle, it)).collect();
        // A pool that never fills bears no rate; the ratio wants a figure above zero.
        let loaded: Vec<f64> =
            full.sustained_mbit().into_iter().map(|rate| rate.max(f64::MIN_POSITIVE)).collect();
        let rounds = free.len().min(loaded.len());
        let ratio = ratio(&loaded[..rounds], &free[..rounds]);
        let figure = "ratio of R* under full load to R* without";
        verdicts.push(Rule::AtMost(FULL_LOAD_SHARE).judge(&claim, figure, ratio.as_ref()));
    }
    verdicts
}

fn sustained_table(cells: &[Cell]) -> Table {
    let mut table = Table::new("sustained", "The sustained rate that the pool bears, R*", "case")
        .column("predicted", "Mbit/s")
        .column("measured", "Mbit/s")
        .column("error", "%")
        .column("lasts at", "Mbit/s")
        .column("runs dry at", "Mbit/s")
        .column("fastest offered", "Mbit/s")
        .column("full pool", "packets")
        .column("taken by others", "cores");
    for cell in cells {
        let predicted = cell.calibration.sustained();
        let measured = mean(&cell.sustained_mbit());
        let error = measured
            .as_ref()
            .filter(|it| it.value > 0.0)
            .map(|it| (cell.mbit(predicted) / it.value - 1.0) * 100.0);
        let sides = |of: fn(&Sustained) -> Option<f64>| -> Entry {
            let rates = cell.found.iter().filter_map(|found| of(&found.sustained));
            mean(&rates.map(|rate| cell.mbit(rate)).collect::<Vec<_>>()).into()
        };
        let measured: Entry = match cell.at_least_mbit() {
            Some(rate) => format!("not reached: at least {rate:.0}").into(),
            None => measured.into(),
        };
        let capacities: Vec<f64> = cell.found.iter().map(|found| found.capacity).collect();
        table.push(
            &cell.name(),
            vec![
                cell.mbit(predicted).into(),
                measured,
                error.map_or(Entry::Missing, Entry::from),
                sides(|it| if let Sustained::Found { lasts, .. } = it { *lasts } else { None }),
                sides(
                    |it| if let Sustained::Found { runs_dry, .. } = it { *runs_dry } else { None },
                ),
                cell.mbit(cell.fastest).into(),
                mean(&capacities).into(),
                mean(&cell.others).into(),
            ],
        );
    }
    table
}

fn bursts_table(cells: &[Cell]) -> Table {
    let mut table = Table::new("bursts", "Bursts from a full pool", "burst")
        .column("T* predicted", "s")
        .column("T*", "s")
        .column("B* predicted", "MB")
        .column("B*", "MB")
        .column("speed after", "Mbit/s");
    for cell in cells {
        for (rate, found) in &cell.bursts {
            let Burst::Dry { seconds, packets } = cell.calibration.burst(*rate) else { continue };
            let after: Vec<f64> =
                found.iter().filter_map(|burst| Some(burst.speed_after? * 8.0 / 1e6)).collect();
            table.push(
                &format!("{}: {:.0} Mbit/s", cell.name(), cell.mbit(*rate)),
                vec![
                    seconds.into(),
                    times(found).into(),
                    (packets * cell.packet_bytes / 1e6).into(),
                    payloads(cell, found).into(),
                    mean(&after).into(),
                ],
            );
        }
    }
    table
}

fn calibration_table(cells: &[Cell]) -> Table {
    let mut table = Table::new("calibration", "What the predictions were made from", "case")
        .column("pads per CPU second", "")
        .column("CPU of a packet at full speed", "µs")
        .column("CPU of a packet at R*", "µs")
        .column("payload of a packet", "bytes")
        .column("level before the run", "packets")
        .column("packets before fillers wake", "packets")
        .column("cores idle at R*", "cores");
    for cell in cells {
        let model = &cell.calibration;
        let sustained = model.sustained();
        let figures = [
            model.pads_per_cpu_second,
            model.traffic.at(cell.fastest) * 1e6,
            model.traffic.at(sustained) * 1e6,
            cell.packet_bytes,
            model.level,
            model.asleep_packets,
            model.idle(sustained),
        ];
        table.push(&cell.name(), figures.map(Entry::from).into());
    }
    table
}

/// Levels of the first repetition's bursts, with the predicted ends.
fn level_plot(nth: usize, cell: &Cell) -> Option<Plot> {
    let mut plot = Plot::new(
        &format!("level-{}", nth + 1),
        &format!("The pool during bursts: {}", cell.name()),
        Axis::linear("time", "s"),
        Axis::linear("packets whose pads are at hand", "packets"),
    );
    plot.caption =
        "Bursts from a full pool, the first repetition. Upright lines: T* as predicted before the run.".into();
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

/// How fast pads are made beside every rate that was tried, against how fast they are used.
fn rate_plot(nth: usize, cell: &Cell) -> Option<Plot> {
    let mut plot = Plot::new(
        &format!("rates-{}", nth + 1),
        &format!("Rate against pool: {}", cell.name()),
        Axis::log("offered", "Mbit/s"),
        Axis::log("pads made, as payload", "Mbit/s"),
    );
    plot.caption =
        "Where pads are made faster than they are used the pool fills, else it empties. The \
                    lines cross at R*."
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

/// What a reader must know of a case.
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
