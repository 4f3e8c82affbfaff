//! Tests the verdicts on this paper with synthetic measurements.

use super::*;
use crate::Effort;
use crate::claim::same_outcomes;
use keypadd_measure::results::Outcome::{DoesNotHold, Holds};

/// Six rounds in which arms take so long for 10, 100 and 1,000 bytes, milliseconds.
fn rounds(plain: Echoes, tunnels: [Echoes; 4], emulated: [Echoes; 2]) -> Rounds<Round> {
    let mut rounds = Rounds::default();
    for spread in [-0.1, 0.0, 0.1, -0.1, 0.0, 0.1] {
        let with = |echoes: Echoes| echoes.map(|ms| ms + spread);
        rounds.push(Ok(Round {
            plain,
            null: plain,
            tunnels: tunnels.map(with),
            emulated: emulated.map(with),
        }));
    }
    rounds
}

#[test]
fn the_papers_own_figures_bear_out_what_its_table_and_not_what_its_text_says() {
    let like = [216.9, 210.3, 238.6, 224.8].map(|ms| [ms; 3]);
    let rounds = rounds([192.5; 3], like, [like[1], like[3]]);
    let section = page::page(&rounds, Effort::Full);
    let mut expected = vec![Holds, DoesNotHold, DoesNotHold, Holds];
    expected.extend([Holds; 4 + 4 + 2]);
    same_outcomes(&section, &expected);
    let contradictions = section.notes.iter().filter(|it| it.contains("contradicts itself"));
    assert_eq!(contradictions.count(), 2, "{:?}", section.notes);
    assert!(section.notes[0].contains("9.2 to 23.9 %"), "{}", section.notes[0]);
}

#[test]
fn contrary_figures_give_the_contrary_verdicts() {
    // Hardly dearer than none, 3DES and SHA-1 the faster ones, and the longest three times as long.
    let contrary = [
        [100.0, 150.0, 329.0],
        [100.0, 150.0, 330.0],
        [100.0, 150.0, 328.0],
        [100.0, 150.0, 329.0],
    ];
    let rounds = rounds([192.5; 3], contrary, [contrary[0]; 2]);
    same_outcomes(&page::page(&rounds, Effort::Full), &[DoesNotHold; 14]);
}

#[test]
fn every_scenario_names_an_existing_suite() {
    let names: Vec<_> = (0..SCENARIOS.len()).map(|nth| scenario(nth).name()).collect();
    assert_eq!(
        names,
        [
            "aes-256-ctr-hmac-sha1",
            "aes-256-ctr-hmac-md5",
            "3des-ctr-hmac-sha1",
            "3des-ctr-hmac-md5"
        ]
    );
    // The faster cipher is emulated as the faster one.
    let [aes, triple_des] = EMULATED.map(measure::emulated_rate);
    assert!(aes > triple_des, "{aes} {triple_des}");
}
