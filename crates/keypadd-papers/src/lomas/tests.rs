//! Tests the verdicts on this paper with synthetic measurements.

use super::*;
use crate::claim::same_outcomes;
use keypadd_measure::results::Outcome::{self, DoesNotHold, Holds};

const EFFORT: Effort = Effort::Full;

/// A surface from a function of size and delay in seconds; in microseconds.
fn grid(time_us: impl Fn(f64, f64) -> f64, first: f64) -> Grid {
    let trips = |size: u64, delay: Duration| {
        let mean_us = time_us(size as f64, delay.as_secs_f64());
        Trips { mean_us, first_us: mean_us * first, ready_percent: 100.0 }
    };
    let row = |delay: &Duration| sizes(EFFORT).iter().map(|size| trips(*size, *delay)).collect();
    delays(EFFORT).iter().map(row).collect()
}

type Round = (Surfaces, Encryptions, Streams, (Work, Made, BesideLoads), Pairs);

/// Six rounds around `round`, with almost no scatter, so that intervals are narrow.
fn figures(round: impl Fn(f64) -> Round) -> Measurements {
    let network = Network { trip_us: 100.0, mbit: 1600.0 };
    let mut figures = Measurements::new(Ok(network));
    for spread in [0.999, 1.001, 0.999, 1.001, 0.999, 1.001] {
        let (surfaces, encryptions, streams, (work, made, loads), pairs) = round(spread);
        figures.surfaces.push(Ok(surfaces));
        figures.encryptions.push(Ok(encryptions));
        figures.streams.push(Ok(streams));
        figures.work.push(Ok(work));
        figures.made.push(Ok(made));
        figures.beside_loads.push(Ok(loads));
        figures.pairs.push(Ok(pairs));
    }
    figures
}

fn outcomes(figures: &Measurements, expected: Outcome) {
    let section = page::page(figures, EFFORT);
    same_outcomes(&section, &vec![expected; section.verdicts.len()]);
}

#[test]
fn figures_as_he_describes_them_bear_every_claim_out() {
    outcomes(
        &figures(|spread| {
            let plain = |size: f64| spread * (100.0 + size / 100.0 + 300.0 / size);
            let surfaces = Surfaces {
                plain: grid(|size, _| plain(size), 1.0),
                inline: grid(|size, _| size * 100.0 * spread, 1.0),
                pooled: grid(|size, _| plain(size) * 1.001, 1.0),
            };
            let encryptions = Encryptions { one_us: 1.0, two_us: 2.0, four_us: 4.0 * spread };
            let streams = Streams {
                plain_burst: Some(1000.0),
                pooled_burst: Some(1000.0 * spread),
                late_below: Some(0.001),
                late_above: Some(0.9),
                after: Some(3.0),
                inline: Some(3.0 * spread),
            };
            let making = (
                Work { pooled: 1.0, inline: spread },
                Made { alone: [1.0, 14.0 * spread], fillers: [1.0, 14.0] },
                [100.0, 50.0, spread],
            );
            let pairs = Pairs { alone: 9.0, beside: 4.5 * spread, other: 4.5 };
            (surfaces, encryptions, streams, making, pairs)
        }),
        Holds,
    );
}

#[test]
fn contrary_figures_give_the_contrary_verdict_on_every_claim() {
    outcomes(
        &figures(|spread| {
            // Rounds that scatter by a fifth, packets that cost by their size, ciphers that cost
            // nothing.
            let varied = (spread - 1.0) * 200.0 + 1.0;
            let surfaces = Surfaces {
                plain: grid(|size, _| size * 10.0 * varied, 1.0),
                inline: grid(|_, delay| (4000.0 + 1e6 * delay) * varied, 1.0),
                pooled: grid(|size, _| (4000.0 + size * 40.0) * varied, 1.0),
            };
            let encryptions = Encryptions { one_us: 1.0, two_us: 1.0, four_us: spread };
            let streams = Streams {
                plain_burst: Some(1000.0),
                pooled_burst: Some(100.0 * spread),
                late_below: Some(0.5),
                late_above: Some(0.1),
                after: Some(90.0),
                inline: Some(3.0 * spread),
            };
            let making = (
                Work { pooled: 3.0, inline: spread },
                Made { alone: [1.0, 2.0 * spread], fillers: [1.0, 1.0] },
                [100.0, 100.0, 90.0 * spread],
            );
            let pairs = Pairs { alone: 9.0, beside: 9.0 * spread, other: 9.0 };
            (surfaces, encryptions, streams, making, pairs)
        }),
        DoesNotHold,
    );
}

#[test]
fn a_cipher_is_slowed_to_his_ratios() {
    let network = Network { trip_us: 4600.0, mbit: 320_000.0 * 8.0 / 1e6 };
    assert_eq!(network.trip_cipher().get(), 941);
    assert_eq!(network.stream_cipher().get(), 941);
    let ten_times = Network { trip_us: 460.0, mbit: 3_200_000.0 * 8.0 / 1e6 };
    assert_eq!(ten_times.trip_cipher().get(), 9411);
    assert_eq!(ten_times.stream_cipher().get(), 9411);
}
