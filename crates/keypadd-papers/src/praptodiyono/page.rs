//! What the rounds say, beside what the paper says. Pure.

use keypadd_measure::results::{Cell, Estimate, Section, Table};
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::verdict::Rule;

use super::measure::{SUITE, exchanges, stream_time};
use super::{Figures, GROUPS, Generated, MODP_1024, MODP_3072, SECP384R1, Throughput};
use crate::Effort;
use crate::claim::{Claim, half_of};

/// Mean, least, most and standard deviation of ten, as printed.
struct Printed([f64; 4]);

/// Table 1: seconds, in the order of [`GROUPS`].
const TABLE_1: [Printed; 3] = [
    Printed([0.0172, 0.017, 0.019, 0.001]),
    Printed([0.0718, 0.07, 0.072, 0.001]),
    Printed([0.007, 0.007, 0.007, 0.0]),
];
/// Table 2: Mbit/s, plain and then in the order of [`GROUPS`].
const TABLE_2: [Printed; 4] = [
    Printed([31.67, 29.0, 37.5, 2.32]),
    Printed([19.81, 15.6, 23.5, 2.52]),
    Printed([17.3, 14.8, 20.7, 1.49]),
    Printed([23.39, 19.8, 27.6, 2.24]),
];

/// The part of a transfer's time that a key exchange may take before it counts.
const NEGLIGIBLE: f64 = 0.01;

pub(super) fn page(figures: &Figures, effort: Effort) -> Section {
    let mut section = Section::new(
        "praptodiyono",
        "Praptodiyono and others: key exchanges of IPsec",
        "Which key exchange takes least time, and does a faster one make the connection faster afterwards?",
    );
    section.method = vec![
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
        effort.compared(&[
            ("key exchanges of a round", exchanges(Effort::Quick).to_string(), exchanges(Effort::Full).to_string()),
            ("seconds of a stream", seconds(Effort::Quick), seconds(Effort::Full)),
        ]),
    ];
    section.emulated = vec![
        "the line of streams is a relay in this process, IPv6, 32 Mbit/s, as the paper's network carried".into(),
    ];
    section.verdicts = generation_claims(figures);
    section.verdicts.extend(throughput_claims(figures));
    section.tables = vec![generation_table(figures), throughput_table(figures)];
    section.notes = vec![
        "The group modulo a prime is this program's own, for measurements alone; secp384r1 is ring's, in \
         assembly. A ratio between them is one of implementations too, as it was in the paper."
            .into(),
        "Where a line of 32 Mbit/s is what limits a stream, a tunnel costs its packets' headers and tags. That the \
         paper's tunnels lose a quarter to a half is what its machines took for encryption, whatever the key exchange."
            .into(),
    ];
    section
}

fn seconds(effort: Effort) -> String {
    stream_time(effort).as_secs_f64().to_string()
}

fn name(group: usize) -> &'static str {
    GROUPS[group].name()
}

fn generation_claims(figures: &Figures) -> Vec<keypadd_measure::results::Verdict> {
    let rounds = &figures.generation;
    let of = |group: usize, figure: fn(&Generated) -> f64| rounds.figures(|it| figure(&it[group]));
    let printed = |group: usize| TABLE_1[group].0[0];
    let key_pair: fn(&Generated) -> f64 = |it| it.key_pair_us;
    let handshake: fn(&Generated) -> f64 = |it| it.handshake_us;
    let mut verdicts = Vec::new();
    for (what, figure, source) in [
        ("key pair", key_pair, "Table 1"),
        ("handshake", handshake, "Table 1, which has no handshakes: key generation"),
    ] {
        for (slower, faster) in [(MODP_1024, SECP384R1), (MODP_3072, MODP_1024)] {
            let (slow, fast) = (name(slower), name(faster));
            let claim = Claim::new(
                "P1",
                &format!("A {what} takes less time with {fast} than with {slow}."),
                &format!("time of a {what}, {slow} over {fast}"),
                Rule::AtLeast(1.0),
            );
            let claim = claim.printed(printed(slower) / printed(faster), source);
            let today = ratio(&of(slower, figure), &of(faster, figure));
            verdicts.push(claim.judge(today, rounds.missed.as_ref()));
        }
    }
    verdicts
}

fn throughput_claims(figures: &Figures) -> Vec<keypadd_measure::results::Verdict> {
    let rounds = &figures.throughput;
    let of = |group: usize| rounds.figures(|it| it.tunnels[group]);
    let printed = |group: usize| TABLE_2[group + 1].0[0];
    let plain = rounds.figures(|it| it.plain);
    let mut verdicts = Vec::new();
    for slower in [MODP_1024, MODP_3072] {
        let (slow, fast) = (name(slower), name(SECP384R1));
        let paper = printed(SECP384R1) / printed(slower);
        let claim = Claim::new(
            "P2",
            &format!("Throughput is higher after a key exchange with {fast} than with {slow}."),
            &format!("throughput, {fast} over {slow}"),
            half_of(paper),
        );
        let today = ratio(&of(SECP384R1), &of(slower));
        verdicts.push(claim.printed(paper, "Table 2").judge(today, rounds.missed.as_ref()));
    }
    for (group, it) in GROUPS.iter().enumerate() {
        let paper = printed(group) / TABLE_2[0].0[0];
        let claim = Claim::new(
            "P2",
            &format!("A tunnel whose key exchange was {it} carries less than no tunnel."),
            &format!("throughput, {it} over plain"),
            half_of(paper),
        );
        let today = ratio(&of(group), &plain);
        verdicts.push(claim.printed(paper, "Table 2").judge(today, rounds.missed.as_ref()));
    }
    verdicts
}

/// Least, most and deviation of the rounds, as the paper has them.
fn spread(samples: &[f64]) -> [Cell; 3] {
    let Some(Estimate { value, .. }) = mean(samples) else { return [const { Cell::Missing }; 3] };
    let squares: f64 = samples.iter().map(|it| (it - value).powi(2)).sum();
    let deviation = (squares / (samples.len().max(2) - 1) as f64).sqrt();
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [least, most, deviation].map(Cell::from)
}

fn generation_table(figures: &Figures) -> Table {
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

fn throughput_table(figures: &Figures) -> Table {
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

/// Megabytes at a rate that take so long that a handshake is negligible beside them.
fn negligible_from(mbit: &[f64], handshakes_us: Option<Vec<f64>>) -> Option<Estimate> {
    let handshakes_us = handshakes_us?;
    let rounds = mbit.len().min(handshakes_us.len());
    let of_round = |nth: usize| {
        let seconds = handshakes_us[nth] / 1e6 * (1.0 - NEGLIGIBLE) / NEGLIGIBLE;
        seconds * mbit[nth] / 8.0
    };
    mean(&(0..rounds).map(of_round).collect::<Vec<f64>>())
}
