//! Builds the page: words, tables and a plot around the claims. Pure.

use keypadd_measure::results::{Axis, Cell, Curve, Plot, Section, Style, Table};
use keypadd_measure::sequence::ratio;

use super::claims::{claims, compared, left};
use super::measure::{long_plan, short_plan};
use super::{
    FAR_AT_ONCE, LIFETIME_SECONDS, Measurements, Network, PAIRS, SETTINGS, Streamed, Streams,
    TABLE_2, TABLE_3,
};
use crate::claim::judge;
use crate::lab::mean;
use crate::{Effort, Paper};

pub(super) fn page(figures: &Measurements, effort: Effort) -> Section {
    let (short, long) = (short_plan(effort), long_plan(effort, Network::Near));
    let far = long_plan(effort, Network::Far);
    let lifetime =
        |network| Effort::both(|effort| long_plan(effort, network).lifetime.as_secs_f64());
    let amounts = [
        ("seconds of a short stream", Effort::both(|it| short_plan(it).time.as_secs_f64())),
        ("lifetimes of seconds", lifetime(Network::Near)),
        ("lifetimes of seconds, 600 ms away", lifetime(Network::Far)),
    ];
    let mut page = Section::of_page(
        Paper::Bollinger.name(),
        include_str!("page.md"),
        &[
            ("short", &short.time.as_secs_f64()),
            ("long", &(long.settle + long.time).as_secs_f64()),
            ("lifetime", &long.lifetime.as_secs_f64()),
            ("far", &(far.settle + far.time).as_secs_f64()),
            ("far_lifetime", &far.lifetime.as_secs_f64()),
            ("far_at_once", &FAR_AT_ONCE),
            ("settle", &long.settle.as_secs_f64()),
            ("far_settle", &far.settle.as_secs_f64()),
            ("effort", &effort.compared(&amounts)),
        ],
    );
    let gains = PAIRS.map(|[without, with]| TABLE_2[with] / TABLE_2[without]);
    if gains.iter().all(|gain| *gain > 1.0) {
        let note = format!(
            "The paper's Table 2 has streams with forward secrecy faster than without, by {:.1} and {:.1} %, where \
             nothing was exchanged afresh: so much its figures scatter by themselves, as much as the cost that it \
             finds in Table 3.",
            (gains[0] - 1.0) * 1e2,
            (gains[1] - 1.0) * 1e2,
        );
        page.notes.insert(1, note);
    }
    page.verdicts = judge(&claims(), figures);
    page.tables = vec![
        short_table(figures),
        long_table("long", "Long streams", &figures.long, true),
        long_table("far", "Long streams, 600 ms away", &figures.far, false),
    ];
    page.plots = vec![plot(figures)];
    page
}

fn short_table(figures: &Measurements) -> Table {
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

fn plot(figures: &Measurements) -> Plot {
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
    let places = || 0..SETTINGS.len();
    let of = |nth: usize| figures.short.figures(|it| it[nth].mbit);
    let short = places().map(|nth| (number(nth), ratio(&of(nth), &of(0))));
    plot.curves.push(Curve::of_estimates("today, short", Style::Points, short));
    for (label, streams, base) in
        [("today, long", &figures.long, 0), ("today, 600 ms, over 3DES", &figures.far, 1)]
    {
        let over = places().map(|nth| (number(nth), compared(streams, [base, nth]).0));
        plot.curves.push(Curve::of_estimates(label, Style::Points, over));
    }
    plot.curves.retain(|curve| !curve.points.is_empty());
    plot
}
