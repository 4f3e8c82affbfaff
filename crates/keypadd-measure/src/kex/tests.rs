//! Tests the handshake benchmark with short runs of every group.

use super::*;
use crate::results::{Cell, Outcome};
use keypadd_provider::KeyExchange;

fn kex(groups: &[KeyExchange]) -> Kex {
    Kex {
        groups: groups.iter().copied().map(Into::into).collect(),
        rounds: 3,
        handshakes: 3,
        per_second: 100.0,
        time: Duration::from_millis(50),
        seed: 1,
    }
}

fn figure(cell: &Cell) -> f64 {
    cell.figure().unwrap().value
}

#[tokio::test(flavor = "multi_thread")]
async fn every_group_is_measured_and_larger_shares_show_on_the_wire() {
    let kex = kex(&KeyExchange::ALL);
    let handshakes = kex.run(&|_| (), std::future::pending()).await;
    assert_eq!(handshakes.ended_by, None);
    let tables = &handshakes.section.tables;
    assert!(tables.iter().all(|table| table.rows.len() == KeyExchange::ALL.len()));
    let bytes_from_client = |group: KeyExchange| {
        let row = tables[2].rows.iter().find(|row| row.label == group.name()).unwrap();
        figure(&row.cells[0])
    };
    // 1,184 more bytes of key share, in a separate datagram that is padded and acknowledged; on a
    // busy machine some datagrams are sent twice.
    let [hybrid, classical] =
        [KeyExchange::X25519MlKem768, KeyExchange::X25519].map(bytes_from_client);
    assert!((600.0..5000.0).contains(&(hybrid - classical)), "{hybrid} {classical}");
    for row in &tables[1].rows {
        assert_eq!(figure(&row.cells[4]), 15.0, "five in each of three rounds");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_handshakes_than_any_machine_computes_are_refused_and_a_few_are_not() {
    let few = Kex { per_second: 1.0, ..kex(&KeyExchange::ALL) };
    assert_eq!(few.rehearse().await, Ok(()));
    let many = Kex { per_second: 1e9, ..few };
    let refused = many.rehearse().await;
    assert!(matches!(refused, Err(OfferError::TooManyHandshakes { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_run_that_is_stopped_keeps_its_complete_turns() {
    let (kex, told) = (kex(&[KeyExchange::X25519]), std::sync::Mutex::new(0));
    let (tell_second, second) = tokio::sync::oneshot::channel();
    let tell_second = std::sync::Mutex::new(Some(tell_second));
    let tell = |_: &Progress| {
        let mut told = told.lock().unwrap();
        *told += 1;
        // Bytes, the first round, the second.
        if *told == 3 {
            let _ = tell_second.lock().unwrap().take().map(|tell| tell.send(()));
        }
    };
    let stop = async {
        let _ = second.await;
    };
    let handshakes = kex.run(&tell, stop).await;
    assert_eq!(handshakes.ended_by.as_deref(), Some("it was interrupted"));
    let cells = &handshakes.section.tables[0].rows[0].cells;
    assert!(matches!(&cells[0], Cell::Figure(estimate) if estimate.samples.len() == 1));
}

#[test]
fn a_second_round_trip_turns_the_verdict() {
    let outcome = |trips: Option<f64>| {
        let wire = trips.map(|trips| Wire { round_trips: [trips, trips + 0.5], ..Wire::default() });
        let measured = Measured { group: KeyExchange::X25519.into(), wire, turns: Vec::new() };
        section::section(&kex(&[KeyExchange::X25519]), &[measured]).verdicts[0].outcome
    };
    assert_eq!(outcome(Some(1.08)), Outcome::Holds);
    assert_eq!(outcome(Some(2.03)), Outcome::DoesNotHold);
    assert_eq!(outcome(None), Outcome::CannotTell);
}
