//! Builds the page: surfaces, tables and words around the claims. Pure.

use keypadd_measure::results::{Axis, Cell, Curve, Estimate, Plot, Section, Style, Surface, Table};

use super::claims::claims;
use super::pairs::BITS_PER_SECOND;
use super::streams::{FILE_BYTES, above_time};
use super::trips::{slow_trips, trips};
use super::{Grid, LOADS, Measurements, Surfaces, Trips, delays, his, sizes};
use crate::claim::judge;
use crate::lab::mean;
use crate::{Effort, Paper};

/// A surface: its file name, its heading, and the source of its values.
type Kind = (&'static str, &'static str, fn(&Surfaces) -> &Grid);

const PLAIN: Kind = ("plain", "Without encryption", |it| &it.plain);
const INLINE: Kind = ("inline", "With the cipher inline", |it| &it.inline);
const POOLED: Kind = ("precomputed", "With keystream made before", |it| &it.pooled);

pub(super) fn page(figures: &Measurements, effort: Effort) -> Section {
    let fields = |effort| sizes(effort).len() * delays(effort).len();
    let amounts = [
        ("fields of a surface", Effort::both(fields)),
        ("round trips of a field", Effort::both(trips)),
        ("of an inline one", Effort::both(slow_trips)),
        ("bursts use the pool", ["not at all", "twice over"].map(str::to_owned)),
        ("seconds of a stream", Effort::both(|it| above_time(it).as_secs_f64())),
    ];
    let mut page = Section::of_page(
        Paper::Lomas.name(),
        include_str!("page.md"),
        &[
            ("file", &(FILE_BYTES >> 20)),
            ("slowed", &emulated(figures)),
            ("line", &(BITS_PER_SECOND.get() / 1_000_000)),
            ("effort", &effort.compared(&amounts)),
        ],
    );
    page.verdicts = judge(&claims(sizes(effort)), figures);
    page.tables = [PLAIN, INLINE, POOLED].map(|kind| surface_table(figures, effort, kind)).to_vec();
    page.tables.extend([
        encryptions(figures),
        streams(figures),
        making(figures),
        loads(figures),
        pairs(figures),
    ]);
    page.plots = vec![by_size(figures, effort)];
    page.surfaces = surfaces(figures, effort);
    page
}

fn emulated(figures: &Measurements) -> String {
    let rates = match &figures.network {
        Ok(network) => format!(
            "round trips to {} bytes a second of CPU, streams to {}",
            network.trip_cipher(),
            network.stream_cipher()
        ),
        Err(_) => "round trips and streams to the ratio of 1990".to_owned(),
    };
    format!("keystream slowed, {rates}; not where keystream itself is measured (L6, L8, L11)")
}

/// One cell, over all rounds.
fn field(
    figures: &Measurements,
    kind: Kind,
    [row, column]: [usize; 2],
    of: fn(&Trips) -> f64,
) -> Option<Estimate> {
    let of_round = |it: &Surfaces| kind.2(it).get(row).and_then(|it| it.get(column)).map(of);
    let all: Vec<f64> = figures.surfaces.all.iter().filter_map(of_round).collect();
    mean(&all)
}

fn milliseconds(effort: Effort) -> Vec<f64> {
    delays(effort).iter().map(|it| it.as_secs_f64() * 1e3).collect()
}

fn surfaces(figures: &Measurements, effort: Effort) -> Vec<Surface> {
    let (rows, columns) = (milliseconds(effort), sizes(effort));
    let surface = |kind: Kind| {
        Surface {
        id: kind.0.to_owned(),
        title: format!("{}: a round trip by packet size and delay", kind.1),
        caption: "The darker (in the dark, the brighter), the longer it takes. Intervals are in the table.".into(),
        x: Axis::log("packet", "bytes"),
        y: Axis::linear("delay between packets", "ms"),
        z: Axis::log("a round trip", "µs"),
        columns: columns.iter().map(|size| *size as f64).collect(),
        rows: rows.clone(),
        cells: (0..rows.len())
            .map(|row| (0..columns.len()).map(|it| field(figures, kind, [row, it], |it| it.mean_us)).collect())
            .collect(),
        range: None,
    }
    };
    let [mut plain, inline, mut pooled] = [PLAIN, INLINE, POOLED].map(surface);
    // The two surfaces to compare share their shades.
    let ends = plain.figures().chain(pooled.figures()).map(|it| it.value);
    let [low, high] = ends
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], it| [low.min(it), high.max(it)]);
    if low <= high {
        (plain.range, pooled.range) = (Some([low, high]), Some([low, high]));
    }
    vec![plain, pooled, inline]
}

fn surface_table(figures: &Measurements, effort: Effort, kind: Kind) -> Table {
    let title = format!("{}: a round trip", kind.1);
    let mut table = Table::new(&format!("{}-round-trips", kind.0), &title, "packet");
    for delay in milliseconds(effort) {
        let name = if delay == 0.0 { "no delay".to_owned() } else { format!("{delay} ms delay") };
        table = table.column(&name, "µs");
    }
    if kind.0 == POOLED.0 {
        table = table.column("pads ready, no delay", "%");
    }
    for (column, size) in sizes(effort).iter().enumerate() {
        let mut cells: Vec<Cell> = (0..delays(effort).len())
            .map(|row| field(figures, kind, [row, column], |it| it.mean_us).into())
            .collect();
        if kind.0 == POOLED.0 {
            cells.push(field(figures, kind, [0, column], |it| it.ready_percent).into());
        }
        table.push(&format!("{size} bytes"), cells);
    }
    table
}

/// Times by packet size, in round trips of 128 bytes without encryption: his and today's in one
/// plot.
fn by_size(figures: &Measurements, effort: Effort) -> Plot {
    let mut plot = Plot::new(
        "by-size",
        "A round trip by packet size, his and today's",
        Axis::log("packet", "bytes"),
        Axis::log("round trips of 128 bytes without encryption", ""),
    );
    plot.caption = "No delay. Both inline curves pay for one encryption a round trip.".into();
    let all_sizes = sizes(effort);
    let unit = |it: &Surfaces| {
        let nth = all_sizes.iter().position(|size| *size == 128)?;
        Some(it.plain.first()?.get(nth)?.mean_us)
    };
    for (label, kind) in
        [("today, plain", PLAIN), ("today, precomputed", POOLED), ("today, inline", INLINE)]
    {
        let points = all_sizes.iter().enumerate().map(|(nth, size)| {
            let of_round = |it: &Surfaces| Some(kind.2(it).first()?.get(nth)?.mean_us / unit(it)?);
            let all: Vec<f64> = figures.surfaces.all.iter().filter_map(of_round).collect();
            (*size as f64, mean(&all))
        });
        plot.curves.push(Curve::of_estimates(label, Style::Line, points));
    }
    let his_plain = vec![[128.0, 1.0], [1024.0, his::TRIPS_1024_SECONDS / his::TRIPS_128_SECONDS]];
    plot.curves.push(Curve::new("his, plain and precomputed", Style::Line, his_plain));
    let his_inline = all_sizes.iter().map(|size| {
        let seconds = *size as f64 / his::CIPHER + his::TRIP_SECONDS;
        [*size as f64, seconds / his::TRIP_SECONDS]
    });
    plot.curves.push(Curve::new("his, inline", Style::Line, his_inline.collect()));
    plot
}

fn encryptions(figures: &Measurements) -> Table {
    let mut table =
        Table::new("encryptions", "What a round trip of 1,024 bytes pays for", "encryptions")
            .column("time", "ms");
    let rounds = &figures.encryptions;
    for (label, times) in [
        ("one: the near end's, a short answer", rounds.figures(|it| it.one_us / 1e3)),
        ("two: the near end's", rounds.figures(|it| it.two_us / 1e3)),
        ("four: both ends'", rounds.figures(|it| it.four_us / 1e3)),
    ] {
        table.push(label, vec![mean(&times).into()]);
    }
    table
}

fn streams(figures: &Measurements) -> Table {
    let mut table = Table::new("streams", "Bursts and streams", "traffic")
        .column("throughput", "Mbit/s")
        .column("keystream made while packets waited", "%");
    let over_rounds = |of: &dyn Fn(&super::Streams) -> Option<f64>| {
        let all: Vec<f64> = figures.streams.all.iter().filter_map(of).collect();
        Cell::from(mean(&all))
    };
    let rate = |of: fn(&super::Streams) -> Option<f64>| over_rounds(&of);
    let late = |of: fn(&super::Streams) -> Option<f64>| over_rounds(&|it| Some(of(it)? * 100.0));
    table.push("a file, plain", vec![rate(|it| it.plain_burst), Cell::Missing]);
    table.push("a file, full pool", vec![rate(|it| it.pooled_burst), Cell::Missing]);
    table.push("bursts, half the cipher's rate", vec![Cell::Missing, late(|it| it.late_below)]);
    table.push("a stream, pool dry", vec![rate(|it| it.after), late(|it| it.late_above)]);
    table.push("a stream, no pool", vec![rate(|it| it.inline), Cell::Missing]);
    table
}

fn making(figures: &Measurements) -> Table {
    let mut table = Table::new("making", "Making DES keystream", "by")
        .column("alone", "MB for a second of CPU")
        .column("fillers", "MB for a second of CPU")
        .column("CPU of a transfer, precomputed", "ms")
        .column("inline", "ms");
    let mega = |of: &dyn Fn(&super::Made) -> f64| {
        Cell::from(mean(&figures.made.figures(|it| of(it) / 1e6)))
    };
    let work =
        |of: fn(&super::Work) -> f64| Cell::from(mean(&figures.work.figures(|it| of(it) * 1e3)));
    let des = vec![
        mega(&|it| it.alone[0]),
        mega(&|it| it.fillers[0]),
        work(|it| it.pooled),
        work(|it| it.inline),
    ];
    table.push("the des crate, a block at a time", des);
    let bitslices =
        vec![mega(&|it| it.alone[1]), mega(&|it| it.fillers[1]), Cell::Missing, Cell::Missing];
    table.push("bitslices", bitslices);
    table
}

fn pairs(figures: &Measurements) -> Table {
    let mut table =
        Table::new("pairs", "Two pairs on one line", "a stream").column("throughput", "Mbit/s");
    let rounds = &figures.pairs;
    for (label, rates) in [
        ("alone", rounds.figures(|it| it.alone)),
        ("beside another", rounds.figures(|it| it.beside)),
        ("the other", rounds.figures(|it| it.other)),
    ] {
        table.push(label, vec![mean(&rates).into()]);
    }
    table
}

fn loads(figures: &Measurements) -> Table {
    let mut table =
        Table::new("loads", "Keystream beside other programs", "they take of every core")
            .column("made by both ends' fillers", "MB/s");
    for (nth, share) in LOADS.iter().enumerate() {
        let made = figures.beside_loads.figures(|it| it[nth] / 1e6);
        table.push(&format!("{:.0} %", share * 100.0), vec![mean(&made).into()]);
    }
    table
}
