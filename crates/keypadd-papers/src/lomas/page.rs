//! Builds the page: surfaces, tables and words around the claims. Pure.

use keypadd_measure::results::{Axis, Curve, Estimate, Plot, Section, Style, Surface, Table};
use keypadd_measure::statistics::mean_of_finite as mean;

use super::claims::claims;
use super::pairs::BITS_PER_SECOND;
use super::streams::{FILE_BYTES, above_time};
use super::trips::{slow_trips, trips};
use super::{Grid, LOADS, Measurements, Surfaces, Trips, delays, his, sizes};
use crate::claim::judge;
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
    let (id, title) = (format!("{}-round-trips", kind.0), format!("{}: a round trip", kind.1));
    let rows = sizes(effort).iter().enumerate().map(|(nth, size)| (format!("{size} bytes"), nth));
    let mut table = Table::of(&id, &title, "packet", rows);
    for (row, delay) in milliseconds(effort).into_iter().enumerate() {
        let name = if delay == 0.0 { "no delay".to_owned() } else { format!("{delay} ms delay") };
        table =
            table.column(&name, "µs", |nth| field(figures, kind, [row, *nth], |it| it.mean_us));
    }
    if kind.0 == POOLED.0 {
        table = table.column("pads ready, no delay", "%", |nth| {
            field(figures, kind, [0, *nth], |it| it.ready_percent)
        });
    }
    table.end()
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
    let rounds = &figures.encryptions;
    let rows = [
        ("one: the near end's, a short answer", rounds.figures(|it| it.one_us / 1e3)),
        ("two: the near end's", rounds.figures(|it| it.two_us / 1e3)),
        ("four: both ends'", rounds.figures(|it| it.four_us / 1e3)),
    ];
    Table::of("encryptions", "What a round trip of 1,024 bytes pays for", "encryptions", rows)
        .column("time", "ms", |times| mean(times))
        .end()
}

fn streams(figures: &Measurements) -> Table {
    type Of = fn(&super::Streams) -> Option<f64>;
    let over_rounds = |of: Of, scale: f64| {
        let all = figures.streams.all.iter().filter_map(|it| Some(of(it)? * scale));
        mean(&all.collect::<Vec<f64>>())
    };
    let rows: [(&str, (Of, Of)); 5] = [
        ("a file, plain", (|it| it.plain_burst, |_| None)),
        ("a file, full pool", (|it| it.pooled_burst, |_| None)),
        ("bursts, half the cipher's rate", (|_| None, |it| it.late_below)),
        ("a stream, pool dry", (|it| it.after, |it| it.late_above)),
        ("a stream, no pool", (|it| it.inline, |_| None)),
    ];
    Table::of("streams", "Bursts and streams", "traffic", rows)
        .column("throughput", "Mbit/s", |(rate, _)| over_rounds(*rate, 1.0))
        .column("keystream made while packets waited", "%", |(_, late)| over_rounds(*late, 1e2))
        .end()
}

fn making(figures: &Measurements) -> Table {
    let mega = |of: &dyn Fn(&super::Made) -> f64| mean(&figures.made.figures(|it| of(it) / 1e6));
    // The transfers had the des crate.
    let work = |nth: usize, of: fn(&super::Work) -> f64| {
        (nth == 0).then(|| mean(&figures.work.figures(|it| of(it) * 1e3)))
    };
    let rows = [("the des crate, a block at a time", 0), ("bitslices", 1)];
    Table::of("making", "Making DES keystream", "by", rows)
        .column("alone", "MB for a second of CPU", |nth| mega(&|it| it.alone[*nth]))
        .column("fillers", "MB for a second of CPU", |nth| mega(&|it| it.fillers[*nth]))
        .column("CPU of a transfer, precomputed", "ms", |nth| work(*nth, |it| it.pooled))
        .column("inline", "ms", |nth| work(*nth, |it| it.inline))
        .end()
}

fn pairs(figures: &Measurements) -> Table {
    let rounds = &figures.pairs;
    let rows = [
        ("alone", rounds.figures(|it| it.alone)),
        ("beside another", rounds.figures(|it| it.beside)),
        ("the other", rounds.figures(|it| it.other)),
    ];
    Table::of("pairs", "Two pairs on one line", "a stream", rows)
        .column("throughput", "Mbit/s", |rates| mean(rates))
        .end()
}

fn loads(figures: &Measurements) -> Table {
    let rows = LOADS.iter().enumerate().map(|(nth, share)| (format!("{:.0} %", share * 1e2), nth));
    Table::of("loads", "Keystream beside other programs", "they take of every core", rows)
        .column("made by both ends' fillers", "MB/s", |nth| {
            mean(&figures.beside_loads.figures(|it| it[*nth] / 1e6))
        })
        .end()
}
