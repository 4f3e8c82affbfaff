//! Tests the verdicts on this paper with synthetic measurements.

use super::page::page;
use super::*;
use crate::claim::same_outcomes;
use crate::lab::Missed;
use keypadd_measure::results::Outcome::{
    self, CannotCompare, CannotTell, DoesNotHold, Holds, NotRun,
};

/// Throughput of small files with few and with many clients, of medium and of large files.
type Arm = ([f64; 2], f64, f64);

fn rates((small, medium, large): Arm) -> Rates {
    [small.to_vec(), vec![medium; 2], vec![large; 2]]
}

fn figures(tunnels: [Arm; 11], emulated: [Arm; 2], gains: [[f64; 2]; 3]) -> Measurements {
    let mut figures =
        Measurements { calibration: Ok(1.0), rounds: Rounds::default(), speeds: Rounds::default() };
    for _ in 0..6 {
        let [tunnels, emulated] =
            [tunnels.to_vec(), emulated.to_vec()].map(|arms| arms.into_iter().map(rates).collect());
        figures.rounds.push(Ok(Round { tunnels, emulated }));
        figures.speeds.push(Ok(Speeds {
            slow: [(); 3].map(|()| vec![1.0; 2]),
            fast: gains.map(|it| it.to_vec()),
        }));
    }
    figures
}

/// One per claim: as given where today's tunnels can tell, else not comparable.
fn outcomes(outcome: Outcome) -> Vec<Outcome> {
    let mut outcomes = vec![outcome; 45];
    for nth in [35, 36, 44] {
        outcomes[nth] = CannotCompare;
    }
    outcomes
}

const LIKE: [Arm; 11] = [
    ([1.0, 1.0], 1.0, 1.0 / 0.6),
    ([1.0, 1.0], 1.0, 1.0),
    ([1.0, 1.0], 0.78, 0.81),
    ([1.0, 1.0], 0.82, 0.79),
    ([1.0, 0.8], 0.85, 0.70),
    ([1.0, 0.7], 0.61, 0.48),
    ([1.0, 0.7], 0.60, 0.45),
    ([1.0, 0.8], 0.60, 0.60),
    ([1.0, 0.7], 0.48, 0.37),
    ([1.0, 0.8], 0.60, 0.60),
    ([1.0, 0.7], 0.46, 0.37),
];

#[test]
fn figures_like_the_papers_bear_every_claim_out_that_can_be_compared() {
    let gains = [[1.12, 1.31], [1.22, 1.27], [1.26, 1.31]];
    let section = page(&figures(LIKE, [LIKE[4], LIKE[5]], gains), Effort::Quick);
    same_outcomes(&section, &outcomes(Holds));
}

#[test]
fn contrary_figures_give_the_contrary_verdicts() {
    let base = ([1.0, 1.0], 1.0, 1.0);
    let hash = |rate: f64| ([rate; 2], rate, rate);
    // Slows small and medium files when there are few clients, but not large ones.
    let cipher = ([0.5, 0.9], 0.5, 1.0);
    let mut contrary = [cipher; 11];
    contrary[..4].copy_from_slice(&[([0.5; 2], 0.5, 0.5), base, hash(1.0), hash(1.5)]);
    // SHA-1 takes twice as long as MD5.
    contrary[9..].fill(([0.25, 0.45], 0.25, 0.5));
    let section = page(&figures(contrary, [cipher; 2], [[1.0; 2]; 3]), Effort::Quick);
    same_outcomes(&section, &outcomes(DoesNotHold));
}

#[test]
fn what_was_not_measured_is_not_run_and_what_cannot_be_built_not_compared() {
    let without = |missed: Missed| {
        let mut figures = Measurements {
            calibration: Err(missed.clone()),
            rounds: Rounds::default(),
            speeds: Rounds::default(),
        };
        figures.rounds.push(Err(missed.clone()));
        figures.speeds.push(Err(missed));
        page(&figures, Effort::Quick)
    };
    same_outcomes(&without(Missed::OutOfTime), &outcomes(NotRun));
    same_outcomes(&without(Missed::Lacking("needs root".into())), &outcomes(CannotCompare));
    let mut few = figures(LIKE, [LIKE[4], LIKE[5]], [[1.3; 2]; 3]);
    few.rounds.all.pop();
    few.speeds.all.pop();
    same_outcomes(&page(&few, Effort::Quick), &outcomes(CannotTell));
}

#[test]
fn contradictions_in_the_paper_are_said() {
    let mut none = Measurements {
        calibration: Err(Missed::NotReached),
        rounds: Rounds::default(),
        speeds: Rounds::default(),
    };
    none.rounds.push(Err(Missed::NotReached));
    let notes = page(&none, Effort::Quick).notes;
    for said in
        ["MD5, 3DES, medium files: 23 % with manual keys, 26 %", "begins at 12 %", "69 %", "54 %"]
    {
        assert!(notes.iter().any(|note| note.contains(said)), "{said}: {notes:#?}");
    }
}

#[test]
fn an_emulated_cipher_costs_what_it_cost_in_the_paper_and_three_times_that() {
    let rate = |cipher| measure::emulated_rate(cipher, 80.0).get() as f64;
    // The base takes 100 ns per byte; 30 % less throughput adds 43 ns.
    assert!((1e9 / rate(Cipher::Des) - 42.86).abs() < 0.1, "{}", rate(Cipher::Des));
    assert!((rate(Cipher::Des) / rate(Cipher::TripleDes) - 3.0).abs() < 0.001);
}
