//! Builds the page: words and tables around the claims. Pure.

use keypadd_measure::results::{Cell, Estimate, Section, Table};

use super::claims::claims;
use super::measure::{SUITE, exchanges, stream_time};
use super::{GROUPS, Generated, Measurements, Printed, TABLE_1, TABLE_2, Throughput};
use crate::Effort;
use crate::lab::mean;
use crate::page::Page;

/// Share of a transfer's time above which a key exchange matters.
const NEGLIGIBLE: f64 = 0.01;

pub(super) fn page(figures: &Measurements, effort: Effort) -> Section {
    let page = Page {
        title: "Praptodiyono and others: key exchanges of IPsec",
        question: "Which key exchange takes least time, and does a faster one make the connection faster afterwards?",
        method: vec![
        format!(
            "The paper generates keys of three groups ten times each, then measures the throughput of IPsec over \
             IPv6 whose keys were agreed on by each. Here a round takes each group in turn, in an order drawn from \
             the seed: {0} key pairs and whole exchanges, {0} handshakes of two ends over UDP, and a stream of \
             {1} s through a new tunnel ({SUITE}, pool off) whose handshake was by that group; the same stream \
             without a tunnel is plain. A round's figure is the mean of its {0}; intervals are over rounds.",
            exchanges(effort),
            stream_time(effort).as_secs_f64(),
        ),
        "A claim about speed holds if the order is that of the paper. A claim about how much faster holds \
         if at least half of the paper's effect is there."
            .into(),
        ],
        amounts: vec![
            ("key exchanges of a round", Effort::both(exchanges)),
            ("seconds of a stream", Effort::both(|it| stream_time(it).as_secs_f64())),
        ],
        emulated: vec!["the line of streams is a relay in this process, IPv6, 32 Mbit/s, as the paper's network carried".into(),],
        claims: claims(),
        tables: vec![generation_table(figures), throughput_table(figures)],
        plots: Vec::new(),
        surfaces: Vec::new(),
        notes: vec![
            "The group modulo a prime is this program's own, for measurements alone; secp384r1 is ring's, in \
         assembly. A ratio between them is one of implementations too, as it was in the paper."
            .into(),
        "Where a line of 32 Mbit/s is what limits a stream, a tunnel costs its packets' headers and tags. That the \
         paper's tunnels lose a quarter to a half is what its machines took for encryption, whatever the key exchange."
            .into(),
        ],
    };
    page.of(figures, effort)
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
