//! Tests the verdicts on this paper with synthetic measurements.

use super::page::page;
use super::*;
use crate::Effort;
use crate::claim::same_outcomes;
use keypadd_measure::results::Outcome::{DoesNotHold, Holds};

fn streams(rates: [f64; 4], lifetime_seconds: f64) -> Streams {
    [0, 1, 2, 3].map(|nth| {
        let key_exchanges = if SETTINGS[nth].fresh { 3 } else { 1 };
        let mut rounds = Rounds::default();
        // Rounds differ a little.
        for spread in [1.0, 1.001, 0.999, 1.0, 1.001, 0.999] {
            let mbit = rates[nth] * spread;
            rounds.push(Ok(Streamed { mbit, key_exchanges, lifetime_seconds }));
        }
        rounds
    })
}

fn figures(short: [f64; 4], key_exchanges: u32, long: Streams, far: Streams) -> Measurements {
    let mut rounds = Rounds::default();
    for _ in 0..6 {
        let of = |nth: usize| Streamed {
            mbit: short[nth],
            key_exchanges: if SETTINGS[nth].fresh { key_exchanges } else { 1 },
            lifetime_seconds: 3600.0,
        };
        rounds.push(Ok([of(0), of(1), of(2), of(3)]));
    }
    Measurements { short: rounds, long, far }
}

#[test]
fn figures_like_the_papers_bear_every_claim_out() {
    let short = [674.868, 677.003, 683.22, 684.797];
    let long = streams([676.18, 669.94, 661.57, 663.11], 120.0);
    let far = streams([676.18, 669.94, 600.0, 600.0], 120.0);
    let section = page(&figures(short, 1, long, far), Effort::Full);
    same_outcomes(&section, &[Holds; 10]);
    assert!(section.notes.iter().any(|it| it.contains("by 1.2 and 1.2 %")), "{:?}", section.notes);
}

#[test]
fn contrary_figures_give_the_contrary_verdicts() {
    let long = || streams([100.0, 50.0, 80.0, 40.0], 120.0);
    let section = page(&figures([100.0, 50.0, 80.0, 40.0], 5, long(), long()), Effort::Full);
    same_outcomes(&section, &[DoesNotHold; 10]);
}

#[test]
fn a_key_exchange_that_costs_nothing_is_no_cost_and_time_lost_is_scaled_to_two_minutes() {
    // A tenth of twelve seconds is a hundredth of two minutes.
    let long = streams([100.0, 100.0, 90.0, 100.0], 12.0);
    let section = page(&figures([100.0; 4], 1, long, streams([100.0; 4], 12.0)), Effort::Quick);
    same_outcomes(
        &section,
        &[Holds, Holds, Holds, DoesNotHold, Holds, Holds, Holds, Holds, DoesNotHold, DoesNotHold],
    );
    let row = &section.tables[1].rows[2];
    let lost = row.cells[5].figure().unwrap();
    assert!((lost.value - 1_200.0).abs() < 1.0, "{lost}");
}
