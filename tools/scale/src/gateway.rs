//! Puts clients with traffic on one server, as a gateway has them, and restarts the server: requests
//! are answered soon, nobody gets much less than another, and all clients come back.
//!
//! The clients run in this process, on the cores of the server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_tunnel::{Bound, Client, Forward, LinkState, ServerLink};
use testbed::procstat;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::Outcome;
use crate::cli::Cli;
use crate::daemon::{Daemon, Desk, Service};
use crate::own_clients::{Fleet, Kind, listed, new_keys};
use crate::service::{FETCH, FETCH_BYTES, SOURCE};
use crate::table::Row;
use crate::traffic::{STEP_TIMEOUT, begin_echo};

/// Between two requests of a client.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);
/// A request, and its answer.
const REQUEST_BYTES: usize = 128;
/// Between two downloads of a client, of [`FETCH_BYTES`] each.
const FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// One client in this many downloads over several connections when all download all they get.
const GREEDY_ONE_IN: usize = 10;
const GREEDY_CONNECTIONS: usize = 8;
/// Jain's index over what clients get: 1 if all get the same.
const FAIRNESS_GOAL: f64 = 0.99;
/// From the start of the new server until the last client is back.
const BACK_GOAL: Duration = Duration::from_secs(10);
/// When to give up.
const BACK_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the server is away in the longer outage: clients have tried several times by then.
const AWAY: Duration = Duration::from_secs(45);

/// What one client had.
#[derive(Debug, Default)]
struct Had {
    /// Of its requests.
    latencies: Vec<Duration>,
    /// Bytes that it downloaded.
    bytes: u64,
    failed: usize,
}

/// What all had.
struct Load {
    had: Vec<Had>,
    server_cores: f64,
    /// Of the clients, and of the service.
    other_cores: f64,
    seconds: f64,
    memory: u64,
}

/// How clients load the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// Requests, and a download now and then.
    Usual,
    /// Requests, and as much as the server gives.
    All,
}

/// How the server ends before it is started again.
#[derive(Clone, Copy, Debug)]
enum Restart {
    Stopped,
    Killed,
    Away,
}

pub(crate) async fn measure(cli: &Cli, keypadd: &Path) -> Outcome<Vec<Row>> {
    let count = cli.clients;
    let service = Service::start().await?;
    let desk = Desk::new(keypadd).await?;
    let keys = new_keys(count)?;
    let listed = listed(&keys);
    let mut server = desk.serve(&listed, &[]).await?;
    let address = server.listen()?;
    let empty = server.settled_bytes().await?;
    let target = Some(service.address);
    let kind = Kind { server: address, server_key: desk.server_key()?, target };
    let fleet = Fleet::connect(keys, kind).await?;
    let clients = &fleet.clients[..];
    let idle = server.settled_bytes().await?;

    let mut rows = vec![memory_each("memory each, idle", idle, empty, count)];
    let usual = load(clients, &server, Demand::Usual, cli.gateway_seconds).await?;
    rows.extend(usual.rows("usual traffic", empty, count));
    let answered = usual.had.iter().map(|one| one.latencies.len() as f64).collect::<Vec<_>>();
    let index = jains_index(&answered);
    rows.push(Row::judged(
        "usual traffic: fairness, by requests",
        format!("Jain's index {index:.3}"),
        format!("at least {FAIRNESS_GOAL}"),
        index >= FAIRNESS_GOAL,
    ));
    // The clients need more CPU time than the server, so this shows what happens where nobody has
    // enough, and not what the server could give.
    let all = load(clients, &server, Demand::All, cli.gateway_seconds).await?;
    rows.extend(all.rows("all they get", empty, count));
    rows.extend(all.shares());
    for restart in [Restart::Stopped, Restart::Killed, Restart::Away] {
        // One connection of each is open, and held if the server does not end it.
        let held = open_echoes(clients).await?;
        rows.extend(restart.measure(&desk, &mut server, (clients, &listed, address)).await?);
        drop(held);
    }
    server.must_run()?;
    drop(fleet);
    server.stop().await?;
    Ok(rows)
}

fn memory_each(name: &str, now: u64, empty: u64, count: u32) -> Row {
    let each = now.saturating_sub(empty) as f64 / f64::from(count) / 1024.0;
    Row::stated(name, format!("{each:.1} KiB"))
}

/// Where a client's forward listens.
fn entrance(client: &Client) -> Outcome<SocketAddr> {
    let forwards = client.forwards();
    let local = forwards.iter().find(|(forward, _)| matches!(forward, Forward::Local(_)));
    match local.and_then(|(_, bound)| bound.first()) {
        Some(Bound::Tcp(address)) => Ok(*address),
        _ => Err("a client has no forward".to_owned()),
    }
}

/// An echo connection through each client.
async fn open_echoes(clients: &[Arc<Client>]) -> Outcome<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for client in clients {
        let entrance = entrance(client)?;
        let open = async { begin_echo(TcpStream::connect(entrance).await?).await };
        let opened = timeout(STEP_TIMEOUT, open).await.unwrap_or_else(|late| Err(late.into()));
        streams.push(opened.map_err(|error| format!("an echo: {error}"))?);
    }
    Ok(streams)
}

/// Loads the server through all clients.
async fn load(
    clients: &[Arc<Client>],
    server: &Daemon,
    demand: Demand,
    seconds: f64,
) -> Outcome<Load> {
    let echoes = open_echoes(clients).await?;
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    // Of the server, and of this process with all that it has started.
    let cpu = || (server.cpu_seconds(), procstat::cpu_seconds(&[std::process::id()]));
    let before = cpu();
    let mut tasks = JoinSet::new();
    for (number, (client, echo)) in clients.iter().zip(echoes).enumerate() {
        let entrance = entrance(client)?;
        tasks.spawn(one_client(number, entrance, echo, demand, until));
    }
    sleep_until(until.into()).await;
    let (after, seconds) = (cpu(), began.elapsed().as_secs_f64());
    let memory = server.resident_bytes()?;
    let mut had = Vec::new();
    while let Some(one) = tasks.join_next().await {
        had.push(one.map_err(|error| error.to_string())?);
    }
    let of_server = after.0.zip(before.0).map_or(f64::NAN, |(after, before)| after - before);
    Ok(Load {
        had,
        server_cores: of_server / seconds,
        other_cores: (after.1 - before.1 - of_server) / seconds,
        seconds,
        memory,
    })
}

async fn one_client(
    number: usize,
    entrance: SocketAddr,
    echo: TcpStream,
    demand: Demand,
    until: Instant,
) -> Had {
    let downloads = match demand {
        Demand::All if number.is_multiple_of(GREEDY_ONE_IN) => GREEDY_CONNECTIONS,
        _ => 1,
    };
    let mut downloading = JoinSet::new();
    for _ in 0..downloads {
        match demand {
            Demand::Usual => downloading.spawn(fetch_repeatedly(entrance, until)),
            Demand::All => downloading.spawn(download(entrance, until)),
        };
    }
    let (latencies, failed) = request_repeatedly(echo, until).await;
    let mut had = Had { latencies, bytes: 0, failed };
    while let Some(downloaded) = downloading.join_next().await {
        match downloaded {
            Ok(Ok(bytes)) => had.bytes += bytes,
            _ => had.failed += 1,
        }
    }
    had
}

/// Sends a request in each interval, unless the last one has no answer yet.
async fn request_repeatedly(mut echo: TcpStream, until: Instant) -> (Vec<Duration>, usize) {
    let mut latencies = Vec::new();
    let mut at = Instant::now() + REQUEST_INTERVAL.mul_f64(fastrand::f64());
    while at < until {
        sleep_until(at.into()).await;
        let sent = [fastrand::u8(..); REQUEST_BYTES];
        let mut heard = [0; REQUEST_BYTES];
        let began = Instant::now();
        let asked = async {
            echo.write_all(&sent).await?;
            echo.read_exact(&mut heard).await
        };
        match timeout(STEP_TIMEOUT, asked).await {
            Ok(Ok(_)) if heard == sent => latencies.push(began.elapsed()),
            _ => return (latencies, 1),
        }
        at = (at + REQUEST_INTERVAL).max(Instant::now());
    }
    (latencies, 0)
}

async fn fetch_repeatedly(entrance: SocketAddr, until: Instant) -> std::io::Result<u64> {
    let mut bytes = 0;
    let mut at = Instant::now() + FETCH_INTERVAL.mul_f64(fastrand::f64());
    while at < until {
        sleep_until(at.into()).await;
        let mut stream = TcpStream::connect(entrance).await?;
        stream.write_all(&[FETCH]).await?;
        let mut block = vec![0; 16 << 10];
        let mut fetched = 0;
        while fetched < FETCH_BYTES {
            match timeout(STEP_TIMEOUT, stream.read(&mut block)).await?? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => fetched += read,
            }
        }
        bytes += fetched as u64;
        at += FETCH_INTERVAL;
    }
    Ok(bytes)
}

/// Downloads all that comes.
async fn download(entrance: SocketAddr, until: Instant) -> std::io::Result<u64> {
    let mut stream = TcpStream::connect(entrance).await?;
    stream.write_all(&[SOURCE]).await?;
    let (mut block, mut bytes) = (vec![0; 16 << 10], 0);
    loop {
        match tokio::time::timeout_at(until.into(), stream.read(&mut block)).await {
            Ok(Ok(0)) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes += read? as u64,
            Err(_) => return Ok(bytes),
        }
    }
}

impl Load {
    fn rows(&self, name: &str, empty: u64, count: u32) -> Vec<Row> {
        let failed: usize = self.had.iter().map(|one| one.failed).sum();
        let bytes: u64 = self.had.iter().map(|one| one.bytes).sum();
        let mut latencies: Vec<_> = self.had.iter().flat_map(|one| &one.latencies).collect();
        latencies.sort_unstable();
        let quantile = |of: usize| {
            let at = (latencies.len() * of / 1000).min(latencies.len().saturating_sub(1));
            latencies.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
        };
        vec![
            Row::judged(format!("{name}: failed"), failed.to_string(), "none", failed == 0),
            Row::stated(
                format!("{name}: requests"),
                format!(
                    "{:.0} a second, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms",
                    latencies.len() as f64 / self.seconds,
                    quantile(500),
                    quantile(990),
                    quantile(999)
                ),
            ),
            Row::stated(
                format!("{name}: downloads"),
                format!("{:.0} Mbit/s", bytes as f64 * 8e-6 / self.seconds),
            ),
            Row::stated(
                format!("{name}: CPU"),
                format!(
                    "server {:.2} cores, clients and service {:.2}",
                    self.server_cores, self.other_cores
                ),
            ),
            memory_each(&format!("{name}: memory each"), self.memory, empty, count),
        ]
    }

    fn shares(&self) -> Vec<Row> {
        let bytes: Vec<f64> = self.had.iter().map(|one| one.bytes as f64).collect();
        let least = bytes.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = bytes.iter().sum::<f64>() / bytes.len() as f64;
        vec![
            Row::stated(
                format!("shares, 1 in {GREEDY_ONE_IN} with {GREEDY_CONNECTIONS} downloads"),
                format!("Jain's index {:.3}", jains_index(&bytes)),
            ),
            Row::stated("the client with the least", format!("{:.2} of the mean", least / mean)),
        ]
    }
}

/// The square of the sum, over the sum of squares and their number: 1 if all are equal, 1/n if one
/// has all (Jain, Chiu and Hawe, 1984).
fn jains_index(shares: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) =
        shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (shares.len() as f64 * squares)
}

impl Restart {
    fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped and started",
            Self::Killed => "killed and started",
            Self::Away => "killed, started after 45 s",
        }
    }

    /// Ends the server, starts another one at its address, and waits for all clients.
    async fn measure(
        self,
        desk: &Desk,
        server: &mut Daemon,
        (clients, listed, address): (&[Arc<Client>], &[String], SocketAddr),
    ) -> Outcome<Vec<Row>> {
        let links: Vec<_> = clients.iter().map(|client| client.link()).collect();
        let reconnects = |link: &ServerLink| -> u64 {
            let status = link.status();
            let is_up = status.state == LinkState::Connected;
            if is_up { status.reconnects.values().sum() } else { 0 }
        };
        let before: Vec<u64> = links.iter().map(reconnects).collect();
        match self {
            Self::Stopped => server.end().await?,
            Self::Killed => server.kill().await?,
            Self::Away => {
                server.kill().await?;
                sleep(AWAY).await;
            }
        }
        *server = desk.serve_at(&address.to_string(), listed, &[]).await?;
        let began = Instant::now();
        let (mut back, mut half) = (0, None);
        let all = async {
            loop {
                let up = links.iter().zip(&before).filter(|(link, was)| reconnects(link) > **was);
                back = up.count();
                if 2 * back >= clients.len() && half.is_none() {
                    half = Some(began.elapsed());
                }
                if back == clients.len() {
                    return began.elapsed();
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let all = timeout(BACK_TIMEOUT, all).await;
        let cpu = server.cpu_seconds().unwrap_or(f64::NAN);
        let figure = match all {
            Ok(time) => {
                let half = half.unwrap_or_default().as_secs_f64();
                format!("all in {:.1} s, half in {half:.1} s", time.as_secs_f64())
            }
            Err(_) => format!("{} of {}", back, clients.len()),
        };
        let met = all.is_ok_and(|time| time <= BACK_GOAL);
        Ok(vec![
            Row::judged(format!("{}: back", self.name()), figure, "all within 10 s", met),
            Row::stated(
                format!("{}: CPU of the server", self.name()),
                format!("{:.2} ms for each client", cpu * 1e3 / clients.len() as f64),
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_if_all_get_the_same_and_one_nth_if_one_gets_all() {
        assert_eq!(jains_index(&[3.0; 7]), 1.0);
        assert_eq!(jains_index(&[5.0, 0.0, 0.0, 0.0]), 0.25);
    }
}
