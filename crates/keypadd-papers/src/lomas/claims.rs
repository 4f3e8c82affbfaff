//! Lists his claims, each with his figures and its rule, in his order.

use keypadd_measure::results::Estimate;
use keypadd_measure::sequence::center;
use keypadd_measure::statistics::mean_of_finite as mean;
use keypadd_measure::verdict::Rule;

use super::{Claim, Grid, Measurements, Stream, Surface, Surfaces, Task, Trips, his};
use crate::claim::half_of;
use crate::lab::{Missed, Today};

/// A ratio to no encryption above this is a cost.
const SAME: f64 = 1.02;
/// Ratios this close count as equal.
const ABOUT: Rule = Rule::Within(0.8, 1.25);
/// Two that share fairly get half each; at least half of that effect must show.
const NOTABLY_SLOWER: f64 = 0.75;
/// For eight times the length: at least half of the expected increase, and no more than in
/// proportion.
const PROPORTIONAL: Rule = Rule::Within(4.5, 8.5);

/// `sizes` are the measured packet sizes, in the order of the surfaces' columns.
pub(super) fn claims(sizes: &'static [u64]) -> Vec<Claim> {
    let mut claims = surfaces(sizes);
    claims.extend(streams());
    let waits = (his::BLOCK_SECONDS + his::TRIP_SECONDS) / his::TRIP_SECONDS;
    let supplied = his::SUPPLIED_BLOCK_SECONDS / his::BLOCK_SECONDS;
    claims.extend([
        Claim::new(
            "L6",
            "The work is the same either way; it only moves to idle time.",
            "CPU of a transfer and of its keystream, precomputed over inline",
            ABOUT,
            [Task::Work],
            |it| it.work.ratio(|it| it.pooled, |it| it.inline),
        )
        .printed(1.0, "An Alternative Encryption Scheme: about the same"),
        Claim::new(
            "L7",
            "The first message waits for the cipher at least once, unless keystream was made before.",
            "time of the first round trip of the smallest packet, no pool over full",
            half_of(waits),
            [Task::Surface(Surface::Inline), Task::Surface(Surface::Pooled)],
            |it| it.surfaces.ratio(|it| first(&it.inline), |it| first(&it.pooled)),
        )
        .printed(waits, "Encryption Speed: at least 8.5 ms, beside 4.6 ms"),
        Claim::new(
            "L8",
            "Without spare CPU no keystream is made.",
            "keystream a second, all of every core taken over none",
            Rule::AtMost(0.05),
            [Task::BesideLoads],
            |it| it.beside_loads.center(|it| it[2] / it[0]),
        ),
        Claim::new(
            "L9",
            "A round trip that pays for four encryptions takes four times as long as one that pays for one.",
            "time, four encryptions over one",
            Rule::Within(3.0, 5.0),
            [Task::Encryptions],
            |it| it.encryptions.ratio(|it| it.four_us, |it| it.one_us),
        )
        .printed(4.0, "the text below Graph 2"),
        Claim::new(
            "L10",
            "Two pairs of machines on one network slow each other.",
            "throughput, beside another pair over alone",
            Rule::AtMost(NOTABLY_SLOWER),
            [Task::Pairs],
            |it| it.pairs.ratio(|it| it.beside, |it| it.alone),
        ),
        Claim::new(
            "L11",
            "The threshold follows the cipher: fillers are faster by as much as the cipher alone is.",
            "by how much bitslices are faster, fillers over alone",
            ABOUT,
            [Task::Made],
            |it| {
                it.made.ratio(|it| it.fillers[1] / it.fillers[0], |it| it.alone[1] / it.alone[0])
            },
        ),
        Claim::new(
            "L11",
            "The implementation matters: the same cipher is many times as fast by another.",
            "keystream for a second of CPU, bitslices over the des crate",
            half_of(supplied),
            [Task::Made],
            |it| it.made.ratio(|it| it.alone[1], |it| it.alone[0]),
        )
        .printed(supplied, "DEA Overheads: 120 ms and 8.5 ms"),
    ]);
    claims
}

/// L1 to L3: the three surfaces.
fn surfaces(sizes: &'static [u64]) -> Vec<Claim> {
    let column = move |size: u64| sizes.iter().position(|it| *it == size);
    // A round trip without delay.
    let trip = move |grid: &Grid, size: u64| cell(grid.first(), column(size));
    let small_large = move |it: &Measurements, of: fn(&Surfaces) -> &Grid| {
        it.surfaces.ratio(|it| trip(of(it), 1024), |it| trip(of(it), 128))
    };
    let over_delays = move |grid: &Grid| {
        let rows = grid.iter().filter_map(|row| row.get(column(128).unwrap_or(0)));
        rows.map(|it| it.mean_us).sum::<f64>()
    };
    let plain: fn(&Surfaces) -> &Grid = |it| &it.plain;
    let inline: fn(&Surfaces) -> &Grid = |it| &it.inline;
    let several = his::BYTES_1024 / his::BYTES_128;
    let orders = (128.0 / his::CIPHER + his::TRIP_SECONDS) / his::TRIP_SECONDS;
    vec![
        Claim::new(
            "L1",
            "Without encryption, packets of 1,024 bytes carry several times as much as packets of 128.",
            "bytes a second, 1,024 over 128 bytes",
            half_of(several),
            [Task::Surface(Surface::Plain)],
            move |it| {
                it.surfaces.ratio(
                    |it| 1024.0 / trip(&it.plain, 1024),
                    |it| 128.0 / trip(&it.plain, 128),
                )
            },
        )
        .printed(several, "Network Overheads, Graph 1"),
        Claim::new(
            "L1",
            "A round trip of 1,024 bytes takes hardly longer than one of 128.",
            "time of a round trip, 1,024 over 128 bytes",
            Rule::AtMost(1.2),
            [Task::Surface(Surface::Plain)],
            move |it| small_large(it, plain),
        )
        .printed(his::TRIPS_1024_SECONDS / his::TRIPS_128_SECONDS, "Network Overheads, Graph 1"),
        Claim::new(
            "L1",
            "Repeating the measurement changes it by less than 1 %.",
            "distance of a round's mean from that of all, over the latter",
            Rule::AtMost(0.01),
            [Task::Surface(Surface::Plain)],
            move |it| {
                let small = it.surfaces.figures(|it| trip(&it.plain, 128));
                (spread(&small), it.surfaces.missed.clone())
            },
        )
        .printed(0.01, "Atypical Network Clients, Graph 1: less than 1 %"),
        Claim::new(
            "L1",
            "The smallest packets take longer than larger ones: a hump at the left of the surface.",
            "time of a round trip, 16 over 256 bytes",
            Rule::AtLeast(1.0),
            [Task::Surface(Surface::Plain)],
            move |it| {
                it.surfaces.ratio(|it| trip(&it.plain, 16), |it| trip(&it.plain, 256))
            },
        )
        .shown("Graph 1"),
        Claim::new(
            "L2",
            "With the cipher inline, time is proportional to length.",
            "time of a round trip, 1,024 over 128 bytes, inline",
            PROPORTIONAL,
            [Task::Surface(Surface::Inline)],
            move |it| small_large(it, inline),
        )
        .printed(8.0, "Encryption Speed, Graph 2: directly proportional"),
        Claim::new(
            "L2",
            "With the cipher inline, the delay between packets does not matter.",
            "time of a round trip, longest delay over none, inline",
            Rule::Within(0.9, 1.1),
            [Task::Surface(Surface::Inline)],
            move |it| {
                it.surfaces.ratio(
                    |it| cell(it.inline.last(), column(128),
                ),
                    |it| cell(it.inline.first(), column(128),
                ),
                )
            },
        ),
        Claim::new(
            "L3",
            "With keystream made before, encryption costs less than the network varies.",
            "time of 128-byte round trips over all delays, precomputed over plain",
            Rule::AtMost(SAME),
            [Task::Surface(Surface::Plain), Task::Surface(Surface::Pooled)],
            move |it| {
                it.surfaces.ratio(|it| over_delays(&it.pooled), |it| over_delays(&it.plain))
            },
        )
        .printed(1.01, "An Alternative Encryption Scheme, Graph 3: below a variation of 1 %"),
        Claim::new(
            "L3",
            "Precomputed, a round trip is several orders of magnitude faster than with the cipher inline.",
            "time of a 128-byte round trip, inline over precomputed",
            Rule::AtLeast(100.0),
            [Task::Surface(Surface::Inline), Task::Surface(Surface::Pooled)],
            move |it| {
                it.surfaces.ratio(|it| trip(&it.inline, 128), |it| trip(&it.pooled, 128))
            },
        )
        .printed(orders, "his figures: 16 blocks of 8.5 ms beside 4.6 ms"),
    ]
}

/// A round trip in a row of a surface.
fn cell(row: Option<&Vec<Trips>>, column: Option<usize>) -> f64 {
    row.zip(column).and_then(|(row, column)| row.get(column)).map_or(f64::NAN, |it| it.mean_us)
}

/// The first round trip of the smallest packet, which waits least.
fn first(grid: &Grid) -> f64 {
    grid.first().and_then(|row| row.first()).map_or(f64::NAN, |it| it.first_us)
}

/// Scatter of rounds, relative to their mean.
fn spread(rounds: &[f64]) -> Option<Estimate> {
    let middle = mean(rounds)?.value;
    let measured = rounds.iter().filter(|it| it.is_finite());
    let distances: Vec<f64> = measured.map(|it| (it / middle - 1.0).abs()).collect();
    center(&distances)
}

/// L4 and L5: bursts and streams.
fn streams() -> Vec<Claim> {
    let faster = his::NETWORK / his::CIPHER;
    vec![
        Claim::new(
            "L4",
            "The average decides, not the peak: in bursts whose average is half the cipher's rate nothing waits.",
            "keystream made while packets waited, over all",
            Rule::AtMost(0.01),
            [Task::Stream(Stream::Dry)],
            late_below,
        ),
        Claim::new(
            "L4",
            "A stream above the cipher's rate runs the pool dry.",
            "keystream made while packets waited, over all",
            Rule::AtLeast(0.5),
            [Task::Stream(Stream::Dry)],
            |it| it.streams.center(|it| known(it.late_above)),
        ),
        Claim::new(
            "L4",
            "Once the pool is dry, speed is that of inline encryption.",
            "throughput, dry pool over inline",
            ABOUT,
            [Task::Stream(Stream::Dry), Task::Stream(Stream::Inline)],
            |it| it.streams.ratio(|it| known(it.after), |it| known(it.inline)),
        )
        .printed(1.0, "When to Encrypt: approximately the same"),
        Claim::new(
            "L4",
            "Time is not linear in the amount of data: a burst is faster than what follows it.",
            "throughput, a burst from a full pool over a dry pool",
            half_of(faster),
            [Task::Stream(Stream::PooledBurst), Task::Stream(Stream::Dry)],
            |it| it.streams.ratio(|it| known(it.pooled_burst), |it| known(it.after)),
        )
        .printed(faster, "1,024 bytes in 3.2 ms, 8 bytes in 8.5 ms"),
        Claim::new(
            "L5",
            "A file of several megabytes goes as fast as without encryption.",
            "throughput of a burst, precomputed over plain",
            Rule::AtLeast(0.98),
            [Task::Stream(Stream::PlainBurst), Task::Stream(Stream::PooledBurst)],
            |it| it.streams.ratio(|it| known(it.pooled_burst), |it| known(it.plain_burst)),
        ),
    ]
}

fn late_below(figures: &Measurements) -> Today {
    let rounds = &figures.streams;
    let below: Vec<f64> = rounds.all.iter().filter_map(|it| it.late_below).collect();
    let left_out = below.is_empty().then_some(Missed::NotInQuick);
    (center(&below), rounds.missed.clone().or(left_out))
}

/// A figure of a stream; not a number if the round left it out.
fn known(figure: Option<f64>) -> f64 {
    figure.unwrap_or(f64::NAN)
}
