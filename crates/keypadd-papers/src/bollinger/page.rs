//! What the streams say, beside what the paper says. Pure.

use keypadd_measure::results::{Axis, Cell, Curve, Estimate, Plot, Section, Style, Table, Verdict};
use keypadd_measure::statistics::{mean, ratio};
use keypadd_measure::verdict::Rule;

use super::measure::{long_plan, short_plan};
use super::{Figures, LONG_ROUNDS, Network, PAIRS, SETTINGS, Streamed, Streams};
use crate::Effort;
use crate::claim::Claim;
use crate::lab::Missed;

/// Table 2, streams of 30 s, and Table 3, of ten minutes, in the order of [`SETTINGS`], as printed.
const TABLE_2: [f64; 4] = [674.868, 677.003, 683.22, 684.797];
const TABLE_3: [f64; 4] = [676.18, 669.94, 661.57, 663.11];

/// The paper's lifetime of keys in Table 3, seconds.
const LIFETIME_SECONDS: f64 = 120.0;

/// Differences up to this are slight: twice the largest between two ciphers of the paper.
const SLIGHT: f64 = 0.02;

/// Forward secrecy costs 1 to 2 %: between half of the lower and twice the upper figure.
const COSTS: [f64; 2] = [0.96, 0.995];

/// A cost is amplified if at least so much more is lost.
const AMPLIFIED: f64 = 0.995;

pub(super) fn page(figures: &Figures, effort: Effort) -> Section {
    let mut section = Section::new(
        "bollinger",
        "Bollinger: DES, 3DES and forward secrecy",
        "What do a stronger cipher and fresh key exchanges cost a stream?",
    );
    let (short, long) = (short_plan(effort), long_plan(effort, Network::Near));
    let far = long_plan(effort, Network::Far);
    section.method = vec![
        format!(
            "The paper sends one TCP stream between two routers: ten times 30 s in each setting, then ten minutes with \
             keys that live for two. Here such streams cross tunnels over a line of 100 Mbit/s, like its switch: {} s \
             in rounds, then {LONG_ROUNDS} times {} s with lifetimes of {} s. A third experiment sends {LONG_ROUNDS} times {} s over \
             10 Mbit/s with a round trip of 600 ms and lifetimes of {} s, to try what the paper only supposes; there \
             every setting has a line of its own, and all go at once.",
            short.time.as_secs_f64(),
            (long.settle + long.time).as_secs_f64(),
            long.lifetime.as_secs_f64(),
            (far.settle + far.time).as_secs_f64(),
            far.lifetime.as_secs_f64(),
        ),
        "Forward secrecy by a fresh key exchange is a new connection (MODP-768, as in the paper's tables; the first one \
         MODP-1024): TLS 1.3 has none on a connection that is up, and QUIC's key update derives new keys from old \
         ones. The new connection is brought up before the old one's keys end; the stream moves over when all that \
         it has sent is answered. Streams without forward secrecy keep their connection."
            .into(),
        format!(
            "Long streams go in rounds, near in an order drawn from the seed. The first {} s of each, near, and {} s, \
             far, do not count: a connection has to find the line's rate. What a key exchange costs is taken as time lost in a lifetime and \
             scaled to the paper's two minutes; the time in which the old connection's last data is answered and the \
             new one waits is part of it.",
            long.settle.as_secs_f64(),
            far.settle.as_secs_f64(),
        ),
        effort.compared(&[
            ("seconds of a short stream", seconds(short_plan(Effort::Quick).time), seconds(short_plan(Effort::Full).time)),
            (
                "lifetimes of seconds",
                seconds(long_plan(Effort::Quick, Network::Near).lifetime),
                seconds(long_plan(Effort::Full, Network::Near).lifetime),
            ),
            (
                "lifetimes of seconds, 600 ms away",
                seconds(long_plan(Effort::Quick, Network::Far).lifetime),
                seconds(long_plan(Effort::Full, Network::Far).lifetime),
            ),
        ]),
    ];
    section.emulated = vec![
        "lines are a relay in this process: 100 Mbit/s near, 10 Mbit/s with a round trip of 600 ms far".into(),
    ];
    section.verdicts = ciphers(figures);
    section.verdicts.extend(forward_secrecy(&figures.long));
    section.verdicts.extend(never_reached(figures));
    section.verdicts.extend(amplified(figures));
    section.tables = vec![
        short_table(figures),
        long_table("long", "Long streams", &figures.long, true),
        long_table("far", "Long streams, 600 ms away", &figures.far, false),
    ];
    section.plots = vec![plot(figures)];
    section.notes = notes();
    section
}

fn seconds(time: std::time::Duration) -> String {
    time.as_secs_f64().to_string()
}

fn notes() -> Vec<String> {
    let mut notes = vec![
        "Figures of the paper are as printed, in what it calls Kb/s. It had netperf print in K, which are 1,024 bytes \
         a second: then its streams carried some 5.5 Mbit/s."
            .to_owned(),
    ];
    let gains = PAIRS.map(|[without, with]| TABLE_2[with] / TABLE_2[without]);
    if gains.iter().all(|gain| *gain > 1.0) {
        notes.push(format!(
            "The paper's Table 2 has streams with forward secrecy faster than without, by {:.1} and {:.1} %, where \
             nothing was exchanged afresh: so much its figures scatter by themselves, as much as the cost that it \
             finds in Table 3.",
            (gains[0] - 1.0) * 1e2,
            (gains[1] - 1.0) * 1e2,
        ));
    }
    notes.push(
        "The paper names group 2 for forward secrecy in the list of its second experiment and group 1 in the table of \
         the same; group 1 was run."
            .into(),
    );
    notes
}

/// B1: ciphers hardly differ.
fn ciphers(figures: &Figures) -> Vec<Verdict> {
    let of = |nth: usize| figures.short.figures(|it| it[nth].mbit);
    let rule = Rule::Within(1.0 - SLIGHT, 1.0 + SLIGHT);
    let claim = Claim::new(
        "B1",
        "A stream with 3DES is as fast as one with DES, but for a slight difference.",
        "rate, 3DES over DES, short streams",
        rule,
    );
    let short = claim
        .printed(TABLE_2[1] / TABLE_2[0], "Table 2")
        .judge(ratio(&of(1), &of(0)), figures.short.missed.as_ref());
    let claim = Claim::new(
        "B1",
        "The same holds for long streams.",
        "rate, 3DES over DES, long streams",
        rule,
    );
    let claim = claim.printed(TABLE_3[1] / TABLE_3[0], "Table 3");
    let (today, missed) = compared(&figures.long, [0, 1]);
    vec![short, claim.judge(today, missed)]
}

/// How much faster the second of two settings is, in the rounds that both have; why some are missing.
fn compared(streams: &Streams, [one, other]: [usize; 2]) -> (Option<Estimate>, Option<&Missed>) {
    let [one, other] = [&streams[one], &streams[other]];
    let [base, rates] = [one, other].map(|it| it.figures(|it| it.mbit));
    let count = base.len().min(rates.len());
    (ratio(&rates[..count], &base[..count]), one.missed.as_ref().or(other.missed.as_ref()))
}

/// What is left of a stream's rate with fresh key exchanges every two minutes, round by round: the time that
/// each one lost, scaled. And why rounds are missing.
fn left(streams: &Streams, [without, with]: [usize; 2]) -> (Vec<f64>, Option<&Missed>) {
    let [without, with] = [&streams[without], &streams[with]];
    let pairs = without.all.iter().zip(&with.all);
    let lost = |(without, with): (&Streamed, &Streamed)| {
        with.lifetime_seconds * (1.0 - with.mbit / without.mbit)
    };
    let left = pairs.map(|pair| 1.0 - lost(pair) / LIFETIME_SECONDS).collect();
    (left, without.missed.as_ref().or(with.missed.as_ref()))
}

/// B2: it costs one to two per cent.
fn forward_secrecy(streams: &Streams) -> Vec<Verdict> {
    let of_pair = |pair: [usize; 2]| {
        let suite = SETTINGS[pair[0]].suite;
        let claim = Claim::new(
            "B2",
            &format!(
                "A fresh key exchange every two minutes costs a stream with {suite} 1 to 2 %."
            ),
            &format!("rate, {suite}, fresh key exchanges over none"),
            Rule::Within(COSTS[0], COSTS[1]),
        );
        let claim = claim.printed(TABLE_3[pair[1]] / TABLE_3[pair[0]], "Table 3");
        let (left, missed) = left(streams, pair);
        claim.judge(mean(&left), missed)
    };
    PAIRS.map(of_pair).to_vec()
}

/// B3: in a short stream there is none.
fn never_reached(figures: &Figures) -> Vec<Verdict> {
    let of_pair = |[_, with]: [usize; 2]| {
        let claim = Claim::new(
            "B3",
            &format!(
                "A short stream, {}, ends before a fresh key exchange is due.",
                SETTINGS[with].name()
            ),
            "key exchanges of a stream, with forward secrecy over without",
            Rule::AtMost(1.0),
        );
        let of = |nth: usize| figures.short.figures(|it| f64::from(it[nth].key_exchanges));
        claim.judge(ratio(&of(with), &of(with - PAIRS.len())), figures.short.missed.as_ref())
    };
    let of_rates = |[without, with]: [usize; 2]| {
        let paper = TABLE_2[with] / TABLE_2[without];
        let claim = Claim::new(
            "B3",
            &format!(
                "So Table 2 shows nothing of forward secrecy: {} is as fast with it as without.",
                SETTINGS[without].suite
            ),
            &format!("rate, {}, with over without, short streams", SETTINGS[without].suite),
            Rule::Within(1.0 - SLIGHT, 1.0 + SLIGHT),
        );
        let of = |nth: usize| figures.short.figures(|it| it[nth].mbit);
        claim
            .printed(paper, "Table 2")
            .judge(ratio(&of(with), &of(without)), figures.short.missed.as_ref())
    };
    PAIRS.map(of_pair).into_iter().chain(PAIRS.map(of_rates)).collect()
}

/// B4: a long round trip makes it dearer.
fn amplified(figures: &Figures) -> Vec<Verdict> {
    let of_pair = |pair: [usize; 2]| {
        let suite = SETTINGS[pair[0]].suite;
        let claim = Claim::new(
            "B4",
            &format!(
                "A round trip of 600 ms makes fresh key exchanges dearer for a stream with {suite}."
            ),
            &format!("rate with fresh key exchanges over without, {suite}, 600 ms over near"),
            Rule::AtMost(AMPLIFIED),
        );
        let [(far, missed), (near, also_missed)] =
            [&figures.far, &figures.long].map(|streams| left(streams, pair));
        let count = far.len().min(near.len());
        claim.judge(ratio(&far[..count], &near[..count]), missed.or(also_missed))
    };
    PAIRS.map(of_pair).to_vec()
}

fn short_table(figures: &Figures) -> Table {
    let mut table = Table::new("short", "Short streams", "setting")
        .column("paper, Table 2", "as printed")
        .column("paper, over DES", "")
        .column("today", "Mbit/s")
        .column("today, over DES", "")
        .column("key exchanges", "");
    let of = |nth: usize| figures.short.figures(|it| it[nth].mbit);
    for (nth, setting) in SETTINGS.iter().enumerate() {
        let exchanges = figures.short.figures(|it| f64::from(it[nth].key_exchanges));
        let cells = vec![
            TABLE_2[nth].into(),
            (TABLE_2[nth] / TABLE_2[0]).into(),
            mean(&of(nth)).into(),
            ratio(&of(nth), &of(0)).into(),
            mean(&exchanges).map_or(Cell::Missing, |it| it.value.into()),
        ];
        table.push(&setting.name(), cells);
    }
    table
}

fn long_table(id: &str, title: &str, streams: &Streams, is_papers: bool) -> Table {
    let mut table = Table::new(id, title, "setting");
    if is_papers {
        table = table.column("paper, Table 3", "as printed").column("paper, over DES", "");
    }
    table = table
        .column("today", "Mbit/s")
        .column("lifetime", "s")
        .column("key exchanges", "")
        .column("lost by each", "ms")
        .column("left, at one in two minutes", "%");
    for (nth, setting) in SETTINGS.iter().enumerate() {
        let mut cells: Vec<Cell> = match is_papers {
            true => vec![TABLE_3[nth].into(), (TABLE_3[nth] / TABLE_3[0]).into()],
            false => Vec::new(),
        };
        let of = |figure: fn(&Streamed) -> f64| mean(&streams[nth].figures(figure));
        let once = |figure| of(figure).map_or(Cell::Missing, |it| it.value.into());
        let rates = match (&streams[nth].missed, of(|it| it.mbit)) {
            (Some(missed), None) => missed.to_string().into(),
            (_, rates) => rates.into(),
        };
        let exchanges = once(|it| f64::from(it.key_exchanges));
        cells.extend([rates, once(|it| it.lifetime_seconds), exchanges]);
        let pair = PAIRS.into_iter().find(|pair| pair[1] == nth);
        let left = pair.map(|pair| left(streams, pair).0).unwrap_or_default();
        let lost: Vec<f64> =
            left.iter().map(|left| (1.0 - left) * LIFETIME_SECONDS * 1e3).collect();
        let percent: Vec<f64> = left.iter().map(|left| left * 1e2).collect();
        cells.extend([mean(&lost).into(), mean(&percent).into()]);
        table.push(&setting.name(), cells);
    }
    table
}

fn plot(figures: &Figures) -> Plot {
    let mut plot = Plot::new(
        "forward-secrecy",
        "Rate over that with DES and one key exchange",
        Axis::linear("setting", ""),
        Axis::linear("over DES", ""),
    );
    plot.caption = "1: DES; 2: 3DES; 3: DES with fresh key exchanges; 4: 3DES with fresh key exchanges. Today's \
                    are of lifetimes as long as the method says, not scaled."
        .into();
    let number = |nth: usize| nth as f64 + 1.0;
    for (label, printed) in [("paper, Table 2", TABLE_2), ("paper, Table 3", TABLE_3)] {
        let points = (0..printed.len()).map(|nth| [number(nth), printed[nth] / printed[0]]);
        plot.curves.push(Curve::new(label, Style::Points, points.collect()));
    }
    let mut push = |label: &str, estimates: Vec<(f64, Estimate)>| {
        if !estimates.is_empty() {
            let estimates = estimates.iter().map(|(x, estimate)| (*x, estimate));
            plot.curves.push(Curve::of_estimates(label, Style::Points, estimates));
        }
    };
    let of = |nth: usize| figures.short.figures(|it| it[nth].mbit);
    let all = || 0..SETTINGS.len();
    push(
        "today, short",
        all().filter_map(|nth| Some((number(nth), ratio(&of(nth), &of(0))?))).collect(),
    );
    for (label, streams, base) in
        [("today, long", &figures.long, 0), ("today, 600 ms, over 3DES", &figures.far, 1)]
    {
        let over = |nth| compared(streams, [base, nth]).0;
        push(label, all().filter_map(|nth| Some((number(nth), over(nth)?))).collect());
    }
    plot
}
