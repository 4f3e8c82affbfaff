//! Tests the verdicts on this paper with synthetic measurements.

use super::*;
use crate::Effort;
use crate::claim::same_outcomes;
use keypadd_measure::results::Outcome::{DoesNotHold, Holds};

/// Six rounds with these key pairs and handshakes, microseconds, and these rates, Mbit/s.
fn figures(times_us: [f64; 3], plain: f64, rates: [f64; 3]) -> Measurements {
    let mut figures = Measurements::default();
    for spread in [0.99, 1.0, 1.01, 0.99, 1.0, 1.01] {
        let generated = |us: f64| Generated {
            key_pair_us: us * spread,
            exchange_us: us * spread * 4.0,
            handshake_us: us * spread * 5.0,
        };
        figures.generation.push(Ok(times_us.map(generated)));
        // Scatter differs, or else ratios would have none.
        let tunnels = [rates[0] * spread, rates[1], rates[2] / spread];
        figures.throughput.push(Ok(Throughput { plain, tunnels }));
    }
    figures
}

#[test]
fn figures_like_the_papers_bear_every_claim_out() {
    let like = figures([17_200.0, 71_800.0, 7_000.0], 31.67, [19.81, 17.3, 23.39]);
    same_outcomes(&page::page(&like, Effort::Full), &[Holds; 9]);
}

#[test]
fn contrary_figures_give_the_contrary_verdict_on_every_claim() {
    let contrary = figures([300.0, 100.0, 900.0], 10.0, [20.0, 20.0, 15.0]);
    same_outcomes(&page::page(&contrary, Effort::Full), &[DoesNotHold; 9]);
}

#[test]
fn a_key_exchange_that_happens_once_does_not_show_in_the_throughput() {
    let alike = figures([300.0, 2_000.0, 200.0], 9_000.0, [1000.0, 1000.0, 1000.0]);
    let section = page::page(&alike, Effort::Quick);
    same_outcomes(
        &section,
        &[Holds, Holds, Holds, Holds, DoesNotHold, DoesNotHold, Holds, Holds, Holds],
    );
}
