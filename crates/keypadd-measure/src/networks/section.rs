//! Builds the report's section on networks: method, tables, claims, notes. Pure.

use super::Networks;
use super::arms::{PLAIN, VXLAN};
use super::load::{PACES, PING_BYTES, PING_INTERVAL, Pings, VOICE};
use super::sample::{LEAD, STREAMS, Sample, Taken};
use crate::results::{Outcome, Section, Table, Verdict};
use crate::sequence::center;
use crate::series::over_rounds;
use crate::verdict::Rule;

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

/// A claim about one stream's rate: that of an arm over that of another, or of the fastest that
/// encrypts.
struct Claim {
    text: &'static str,
    arm: &'static str,
    over: Option<&'static str>,
    at_least: f64,
}

/// The figure that claims are judged by.
const FIGURE: &str = "ratio of one stream down to the other arm's in its round";

const CLAIMS: [Claim; 4] = [
    Claim {
        text: "the hosts are not the limit: without a tunnel one stream is at least twice as \
               fast as through the fastest that encrypts",
        arm: PLAIN,
        over: None,
        at_least: 2.0,
    },
    Claim {
        text: "a tunnel without cryptography is faster than every one with it",
        arm: VXLAN,
        over: None,
        at_least: 1.0,
    },
    Claim {
        text: "OpenVPN is faster with AES than with 3DES",
        arm: "openvpn",
        over: Some("openvpn-3des"),
        at_least: 1.0,
    },
    Claim {
        text: "strongSwan is faster with AES than with 3DES",
        arm: "strongswan",
        over: Some("strongswan-3des"),
        at_least: 1.0,
    },
];

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
    section.verdicts = CLAIMS.iter().filter_map(|claim| judge(networks, taken, claim)).collect();
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
    let streams = |unit, of: fn(&super::sample::Tcp) -> f64| {
        let all = STREAMS.iter().enumerate();
        all.map(|(nth, it)| figure(it.name, unit, move |sample| Some(of(&sample.tcp[nth]))))
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
        udp.push(figure("lost", "%", move |it| Some(it.udp[nth].lost_percent)));
        if !pace.interval.is_zero() {
            udp.push(figure("jitter", "µs", move |it| Some(it.udp[nth].jitter_us)));
        }
    }
    let voice = vec![
        figure("lost", "%", |it| Some(it.voice.lost_percent)),
        figure("jitter", "µs", |it| Some(it.voice.jitter_us)),
        figure("one way, p50", "µs", |it| it.voice.delays.quantile_us(0.5)),
        figure("one way, p99", "µs", |it| it.voice.delays.quantile_us(0.99)),
    ];
    let others = vec![figure("of all cores", "%", |it| Some(it.others_percent))];
    [
        ("tcp", "TCP", streams("Mbit/s", |tcp| tcp.mbit)),
        ("machine-cpu", "CPU time of the whole machine", streams("s/GB", |tcp| tcp.machine_cpu)),
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
        ("sent-again", "TCP segments sent again", streams("/GB", |tcp| tcp.sent_again)),
        ("reordered", "Reorderings that TCP found", streams("/GB", |tcp| tcp.reordered)),
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

/// A verdict by the interval over rounds; none if an arm of the claim was not asked for.
fn judge(networks: &Networks, taken: &[Taken], claim: &Claim) -> Option<Verdict> {
    let is_there = |name| networks.arms.iter().any(|arm| arm.name == name);
    let base_is_there = match claim.over {
        Some(name) => is_there(name),
        None => networks.arms.iter().any(|arm| !arm.is_clear),
    };
    (is_there(claim.arm) && base_is_there).then_some(())?;
    let rate = |round: u32, is_of: &dyn Fn(&Taken) -> bool| {
        let of_round = taken.iter().filter(|it| it.round == round && is_of(it));
        // One that failed carries nothing.
        of_round.map(|it| it.sample.as_ref().map_or(0.0, |it| it.tcp[0].mbit)).reduce(f64::max)
    };
    let name = |it: &Taken| networks.arms[it.arm].name;
    let ratios: Vec<f64> = (0..networks.rounds)
        .filter_map(|round| {
            let base = rate(round, &|it| match claim.over {
                Some(over) => name(it) == over,
                None => !networks.arms[it.arm].is_clear,
            });
            Some(rate(round, &|it| name(it) == claim.arm)? / base?)
        })
        .collect();
    let rule = Rule::AtLeast(claim.at_least);
    let mut verdict = rule.judge(claim.text, FIGURE, center(&ratios).as_ref());
    if ratios.is_empty() {
        verdict.outcome = Outcome::NotRun;
    }
    Some(verdict)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::NetworkArm;
    use super::super::load::Flow;
    use super::super::sample::Tcp;
    use super::*;
    use crate::results::Cell;

    fn networks() -> Networks {
        let names = ["plain", "boringtun", "openvpn", "openvpn-3des"].map(str::to_owned);
        let arms = NetworkArm::read(&names).unwrap();
        Networks { arms, time: Duration::from_secs(2), rounds: 6, seed: 1 }
    }

    fn sample(mbit: f64) -> Sample {
        let tcp = Tcp { mbit, machine_cpu: 1.0, gateway_cpu: 0.5, sent_again: 7.0, reordered: 0.0 };
        Sample {
            tcp: vec![tcp; STREAMS.len()],
            idle: Pings::default(),
            beside: Pings::default(),
            voice: Flow::default(),
            udp: vec![Flow::default(); PACES.len()],
            others_percent: 0.0,
        }
    }

    /// Six rounds of these rates of the arms; none where a sample failed.
    fn taken(rates: [Option<f64>; 4]) -> Vec<Taken> {
        let rounds = (0..6).flat_map(|round| {
            rates.into_iter().enumerate().map(move |(arm, rate)| Taken {
                case: 0,
                arm,
                round,
                sample: rate.map(sample).ok_or_else(|| "it did not come up".into()),
            })
        });
        rounds.collect()
    }

    fn outcomes(rates: [Option<f64>; 4]) -> Vec<Outcome> {
        let section = section(&networks(), &[], &taken(rates), &[]);
        section.verdicts.iter().map(|it| it.outcome).collect()
    }

    #[test]
    fn only_claims_whose_arms_were_asked_for_are_judged_by_the_fastest_of_each_round() {
        let rates = [9000.0, 1000.0, 900.0, 100.0].map(Some);
        assert_eq!(outcomes(rates), [Outcome::Holds; 2]);
        let rates = [1500.0, 1000.0, 100.0, 900.0].map(Some);
        assert_eq!(outcomes(rates), [Outcome::DoesNotHold; 2]);
        // One that failed is no rival, and not ahead of one.
        let rates = [Some(9000.0), None, Some(900.0), None];
        assert_eq!(outcomes(rates), [Outcome::Holds; 2]);
        let rates = [Some(9000.0), None, None, Some(100.0)];
        assert_eq!(outcomes(rates), [Outcome::Holds, Outcome::DoesNotHold]);
    }

    #[test]
    fn every_arm_has_its_row_and_what_failed_or_is_missing_a_note() {
        let taken = taken([Some(9000.0), None, Some(900.0), Some(100.0)]);
        let versions = ["1", "2", "3", "4"].map(str::to_owned);
        let section = section(&networks(), &versions, &taken, &["tinc is left out".into()]);
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

    #[test]
    fn nothing_measured_is_no_verdict() {
        let section = section(&networks(), &[], &[], &[]);
        assert!(section.verdicts.iter().all(|it| it.outcome == Outcome::NotRun));
    }
}
