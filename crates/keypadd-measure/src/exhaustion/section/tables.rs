//! Tabulates predicted and measured figures, case by case.

use super::{payloads, times};
use crate::exhaustion::cell::Cell;
use crate::exhaustion::finder::Sustained;
use crate::exhaustion::model::Burst;
use crate::results::{Cell as Entry, Table};
use crate::statistics::mean;

pub(super) fn all(cells: &[Cell]) -> Vec<Table> {
    vec![sustained(cells), bursts(cells), calibration(cells)]
}

fn rows(cells: &[Cell]) -> impl Iterator<Item = (String, &Cell)> {
    cells.iter().map(|cell| (cell.name(), cell))
}

fn sustained(cells: &[Cell]) -> Table {
    let sides = |cell: &Cell, of: fn(&Sustained) -> Option<f64>| {
        let rates = cell.found.iter().filter_map(|found| of(&found.sustained));
        mean(&rates.map(|rate| cell.mbit(rate)).collect::<Vec<_>>())
    };
    let predicted = |cell: &&Cell| cell.mbit(cell.calibration.sustained());
    Table::of("sustained", "The sustained rate that the pool bears, R*", "case", rows(cells))
        .column("predicted", "Mbit/s", predicted)
        .column("measured", "Mbit/s", |cell| match cell.at_least_mbit() {
            Some(rate) => Entry::Text(format!("not reached: at least {rate:.0}")),
            None => mean(&cell.sustained_mbit()).into(),
        })
        .column("error", "%", |cell| {
            let measured = mean(&cell.sustained_mbit()).filter(|it| it.value > 0.0);
            measured.map(|it| (predicted(cell) / it.value - 1.0) * 100.0)
        })
        .column("lasts at", "Mbit/s", |cell| sides(cell, |it| it.sides()[0]))
        .column("runs dry at", "Mbit/s", |cell| sides(cell, |it| it.sides()[1]))
        .column("fastest offered", "Mbit/s", |cell| cell.mbit(cell.fastest))
        .column("full pool", "packets", |cell| {
            mean(&cell.found.iter().map(|found| found.capacity).collect::<Vec<_>>())
        })
        .column("taken by others", "cores", |cell| mean(&cell.others))
        .end()
}

fn bursts(cells: &[Cell]) -> Table {
    let rows = cells.iter().flat_map(|cell| {
        cell.bursts.iter().filter_map(move |(rate, found)| {
            let Burst::Dry { seconds, packets } = cell.calibration.burst(*rate) else {
                return None;
            };
            let label = format!("{}: {:.0} Mbit/s", cell.name(), cell.mbit(*rate));
            Some((label, (cell, found, seconds, packets)))
        })
    });
    Table::of("bursts", "Bursts from a full pool", "burst", rows)
        .column("T* predicted", "s", |(_, _, seconds, _)| *seconds)
        .column("T*", "s", |(_, found, ..)| times(found))
        .column("B* predicted", "MB", |(cell, .., packets)| packets * cell.packet_bytes / 1e6)
        .column("B*", "MB", |(cell, found, ..)| payloads(cell, found))
        .column("speed after", "Mbit/s", |(_, found, ..)| {
            let after = found.iter().filter_map(|burst| Some(burst.speed_after? * 8.0 / 1e6));
            mean(&after.collect::<Vec<f64>>())
        })
        .end()
}

fn calibration(cells: &[Cell]) -> Table {
    let beside = |cell: &Cell| cell.calibration.beside_fillers.at(cell.calibration.sustained());
    Table::of("calibration", "What the predictions were made from", "case", rows(cells))
        .column("pads per CPU second", "", |cell| cell.calibration.pads_per_cpu_second)
        .column("CPU of a packet at full speed", "µs", |cell| {
            cell.calibration.traffic.at(cell.fastest) * 1e6
        })
        .column("CPU of a packet at R*", "µs", |cell| beside(cell) * 1e6)
        .column("payload of a packet", "bytes", |cell| cell.packet_bytes)
        .column("level before the run", "packets", |cell| cell.calibration.level)
        .column("packets before fillers wake", "packets", |cell| cell.calibration.asleep_packets)
        .column("cores idle at R*", "cores", |cell| {
            cell.calibration.idle(cell.calibration.sustained() * beside(cell))
        })
        .end()
}
