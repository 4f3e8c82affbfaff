//! Builds the page: words, tables and plots around the claims. Pure.

mod claims;
mod printed;

use super::measure::{FAST, SLOW, emulated_rate, time, time_slowed};
use super::{
    ARMS, EMULATED, FILES, LARGE, MEDIUM, Measurements, PROCESSORS, Rates, Round, SMALL, TUNNELS,
    at, clients, name, protection,
};
use crate::Effort;
use crate::lab::mean;
use crate::page::{Page, curve};
pub(super) use claims::claims;
use keypadd_measure::figure::group;
use keypadd_measure::results::{Axis, Cell, Curve, Plot, Section, Style, Table};
use keypadd_measure::sequence::ratio;
use printed::{BASE_MBIT, CLIENTS, PROCESSOR_GAINS, printed_over_base};

const SIZES: [&str; 3] = ["small", "medium", "large"];

pub(super) fn page(figures: &Measurements, effort: Effort) -> Section {
    let mut emulated = vec![
        "four hosts are network namespaces that share this machine's cores".into(),
        "processors of two speeds are CPU quotas".into(),
    ];
    if let Ok(base) = &figures.calibration {
        emulated.extend(EMULATED.map(|pair| {
            let (suite, rate) = (protection(pair), emulated_rate(pair.0, *base));
            let rate = group(&rate.to_string());
            format!("{suite}, emulated: keystream slowed to {rate} bytes a second")
        }));
    }
    let mut tables = vec![over_base(figures), processors(figures)];
    tables.extend((0..FILES.len()).map(|size| rates(figures, size, effort)));
    let mut plots = vec![ciphers(figures)];
    plots.extend([LARGE, MEDIUM, SMALL].map(|size| by_clients(figures, size, effort)));
    let mut notes = printed::contradictions();
    notes.push(
        "Emulated: single DES is slowed until it costs beside today's base, which was measured first, what it cost the \
         paper's gateways with large files, and triple DES is three of it. So the figure of single DES is given, and \
         what follows from it for triple DES and for smaller files is judged. A cipher that is slower than that \
         already is not slowed."
            .into(),
    );
    notes.push(
        "C10's 6 Mbit/s were of a machine of 1998; what is judged is its share of the throughput without a tunnel."
            .into(),
    );
    let page = Page {
        title: "Compaq: a firewall's tunnel under web traffic",
        question: "What do a tunnel, ciphers, hashes and the processor do to the throughput of web traffic between two networks?",
        method: vec![
        format!(
            "The paper has 4 to 20 virtual clients ask a server for small, medium and large files, four times in five \
             by HTTP, else by FTP, through two gateways with a tunnel between them. Here client, gateways and server \
             are four hosts as the kernel tells them apart (network namespaces joined by veth pairs); without a \
             tunnel, packets are routed over the same gateways. Each client asks for one file after the other; a file \
             by HTTP is a connection of its own, one by FTP takes five commands on a connection and a second one for \
             the file. Each number of clients ({}) asks for each size for {} s in each round, arms in an order \
             drawn from the seed.",
            clients(effort).iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            time(effort).as_secs_f64(),
        ),
        format!(
            "Processors of two speeds are CPU quotas of the gateways, {SLOW:.3} and {FAST} of a core (266 to 400 MHz), for {} s \
             with the most clients. A gateway with a quota is as fast as ever and then stands still: over times \
             that are long beside its period of {} ms it is slower.",
            time_slowed(effort).as_secs_f64(),
            testbed::PERIOD.as_millis(),
        ),
        "Ratios are geometric means over the numbers of clients, round by round. A claim that something costs or \
         gains so much holds if at least half of the paper's effect is there. Two are equal if they differ by no \
         more than twice the deviation of the paper's tool: 4.9 % with large files, 12.12 % with medium, 27.48 % with \
         small ones."
            .into(),
        ],
        amounts: vec![
            ("numbers of clients", Effort::both(|it| clients(it).len())),
            ("seconds of each number and size", Effort::both(|it| time(it).as_secs_f64())),
        ],
        emulated,
        claims: claims(),
        tables,
        plots,
        surfaces: Vec::new(),
        notes,
    };
    page.of(figures, effort)
}

/// One value per round: the geometric mean over the numbers of clients.
fn typical(rates: &[f64]) -> f64 {
    (rates.iter().map(|rate| rate.ln()).sum::<f64>() / rates.len() as f64).exp()
}

impl Measurements {
    /// Values of an arm and a file size, round by round.
    fn of(&self, tunnel: usize, size: usize) -> Vec<f64> {
        self.rounds.figures(|it| typical(&it.tunnels[tunnel][size]))
    }

    /// Values of an emulated arm and a file size, round by round.
    fn of_emulated(&self, nth: usize, size: usize) -> Vec<f64> {
        self.rounds.figures(|it| typical(&it.emulated[nth][size]))
    }
}

/// Positions of no tunnel and of the base in the list.
const PLAIN: usize = 0;
const BASE: usize = 1;

fn over_base(figures: &Measurements) -> Table {
    let mut table = Table::new("over-base", "Throughput over the base", "arm");
    for size in [LARGE, MEDIUM, SMALL] {
        table = table
            .column(&format!("paper, {}", SIZES[size]), "")
            .column(&format!("today, {}", SIZES[size]), "");
    }
    let mut push = |label: &str, nth: Option<usize>, of: &dyn Fn(usize) -> Vec<f64>| {
        let cells = [LARGE, MEDIUM, SMALL].into_iter().flat_map(|size| {
            let paper = nth.and_then(|nth| printed_over_base(nth, size));
            [
                paper.map_or(Cell::Missing, Cell::from),
                ratio(&of(size), &figures.of(BASE, size)).into(),
            ]
        });
        table.push(label, cells.collect());
    };
    for (nth, &tunnel) in TUNNELS.iter().enumerate() {
        push(&name(tunnel), Some(nth), &|size| figures.of(nth, size));
    }
    for (nth, pair) in EMULATED.into_iter().enumerate() {
        let like = TUNNELS.iter().position(|it| *it == Some(pair));
        push(&format!("{}, emulated", protection(pair)), like, &|size| {
            figures.of_emulated(nth, size)
        });
    }
    table
}

fn processors(figures: &Measurements) -> Table {
    let mut table = Table::new("processors", "The faster processor over the slower", "arm");
    for size in ["medium", "large"] {
        table = table
            .column(&format!("paper, {size}"), "")
            .column(&format!("today, {size}"), "")
            .column(&format!("slower, {size}"), "Mbit/s")
            .column(&format!("faster, {size}"), "Mbit/s");
    }
    for (nth, pair) in PROCESSORS.into_iter().enumerate() {
        let cells = (0..2).flat_map(|size| {
            let slow = figures.speeds.figures(|it| at(&it.slow[nth], size));
            let fast = figures.speeds.figures(|it| at(&it.fast[nth], size));
            [
                PROCESSOR_GAINS[nth].negotiated[size].into(),
                ratio(&fast, &slow).into(),
                mean(&slow).into(),
                mean(&fast).into(),
            ]
        });
        table.push(protection(pair).name(), cells.collect());
    }
    table
}

/// Absolute throughput for a file size, by number of clients.
fn rates(figures: &Measurements, size: usize, effort: Effort) -> Table {
    let title = format!("Throughput of {} files", SIZES[size]);
    let mut table = Table::new(SIZES[size], &title, "arm");
    for clients in clients(effort) {
        table = table.column(&format!("{clients} clients"), "Mbit/s");
    }
    let printed = clients(effort).iter().map(|clients| {
        let nth = CLIENTS.iter().position(|it| it == clients);
        nth.map_or(Cell::Missing, |nth| BASE_MBIT[size][nth].into())
    });
    table.push("paper, base", printed.collect());
    let mut push = |label: &str, of: &dyn Fn(&Round) -> &Rates| {
        let each = (0..clients(effort).len())
            .map(|nth| mean(&figures.rounds.figures(|it| at(&of(it)[size], nth))).into());
        table.push(label, each.collect());
    };
    for (nth, &tunnel) in TUNNELS.iter().enumerate() {
        push(&name(tunnel), &|it| &it.tunnels[nth]);
    }
    for (nth, pair) in EMULATED.into_iter().enumerate() {
        push(&format!("{}, emulated", protection(pair)), &|it| &it.emulated[nth]);
    }
    table
}

/// The paper's arms over the base, for large files.
fn ciphers(figures: &Measurements) -> Plot {
    let mut plot = Plot::new(
        "large-over-base",
        "Throughput of large files over the base",
        Axis::linear("arm", ""),
        Axis::linear("over the base", ""),
    );
    let named = TUNNELS.iter().enumerate().map(|(nth, it)| format!("{nth}: {}", name(*it)));
    plot.caption = format!("{}.", named.collect::<Vec<_>>().join("; "));
    let all = || 0..TUNNELS.len();
    let printed = all().filter_map(|nth| Some([nth as f64, printed_over_base(nth, LARGE)?]));
    plot.curves.push(Curve::new("paper", Style::Points, printed.collect()));
    let base = figures.of(BASE, LARGE);
    let today = all().map(|nth| (nth as f64, ratio(&figures.of(nth, LARGE), &base)));
    plot.curves.push(curve("today", Style::Points, today));
    let emulated = EMULATED.iter().enumerate().filter_map(|(nth, pair)| {
        let like = TUNNELS.iter().position(|it| *it == Some(*pair))?;
        Some((like as f64, ratio(&figures.of_emulated(nth, LARGE), &base)))
    });
    plot.curves.push(curve("today, cipher emulated", Style::Points, emulated));
    plot
}

/// Some arms by number of clients, over the base with the most clients.
fn by_clients(figures: &Measurements, size: usize, effort: Effort) -> Plot {
    let title = format!("Throughput of {} files by clients", SIZES[size]);
    let mut plot = Plot::new(
        &format!("clients-{}", SIZES[size]),
        &title,
        Axis::linear("clients", ""),
        Axis::linear("over the base with 20 clients", ""),
    );
    plot.caption = "The paper prints the base alone.".into();
    let last = BASE_MBIT[size][CLIENTS.len() - 1];
    let printed =
        CLIENTS.iter().zip(BASE_MBIT[size]).map(|(it, mbit)| [f64::from(*it), mbit / last]);
    plot.curves.push(Curve::new("paper, base", Style::Line, printed.collect()));
    let most = clients(effort).len() - 1;
    let base = figures.rounds.figures(|it| at(&it.tunnels[BASE][size], most));
    let mut push = |label: &str, of: &dyn Fn(&Round) -> &Rates| {
        let over = clients(effort).iter().enumerate().map(|(nth, clients)| {
            let rates = figures.rounds.figures(|it| at(&of(it)[size], nth));
            (f64::from(*clients), ratio(&rates, &base))
        });
        plot.curves.push(curve(label, Style::Line, over));
    };
    for (nth, label) in [(BASE, "today, base"), (4, "today, DES"), (5, "today, 3DES")] {
        push(label, &|it| &it.tunnels[nth]);
    }
    push("3DES, emulated", &|it| &it.emulated[1]);
    plot
}
