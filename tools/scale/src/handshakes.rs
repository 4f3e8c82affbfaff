//! Floods a server with handshakes that stop after address validation; honest clients still
//! connect.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use keypadd_provider::PublicKey;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::Outcome;
use crate::cli::Cli;
use crate::daemon::{Desk, Service};
use crate::initial::Stranger;
use crate::table::Row;
use crate::traffic::Pinger;

/// From the start of an honest client's process until it is ready.
const CONNECT_GOAL: Duration = Duration::from_secs(3);
/// Event loops of the server, and concurrent handshakes per loop (docs/limits.md, "Strangers").
const LOOPS: u64 = 2;
const SLOTS: u64 = 2048;
/// Memory that the server may use for each of them.
const SLOT_GOAL_BYTES: u64 = 96 << 10;
/// Interval between checks of the memory.
const LOOK: Duration = Duration::from_millis(100);

/// What the flood has sent and received.
#[derive(Clone, Copy, Debug, Default)]
struct Flood {
    initials: u64,
    with_token: u64,
    /// Answers other than a Retry: the server has begun a handshake.
    answers: u64,
}

pub(crate) async fn measure(cli: &Cli, keypadd: &Path) -> Outcome<Vec<Row>> {
    let service = Service::start().await?;
    let desk = Arc::new(Desk::new(keypadd).await?);
    let loops = LOOPS.to_string();
    let mut server = desk.serve(&[], &["--pool", "off", "--loops", &loops]).await?;
    let address = server.listen()?;
    // A session from before the flood continues.
    let (mut client, entrance) = desk.connect(address, service.address, &["--pool", "off"]).await?;
    let mut keys = Pinger::open(entrance).await?;
    let alone = keys.ping(1_000).await?;
    let before = server.settled_bytes().await?;
    let key: PublicKey = desk.public_key.parse().map_err(|_| "invalid server key".to_owned())?;
    let sockets = bind(cli.sources, address)?;
    let stranger = Stranger::new(key)?;
    let stop = Arc::<AtomicBool>::default();
    let flood = thread::spawn({
        let (stop, rate) = (Arc::clone(&stop), cli.flood_rate);
        move || flood(&stranger, &sockets, rate, &stop)
    });

    let began = tokio::time::Instant::now();
    let mut connecting = JoinSet::new();
    for number in 0..cli.honest {
        let (desk, target) = (Arc::clone(&desk), service.address);
        // Only after the flood has started.
        let share = f64::from(number + 1) / f64::from(cli.honest + 1);
        let due = began + Duration::from_secs_f64(share * cli.flood_seconds);
        connecting.spawn(async move {
            sleep_until(due).await;
            let began = Instant::now();
            let (client, entrance) = desk.connect(address, target, &["--pool", "off"]).await?;
            let took = began.elapsed();
            Pinger::open(entrance).await?;
            client.stop().await?;
            Ok(took)
        });
    }
    let mut most = before;
    let end = began + Duration::from_secs_f64(cli.flood_seconds);
    let mut beside = Err("the flood is too short".to_owned());
    while tokio::time::Instant::now() < end {
        most = most.max(server.resident_bytes()?);
        if beside.is_err() && began.elapsed() > (end - began) / 2 {
            beside = keys.ping(1_000).await;
        }
        tokio::time::sleep(LOOK).await;
    }
    let cpu = server.cpu_seconds().unwrap_or(0.0);
    let mut took = Vec::new();
    let mut failed = Vec::new();
    while let Some(done) = connecting.join_next().await {
        match done.map_err(|error| error.to_string()).and_then(|done: Outcome<Duration>| done) {
            Ok(time) => took.push(time),
            Err(error) => failed.push(error),
        }
    }
    stop.store(true, Relaxed);
    let flood = flood.join().map_err(|_| "the flood has failed".to_owned())?;
    let seconds = began.elapsed().as_secs_f64();
    server.must_run()?;
    client.must_run()?;
    let beside = beside?;
    client.stop().await?;
    server.stop().await?;
    if let Some(error) = failed.first() {
        return Err(format!("{} of {} honest clients: {error}", failed.len(), cli.honest));
    }
    took.sort_unstable();
    let slowest = took.last().copied().unwrap_or_default();
    let median = took.get(took.len() / 2).copied().unwrap_or_default();
    let Flood { initials, with_token, answers } = flood;
    Ok(vec![
        Row::stated(
            "Initials",
            format!("{:.0} a second, {with_token} with a token", initials as f64 / seconds),
        ),
        Row::stated("answers that are no Retry", format!("{answers}")),
        Row::stated("server's CPU", format!("{:.0} % of a core", cpu / seconds * 100.0)),
        Row::judged(
            "honest clients connect",
            format!(
                "{} of {}, median {} ms, slowest {} ms",
                took.len(),
                cli.honest,
                median.as_millis(),
                slowest.as_millis()
            ),
            "all within 3 s",
            slowest <= CONNECT_GOAL,
        ),
        Row::judged(
            "memory of the server grows by",
            format!("{} MiB", most.saturating_sub(before) >> 20),
            "at most 96 KiB for each of 4,096",
            most.saturating_sub(before) <= LOOPS * SLOTS * SLOT_GOAL_BYTES,
        ),
        Row::stated("a session from before, alone", alone.text()),
        Row::stated("a session from before, meanwhile", beside.text()),
    ])
}

/// A socket for each source, on 127.1.0.0/16.
fn bind(sources: u32, server: SocketAddr) -> Outcome<Vec<UdpSocket>> {
    let failed = |error: std::io::Error| format!("a source of the flood: {error}");
    (1..=sources)
        .map(|number| {
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number);
            let socket = UdpSocket::bind((address, 0)).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            socket.connect(server).map_err(failed)?;
            Ok(socket)
        })
        .collect()
}

/// Sends a packet from each source in turn: the answer to a Retry, or the start of another
/// handshake.
fn flood(stranger: &Stranger, sockets: &[UdpSocket], rate: f64, stop: &AtomicBool) -> Flood {
    let (mut sent, began) = (Flood::default(), Instant::now());
    let mut sources = sockets.iter().cycle();
    while !stop.load(Relaxed) {
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        // Limits the burst with which a late thread catches up.
        for _ in 0..due.saturating_sub(sent.initials).min(rate as u64 / 50 + 1) {
            let Some(socket) = sources.next() else { return sent };
            let mut retry = None;
            let mut datagram = [0; 2048];
            while let Ok(length) = socket.recv(&mut datagram) {
                match Stranger::retry(&datagram[..length]) {
                    Some(asked) => retry = Some(asked),
                    None => sent.answers += 1,
                }
            }
            sent.initials += 1;
            sent.with_token += u64::from(retry.is_some());
            // What the kernel drops counts as sent: a stranger cannot tell.
            let _ = socket.send(&stranger.initial(retry.as_ref()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}
