//! Builds the page: words, tables and a plot around the claims. Pure.

use keypadd_measure::results::{Axis, Cell, Curve, Estimate, Plot, Section, Style, Table};
use keypadd_measure::sequence::ratio;
use keypadd_measure::statistics::mean_of_finite as mean;
use keypadd_provider::KeyExchange;

use super::claims::{claims, compared, left};
use super::measure::{long_plan, short_plan};
use super::{
    FAR_AT_ONCE, LIFETIME_SECONDS, Measurements, Network, PAIRS, SETTINGS, Streamed, Streams,
    TABLE_2, TABLE_3,
};
use crate::claim::judge;
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
            ("group", &KeyExchange::default()),
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

/// The value of an estimate, without its interval.
fn once(estimate: Option<Estimate>) -> Option<f64> {
    estimate.map(|it| it.value)
}

fn short_table(figures: &Measurements) -> Table {
    let of = |nth: usize| figures.short.figures(|it| it[nth].mbit);
    let rows = SETTINGS.iter().enumerate().map(|(nth, setting)| (setting.name(), nth));
    Table::of("short", "Short streams", "setting", rows)
        .column("paper, Table 2", "as printed", |nth| TABLE_2[*nth])
        .column("paper, over DES", "", |nth| TABLE_2[*nth] / TABLE_2[0])
        .column("today", "Mbit/s", |nth| mean(&of(*nth)))
        .column("today, over DES", "", |nth| ratio(&of(*nth), &of(0)))
        .column("key exchanges", "", |nth| {
            once(mean(&figures.short.figures(|it| f64::from(it[*nth].key_exchanges))))
        })
        .end()
}

fn long_table(id: &str, title: &str, streams: &Streams, is_papers: bool) -> Table {
    let rows = SETTINGS.iter().enumerate().map(|(nth, setting)| (setting.name(), nth));
    let mut table = Table::of(id, title, "setting", rows);
    if is_papers {
        table = table.column("paper, Table 3", "as printed", |nth| TABLE_3[*nth]).column(
            "paper, over DES",
            "",
            |nth| TABLE_3[*nth] / TABLE_3[0],
        );
    }
    let of = |nth: &usize, figure: fn(&Streamed) -> f64| mean(&streams[*nth].figures(figure));
    let left = |nth: &usize, scale: fn(f64) -> f64| {
        let pair = PAIRS.into_iter().find(|pair| pair[1] == *nth);
        let left = pair.map(|pair| left(streams, pair).0).unwrap_or_default();
        mean(&left.into_iter().map(scale).collect::<Vec<f64>>())
    };
    table
        .column("today", "Mbit/s", |nth| match (&streams[*nth].missed, of(nth, |it| it.mbit)) {
            (Some(missed), None) => Cell::Text(missed.to_string()),
            (_, rates) => rates.into(),
        })
        .column("lifetime", "s", |nth| once(of(nth, |it| it.lifetime_seconds)))
        .column("key exchanges", "", |nth| once(of(nth, |it| f64::from(it.key_exchanges))))
        .column("lost by each", "ms", |nth| left(nth, |it| (1.0 - it) * LIFETIME_SECONDS * 1e3))
        .column("left, at one in two minutes", "%", |nth| left(nth, |it| it * 1e2))
        .end()
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
