//! Opens many idle forwards over one tunnel: none fails, each takes little memory, and the first is
//! as fast as it was alone.

use std::path::Path;
use std::time::Instant;

use crate::Outcome;
use crate::cli::Cli;
use crate::daemon::{Desk, Service};
use crate::table::Row;
use crate::traffic::{Pinger, begin_echo, echo_once, open_many};

/// Memory of an idle forward in each daemon, beyond kernel buffers.
const MEMORY_GOAL_BYTES: f64 = 16.0 * 1024.0;
/// The first connection's round trip, as a multiple of what it was before.
const RTT_GOAL: f64 = 1.5;
/// Round trips per figure.
const PINGS: usize = 4_000;

pub(crate) async fn measure(cli: &Cli, keypadd: &Path) -> Outcome<Vec<Row>> {
    let count = cli.forwards;
    let service = Service::start().await?;
    let desk = Desk::new(keypadd).await?;
    // Pads have their own budget, which is not part of a forward's memory.
    let most = (count + 16).to_string();
    let flags = ["--pool", "off", "--max-forwards", &most];
    let mut server = desk.serve(&[], &flags).await?;
    let (mut client, entrance) = desk.connect(server.listen()?, service.address, &flags).await?;
    let mut first = Pinger::open(entrance).await?;
    first.ping(PINGS / 4).await?;
    let alone = first.ping(PINGS).await?;
    let before = [server.settled_bytes().await?, client.settled_bytes().await?];

    let began = Instant::now();
    let mut forwards = open_many(entrance, count, |_, stream| begin_echo(stream)).await?;
    let opening = began.elapsed();
    let after = [server.settled_bytes().await?, client.settled_bytes().await?];
    let beside = first.ping(PINGS).await?;
    // All of them are still open.
    let mut failed = 0;
    for forward in &mut forwards {
        failed += usize::from(echo_once(forward).await.is_err());
    }
    server.must_run()?;
    client.must_run()?;
    let complaints = server.complaints() + client.complaints();
    drop(forwards);
    client.stop().await?;
    server.stop().await?;

    let each = [0, 1].map(|end| after[end].saturating_sub(before[end]) as f64 / f64::from(count));
    let memory = |name: &str, bytes: f64| {
        let figure = format!("{:.1} KiB", bytes / 1024.0);
        Row::judged(name, figure, "at most 16 KiB", bytes <= MEMORY_GOAL_BYTES)
    };
    let ratio = beside.over(alone);
    Ok(vec![
        Row::judged(
            "errors",
            format!("{failed} connections, {complaints} log lines"),
            "none",
            failed + complaints == 0,
        ),
        Row::stated(
            "opened and answered",
            format!("{:.0} a second", f64::from(count) / opening.as_secs_f64()),
        ),
        memory("memory each, server", each[0]),
        memory("memory each, client", each[1]),
        Row::stated("first connection alone", alone.text()),
        Row::stated("first connection beside the others", beside.text()),
        Row::judged("ratio of p50", format!("{ratio:.2}"), "at most 1.5", ratio <= RTT_GOAL),
    ])
}
