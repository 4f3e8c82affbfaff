//! Plots throughput and echo times over loss, and rate and queue over time. Pure.

use super::Paths;
use super::lines::of_line;
use super::sample::{Bin, Sample, Taken};
use crate::results::{Axis, Curve, Mark, Plot, Style};
use crate::series::over_rounds;

/// Bulk and p99 of a line's one-way cases, if there are several losses.
pub(super) fn over_losses(paths: &Paths, taken: &[Taken], line: &str, nth: usize) -> Vec<Plot> {
    let one_way: Vec<_> = of_line(paths, line).filter(|(_, case)| !case.two_way).collect();
    if one_way.len() < 2 {
        return Vec::new();
    }
    let curves = |figure: fn(&Sample) -> Option<f64>| {
        let curve = |arm: usize| {
            let points = one_way
                .iter()
                .map(|(case, of)| (of.loss_percent, over_rounds(taken, *case, arm, figure)));
            Curve::of_estimates(paths.arms[arm].name(), Style::Line, points)
        };
        (0..paths.arms.len())
            .map(curve)
            .filter(|curve| !curve.points.is_empty())
            .collect::<Vec<_>>()
    };
    let x = || Axis::linear("packets lost", "%");
    let mut bulk = Plot::new(
        &format!("bulk-over-loss-{}", nth + 1),
        &format!("Bulk over loss: {line}"),
        x(),
        Axis::linear("payload", "Mbit/s"),
    );
    bulk.caption = "Areas are the range of rounds.".into();
    bulk.curves = curves(|sample| sample.down_mbit);
    let mut p99 = Plot::new(
        &format!("p99-over-loss-{}", nth + 1),
        &format!("Small messages beside bulk, p99: {line}"),
        x(),
        Axis::log("round trip", "ms"),
    );
    p99.caption = "Areas are the range of rounds.".into();
    p99.curves = curves(|sample| sample.p99_ms);
    if let Some((_, case)) = one_way.first() {
        p99.marks.push(Mark::at_y(case.rtt.as_secs_f64() * 1e3, "empty line"));
    }
    vec![bulk, p99]
}

/// Rate and queue over time of each case, in the first round.
pub(super) fn over_time(paths: &Paths, taken: &[Taken]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (index, case) in paths.cases.iter().enumerate() {
        let mut of_case: Vec<&Taken> =
            taken.iter().filter(|it| it.case == index && it.round == 0).collect();
        of_case.sort_by_key(|it| it.arm);
        let curves = |figure: fn(&Bin) -> f64| {
            let traced = of_case.iter().filter(|it| !it.sample.trace.is_empty());
            let curve = |it: &&Taken| {
                let points = it.sample.trace.iter().map(|bin| [bin.at, figure(bin)]).collect();
                Curve::new(paths.arms[it.arm].name(), Style::Line, points)
            };
            traced.map(curve).collect::<Vec<_>>()
        };
        if of_case.iter().all(|it| it.sample.trace.is_empty()) {
            continue;
        }
        let steady = Mark::at_x(case.start_up().as_secs_f64(), "steady from here");
        let plot = |id: &str, title: &str, y: Axis, curves| {
            let id = format!("{id}-{}", index + 1);
            let x = Axis::linear("time", "s");
            let marks = vec![steady.clone()];
            Plot { curves, marks, ..Plot::new(&id, &format!("{title}: {case}"), x, y) }
        };
        plots.push(plot(
            "rate",
            "Delivered rate",
            Axis::linear("arrived on the line", "Mbit/s"),
            curves(|bin| bin.mbit),
        ));
        plots.push(plot(
            "queue",
            "Queueing delay",
            Axis::linear("wait for the bottleneck", "ms"),
            curves(|bin| bin.queue_ms),
        ));
    }
    plots
}
