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

fn sustained(cells: &[Cell]) -> Table {
    let mut table = Table::new("sustained", "The sustained rate that the pool bears, R*", "case")
        .column("predicted", "Mbit/s")
        .column("measured", "Mbit/s")
        .column("error", "%")
        .column("lasts at", "Mbit/s")
        .column("runs dry at", "Mbit/s")
        .column("fastest offered", "Mbit/s")
        .column("full pool", "packets")
        .column("taken by others", "cores");
    for cell in cells {
        let predicted = cell.calibration.sustained();
        let measured = mean(&cell.sustained_mbit());
        let error = measured
            .as_ref()
            .filter(|it| it.value > 0.0)
            .map(|it| (cell.mbit(predicted) / it.value - 1.0) * 100.0);
        let sides = |of: fn(&Sustained) -> Option<f64>| -> Entry {
            let rates = cell.found.iter().filter_map(|found| of(&found.sustained));
            mean(&rates.map(|rate| cell.mbit(rate)).collect::<Vec<_>>()).into()
        };
        let measured: Entry = match cell.at_least_mbit() {
            Some(rate) => format!("not reached: at least {rate:.0}").into(),
            None => measured.into(),
        };
        let capacities: Vec<f64> = cell.found.iter().map(|found| found.capacity).collect();
        table.push(
            &cell.name(),
            vec![
                cell.mbit(predicted).into(),
                measured,
                error.map_or(Entry::Missing, Entry::from),
                sides(|it| if let Sustained::Found { lasts, .. } = it { *lasts } else { None }),
                sides(
                    |it| if let Sustained::Found { runs_dry, .. } = it { *runs_dry } else { None },
                ),
                cell.mbit(cell.fastest).into(),
                mean(&capacities).into(),
                mean(&cell.others).into(),
            ],
        );
    }
    table
}

fn bursts(cells: &[Cell]) -> Table {
    let mut table = Table::new("bursts", "Bursts from a full pool", "burst")
        .column("T* predicted", "s")
        .column("T*", "s")
        .column("B* predicted", "MB")
        .column("B*", "MB")
        .column("speed after", "Mbit/s");
    for cell in cells {
        for (rate, found) in &cell.bursts {
            let Burst::Dry { seconds, packets } = cell.calibration.burst(*rate) else { continue };
            let after: Vec<f64> =
                found.iter().filter_map(|burst| Some(burst.speed_after? * 8.0 / 1e6)).collect();
            table.push(
                &format!("{}: {:.0} Mbit/s", cell.name(), cell.mbit(*rate)),
                vec![
                    seconds.into(),
                    times(found).into(),
                    (packets * cell.packet_bytes / 1e6).into(),
                    payloads(cell, found).into(),
                    mean(&after).into(),
                ],
            );
        }
    }
    table
}

fn calibration(cells: &[Cell]) -> Table {
    let mut table = Table::new("calibration", "What the predictions were made from", "case")
        .column("pads per CPU second", "")
        .column("CPU of a packet at full speed", "µs")
        .column("CPU of a packet at R*", "µs")
        .column("payload of a packet", "bytes")
        .column("level before the run", "packets")
        .column("packets before fillers wake", "packets")
        .column("cores idle at R*", "cores");
    for cell in cells {
        let model = &cell.calibration;
        let sustained = model.sustained();
        let figures = [
            model.pads_per_cpu_second,
            model.traffic.at(cell.fastest) * 1e6,
            model.beside_fillers.at(sustained) * 1e6,
            cell.packet_bytes,
            model.level,
            model.asleep_packets,
            model.idle(sustained * model.beside_fillers.at(sustained)),
        ];
        table.push(&cell.name(), figures.map(Entry::from).into());
    }
    table
}
