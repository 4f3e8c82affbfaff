//! What the rounds say, beside what the paper says. Pure.

use keypadd_measure::figure::group;
use keypadd_measure::results::{Axis, Curve, Plot, Section, Style, Table, Verdict};
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::verdict::Rule;
use keypadd_traffic::Exchange;

use super::measure::{delay, echoes, emulated_rate};
use super::{EMULATED, Echoes, Round, SCENARIOS, SIZES, TABLE_3, scenario};
use crate::Effort;
use crate::claim::{Claim, half_of};
use crate::lab::Rounds;

/// What the paper's text says encryption adds: from one tenth to one fifth.
const TEXT_SAYS: [f64; 2] = [1.1, 1.2];

/// The longest ping and the shortest, as places in [`SIZES`].
const LONGEST: usize = SIZES.len() - 1;
const SHORTEST: usize = 0;

pub(super) fn page(rounds: &Rounds<Round>, effort: Effort) -> Section {
    let mut section = Section::new(
        "ridzuan",
        "Ridzuan and Ab Rahman: ciphers and hashes of IPsec by ping",
        "What do a cipher and a hash add to the round trip of a small packet over a slow line?",
    );
    section.method = vec![
        format!(
            "The paper pings ten times through routers joined by serial lines of 1.58 Mbit/s, with five pairs of \
             cipher and hash and three lengths. Here a round sends {} echoes of each length over TCP, through a \
             new path for each arm in an order drawn from the seed; a line of 1.58 Mbit/s with {:.2} ms of delay \
             each way lies in between, so that a round trip without a tunnel is the paper's. Sizes are of what is \
             echoed; {} bytes are the least that measured traffic has and stand for 10.",
            echoes(effort),
            delay().as_secs_f64() * 1e3,
            Exchange::REQUEST_BYTES_MIN,
        ),
        "An amount that the paper's text names holds if the whole interval lies within it. A claim that one is \
         slower than another holds if at least half of the paper's difference is there. A length does not matter if \
         the longest takes within half of the least that encryption adds in the paper, more or less than the \
         shortest."
            .into(),
        effort.compared(&[(
            "echoes of each length in a round",
            echoes(Effort::Quick).to_string(),
            echoes(Effort::Full).to_string(),
        )]),
    ];
    section.emulated =
        vec!["the line of 1.58 Mbit/s and its delay are a relay in this process".into()];
    section.emulated.extend(EMULATED.map(|nth| {
        let rate = group(&emulated_rate(nth).to_string());
        format!("{}, emulated: keystream slowed to {rate} bytes a second", scenario(nth))
    }));
    section.verdicts = added(rounds);
    section.verdicts.extend(slower(rounds));
    section.verdicts.extend(lengths(rounds));
    section.tables = vec![table(rounds)];
    section.plots = vec![by_scenario(rounds), by_length(rounds)];
    section.notes = contradictions();
    section.notes.push(format!(
        "An emulated cipher is as slow as it would have to be if it alone added to the longest echo what the paper \
         measured. Then a short echo costs a fraction of a long one, and length matters: encryption that costs by \
         the byte does not explain the paper's figures. The line itself takes {:.1} ms longer for {} bytes there and \
         back than for {}.",
        line_ms(SIZES[LONGEST]) - line_ms(SIZES[SHORTEST]),
        SIZES[LONGEST],
        SIZES[SHORTEST],
    ));
    section.notes.push(
        "TCP echoes stand for pings, which a tunnel of TCP does not carry. Hashes run as they are today in the emulated \
         arms too."
            .into(),
    );
    section
}

/// Milliseconds that the line takes for so much payload there and back.
fn line_ms(bytes: u64) -> f64 {
    2.0 * bytes.max(Exchange::REQUEST_BYTES_MIN) as f64 * 8.0 / 1.58e6 * 1e3
}

/// Where the paper says one thing and its table another, found in its figures.
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

/// Over all sizes, milliseconds.
fn whole(echoes: &Echoes) -> f64 {
    echoes.iter().sum::<f64>() / SIZES.len() as f64
}

fn added(rounds: &Rounds<Round>) -> Vec<Verdict> {
    let plain = rounds.figures(|it| whole(&it.plain));
    let of_scenario = |nth: usize| {
        let suite = scenario(nth);
        let claim = Claim::new(
            "R1",
            &format!("Encryption with {suite} adds 10 to 20 % to a round trip."),
            &format!("round trip, {suite} over no tunnel"),
            Rule::Within(TEXT_SAYS[0], TEXT_SAYS[1]),
        );
        let claim = claim.printed(TABLE_3[nth + 1] / TABLE_3[0], "Table 3");
        let today = ratio(&rounds.figures(|it| whole(&it.tunnels[nth])), &plain);
        claim.judge(today, rounds.missed.as_ref())
    };
    (0..SCENARIOS.len()).map(of_scenario).collect()
}

fn slower(rounds: &Rounds<Round>) -> Vec<Verdict> {
    let of = |nth: usize| rounds.figures(|it| whole(&it.tunnels[nth]));
    let pair = |&(slow, fast): &(usize, usize)| {
        let paper = TABLE_3[slow + 1] / TABLE_3[fast + 1];
        let claim = Claim::new(
            "R2",
            &format!("{} is slower than {}.", scenario(slow), scenario(fast)),
            &format!("round trip, {} over {}", scenario(slow), scenario(fast)),
            half_of(paper),
        );
        let today = ratio(&of(slow), &of(fast));
        claim.printed(paper, "Table 3").judge(today, rounds.missed.as_ref())
    };
    // 3DES against AES-256 with either hash, then SHA-1 against MD5 with either cipher.
    [(2, 0), (3, 1), (0, 1), (2, 3)].iter().map(pair).collect()
}

fn lengths(rounds: &Rounds<Round>) -> Vec<Verdict> {
    let least = TABLE_3[1..].iter().copied().fold(f64::INFINITY, f64::min);
    let half = ((least / TABLE_3[0] - 1.0) / 2.0 * 1e3).round() / 1e3;
    let judge = |name: String, of: &dyn Fn(&Round) -> Echoes| {
        let (long, short) = (SIZES[LONGEST], SIZES[SHORTEST]);
        let claim = Claim::new(
            "R3",
            &format!("With {name}, a packet of {long} bytes takes as long as one of {short}."),
            &format!("round trip, {long} bytes over {short}, {name}"),
            Rule::Within(1.0 - half, 1.0 + half),
        );
        let today =
            ratio(&rounds.figures(|it| of(it)[LONGEST]), &rounds.figures(|it| of(it)[SHORTEST]));
        claim.judge(today, rounds.missed.as_ref())
    };
    let mut verdicts: Vec<Verdict> = (0..SCENARIOS.len())
        .map(|nth| judge(scenario(nth).to_string(), &|it| it.tunnels[nth]))
        .collect();
    verdicts.extend(
        EMULATED
            .iter()
            .enumerate()
            .map(|(nth, &of)| judge(format!("{}, emulated", scenario(of)), &|it| it.emulated[nth])),
    );
    verdicts
}

/// What an arm is called, the place of the paper's figure where it has one, and its own figures.
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
    let mut table = Table::new("echoes", "Round trips", "arm")
        .column("paper", "ms")
        .column("paper, over no tunnel", "")
        .column("today", "ms")
        .column("today, over no tunnel", "");
    for size in SIZES {
        table = table.column(&format!("{size} bytes"), "ms");
    }
    let plain = rounds.figures(|it| whole(&it.plain));
    for (label, paper, of) in arms() {
        let all = rounds.figures(|it| whole(&of(it)));
        let mut cells = vec![
            paper.map_or(keypadd_measure::results::Cell::Missing, |nth| TABLE_3[nth].into()),
            paper.map_or(keypadd_measure::results::Cell::Missing, |nth| {
                (TABLE_3[nth] / TABLE_3[0]).into()
            }),
            mean(&all).into(),
            ratio(&all, &plain).into(),
        ];
        cells.extend((0..SIZES.len()).map(|size| mean(&rounds.figures(|it| of(it)[size])).into()));
        table.push(&label, cells);
    }
    table
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
    let mut push = |label: &str, of: &[(usize, Vec<f64>)]| {
        let estimates: Vec<_> = of
            .iter()
            .filter_map(|(nth, samples)| Some((number(nth + 1), ratio(samples, &plain)?)))
            .collect();
        let estimates = estimates.iter().map(|(x, estimate)| (*x, estimate));
        plot.curves.push(Curve::of_estimates(label, Style::Points, estimates));
    };
    let today: Vec<_> = (0..SCENARIOS.len())
        .map(|nth| (nth, rounds.figures(|it| whole(&it.tunnels[nth]))))
        .collect();
    push("today", &today);
    let emulated = EMULATED.into_iter().enumerate();
    let emulated: Vec<_> =
        emulated.map(|(nth, of)| (of, rounds.figures(|it| whole(&it.emulated[nth])))).collect();
    push("today, cipher emulated", &emulated);
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
        let estimates: Vec<_> = SIZES
            .iter()
            .enumerate()
            .filter_map(|(nth, &size)| {
                Some((size as f64, mean(&rounds.figures(|it| of(it)[nth]))?))
            })
            .collect();
        let estimates = estimates.iter().map(|(x, estimate)| (*x, estimate));
        plot.curves.push(Curve::of_estimates(&label, Style::Line, estimates));
    }
    plot
}
