//! Builds the page: words, tables and plots around the claims. Pure.

mod claims;
mod printed;

use super::measure::{FAST, SLOW, emulated_rate, time, time_slowed};
use super::{
    ArmId, Claim, EMULATED, FILES, LARGE, MEDIUM, Measurements, PROCESSORS, Rates, SMALL, TUNNELS,
    Task, at, clients, name, protection,
};
use crate::claim::judge;
use crate::{Effort, Paper};
pub(super) use claims::claims;
use keypadd_measure::figure::group;
use keypadd_measure::results::{Axis, Cell, Curve, Plot, Section, Style, Table};
use keypadd_measure::sequence::ratio;
use keypadd_measure::statistics::mean_of_finite as mean;
use printed::{BASE_MBIT, CLIENTS, PROCESSOR_GAINS, printed_over_base};

const SIZES: [&str; 3] = ["small", "medium", "large"];

pub(super) fn page(figures: &Measurements, effort: Effort) -> Section {
    let numbers: Vec<String> = clients(effort).iter().map(ToString::to_string).collect();
    let amounts = [
        ("numbers of clients", Effort::both(|it| clients(it).len())),
        ("seconds of each number and size", Effort::both(|it| time(it).as_secs_f64())),
    ];
    let mut page = Section::of_page(
        Paper::Compaq.name(),
        include_str!("page.md"),
        &[
            ("clients", &numbers.join(", ")),
            ("seconds", &time(effort).as_secs_f64()),
            ("slow", &format!("{SLOW:.3}")),
            ("fast", &FAST),
            ("seconds_slowed", &time_slowed(effort).as_secs_f64()),
            ("period", &testbed::PERIOD.as_millis()),
            ("effort", &effort.compared(&amounts)),
        ],
    );
    if let Ok(base) = &figures.calibration {
        page.emulated.extend(EMULATED.map(|pair| {
            let (suite, rate) = (protection(pair), emulated_rate(pair.0, *base));
            let rate = group(&rate.to_string());
            format!("{suite}, emulated: keystream slowed to {rate} bytes a second")
        }));
    }
    page.notes.splice(0..0, printed::contradictions());
    page.verdicts = judge(&claims(), figures);
    page.tables = vec![over_base(figures), processors(figures)];
    page.tables.extend((0..FILES.len()).map(|size| rates(figures, size, effort)));
    page.plots = vec![ciphers(figures)];
    page.plots.extend([LARGE, MEDIUM, SMALL].map(|size| by_clients(figures, size, effort)));
    page
}

/// One value per round: the geometric mean over the numbers of clients.
fn typical(rates: &[f64]) -> f64 {
    (rates.iter().map(|rate| rate.ln()).sum::<f64>() / rates.len() as f64).exp()
}

impl Measurements {
    /// Values of an arm and a file size, round by round.
    fn of(&self, arm: ArmId, size: usize) -> Vec<f64> {
        self.rounds.figures(|it| typical(&arm.rates(it)[size]))
    }

    /// Values of an arm, a file size and a number of clients, round by round.
    fn by_clients(&self, arm: ArmId, size: usize, nth: usize) -> Vec<f64> {
        self.rounds.figures(|it| at(&arm.rates(it)[size], nth))
    }
}

/// No tunnel, and the base.
const PLAIN: ArmId = ArmId::Tunnel(0);
const BASE: ArmId = ArmId::Tunnel(1);

fn over_base(figures: &Measurements) -> Table {
    let rows = ArmId::all().map(|arm| (arm.name(), arm));
    let mut table = Table::of("over-base", "Throughput over the base", "arm", rows);
    for size in [LARGE, MEDIUM, SMALL] {
        table = table
            .column(&format!("paper, {}", SIZES[size]), "", |arm| {
                printed_over_base(arm.tunnel()?, size)
            })
            .column(&format!("today, {}", SIZES[size]), "", |arm| {
                ratio(&figures.of(*arm, size), &figures.of(BASE, size))
            });
    }
    table.end()
}

fn processors(figures: &Measurements) -> Table {
    let rows = PROCESSORS.iter().enumerate().map(|(nth, pair)| (protection(*pair), nth));
    let mut table = Table::of("processors", "The faster processor over the slower", "arm", rows);
    for (nth_size, size) in ["medium", "large"].into_iter().enumerate() {
        let slow = |nth: &usize| figures.speeds.figures(|it| at(&it.slow[*nth], nth_size));
        let fast = |nth: &usize| figures.speeds.figures(|it| at(&it.fast[*nth], nth_size));
        table = table
            .column(&format!("paper, {size}"), "", |nth| PROCESSOR_GAINS[*nth].negotiated[nth_size])
            .column(&format!("today, {size}"), "", |nth| ratio(&fast(nth), &slow(nth)))
            .column(&format!("slower, {size}"), "Mbit/s", |nth| mean(&slow(nth)))
            .column(&format!("faster, {size}"), "Mbit/s", |nth| mean(&fast(nth)));
    }
    table.end()
}

/// Absolute throughput for a file size, by number of clients.
fn rates(figures: &Measurements, size: usize, effort: Effort) -> Table {
    let arms = ArmId::all().map(|arm| (arm.name(), Some(arm)));
    let rows = std::iter::once(("paper, base".to_owned(), None)).chain(arms);
    let title = format!("Throughput of {} files", SIZES[size]);
    let mut table = Table::of(SIZES[size], &title, "arm", rows);
    for (nth, clients) in clients(effort).iter().enumerate() {
        let printed = CLIENTS.iter().position(|it| it == clients);
        table = table.column(&format!("{clients} clients"), "Mbit/s", |arm| match arm {
            Some(arm) => Cell::from(mean(&figures.by_clients(*arm, size, nth))),
            None => printed.map(|nth| BASE_MBIT[size][nth]).into(),
        });
    }
    table.end()
}

/// The paper's arms over the base, for large files.
fn ciphers(figures: &Measurements) -> Plot {
    let mut plot = Plot::new(
        "large-over-base",
        "Throughput of large files over the base",
        Axis::linear("arm", ""),
        Axis::linear("over the base", ""),
    );
    let named = TUNNELS.iter().enumerate().map(|(nth, it)| format!("{nth}: {}", name(*it)));
    plot.caption = format!("{}.", named.collect::<Vec<_>>().join("; "));
    let printed =
        (0..TUNNELS.len()).filter_map(|nth| Some([nth as f64, printed_over_base(nth, LARGE)?]));
    plot.curves.push(Curve::new("paper", Style::Points, printed.collect()));
    let base = figures.of(BASE, LARGE);
    for (label, is_of) in [
        ("today", (|arm| matches!(arm, ArmId::Tunnel(_))) as fn(&ArmId) -> bool),
        ("today, cipher emulated", |arm| matches!(arm, ArmId::Emulated(_))),
    ] {
        let over = |arm: ArmId| Some((arm.tunnel()? as f64, ratio(&figures.of(arm, LARGE), &base)));
        let points = ArmId::all().filter(is_of).filter_map(over);
        plot.curves.push(Curve::of_estimates(label, Style::Points, points));
    }
    plot
}

/// Some arms by number of clients, over the base with the most clients.
fn by_clients(figures: &Measurements, size: usize, effort: Effort) -> Plot {
    let title = format!("Throughput of {} files by clients", SIZES[size]);
    let mut plot = Plot::new(
        &format!("clients-{}", SIZES[size]),
        &title,
        Axis::linear("clients", ""),
        Axis::linear("over the base with 20 clients", ""),
    );
    plot.caption = "The paper prints the base alone.".into();
    let last = BASE_MBIT[size][CLIENTS.len() - 1];
    let printed =
        CLIENTS.iter().zip(BASE_MBIT[size]).map(|(it, mbit)| [f64::from(*it), mbit / last]);
    plot.curves.push(Curve::new("paper, base", Style::Line, printed.collect()));
    let most = clients(effort).len() - 1;
    let base = figures.by_clients(BASE, size, most);
    for (arm, label) in [
        (BASE, "today, base"),
        (ArmId::Tunnel(4), "today, DES"),
        (ArmId::Tunnel(5), "today, 3DES"),
        (ArmId::Emulated(1), "3DES, emulated"),
    ] {
        let over = clients(effort).iter().enumerate().map(|(nth, clients)| {
            (f64::from(*clients), ratio(&figures.by_clients(arm, size, nth), &base))
        });
        plot.curves.push(Curve::of_estimates(label, Style::Line, over));
    }
    plot
}
