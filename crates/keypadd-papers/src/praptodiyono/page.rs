//! Builds the page: words and tables around the claims. Pure.

use keypadd_measure::results::{Cell, Estimate, Section, Table};

use super::claims::claims;
use super::measure::{SUITE, exchanges, stream_time};
use super::{GROUPS, Generated, Measurements, Printed, TABLE_1, TABLE_2, Throughput};
use crate::claim::judge;
use crate::lab::mean;
use crate::{Effort, Paper};

/// Share of a transfer's time above which a key exchange matters.
const NEGLIGIBLE: f64 = 0.01;

pub(super) fn page(figures: &Measurements, effort: Effort) -> Section {
    let amounts = [
        ("key exchanges of a round", Effort::both(exchanges)),
        ("seconds of a stream", Effort::both(|it| stream_time(it).as_secs_f64())),
    ];
    let mut page = Section::of_page(
        Paper::Praptodiyono.name(),
        include_str!("page.md"),
        &[
            ("exchanges", &exchanges(effort)),
            ("seconds", &stream_time(effort).as_secs_f64()),
            ("suite", &SUITE),
            ("effort", &effort.compared(&amounts)),
        ],
    );
    page.verdicts = judge(&claims(), figures);
    page.tables = vec![generation_table(figures), throughput_table(figures)];
    page
}

/// Minimum, maximum and deviation of the rounds, as in the paper.
fn spread(samples: &[f64]) -> [Cell; 3] {
    let Some(Estimate { value, .. }) = mean(samples) else { return [const { Cell::Missing }; 3] };
    let squares: f64 = samples.iter().map(|it| (it - value).powi(2)).sum();
    let deviation = (squares / (samples.len().max(2) - 1) as f64).sqrt();
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [least, most, deviation].map(Cell::from)
}

fn generation_table(figures: &Measurements) -> Table {
    let mut table = Table::new("generation", "Time of a key exchange", "group")
        .column("paper, mean", "ms")
        .column("least", "ms")
        .column("most", "ms")
        .column("deviation", "ms")
        .column("today, key pair", "µs")
        .column("least", "µs")
        .column("most", "µs")
        .column("deviation", "µs")
        .column("both sides' work", "µs")
        .column("handshake", "µs");
    for (nth, group) in GROUPS.iter().enumerate() {
        let of = |figure: fn(&Generated) -> f64| figures.generation.figures(|it| figure(&it[nth]));
        let key_pairs = of(|it| it.key_pair_us);
        let mut cells = TABLE_1[nth].0.map(|seconds| Cell::from(seconds * 1e3)).to_vec();
        cells.push(mean(&key_pairs).into());
        cells.extend(spread(&key_pairs));
        cells.push(mean(&of(|it| it.exchange_us)).into());
        cells.push(mean(&of(|it| it.handshake_us)).into());
        table.push(group.name(), cells);
    }
    table
}

fn throughput_table(figures: &Measurements) -> Table {
    let mut table = Table::new("throughput", "Throughput afterwards", "key exchange")
        .column("paper, mean", "Mbit/s")
        .column("least", "Mbit/s")
        .column("most", "Mbit/s")
        .column("deviation", "Mbit/s")
        .column("today", "Mbit/s")
        .column("least", "Mbit/s")
        .column("most", "Mbit/s")
        .column("deviation", "Mbit/s")
        .column("data after which the handshake is 1 % of the time", "MB");
    let rounds = &figures.throughput;
    let mut push =
        |label: &str, printed: &Printed, of: &dyn Fn(&Throughput) -> f64, handshakes_us| {
            let samples = rounds.figures(of);
            let mut cells = printed.0.map(Cell::from).to_vec();
            cells.push(mean(&samples).into());
            cells.extend(spread(&samples));
            cells.push(negligible_from(&samples, handshakes_us).into());
            table.push(label, cells);
        };
    push("plain, no tunnel", &TABLE_2[0], &|it| it.plain, None);
    for (nth, group) in GROUPS.iter().enumerate() {
        let handshakes_us = figures.generation.figures(|it| it[nth].handshake_us);
        push(group.name(), &TABLE_2[nth + 1], &|it| it.tunnels[nth], Some(handshakes_us));
    }
    table
}

/// Megabytes that take so long at a rate that a handshake is negligible.
fn negligible_from(mbit: &[f64], handshakes_us: Option<Vec<f64>>) -> Option<Estimate> {
    let handshakes_us = handshakes_us?;
    let rounds = mbit.len().min(handshakes_us.len());
    let of_round = |nth: usize| {
        let seconds = handshakes_us[nth] / 1e6 * (1.0 - NEGLIGIBLE) / NEGLIGIBLE;
        seconds * mbit[nth] / 8.0
    };
    mean(&(0..rounds).map(of_round).collect::<Vec<f64>>())
}
