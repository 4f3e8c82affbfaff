//! Builds the section on handshakes: tables, plots and verdicts from the rounds. Pure.

use super::{Kex, Measured, Turn};
use crate::results::{Axis, Cell, Curve, Estimate, Outcome, Plot, Section, Style, Table, Verdict};
use crate::statistics::{mean, ratio};

/// The group that others are compared to.
const BASE: &str = "x25519";

/// Key lifetimes in seconds: the default, and that of the papers.
const LIFETIMES: [(&str, f64); 2] = [("1h", 3_600.0), ("2m", 120.0)];

pub(super) fn section(kex: &Kex, measured: &[Measured]) -> Section {
    let mut section = Section::of_page(
        "kex",
        include_str!("section.md"),
        &[
            ("rounds", &kex.rounds),
            ("handshakes", &kex.handshakes),
            ("rate", &kex.per_second),
            ("seconds", &kex.time.as_secs_f64()),
        ],
    );
    section.verdicts = vec![round_trips(measured)];
    section.tables =
        vec![one_by_one(measured), open_loop(kex, measured), wire(measured), fresh_keys(measured)];
    section.plots = vec![distribution(kex, measured)];
    for of_group in measured {
        let failed: u64 = of_group.turns.iter().map(|turn| turn.failed).sum();
        if failed > 0 {
            section.notes.push(format!("{}: {failed} handshakes failed", of_group.group));
        }
    }
    section
}

/// Whether every group needs one round trip, as TLS 1.3 promises.
fn round_trips(measured: &[Measured]) -> Verdict {
    let trips: Vec<_> =
        measured.iter().filter_map(|it| Some((it.group, it.wire?.round_trips[0]))).collect();
    let more: Vec<_> = trips.iter().filter(|(_, trips)| trips.round() != 1.0).collect();
    let outcome = match (trips.len(), more.len()) {
        (0, _) => Outcome::CannotTell,
        (_, 0) => Outcome::Holds,
        _ => Outcome::DoesNotHold,
    };
    let because: Vec<String> =
        trips.iter().map(|(group, trips)| format!("{group} {trips:.2}")).collect();
    Verdict {
        claim: "Every key exchange lets the client send after one round trip.".into(),
        rule:
            "Holds if the time through the relay, over its round trip, rounds to 1 for every group."
                .into(),
        outcome,
        because: if because.is_empty() { "not measured".into() } else { because.join(", ") },
        beside: None,
    }
}

/// One value per turn, of the turns that have it.
fn of_turns(measured: &Measured, figure: impl Fn(&Turn) -> Option<f64>) -> Vec<f64> {
    measured.turns.iter().filter_map(figure).collect()
}

fn one_by_one(measured: &[Measured]) -> Table {
    let mut table = Table::new("one-by-one", "One after the other", "key exchange")
        .column("client may send, median", "µs")
        .column("done, median", "µs")
        .column("done, p99", "µs")
        .column("CPU of both ends", "µs")
        .column(&format!("CPU over {BASE}"), "");
    let cpu = |it: &Measured| of_turns(it, |turn| Some(turn.cpu_us));
    let base = measured.iter().find(|it| it.group.name() == BASE).map(cpu);
    for it in measured {
        let over = base.as_ref().filter(|_| it.group.name() != BASE).and_then(|base| {
            let cpu = cpu(it);
            let rounds = base.len().min(cpu.len());
            ratio(&cpu[..rounds], &base[..rounds])
        });
        table.push(
            it.group.name(),
            vec![
                mean(&of_turns(it, |turn| turn.ready.quantile_us(0.5))).into(),
                mean(&of_turns(it, |turn| turn.done.quantile_us(0.5))).into(),
                mean(&of_turns(it, |turn| turn.done.quantile_us(0.99))).into(),
                mean(&cpu(it)).into(),
                over.into(),
            ],
        );
    }
    table
}

fn open_loop(kex: &Kex, measured: &[Measured]) -> Table {
    let title = format!("{} a second, from when each was due", kex.per_second);
    let mut table = Table::new("open-loop", &title, "key exchange")
        .column("p50", "µs")
        .column("p90", "µs")
        .column("p99", "µs")
        .column("max", "µs")
        .column("handshakes", "");
    for it in measured {
        let quantile =
            |quantile| Cell::from(mean(&of_turns(it, |turn| turn.open_loop.quantile_us(quantile))));
        let count: u64 = it.turns.iter().map(|turn| turn.open_loop.count()).sum();
        let longest = it.turns.iter().filter_map(|turn| turn.open_loop.max_us());
        table.push(
            it.group.name(),
            vec![
                quantile(0.5),
                quantile(0.9),
                quantile(0.99),
                longest.reduce(f64::max).map_or(Cell::Missing, Cell::from),
                (count as f64).into(),
            ],
        );
    }
    table
}

fn wire(measured: &[Measured]) -> Table {
    let mut table = Table::new("wire", "On the wire", "key exchange")
        .column("from the client", "bytes")
        .column("to the client", "bytes")
        .column("datagrams from the client", "")
        .column("datagrams to the client", "")
        .column("round trips until the client may send", "")
        .column("until it knows that both may", "");
    for it in measured {
        let cells = it.wire.map(|wire| {
            let figures = [wire.bytes, wire.datagrams, wire.round_trips].concat();
            figures.into_iter().map(|figure| Cell::from(Estimate::single(figure))).collect()
        });
        table.push(it.group.name(), cells.unwrap_or_else(|| vec![Cell::Missing; 6]));
    }
    table
}

/// Cost of a session's fresh keys: one handshake for each of its two connections, each time.
fn fresh_keys(measured: &[Measured]) -> Table {
    let title = "Fresh keys of a session that carries bulk: CPU of both ends";
    let mut table = Table::new("fresh-keys", title, "key exchange");
    for (lifetime, _) in LIFETIMES {
        table = table.column(&format!("key-lifetime {lifetime}"), "millionths of a core");
    }
    for it in measured {
        let share = |(_, seconds): (&str, f64)| {
            mean(&of_turns(it, |turn| Some(2.0 * turn.cpu_us / seconds))).into()
        };
        table.push(it.group.name(), LIFETIMES.map(share).to_vec());
    }
    table
}

fn distribution(kex: &Kex, measured: &[Measured]) -> Plot {
    let mut plot = Plot::new(
        "open-loop",
        &format!("Handshakes at {} a second", kex.per_second),
        Axis::log("time from when it was due", "µs"),
        Axis::linear("part that took no longer", ""),
    );
    plot.caption = "All rounds together.".into();
    for it in measured {
        let mut all = keypadd_traffic::Latencies::default();
        it.turns.iter().for_each(|turn| all.add(&turn.open_loop));
        if all.count() > 0 {
            plot.curves.push(Curve::new(it.group.name(), Style::Steps, all.distribution()));
        }
    }
    plot
}
