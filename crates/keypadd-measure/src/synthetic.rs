//! Builds synthetic results that use every field, to test what is generated from results.

use std::f64::consts::PI;

use crate::machine::Machine;
use crate::results::{
    Axis, Cell, Curve, Estimate, Mark, Outcome, PaperComparison, Plot, Prediction, Results, Run,
    Section, Style, Surface, Table, Verdict,
};

const ARMS: [(&str, f64, f64); 4] = [
    ("plain TCP", 31.0, 0.16),
    ("null-hmac-sha1, pool off", 93.0, 0.22),
    ("3des-ctr-hmac-sha1, pool on", 95.0, 0.24),
    ("3des-ctr-hmac-sha1, pool off", 212.0, 0.2),
];

/// A complete run of three experiments and a paper.
pub(crate) fn results() -> Results {
    let mut run = Run::begin(
        "made-up results: nothing was measured",
        "keypadd bench terminal --suite 3des-ctr-hmac-sha1,null-hmac-sha1 --pool on,off --out report",
        42,
    );
    run.started = "2026-01-02T03:04:05Z".to_owned();
    run.end();
    run.ended = Some("2026-01-02T03:16:45Z".to_owned());
    let mut results = Results::new(run, machine());
    results.sections = vec![terminal(), bulk(), exhaustion(), paper()];
    results
}

/// A fictitious machine.
fn machine() -> Machine {
    Machine {
        cpu: "Made-up CPU @ 2.50GHz".to_owned(),
        architecture: "x86_64".to_owned(),
        cores_online: 2,
        cores_allowed: 2,
        smt: Some(true),
        last_level_cache_bytes: Some(32 << 20),
        cpu_features: ["sse2", "aes", "avx2"].map(str::to_owned).to_vec(),
        cipher_backend: "bitslice-256 (DES, 3DES), AES instructions".to_owned(),
        cipher_backends: ["auto", "des-crate", "bitslice-64"].map(str::to_owned).to_vec(),
        kernel: "Linux 6.0.0".to_owned(),
        memory_bytes: 16 << 30,
        load_at_start: Some([0.08, 0.2, 0.31]),
        ..Machine::default()
    }
}

fn estimate(value: f64, share: f64) -> Estimate {
    let samples = vec![value * (1.0 - share), value, value * (1.0 + share)];
    Estimate { value, interval: Some([value * (1.0 - share), value * (1.0 + share)]), samples }
}

fn terminal() -> Section {
    let mut section = Section::new(
        "terminal",
        "Keystrokes and their echoes",
        "Does a keystroke through a pooled 3DES tunnel cost more than through one that does not encrypt?",
    );
    section.method = vec![
        "Four arms took turns in one run, in an order drawn from the seed, ten rounds of 1,000 keystrokes \
         each. Keystrokes were sent when they were due, whatever had become of earlier ones."
            .to_owned(),
    ];
    section.verdicts = vec![
        Verdict {
            claim: "A pooled 3DES keystroke costs what the null suite's costs.".to_owned(),
            rule: "the upper end of the 95 % interval of the ratio of medians is at most 1.02"
                .to_owned(),
            outcome: Outcome::Holds,
            because: "ratio of medians 1.008, 95 % interval 1.001 to 1.015".to_owned(),
            beside: None,
        },
        Verdict {
            claim: "The pool makes 3DES keystrokes cheaper.".to_owned(),
            rule: "the upper end of the 95 % interval of the ratio of medians is below 1"
                .to_owned(),
            outcome: Outcome::CannotTell,
            because: "ratio of medians 0.97, 95 % interval 0.92 to 1.03".to_owned(),
            beside: None,
        },
    ];
    let mut table = Table::new("latency", "Round trips of a keystroke", "arm");
    for name in ["p50", "p90", "p99", "p99.9", "max"] {
        table = table.column(name, "µs");
    }
    table = table.column("ratio to null", "").column("hits", "%").column("pads from", "");
    let mut plot = Plot::new(
        "round-trips",
        "Round trips of a keystroke",
        Axis::log("round trip", "µs"),
        Axis::linear("keystrokes answered", "%"),
    );
    plot.caption =
        "Further left is faster. Half of the keystrokes were answered within the figure at \
                    50 %; areas are 95 % intervals over ten rounds."
            .to_owned();
    for (index, (arm, median, spread)) in ARMS.into_iter().enumerate() {
        let figures = [1.0, 1.3, 2.2, 4.1, 9.7].map(|tail| estimate(median * tail, 0.012));
        let mut cells: Vec<Cell> = figures.into_iter().map(Cell::from).collect();
        cells[4] = Cell::Figure(Estimate::single((median * 9.7).round()));
        cells.push(if index == 0 { Cell::Missing } else { estimate(median / 93.0, 0.007).into() });
        cells.push([Cell::Missing, Cell::Missing, 99.97.into(), 0.0.into()][index].clone());
        cells.push(["", "inline", "pool", "inline"][index].into());
        table.push(arm, cells);
        let points: Vec<[f64; 2]> = (1..400)
            .map(|n| {
                let share = f64::from(n) / 400.0;
                [median * (spread * (share / (1.0 - share)).ln()).exp(), share * 100.0]
            })
            .collect();
        let band = points.iter().map(|[_, y]| {
            let half = 3.0 * (y / 100.0 * PI).sin();
            [y - half, y + half]
        });
        let band = Some(band.collect());
        plot.curves.push(Curve { band, ..Curve::new(arm, Style::Line, points) });
    }
    section.tables.push(table);
    section.plots.push(plot);
    section.notes =
        vec!["Both ends ran on one machine; they and the load shared two cores.".to_owned()];
    section
}

fn bulk() -> Section {
    let mut section = Section::new(
        "bulk",
        "Bulk, and the pools below it",
        "How long does a pool last under a transfer that is faster than it fills?",
    );
    section.method = vec!["One stream of 400 MB in each arm.".to_owned()];
    let mut plot = Plot::new(
        "levels",
        "Levels of both pools while bulk runs",
        Axis::linear("time", "s"),
        Axis::linear("keystream in the pool", "MiB"),
    );
    plot.caption = "Each end has a pool; the sender's runs dry first.".to_owned();
    let level = |start: f64, slope: f64| {
        let point = move |n: u32| {
            let time = f64::from(n) / 40.0;
            let left = (start - slope * time).max(0.4 + 0.4 * (time * 9.0).sin());
            let refilled = if time > 14.0 { (time - 14.0) * 11.0 } else { 0.0 };
            [time, (left + refilled).min(64.0)]
        };
        (0..=800).map(point).collect()
    };
    plot.curves = vec![
        Curve::new("sender", Style::Steps, level(64.0, 10.3)),
        Curve::new("receiver", Style::Steps, level(60.0, 7.1)),
    ];
    plot.marks = vec![Mark::at_x(14.0, "the transfer ends"), Mark::at_y(64.0, "budget")];
    section.plots.push(plot);
    let mut table =
        Table::new("rate", "Rates", "arm").column("rate", "Mbit/s").column("CPU", "s/GB");
    table.push("null-hmac-sha1", vec![estimate(2610.0, 0.013).into(), estimate(3.1, 0.02).into()]);
    table.push("3des-ctr-hmac-sha1, pool on", vec![estimate(2304.0, 0.02).into(), Cell::Missing]);
    table.push("3des-ctr-hmac-sha1, pool off", vec![estimate(612.0, 0.004).into(), 12.25.into()]);
    section.tables.push(table);
    section
}

fn exhaustion() -> Section {
    let mut section = Section::new(
        "exhaustion",
        "Where the pool runs dry",
        "Above which sustained rate does the pool run dry, and after how long?",
    );
    section.emulated = vec!["3des-ctr-hmac-sha1: keystream slowed to 11.7 MB/s".to_owned()];
    section.verdicts = vec![Verdict {
        claim: "The time until the pool is dry was predicted within 5 %.".to_owned(),
        rule: "the error of every T* with a core left idle is at most 5 %".to_owned(),
        outcome: Outcome::DoesNotHold,
        because: "largest error 7.4 %, at 16 MiB".to_owned(),
        beside: None,
    }];
    let mut prediction =
        Prediction::new("R*, pool 64 MiB", "Mbit/s", 96.0, "fill rate 12.0 MB/s, one core idle");
    prediction.compare(estimate(93.5, 0.01));
    section.predictions.push(prediction);
    let mut prediction =
        Prediction::new("T*, pool 64 MiB at 200 Mbit/s", "s", 5.16, "64 MiB / (25 - 12) MB/s");
    prediction.compare(estimate(5.02, 0.013));
    section.predictions.push(prediction);
    section.predictions.push(Prediction::new("T*, pool 16 MiB", "s", 1.29, "16 MiB / 13 MB/s"));
    let mut plot = Plot::new(
        "rate-against-pool",
        "Sustained rate against pool size",
        Axis::log("pool", "MiB"),
        Axis::linear("R*", "Mbit/s"),
    );
    plot.caption = "Whiskers are 95 % intervals.".to_owned();
    for (load, most) in [("0 %", 93.5), ("50 %", 46.0), ("100 %", 1.2)] {
        let figure = |pool: f64| (pool, estimate(most * (1.0 - 0.3 / pool.sqrt()), 0.04));
        let figures = [1.0, 4.0, 16.0, 64.0, 256.0].map(figure);
        let label = format!("background load {load}");
        plot.curves.push(Curve::of_estimates(&label, Style::Points, figures));
    }
    plot.marks.push(Mark::at_y(96.0, "R* predicted, no load"));
    section.plots.push(plot);
    let mut plot = Plot::new(
        "level",
        "The pool's level at 200 Mbit/s",
        Axis::linear("time", "s"),
        Axis::linear("level", "MiB"),
    );
    let points: Vec<_> = (0..=160)
        .map(|n| f64::from(n) / 20.0)
        .map(|time| [time, (64.0 - 12.75 * time).max(0.0)])
        .collect();
    let band = points.iter().map(|[_, y]| [(y - 2.0).max(0.0), y + 2.0]).collect();
    plot.curves.push(Curve { band: Some(band), ..Curve::new("measured", Style::Line, points) });
    plot.curves.push(Curve::new(
        "predicted",
        Style::Line,
        vec![[0.0, 64.0], [5.16, 0.0], [8.0, 0.0]],
    ));
    plot.marks = vec![Mark::at_x(5.16, "T* predicted"), Mark::at_x(5.02, "T* measured")];
    section.plots.push(plot);
    section
}

fn paper() -> Section {
    let mut section =
        Section::new("paper", "A paper that nobody wrote", "Is it as its author says?");
    section.own_page = true;
    section.emulated = vec!["keystream slowed to 72 kB/s".to_owned()];
    section.method = vec!["What the paper did was done again.".to_owned()];
    let claims = [
        ("X1", Some(7.25), Some(estimate(6.9, 0.04)), Outcome::Holds),
        ("X2", Some(1.01), Some(estimate(1.3, 0.1)), Outcome::DoesNotHold),
        ("X3", None, Some(Estimate::single(0.2)), Outcome::CannotTell),
        ("X4", Some(0.5), None, Outcome::NotRun),
    ];
    for (name, paper, today, outcome) in claims {
        section.verdicts.push(Verdict {
            claim: "More is carried by larger packets, whatever they are made of.".to_owned(),
            rule: "the interval begins at 1 or above".to_owned(),
            outcome,
            because: "made up".to_owned(),
            beside: Some(PaperComparison {
                name: name.to_owned(),
                ratio: "bytes a second, packets of 1,024 bytes over packets of 128 bytes"
                    .to_owned(),
                paper,
                source: "page 2".to_owned(),
                today,
            }),
        });
    }
    let cell = |row: usize, column: usize| match (row, column) {
        (2, 3) => None,
        _ => Some(estimate(4.0 * 1.6_f64.powi(column as i32) + row as f64, 0.05)),
    };
    section.surfaces.push(Surface {
        id: "round-trips".to_owned(),
        title: "Round trips by size and delay".to_owned(),
        caption: "Darker is longer.".to_owned(),
        x: Axis::log("packet", "bytes"),
        y: Axis::linear("delay between packets", "ms"),
        z: Axis::log("round trip", "ms"),
        columns: vec![16.0, 64.0, 128.0, 256.0, 1024.0],
        rows: vec![0.0, 1.0, 5.0],
        cells: (0..3).map(|row| (0..5).map(|column| cell(row, column)).collect()).collect(),
        range: None,
    });
    section
}
