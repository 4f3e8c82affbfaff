//! Builds the page: words, a table and plots around the claims. Pure.

use keypadd_measure::figure::group;
use keypadd_measure::results::{Axis, Curve, Plot, Section, Style, Table};
use keypadd_measure::sequence::ratio;
use keypadd_measure::statistics::mean_of_finite as mean;

use super::claims::claims;
use super::measure::{delay, echoes, emulated_rate};
use super::{
    EMULATED, Echoes, LONGEST, Round, SCENARIOS, SHORTEST, SIZES, TABLE_3, TEXT_SAYS, scenario,
    whole,
};
use crate::claim::judge;
use crate::lab::Rounds;
use crate::{Effort, Paper};

pub(super) fn page(rounds: &Rounds<Round>, effort: Effort) -> Section {
    let amounts = [("echoes of each length in a round", Effort::both(echoes))];
    let (long, short) = (SIZES[LONGEST], SIZES[SHORTEST]);
    let mut page = Section::of_page(
        Paper::Ridzuan.name(),
        include_str!("page.md"),
        &[
            ("echoes", &echoes(effort)),
            ("delay", &format!("{:.2}", delay().as_secs_f64() * 1e3)),
            ("longer", &format!("{:.1}", line_ms(long) - line_ms(short))),
            ("long", &long),
            ("short", &short),
            ("effort", &effort.compared(&amounts)),
        ],
    );
    page.emulated.extend(EMULATED.map(|nth| {
        let rate = group(&emulated_rate(nth).to_string());
        format!("{}, emulated: keystream slowed to {rate} bytes a second", scenario(nth))
    }));
    page.notes.splice(0..0, contradictions());
    page.verdicts = judge(&claims(), rounds);
    page.tables = vec![table(rounds)];
    page.plots = vec![by_scenario(rounds), by_length(rounds)];
    page
}

/// Milliseconds that a round trip of this payload takes on the line.
fn line_ms(bytes: usize) -> f64 {
    2.0 * bytes as f64 * 8.0 / 1.58e6 * 1e3
}

/// Where the paper's text contradicts its table.
fn contradictions() -> Vec<String> {
    let added = TABLE_3[1..].iter().map(|it| it / TABLE_3[0]);
    let (least, most) = (added.clone().fold(f64::INFINITY, f64::min), added.fold(0.0, f64::max));
    let mut notes = Vec::new();
    if least < TEXT_SAYS[0] || most > TEXT_SAYS[1] {
        notes.push(format!(
            "The paper contradicts itself: its text has encryption add 10 to 20 %, its Table 3 has {:.1} to {:.1} %.",
            (least - 1.0) * 1e2,
            (most - 1.0) * 1e2,
        ));
    }
    let sha1_is_slower = TABLE_3[1] > TABLE_3[2] && TABLE_3[3] > TABLE_3[4];
    if sha1_is_slower {
        notes.push(
            "The paper contradicts itself: its conclusion calls SHA-1 faster than MD5, its Table 3 and its discussion \
             have it slower with both ciphers. The table is judged."
                .into(),
        );
    }
    notes
}

/// An arm's name, the position of the paper's figure if it has one, and its own figures.
type Arm = (String, Option<usize>, Box<dyn Fn(&Round) -> Echoes>);

/// All arms.
fn arms() -> Vec<Arm> {
    let mut arms: Vec<Arm> = vec![
        ("no tunnel".into(), Some(0), Box::new(|it: &Round| it.plain)),
        ("tunnel, not encrypted".into(), None, Box::new(|it: &Round| it.null)),
    ];
    for nth in 0..SCENARIOS.len() {
        let of = move |it: &Round| it.tunnels[nth];
        arms.push((scenario(nth).to_string(), Some(nth + 1), Box::new(of)));
    }
    for (nth, of) in EMULATED.into_iter().enumerate() {
        let of_round = move |it: &Round| it.emulated[nth];
        arms.push((format!("{}, emulated", scenario(of)), Some(of + 1), Box::new(of_round)));
    }
    arms
}

fn table(rounds: &Rounds<Round>) -> Table {
    let plain = rounds.figures(|it| whole(&it.plain));
    let rows = arms().into_iter().map(|(label, paper, of)| (label, (paper, of)));
    let mut table = Table::of("echoes", "Round trips", "arm", rows)
        .column("paper", "ms", |(paper, _)| paper.map(|nth| TABLE_3[nth]))
        .column("paper, over no tunnel", "", |(paper, _)| {
            paper.map(|nth| TABLE_3[nth] / TABLE_3[0])
        })
        .column("today", "ms", |(_, of)| mean(&rounds.figures(|it| whole(&of(it)))))
        .column("today, over no tunnel", "", |(_, of)| {
            ratio(&rounds.figures(|it| whole(&of(it))), &plain)
        });
    for (nth, size) in SIZES.into_iter().enumerate() {
        let name = format!("{size} bytes");
        table = table.column(&name, "ms", |(_, of)| mean(&rounds.figures(|it| of(it)[nth])));
    }
    table.end()
}

fn by_scenario(rounds: &Rounds<Round>) -> Plot {
    let mut plot = Plot::new(
        "scenarios",
        "Round trip over that without a tunnel",
        Axis::linear("scenario, as the paper numbers them", ""),
        Axis::linear("over no tunnel", ""),
    );
    plot.caption = "1: no tunnel; 2: AES-256 and SHA-1; 3: AES-256 and MD5; 4: 3DES and SHA-1; 5: 3DES and MD5. \
                    Emulated: a cipher as slow as the paper's figures would have it."
        .into();
    let number = |nth: usize| nth as f64 + 1.0;
    let paper = (0..TABLE_3.len()).map(|nth| [number(nth), TABLE_3[nth] / TABLE_3[0]]);
    plot.curves.push(Curve::new("paper", Style::Points, paper.collect()));
    let plain = rounds.figures(|it| whole(&it.plain));
    let mut push = |label: &str, of: Vec<(usize, Vec<f64>)>| {
        let over = of.into_iter().map(|(nth, samples)| (number(nth + 1), ratio(&samples, &plain)));
        plot.curves.push(Curve::of_estimates(label, Style::Points, over));
    };
    let tunnel = |nth: usize| rounds.figures(|it| whole(&it.tunnels[nth]));
    push("today", (0..SCENARIOS.len()).map(|nth| (nth, tunnel(nth))).collect());
    let emulated = EMULATED.into_iter().enumerate();
    let emulated = emulated.map(|(nth, of)| (of, rounds.figures(|it| whole(&it.emulated[nth]))));
    push("today, cipher emulated", emulated.collect());
    plot
}

fn by_length(rounds: &Rounds<Round>) -> Plot {
    let mut plot = Plot::new(
        "lengths",
        "Round trip by length",
        Axis::log("length", "bytes"),
        Axis::linear("round trip", "ms"),
    );
    plot.caption =
        "The paper has no figures by length beside its pictures, in which all lengths are alike."
            .into();
    for (label, _, of) in arms() {
        let points = SIZES.iter().enumerate();
        let points =
            points.map(|(nth, &size)| (size as f64, mean(&rounds.figures(|it| of(it)[nth]))));
        plot.curves.push(Curve::of_estimates(&label, Style::Line, points));
    }
    plot
}
