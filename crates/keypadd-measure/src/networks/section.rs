//! Builds the report's section on networks: method, tables, notes. Pure.

use super::load::PACES;
use super::sample::{LEAD, PING_INTERVAL, STREAMS, Sample, Taken};
use super::{Networks, claims};
use crate::flow::VOICE;
use crate::pings::{PING_BYTES, Pings};
use crate::results::{Section, Table};
use crate::series::over_rounds;

/// Reads a figure from a sample, if present.
type FigureOf = dyn Fn(&Sample) -> Option<f64>;

/// A column of a table: its name, its unit, and its figure of a sample.
struct Figure {
    name: String,
    unit: &'static str,
    of: Box<FigureOf>,
}

fn figure(
    name: impl Into<String>,
    unit: &'static str,
    of: impl Fn(&Sample) -> Option<f64> + 'static,
) -> Figure {
    Figure { name: name.into(), unit, of: Box::new(of) }
}

pub(super) fn section(
    networks: &Networks,
    versions: &[String],
    taken: &[Taken],
    left_out: &[String],
) -> Section {
    let mut section = Section::of_page(
        "networks",
        include_str!("section.md"),
        &[
            ("rounds", &networks.rounds),
            ("seconds", &networks.time.as_secs_f64()),
            ("lead", &LEAD.as_secs_f64()),
            ("ping_ms", &PING_INTERVAL.as_millis()),
            ("voice_bytes", &VOICE.bytes),
            ("voice_ms", &VOICE.interval.as_millis()),
        ],
    );
    section.verdicts = claims::judge(networks, taken);
    section.tables.push(arms(networks, versions));
    section.tables.extend(tables(networks, taken));
    section.notes.extend(left_out.iter().cloned());
    for one in taken {
        if let Err(failure) = &one.sample {
            let name = networks.arms[one.arm].name;
            section.notes.push(format!("round {}, {name}: {failure}", one.round + 1));
        }
    }
    section
}

fn arms(networks: &Networks, versions: &[String]) -> Table {
    let rows = networks.arms.iter().zip(versions).map(|(arm, version)| (arm.name, (arm, version)));
    Table::of("arms", "Arms", "arm", rows)
        .column("version", "", |(_, version)| version.as_str())
        .column("protection", "", |(arm, _)| arm.protection)
        .end()
}

fn tables(networks: &Networks, taken: &[Taken]) -> Vec<Table> {
    let streams = |unit, of: fn(&super::sample::Tcp) -> Option<f64>| {
        let all = STREAMS.iter().enumerate();
        all.map(|(nth, it)| figure(it.name, unit, move |sample| of(&sample.tcp[nth])))
            .collect::<Vec<Figure>>()
    };
    let pings = |of: fn(&Sample) -> &Pings| {
        let mut figures = Vec::new();
        for (nth, bytes) in PING_BYTES.into_iter().enumerate() {
            for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
                let of = move |sample: &Sample| of(sample).times[nth].quantile_us(quantile);
                figures.push(figure(format!("{bytes} bytes, {name}"), "µs", of));
            }
        }
        figures.push(figure("lost", "%", move |sample| Some(of(sample).lost_percent)));
        figures
    };
    let mut udp = Vec::new();
    for (nth, pace) in PACES.iter().enumerate() {
        let name = pace.name;
        let rate = move |it: &Sample| Some(it.udp[nth].per_second / 1e3);
        udp.push(figure(format!("{name}: received"), "1,000/s", rate));
        udp.push(figure("lost", "%", move |it| it.udp[nth].lost_percent()));
        if !pace.interval.is_zero() {
            udp.push(figure("jitter", "µs", move |it| it.udp[nth].jitter_us));
        }
    }
    let voice = vec![
        figure("lost", "%", |it| it.voice.lost_percent()),
        figure("jitter", "µs", |it| it.voice.jitter_us),
        figure("one way, p50", "µs", |it| it.voice.delays.quantile_us(0.5)),
        figure("one way, p99", "µs", |it| it.voice.delays.quantile_us(0.99)),
    ];
    let others = vec![figure("of all cores", "%", |it| Some(it.others_percent))];
    [
        ("tcp", "TCP", streams("Mbit/s", |tcp| Some(tcp.mbit))),
        (
            "machine-cpu",
            "CPU time of the whole machine",
            streams("s/GB", |tcp| Some(tcp.machine_cpu)),
        ),
        (
            "gateway-cpu",
            "CPU time of the gateways' programs",
            streams("s/GB", |tcp| tcp.gateway_cpu),
        ),
        ("ping-idle", "Echo requests alone", pings(|sample| &sample.idle)),
        ("ping-beside", "Echo requests beside one stream up", pings(|sample| &sample.beside)),
        ("voice", "Voice beside one stream up", voice),
        (
            "udp",
            "UDP to the server: 1,200 bytes paced, 64 bytes as many as one sender can send",
            udp,
        ),
        ("sent-again", "TCP segments sent again", streams("/GB", |tcp| Some(tcp.sent_again))),
        ("reordered", "Reorderings that TCP found", streams("/GB", |tcp| Some(tcp.reordered))),
        ("others", "CPU time of other programs", others),
    ]
    .into_iter()
    .map(|(id, title, figures)| table(networks, taken, id, title, &figures))
    .collect()
}

fn table(networks: &Networks, taken: &[Taken], id: &str, title: &str, figures: &[Figure]) -> Table {
    let rows = networks.arms.iter().enumerate().map(|(nth, arm)| (arm.name, nth));
    let mut table = Table::of(id, title, "arm", rows);
    for Figure { name, unit, of } in figures {
        table = table.column(name, unit, |arm| {
            over_rounds(taken, 0, *arm, |sample| of(sample.as_ref().ok()?))
        });
    }
    table.end()
}

#[cfg(test)]
mod tests {
    use super::super::claims::tests::{networks, taken};
    use super::*;
    use crate::results::Cell;

    #[test]
    fn every_arm_has_its_row_and_what_failed_or_is_missing_a_note() {
        let networks = networks(["plain", "boringtun", "openvpn", "openvpn-3des"]);
        let taken = taken([Some(9000.0), None, Some(900.0), Some(100.0)]);
        let versions = ["1", "2", "3", "4"].map(str::to_owned);
        let section = section(&networks, &versions, &taken, &["tinc is left out".into()]);
        for table in &section.tables {
            assert_eq!(table.rows.len(), 4, "{}", table.id);
            assert!(table.rows.iter().all(|row| row.cells.len() == table.columns.len()));
        }
        let tcp = &section.tables[1];
        assert_eq!(tcp.rows[2].cells[0].figure().unwrap().interval, Some([900.0, 900.0]));
        assert_eq!(tcp.rows[1].cells[0], Cell::Missing);
        assert_eq!(section.notes.len(), 7);
        assert_eq!(section.notes[1], "round 1, boringtun: it did not come up");
    }
}
