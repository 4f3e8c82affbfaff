//! Tests the tables and plots on paths with synthetic results.

use std::path::Path;
use std::time::Duration;

use testbed::line::LossPlace;

use super::super::arms::PathArms;
use super::super::cases::PathCases;
use super::super::sample::Bin;
use super::*;
use crate::machine::Machine;
use crate::report;
use crate::results::{Results, Run};

fn paths(two_way: bool) -> Paths {
    let names = ["keypadd", "tcp-cubic"].map(str::to_owned).to_vec();
    let cases = PathCases {
        mbits: vec![crate::LineRate::both(300)],
        rtts: [20, 150].map(Duration::from_millis).to_vec(),
        losses: vec![0.0, 10.0],
        loss_place: LossPlace::default(),
        two_way,
    };
    let arms = PathArms { names, extra: Vec::new() }.read(Path::new("/k")).unwrap();
    Paths { arms, cases: cases.all(), time: Duration::from_secs(3), rounds: 2, seed: 1 }
}

fn taken(paths: &Paths) -> Vec<Taken> {
    let mut taken = Vec::new();
    for round in 0..2 {
        for case in 0..paths.cases.len() {
            for arm in 0..2 {
                let bin = |nth| Bin { at: f64::from(nth), mbit: 280.0, queue_ms: 1.0 };
                let sample = Sample {
                    down_mbit: Some(200.0 + f64::from(round)),
                    up_mbit: paths.cases[case].two_way.then_some(100.0),
                    p99_ms: Some(25.0),
                    trace: (0..9).map(bin).collect(),
                    failure: (arm == 1).then(|| "the connection was closed".into()),
                    ..Sample::default()
                };
                taken.push(Taken { case, arm, round, sample });
            }
        }
    }
    taken
}

#[test]
fn every_line_has_its_tables_and_what_it_can_deliver_beside_medians_and_ranges() {
    let paths = paths(false);
    let section = section(&paths, &taken(&paths), &["tcp-bbr is left out".into()]);
    assert_eq!(section.tables.len(), 2 * 6);
    let bulk = &section.tables[0];
    assert_eq!(bulk.title, "Bulk in the steady state: 300 Mbit/s, 20 ms");
    let figure = |row: usize| bulk.rows[row].cells[1].figure().unwrap().clone();
    assert!((figure(0).value - 289.6).abs() < 0.01);
    assert_eq!((figure(1).value, figure(1).interval), (200.5, Some([200.0, 201.0])));
    assert_eq!(section.notes.len(), 1 + 8, "{:?}", section.notes);
    assert!(section.notes[1].contains("tcp-cubic: the connection was closed"));
}

#[test]
fn bulk_both_ways_has_a_column_for_each_direction() {
    let paths = paths(true);
    let section = section(&paths, &taken(&paths), &[]);
    let columns: Vec<&str> =
        section.tables[0].columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(columns.len(), 6);
    assert_eq!(columns[2], "0 % lost, both ways, to the far host");
    assert!(section.tables[0].rows.iter().all(|row| row.cells.len() == 6));
}

#[test]
fn the_report_has_a_picture_of_rate_and_of_queue_for_each_case() {
    let paths = paths(false);
    let mut results = Results::new(Run::begin("paths", "paths", 1), Machine::read());
    results.sections = vec![section(&paths, &taken(&paths), &[])];
    let files = report::files(&results);
    let pictures = |name: &str| {
        files.iter().filter(|file| file.path.ends_with(".svg") && file.path.contains(name)).count()
    };
    assert_eq!(["-rate-", "-queue-", "over-loss"].map(pictures), [4, 4, 4]);
}

#[test]
fn an_empty_section_says_so_and_draws_nothing() {
    let paths = paths(false);
    let section = section(&paths, &[], &[]);
    assert!(section.plots.iter().all(|plot| plot.curves.is_empty()));
    assert!(section.verdicts.iter().all(|verdict| verdict.because.contains("not measured")));
}
