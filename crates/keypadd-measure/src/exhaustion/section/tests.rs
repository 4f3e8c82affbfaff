//! Tests the verdicts, tables and plots on exhaustion with synthetic results.

use keypadd_keystream::{CipherBackend, Suite};
use keypadd_traffic::TunnelArm;

use super::*;
use crate::exhaustion::finder::{Found, Tried};
use crate::exhaustion::model::{Calibration, TrafficCost};
use crate::exhaustion::readings::{Dry, Reading};
use crate::results::Outcome;

/// Two ends on four cores, 3DES at 10,000 pads per CPU second: R* is 10,000 packets per second.
fn cell(backend: CipherBackend, background: f64) -> Cell {
    let calibration = Calibration {
        cores: 4.0,
        background,
        fillers: 2.0,
        pads_per_cpu_second: 10_000.0,
        traffic: TrafficCost::new(vec![[1000.0, 1e-6]]).unwrap(),
        beside_fillers: TrafficCost::new(vec![[1000.0, 1e-6]]).unwrap(),
        level: 15_000.0,
        asleep_packets: 0.0,
    };
    let arm = TunnelArm {
        suite: Suite::TRIPLE_DES_CTR_HMAC_SHA1.protection(),
        pool: true,
        engine: backend.engine().unwrap(),
    };
    Cell::new(arm, 64 << 20, calibration, 1250.0, 500_000.0, 60.0)
}

fn found(rate: f64) -> Found {
    let sustained = match rate {
        0.0 => Sustained::NeverFills,
        _ => Sustained::Found { rate, lasts: Some(rate * 0.97), runs_dry: Some(rate * 1.03) },
    };
    let tried = vec![Tried { rate, made: Some(rate), seconds: 1.0, dry: false, hole: false }];
    Found { capacity: 20_000.0, sustained, tried }
}

/// A burst that ran dry after this many seconds.
fn dry_after(seconds: f64, rate: f64) -> BurstFound {
    let reading = |seconds: f64| Reading {
        seconds,
        packets: (seconds * rate) as u64,
        level: 20_000.0 - seconds,
        ..Reading::default()
    };
    BurstFound {
        rate,
        dry: Some(Dry { index: 1, seconds, packets: seconds * rate }),
        bytes: seconds * rate * 1250.0,
        speed_after: Some(9e6),
        readings: vec![reading(0.0), reading(seconds), reading(seconds + 1.0)],
    }
}

/// A case with all results as predicted, times a factor.
fn measured(backend: CipherBackend, background: f64, factor: f64) -> Cell {
    let mut cell = cell(backend, background);
    for nth in 0..3 {
        let noise = 1.0 + f64::from(nth) * 0.001;
        cell.found.push(found(cell.calibration.sustained() * factor * noise));
        for (rate, bursts) in &mut cell.bursts {
            let Burst::Dry { seconds, .. } = cell.calibration.burst(*rate) else { continue };
            bursts.push(dry_after(seconds * factor * noise, *rate));
        }
    }
    cell
}

fn outcome(section: &Section, claim: &str) -> Outcome {
    let verdict = section.verdicts.iter().find(|it| it.claim.contains(claim));
    verdict.unwrap_or_else(|| panic!("no verdict says `{claim}`")).outcome
}

/// The claim on every prediction.
const ACCURATE: &str = "R*, T* and B* are predicted";
/// The claim on thresholds.
const RATES: &str = "R* is predicted";
const CONVENTIONAL: CipherBackend = CipherBackend::DesCrate;
const BITSLICED: CipherBackend = CipherBackend::Bitslice64;

#[test]
fn before_the_run_there_are_predictions_without_figures() {
    let section = section(&[cell(CONVENTIONAL, 0.0)], 3);
    // R*; T* and B* at 1.5, 2 and 4 times R* and at the maximum.
    assert_eq!(section.predictions.len(), 9);
    assert!(section.predictions.iter().all(|it| it.predicted > 0.0 && it.measured.is_none()));
    assert_eq!(outcome(&section, ACCURATE), Outcome::CannotTell);
    assert_eq!(outcome(&section, "is a threshold"), Outcome::CannotTell);
}

#[test]
fn from_a_pool_that_holds_nothing_there_are_no_bursts() {
    let Cell { arm, pool_bytes, mut calibration, packet_bytes, fastest, .. } =
        cell(CONVENTIONAL, 0.0);
    calibration.level = 0.0;
    let empty = Cell::new(arm, pool_bytes, calibration, packet_bytes, fastest, 60.0);
    assert!(empty.bursts.is_empty());
}

#[test]
fn predictions_that_came_true_hold_and_others_do_not() {
    for (factor, expected) in [(1.03, Outcome::Holds), (1.08, Outcome::DoesNotHold)] {
        let section = section(&[measured(CONVENTIONAL, 0.0, factor)], 3);
        assert_eq!(outcome(&section, ACCURATE), expected);
        let errors = section.predictions.iter().filter_map(|it| it.error_percent);
        assert!(errors.clone().count() == 9, "every prediction was measured");
        let off = (1.0 / factor - 1.0) * 100.0;
        assert!(errors.clone().all(|error| (error - off).abs() < 0.2), "{off}");
    }
}

#[test]
fn predictions_are_judged_only_where_a_core_was_idle() {
    let mut busy = measured(CONVENTIONAL, 0.9, 2.0);
    let one = section(&[busy.clone()], 3);
    assert_eq!(outcome(&one, ACCURATE), Outcome::CannotCompare);
    assert_eq!(outcome(&one, RATES), Outcome::CannotCompare);
    busy.calibration.background = 0.0;
    let other = section(&[busy], 3);
    assert_eq!(outcome(&other, ACCURATE), Outcome::DoesNotHold);
}

#[test]
fn the_threshold_of_every_backend_is_judged_also_without_an_idle_core() {
    for (factor, expected) in [(1.03, Outcome::Holds), (1.08, Outcome::DoesNotHold)] {
        let mut cells = [CONVENTIONAL, BITSLICED].map(|backend| measured(backend, 0.0, 1.0));
        // Traffic at R* takes more than three of four cores.
        let model = &mut cells[1].calibration;
        model.beside_fillers = TrafficCost::new(vec![[1000.0, 1e-3]]).unwrap();
        cells[1].found = vec![found(model.sustained() * factor); 3];
        let section = section(&cells, 3);
        assert_eq!(outcome(&section, RATES), expected, "{factor}");
        assert_eq!(outcome(&section, ACCURATE), Outcome::Holds, "{factor}");
    }
}

#[test]
fn predictions_are_not_judged_by_a_run_that_others_disturbed() {
    let mut cell = measured(CONVENTIONAL, 0.0, 2.0);
    cell.others = vec![0.01, 0.02, 0.01];
    let quiet = section(&[cell.clone()], 3);
    assert_eq!(outcome(&quiet, ACCURATE), Outcome::DoesNotHold);
    cell.others[1] = 1.3;
    let disturbed = section(&[cell], 3);
    assert_eq!(outcome(&disturbed, ACCURATE), Outcome::CannotTell);
    assert!(disturbed.notes.iter().any(|note| note.contains("up to 1.3 cores")));
}

#[test]
fn a_threshold_that_was_not_confirmed_is_none() {
    let mut cell = measured(CONVENTIONAL, 0.0, 1.0);
    assert_eq!(outcome(&section(&[cell.clone()], 3), "is a threshold"), Outcome::Holds);
    cell.found[1].sustained =
        Sustained::Found { rate: 10_000.0, lasts: None, runs_dry: Some(10_300.0) };
    assert_eq!(outcome(&section(&[cell], 3), "is a threshold"), Outcome::DoesNotHold);
}

#[test]
fn backends_are_compared_by_what_was_measured() {
    let base = measured(CONVENTIONAL, 0.0, 1.0);
    for (factor, expected) in [(16.0, Outcome::Holds), (14.0, Outcome::DoesNotHold)] {
        let cells = [base.clone(), measured(BITSLICED, 0.0, factor)];
        assert_eq!(outcome(&section(&cells, 3), "at least 15 times"), expected);
    }
    let mut unreached = measured(BITSLICED, 0.0, 1.0);
    for found in &mut unreached.found {
        found.sustained = Sustained::AtLeast { rate: 200_000.0 };
    }
    let section = section(&[base, unreached], 3);
    assert_eq!(outcome(&section, "at least 15 times"), Outcome::Holds);
    assert!(section.notes.iter().any(|note| note.contains("not reached: 2000 Mbit/s")));
}

#[test]
fn pads_left_by_a_full_load_fail_the_claim() {
    let idle = measured(CONVENTIONAL, 0.0, 1.0);
    let mut full = cell(CONVENTIONAL, 1.0);
    full.found = vec![found(0.0), found(0.0), found(0.0)];
    let none = section(&[idle.clone(), full.clone()], 3);
    assert_eq!(outcome(&none, "sustains nothing"), Outcome::Holds);
    assert!(none.notes.iter().any(|note| note.contains("did not fill in 3 of 3")));
    full.found = vec![found(990.0), found(1000.0), found(1010.0)];
    let some = section(&[idle, full], 3);
    assert_eq!(outcome(&some, "sustains nothing"), Outcome::DoesNotHold);
}

#[test]
fn bursts_cut_short_by_a_key_change_are_excluded_and_reported() {
    let mut cell = measured(CONVENTIONAL, 0.0, 1.0);
    let (_, bursts) = &mut cell.bursts[0];
    bursts[0].dry = Some(Dry { index: 2, seconds: 0.1, packets: 10.0 });
    bursts[0].readings[1].phase = 1;
    let section = section(&[cell.clone()], 3);
    assert!(
        section.notes.iter().any(|note| note.contains("in 1 of 3 bursts")),
        "{:?}",
        section.notes
    );
    assert_eq!(times(&cell.bursts[0].1).unwrap().samples.len(), 2);
}

#[test]
fn pictures_show_levels_and_both_rates_with_the_predictions() {
    let cells = [measured(CONVENTIONAL, 0.0, 1.0), measured(BITSLICED, 0.0, 1.0)];
    let section = section(&cells, 3);
    let ids: Vec<&str> = section.plots.iter().map(|plot| plot.id.as_str()).collect();
    assert_eq!(ids, ["level-1", "rates-1", "level-2", "rates-2"]);
    for plot in &section.plots {
        assert!(!plot.marks.is_empty() && plot.curves.iter().all(|it| !it.points.is_empty()));
    }
}
