//! Measures file requests by several clients, with several sizes, arriving as a Poisson process:
//! the time to a complete file, and throughput.

use std::time::{Duration, Instant};

use keypadd_traffic::{Answered, Broken, Due, Exchange, Latencies, Path, Requester, Requests};
use tokio::task::JoinSet;

use crate::arm::Arm;
use crate::interleave::{Runs, Turn, Workload};
use crate::results::{Axis, Curve, Plot, Section, Style, Table};
use crate::schedule::arrivals;
use crate::statistics;
use crate::workload::terminal::{LEAD, quantile};
use crate::workload::{Claims, Figure, Ratio, costs, ratios, samples, verdicts};

/// Size of a request: about an HTTP request header.
const REQUEST_BYTES: u64 = 200;

/// File sizes and their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct FileMix {
    /// Size in bytes, and weight.
    pub files: Vec<(u64, f64)>,
}

impl FileMix {
    fn exchanges(&self) -> Vec<(Exchange, f64)> {
        let exchange = |bytes| Exchange::new(REQUEST_BYTES, bytes);
        self.files.iter().map(|&(bytes, weight)| (exchange(bytes), weight)).collect()
    }
}

/// File requests.
#[derive(Clone, Debug)]
pub struct Files {
    /// Numbers of clients, tested one by one; a client is a connection.
    pub clients: Vec<u32>,
    /// The files they request.
    pub mix: FileMix,
    /// Average requests per second and client.
    pub per_second: f64,
    /// Duration for each number of clients, in each turn.
    pub time: Duration,
    /// Seed of the requests.
    pub seed: u64,
}

/// One turn: an entry per number of clients.
#[derive(Clone, Debug)]
pub struct FilesMeasured(Vec<Served>);

/// Results for one number of clients.
#[derive(Clone, Debug)]
struct Served {
    latencies: Latencies,
    mbit: f64,
}

fn latencies<'a>(rounds: &[&'a Served]) -> Vec<&'a Latencies> {
    rounds.iter().map(|served| &served.latencies).collect()
}

impl Workload for Files {
    type Measured = FilesMeasured;

    async fn once(&self, path: &Path, round: u32) -> Result<FilesMeasured, Broken> {
        let mut measured = Vec::new();
        for &clients in &self.clients {
            measured.push(self.serve(path, clients, round).await?);
        }
        Ok(FilesMeasured(measured))
    }

    fn offered(&self) -> Vec<Due> {
        let most = self.clients.iter().copied().max().unwrap_or(0);
        let of_clients = (0..most).flat_map(|client| self.requests(0, client));
        let mut all: Vec<Due> = of_clients.collect();
        all.sort_by_key(|due| due.at);
        all
    }

    fn figures(&self) -> Vec<Figure<FilesMeasured>> {
        let most = self.clients.len() - 1;
        vec![Figure {
            of: "A file",
            claims: Claims::Ratio(Ratio { name: "ratio of medians", less_is_better: true }),
            value: Box::new(move |FilesMeasured(served)| served[most].latencies.quantile_us(0.5)),
        }]
    }

    fn section(&self, runs: &Runs<FilesMeasured>) -> Section {
        let arms = runs.measured();
        let sizes = self.mix.files.iter().map(|(bytes, weight)| format!("{bytes} B ({weight})"));
        let mut section = Section::of_page(
            "files",
            include_str!("files.md"),
            &[
                ("rate", &self.per_second),
                ("sizes", &sizes.collect::<Vec<_>>().join(", ")),
                ("seconds", &self.time.as_secs_f64()),
            ],
        );
        let most = self.clients.len() - 1;
        let medians =
            samples(&arms, |FilesMeasured(served)| served[most].latencies.quantile_us(0.5));
        section.verdicts = verdicts(&self.figures(), runs);
        section.notes = runs.notes();
        let title = format!("Median over that of the base lines, {} clients", self.clients[most]);
        section.tables = self.tables(&arms);
        section.tables.extend([ratios("ratios", &title, &medians), costs(&arms)]);
        section.plots = vec![self.plot(&arms)];
        section
    }
}

impl Files {
    /// A client's requests in a round, the same for every arm.
    fn requests(&self, round: u32, client: u32) -> Vec<Due> {
        let seed = self.seed.wrapping_add(u64::from(round));
        arrivals(self.per_second, &self.mix.exchanges(), self.time, seed, client.into())
    }

    async fn serve(&self, path: &Path, clients: u32, round: u32) -> Result<Served, Broken> {
        let mut requesters = Vec::new();
        for _ in 0..clients {
            requesters.push(Requester::open(path.address()).await?);
        }
        let start = Instant::now() + LEAD;
        let mut running = JoinSet::new();
        for (client, requester) in (0..).zip(requesters) {
            let requests = self.requests(round, client);
            let seen = (Latencies::default(), 0, Duration::ZERO);
            let tell = |seen: &mut (Latencies, u64, Duration), answered: Answered| {
                seen.0.record(answered.latency());
                seen.1 += answered.exchange.response_bytes();
                seen.2 = answered.at;
            };
            running.spawn(requester.run(Requests::At(requests), start, seen, tell));
        }
        let (mut latencies, mut bytes, mut end) = (Latencies::default(), 0, self.time);
        while let Some(ended) = running.join_next().await {
            let (_, seen) = ended.map_err(|_| Broken::fault())??;
            latencies.add(&seen.0);
            bytes += seen.1;
            end = end.max(seen.2);
        }
        Ok(Served { latencies, mbit: bytes as f64 * 8.0 / 1e6 / end.as_secs_f64() })
    }

    fn tables(&self, arms: &[(Arm, &[Turn<FilesMeasured>])]) -> Vec<Table> {
        let table = |(nth, clients): (usize, &u32)| {
            let rows = arms.iter().map(|(arm, turns)| {
                let served = turns.iter().map(|turn| &turn.measured.0[nth]);
                (arm, served.collect::<Vec<&Served>>())
            });
            Table::of(&format!("clients-{clients}"), &format!("{clients} clients"), "arm", rows)
                .column("files", "", |it| {
                    it.iter().map(|it| it.latencies.count()).sum::<u64>() as f64
                })
                .column("p50", "µs", |it| quantile(&latencies(it), 0.5))
                .column("p99", "µs", |it| quantile(&latencies(it), 0.99))
                .column("rate", "Mbit/s", |it| {
                    statistics::mean(&it.iter().map(|it| it.mbit).collect::<Vec<f64>>())
                })
                .end()
        };
        self.clients.iter().enumerate().map(table).collect()
    }

    fn plot(&self, arms: &[(Arm, &[Turn<FilesMeasured>])]) -> Plot {
        let clients = Axis::linear("clients", "");
        let mut plot = Plot::new(
            "clients",
            "Median time of a file by number of clients",
            clients,
            Axis::log("median", "µs"),
        );
        for (arm, turns) in arms {
            let medians = self.clients.iter().enumerate().map(|(nth, &clients)| {
                let each =
                    turns.iter().filter_map(|turn| turn.measured.0[nth].latencies.quantile_us(0.5));
                (f64::from(clients), statistics::mean(&each.collect::<Vec<_>>()))
            });
            plot.curves.push(Curve::of_estimates(&arm.to_string(), Style::Line, medians));
        }
        plot
    }
}
