//! Builds the page: words and tables around the claims. Pure.

use keypadd_measure::results::{Columns, Estimate, Section, Table};
use keypadd_measure::statistics::mean_of_finite as mean;

use super::claims::claims;
use super::measure::{SUITE, exchanges, stream_time};
use super::{GROUPS, Generated, Measurements, Printed, TABLE_1, TABLE_2};
use crate::claim::judge;
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

/// Four columns: mean, minimum, maximum and deviation, as in the paper.
fn four<R>(
    mut table: Columns<R>,
    mean: &str,
    unit: &str,
    figures: impl Fn(&R) -> [Option<Estimate>; 4],
) -> Columns<R> {
    for (nth, name) in [mean, "least", "most", "deviation"].into_iter().enumerate() {
        table = table.column(name, unit, |row| figures(row)[nth].clone());
    }
    table
}

/// What the paper printed.
fn printed(figures: &Printed, scale: f64) -> [Option<Estimate>; 4] {
    figures.0.map(|it| Some(Estimate::single(it * scale)))
}

/// The rounds' mean, minimum, maximum and deviation.
fn spread(samples: &[f64]) -> [Option<Estimate>; 4] {
    let Some(mean) = mean(samples) else { return [const { None }; 4] };
    let squares: f64 = samples.iter().map(|it| (it - mean.value).powi(2)).sum();
    let deviation = (squares / (samples.len().max(2) - 1) as f64).sqrt();
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let [least, most, deviation] = [least, most, deviation].map(|it| Some(Estimate::single(it)));
    [Some(mean), least, most, deviation]
}

fn generation_table(figures: &Measurements) -> Table {
    let of = |nth: &usize, figure: fn(&Generated) -> f64| {
        figures.generation.figures(|it| figure(&it[*nth]))
    };
    let rows = GROUPS.iter().enumerate().map(|(nth, group)| (group, nth));
    let table = Table::of("generation", "Time of a key exchange", "group", rows);
    let table = four(table, "paper, mean", "ms", |nth| printed(&TABLE_1[*nth], 1e3));
    let key_pairs = |nth: &usize| spread(&of(nth, |it| it.key_pair_us));
    four(table, "today, key pair", "µs", key_pairs)
        .column("both sides' work", "µs", |nth| mean(&of(nth, |it| it.exchange_us)))
        .column("handshake", "µs", |nth| mean(&of(nth, |it| it.handshake_us)))
        .end()
}

fn throughput_table(figures: &Measurements) -> Table {
    let of = |group: &Option<usize>| {
        figures.throughput.figures(|it| group.map_or(it.plain, |nth| it.tunnels[nth]))
    };
    let groups = GROUPS.iter().enumerate().map(|(nth, group)| (group.name(), Some(nth)));
    let rows = std::iter::once(("plain, no tunnel", None)).chain(groups);
    let table = Table::of("throughput", "Throughput afterwards", "key exchange", rows);
    let table = four(table, "paper, mean", "Mbit/s", |group| {
        printed(&TABLE_2[group.map_or(0, |nth| nth + 1)], 1.0)
    });
    four(table, "today", "Mbit/s", |group| spread(&of(group)))
        .column("data after which the handshake is 1 % of the time", "MB", |group| {
            let nth = (*group)?;
            let handshakes_us = figures.generation.figures(|it| it[nth].handshake_us);
            negligible_from(&of(group), &handshakes_us)
        })
        .end()
}

/// Megabytes that take so long at a rate that a handshake is negligible.
fn negligible_from(mbit: &[f64], handshakes_us: &[f64]) -> Option<Estimate> {
    let rounds = mbit.len().min(handshakes_us.len());
    let of_round = |nth: usize| {
        let seconds = handshakes_us[nth] / 1e6 * (1.0 - NEGLIGIBLE) / NEGLIGIBLE;
        seconds * mbit[nth] / 8.0
    };
    mean(&(0..rounds).map(of_round).collect::<Vec<f64>>())
}
