//! Builds the section on handshakes: tables, plots and verdicts from the rounds. Pure.

use super::{Kex, Measured, Turn};
use crate::results::{Axis, Curve, Outcome, Plot, Section, Style, Table, Verdict};
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
    let single = trips.iter().filter(|(_, trips)| trips.round() == 1.0);
    let because: Vec<String> =
        trips.iter().map(|(group, trips)| format!("{group} {trips:.2}")).collect();
    Verdict::new(
        "Every key exchange lets the client send after one round trip.",
        "Holds if the time through the relay, over its round trip, rounds to 1 for every group.",
        Outcome::of_cases(single.count(), trips.len()),
        if because.is_empty() { "not measured".into() } else { because.join(", ") },
    )
}

/// One value per turn, of the turns that have it.
fn of_turns(measured: &Measured, figure: impl Fn(&Turn) -> Option<f64>) -> Vec<f64> {
    measured.turns.iter().filter_map(figure).collect()
}

fn rows(measured: &[Measured]) -> impl Iterator<Item = (&'static str, &Measured)> {
    measured.iter().map(|it| (it.group.name(), it))
}

fn one_by_one(measured: &[Measured]) -> Table {
    let cpu = |it: &Measured| of_turns(it, |turn| Some(turn.cpu_us));
    let base = measured.iter().find(|it| it.group.name() == BASE).map(cpu);
    let over = |it: &Measured| {
        let base = base.as_ref().filter(|_| it.group.name() != BASE)?;
        let cpu = cpu(it);
        let rounds = base.len().min(cpu.len());
        ratio(&cpu[..rounds], &base[..rounds])
    };
    Table::of("one-by-one", "One after the other", "key exchange", rows(measured))
        .column("client may send, median", "µs", |it| {
            mean(&of_turns(it, |turn| turn.ready.quantile_us(0.5)))
        })
        .column("done, median", "µs", |it| mean(&of_turns(it, |turn| turn.done.quantile_us(0.5))))
        .column("done, p99", "µs", |it| mean(&of_turns(it, |turn| turn.done.quantile_us(0.99))))
        .column("CPU of both ends", "µs", |it| mean(&cpu(it)))
        .column(&format!("CPU over {BASE}"), "", |it| over(it))
        .end()
}

fn open_loop(kex: &Kex, measured: &[Measured]) -> Table {
    let title = format!("{} a second, from when each was due", kex.per_second);
    let mut table = Table::of("open-loop", &title, "key exchange", rows(measured));
    for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        table = table.column(name, "µs", |it| {
            mean(&of_turns(it, |turn| turn.open_loop.quantile_us(quantile)))
        });
    }
    table
        .column("max", "µs", |it| {
            it.turns.iter().filter_map(|turn| turn.open_loop.max_us()).reduce(f64::max)
        })
        .column("handshakes", "", |it| {
            it.turns.iter().map(|turn| turn.open_loop.count()).sum::<u64>() as f64
        })
        .end()
}

fn wire(measured: &[Measured]) -> Table {
    Table::of("wire", "On the wire", "key exchange", rows(measured))
        .column("from the client", "bytes", |it| it.wire.map(|it| it.bytes[0]))
        .column("to the client", "bytes", |it| it.wire.map(|it| it.bytes[1]))
        .column("datagrams from the client", "", |it| it.wire.map(|it| it.datagrams[0]))
        .column("datagrams to the client", "", |it| it.wire.map(|it| it.datagrams[1]))
        .column("round trips until the client may send", "", |it| {
            it.wire.map(|it| it.round_trips[0])
        })
        .column("until it knows that both may", "", |it| it.wire.map(|it| it.round_trips[1]))
        .end()
}

/// Cost of a session's fresh keys: one handshake for each of its two connections, each time.
fn fresh_keys(measured: &[Measured]) -> Table {
    let title = "Fresh keys of a session that carries bulk: CPU of both ends";
    let mut table = Table::of("fresh-keys", title, "key exchange", rows(measured));
    for (lifetime, seconds) in LIFETIMES {
        table = table.column(&format!("key-lifetime {lifetime}"), "millionths of a core", |it| {
            mean(&of_turns(it, |turn| Some(2.0 * turn.cpu_us / seconds)))
        });
    }
    table.end()
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
