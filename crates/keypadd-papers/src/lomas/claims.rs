//! His claims, each with its rule, judged by the rounds. Pure.

use keypadd_measure::results::{Estimate, Verdict};
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::verdict::Rule;

use super::{Figures, Grid, Making, Streams, Surfaces, his};
use crate::claim::{Claim, half_of};
use crate::lab::{Missed, Rounds};

/// More than this beside no encryption is a cost.
const SAME: f64 = 1.02;
/// What is the same is no further off than by a quarter.
const ABOUT: Rule = Rule::Within(0.8, 1.25);
/// Two that share fairly have half each; half of that effect has to be there.
const NOTABLY_SLOWER: f64 = 0.75;
/// Eight times the length: at least half of what is more than once the time, and no more than by length.
const PROPORTIONAL: Rule = Rule::Within(4.5, 8.5);

pub(super) fn verdicts(figures: &Figures, sizes: &[u64]) -> Vec<Verdict> {
    let mut verdicts = surfaces(&figures.surfaces, sizes);
    verdicts.extend(streams(&figures.streams));
    verdicts.extend(making(&figures.making));
    let encryptions = &figures.encryptions;
    let [four, one] = [encryptions.figures(|it| it.four_us), encryptions.figures(|it| it.one_us)];
    let claim = Claim::new(
        "L9",
        "A round trip that pays for four encryptions takes four times as long as one that pays for one.",
        "time, four encryptions over one",
        Rule::Within(3.0, 5.0),
    );
    let claim = claim.printed(4.0, "the text below the second graph");
    verdicts.push(claim.judge(ratio(&four, &one), encryptions.missed.as_ref()));
    let pairs = &figures.pairs;
    let claim = Claim::new(
        "L10",
        "Two pairs of machines on one network slow each other.",
        "throughput, beside another pair over alone",
        Rule::AtMost(NOTABLY_SLOWER),
    );
    let today = ratio(&pairs.figures(|it| it.beside), &pairs.figures(|it| it.alone));
    verdicts.push(claim.judge(today, pairs.missed.as_ref()));
    verdicts.sort_by_key(|it| it.beside.as_ref().and_then(|it| it.name[1..].parse::<u32>().ok()));
    verdicts
}

/// One of the three.
type SurfaceOf = fn(&Surfaces) -> &Grid;

/// A field of a surface without delay.
fn field(grid: &Grid, sizes: &[u64], size: u64) -> f64 {
    let nth = sizes.iter().position(|it| *it == size);
    let field = nth.and_then(|nth| grid.first()?.get(nth));
    field.map_or(f64::NAN, |it| it.mean_us)
}

fn surfaces(rounds: &Rounds<Surfaces>, sizes: &[u64]) -> Vec<Verdict> {
    let of = |surface: fn(&Surfaces) -> &Grid, size: u64| {
        rounds.figures(|it| field(surface(it), sizes, size))
    };
    let (plain, inline, pooled): (SurfaceOf, SurfaceOf, SurfaceOf) =
        (|it| &it.plain, |it| &it.inline, |it| &it.pooled);
    let judge = |claim: Claim, today: Option<Estimate>| claim.judge(today, rounds.missed.as_ref());
    let small = of(plain, 128);
    let large = of(plain, 1024);
    let mut verdicts = Vec::new();

    let bytes: Vec<f64> = large.iter().map(|us| 1024.0 / us).collect();
    let bytes_small: Vec<f64> = small.iter().map(|us| 128.0 / us).collect();
    let paper = his::BYTES_1024 / his::BYTES_128;
    let claim = Claim::new(
        "L1",
        "Without encryption, packets of 1,024 bytes carry several times as much as packets of 128.",
        "bytes a second, 1,024 over 128 bytes",
        half_of(paper),
    );
    verdicts.push(judge(claim.printed(paper, "Network Overheads"), ratio(&bytes, &bytes_small)));

    let claim = Claim::new(
        "L1",
        "A round trip of 1,024 bytes takes hardly longer than one of 128.",
        "time of a round trip, 1,024 over 128 bytes",
        Rule::AtMost(1.2),
    );
    let paper = his::TRIPS_1024_SECONDS / his::TRIPS_128_SECONDS;
    verdicts.push(judge(claim.printed(paper, "Network Overheads"), ratio(&large, &small)));

    let claim = Claim::new(
        "L1",
        "Repeating the measurement changes it by less than 1 %.",
        "distance of a round's mean from that of all, over the latter",
        Rule::AtMost(0.01),
    );
    let middle = mean(&small).map(|it| it.value);
    let distances = middle.map(|mean| small.iter().map(|it| (it / mean - 1.0).abs()).collect());
    let today = distances.and_then(|it: Vec<f64>| mean(&it));
    verdicts.push(judge(claim.printed(0.01, "Atypical Network Clients: less than 1 %"), today));

    let claim = Claim::new(
        "L1",
        "The smallest packets take longer than larger ones: a hump at the left of the surface.",
        "time of a round trip, 16 over 256 bytes",
        Rule::AtLeast(1.0),
    );
    verdicts.push(judge(claim, ratio(&of(plain, 16), &of(plain, 256))));

    let claim = Claim::new(
        "L2",
        "With the cipher inline, time is proportional to length.",
        "time of a round trip, 1,024 over 128 bytes, inline",
        PROPORTIONAL,
    );
    let claim = claim.printed(8.0, "Encryption Speed: directly proportional");
    verdicts.push(judge(claim, ratio(&of(inline, 1024), &of(inline, 128))));

    let at = |delay: fn(&Grid) -> Option<&Vec<super::Trips>>| {
        let nth = sizes.iter().position(|it| *it == 128);
        let of_round = |it: &Surfaces| Some(delay(&it.inline)?.get(nth?)?.mean_us);
        rounds.figures(|it| of_round(it).unwrap_or(f64::NAN))
    };
    let claim = Claim::new(
        "L2",
        "With the cipher inline, the delay between packets does not matter.",
        "time of a round trip, longest delay over none, inline",
        Rule::Within(0.9, 1.1),
    );
    verdicts.push(judge(claim, ratio(&at(|grid| grid.last()), &at(|grid| grid.first()))));

    let over_delays = |surface: fn(&Surfaces) -> &Grid| {
        let nth = sizes.iter().position(|it| *it == 128).unwrap_or(0);
        rounds.figures(|it| {
            let rows = surface(it).iter().filter_map(|row| row.get(nth));
            rows.map(|it| it.mean_us).sum::<f64>()
        })
    };
    let claim = Claim::new(
        "L3",
        "With keystream made before, encryption costs less than the network varies.",
        "time of 128-byte round trips over all delays, precomputed over plain",
        Rule::AtMost(SAME),
    );
    let claim = claim.printed(1.01, "An Alternative Encryption Scheme: below a variation of 1 %");
    verdicts.push(judge(claim, ratio(&over_delays(pooled), &over_delays(plain))));

    let inline_over_plain = (128.0 / his::CIPHER + his::TRIP_SECONDS) / his::TRIP_SECONDS;
    let claim = Claim::new(
        "L3",
        "Precomputed, a round trip is several orders of magnitude faster than with the cipher inline.",
        "time of a 128-byte round trip, inline over precomputed",
        Rule::AtLeast(100.0),
    );
    let claim = claim.printed(inline_over_plain, "his figures: 16 blocks of 8.5 ms beside 4.6 ms");
    verdicts.push(judge(claim, ratio(&of(inline, 128), &of(pooled, 128))));

    // The smallest packet: what waits at least.
    let first = |surface: fn(&Surfaces) -> &Grid| {
        rounds.figures(|it| {
            surface(it).first().and_then(|row| row.first()).map_or(f64::NAN, |it| it.first_us)
        })
    };
    let paper = (his::BLOCK_SECONDS + his::TRIP_SECONDS) / his::TRIP_SECONDS;
    let claim = Claim::new(
        "L7",
        "The first message waits for the cipher at least once, unless keystream was made before.",
        "time of the first round trip of the smallest packet, no pool over full",
        half_of(paper),
    );
    let claim = claim.printed(paper, "Encryption Speed: at least 8.5 ms, beside 4.6 ms");
    verdicts.push(judge(claim, ratio(&first(inline), &first(pooled))));
    verdicts
}

fn streams(rounds: &Rounds<Streams>) -> Vec<Verdict> {
    let of = |figure: fn(&Streams) -> f64| rounds.figures(figure);
    let judge = |claim: Claim, today: Option<Estimate>| claim.judge(today, rounds.missed.as_ref());
    let paper = his::NETWORK / his::CIPHER;
    let below: Option<Vec<f64>> = rounds.all.iter().map(|it| it.late_below).collect();
    let missed = rounds.missed.as_ref();
    let left_out = below.is_none().then_some(&Missed::NotInQuick);
    vec![
        Claim::new(
            "L4",
            "The average decides, not the peak: in bursts whose average is half the cipher's rate nothing waits.",
            "keystream made while packets waited, over all",
            Rule::AtMost(0.01),
        )
        .judge(below.and_then(|it| mean(&it)), missed.or(left_out)),
        judge(
            Claim::new(
                "L4",
                "A stream above the cipher's rate runs the pool dry.",
                "keystream made while packets waited, over all",
                Rule::AtLeast(0.5),
            ),
            mean(&of(|it| it.late_above)),
        ),
        judge(
            Claim::new(
                "L4",
                "Once the pool is dry, speed is that of inline encryption.",
                "throughput, dry pool over inline",
                ABOUT,
            )
            .printed(1.0, "When to Encrypt: approximately the same"),
            ratio(&of(|it| it.after), &of(|it| it.inline)),
        ),
        judge(
            Claim::new(
                "L4",
                "Time is not linear in the amount of data: a burst is faster than what follows it.",
                "throughput, a burst from a full pool over a dry pool",
                half_of(paper),
            )
            .printed(paper, "1,024 bytes in 3.2 ms, 8 bytes in 8.5 ms"),
            ratio(&of(|it| it.pooled_burst), &of(|it| it.after)),
        ),
        judge(
            Claim::new(
                "L5",
                "A file of several megabytes goes as fast as without encryption.",
                "throughput of a burst, precomputed over plain",
                Rule::AtLeast(0.98),
            ),
            ratio(&of(|it| it.pooled_burst), &of(|it| it.plain_burst)),
        ),
    ]
}

fn making(rounds: &Rounds<Making>) -> Vec<Verdict> {
    let judge = |claim: Claim, today: Option<Estimate>| claim.judge(today, rounds.missed.as_ref());
    let of = |figure: fn(&Making) -> f64| rounds.figures(figure);
    let paper = his::SUPPLIED_BLOCK_SECONDS / his::BLOCK_SECONDS;
    vec![
        judge(
            Claim::new(
                "L6",
                "The work is the same either way; it only moves to idle time.",
                "CPU of a transfer and of its keystream, precomputed over inline",
                ABOUT,
            )
            .printed(1.0, "An Alternative Encryption Scheme: about the same"),
            ratio(&of(|it| it.work_pooled), &of(|it| it.work_inline)),
        ),
        judge(
            Claim::new(
                "L8",
                "Without spare CPU no keystream is made.",
                "keystream a second, all of every core taken over none",
                Rule::AtMost(0.05),
            ),
            mean(&of(|it| it.beside_loads[2] / it.beside_loads[0])),
        ),
        judge(
            Claim::new(
                "L11",
                "The threshold follows the cipher: fillers are faster by as much as the cipher alone is.",
                "by how much bitslices are faster, fillers over alone",
                ABOUT,
            ),
            ratio(&of(|it| it.fillers[1] / it.fillers[0]), &of(|it| it.alone[1] / it.alone[0])),
        ),
        judge(
            Claim::new(
                "L11",
                "The implementation matters: the same cipher is many times as fast by another.",
                "keystream for a second of CPU, bitslices over the des crate",
                half_of(paper),
            )
            .printed(paper, "DEA Overheads: 120 ms and 8.5 ms"),
            ratio(&of(|it| it.alone[1]), &of(|it| it.alone[0])),
        ),
    ]
}
