//! Connects many idle clients to one server, each with its own key: none fails, and the first
//! connection is as fast as it was alone.
//!
//! The clients run in this process, with one event loop each; the server's memory is what is
//! measured.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::cli::Cli;
use crate::daemon::{Desk, Service};
use crate::own_clients::{Fleet, Kind, listed, new_keys};
use crate::table::Row;
use crate::traffic::Pinger;

/// Memory of an idle client in the server.
const MEMORY_GOAL_BYTES: f64 = 48.0 * 1024.0;
/// The first connection's round trip, as a multiple of what it was before.
const RTT_GOAL: f64 = 1.5;
/// Round trips per figure.
const PINGS: usize = 4_000;
/// How long they are idle.
const QUIET: Duration = Duration::from_secs(32);

pub(crate) async fn measure(cli: &Cli, keypadd: &Path) -> Outcome<Vec<Row>> {
    let count = cli.clients;
    let service = Service::start().await?;
    let desk = Desk::new(keypadd).await?;
    let keys = new_keys(count)?;
    let listed = listed(&keys);
    let mut server = desk.serve(&listed, &["--pool", "off"]).await?;
    let address = server.listen()?;
    let (mut client, entrance) = desk.connect(address, service.address, &["--pool", "off"]).await?;
    let mut first = Pinger::open(entrance).await?;
    first.ping(PINGS / 4).await?;
    let alone = first.ping(PINGS).await?;
    let before = server.settled_bytes().await?;

    let kind = Kind { server: address, server_key: desk.server_key()?, target: None };
    let began = Instant::now();
    let fleet = Fleet::connect(keys, kind).await?;
    let opening = began.elapsed();
    let after = server.settled_bytes().await?;
    let beside = first.ping(PINGS).await?;
    // Several keep-alives of each, and longer than the time for which a silent path counts as alive.
    let cpu = server.cpu_seconds();
    tokio::time::sleep(QUIET).await;
    let cpu = server.cpu_seconds().zip(cpu).map_or(f64::NAN, |(after, before)| after - before);
    let lost = fleet.lost();
    server.must_run()?;
    client.must_run()?;
    let complaints = server.complaints() + client.complaints();
    drop(fleet);
    client.stop().await?;
    server.stop().await?;

    let each = after.saturating_sub(before) as f64 / f64::from(count);
    let ratio = beside.over(alone);
    Ok(vec![
        Row::judged(
            "errors",
            format!("{lost} sessions lost, {complaints} log lines"),
            "none",
            lost + complaints == 0,
        ),
        Row::stated(
            "sessions",
            format!("{:.0} a second", f64::from(count) / opening.as_secs_f64()),
        ),
        Row::judged(
            "memory each, server",
            format!("{:.1} KiB", each / 1024.0),
            "at most 48 KiB",
            each <= MEMORY_GOAL_BYTES,
        ),
        Row::stated(
            "CPU of the server meanwhile",
            format!("{:.1} % of a core", 100.0 * cpu / QUIET.as_secs_f64()),
        ),
        Row::stated("first connection alone", alone.text()),
        Row::stated("first connection beside the others", beside.text()),
        Row::judged("ratio of p50", format!("{ratio:.2}"), "at most 1.5", ratio <= RTT_GOAL),
    ])
}
