//! Replays a peer's packets as fast as possible: neither end's memory grows, and another client
//! keeps its share.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use testbed::{Direction, Relay};

use crate::Outcome;
use crate::cli::Cli;
use crate::daemon::{Daemon, Desk, Service};
use crate::table::Row;
use crate::traffic::{Pinger, Way, bulk, paced_bulk};

/// Maximum memory growth of a daemon during replays (docs/limits.md, "Memory": datagrams
/// queued in the loops, and buffers of the other traffic).
const MEMORY_GOAL_BYTES: u64 = 32 << 20;
/// Bytes a second that another client asks for, each way: 100 Mbit/s.
const OFFERED: f64 = 12.5e6;
/// The share of that load that it must get.
const GOODPUT_GOAL: f64 = 0.9;
/// Packets to replay.
const COPIES: usize = 4_096;
/// Interval between checks of the memory.
const LOOK: Duration = Duration::from_millis(50);

/// Who gets the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// A socket that is not read: costs the machine as much.
    Bystander,
    Server,
    Client,
}

/// The result of one period of replays.
struct ReplayRound {
    /// Copies a second.
    rate: f64,
    /// Share of its offered load that the other client gets.
    share: f64,
    /// Bytes a second of the other client at full speed, both ways.
    full_speed: f64,
    /// Maximum growth of the victim's memory.
    grown_bytes: u64,
}

pub(crate) async fn measure(cli: &Cli, keypadd: &Path) -> Outcome<Vec<Row>> {
    let service = Service::start().await?;
    let desk = Desk::new(keypadd).await?;
    let flags = ["--pool", "off"];
    let mut server = desk.serve(&[], &flags).await?;
    let no_relay = |error: std::io::Error| format!("relay: {error}");
    let relay = Relay::start(server.listen()?, 1).await.map_err(no_relay)?;
    let relay = Arc::new(relay);
    let (mut peer, peers_entrance) = desk.connect(relay.address(), service.address, &flags).await?;
    let (mut other, entrance) = desk.connect(server.listen()?, service.address, &flags).await?;
    for direction in [Direction::ToServer, Direction::ToClient] {
        relay.record(direction, COPIES);
    }
    // All kinds of packets, of both connections of a session.
    let mut keys = Pinger::open(peers_entrance).await?;
    keys.ping(100).await?;
    bulk(peers_entrance, Way::Up, 1.0).await?;
    bulk(peers_entrance, Way::Down, 1.0).await?;
    // Lets the other client's buffers grow to full size.
    both_ways(entrance, 2.0, f64::INFINITY).await?;

    let mut carried = Vec::new();
    for victim in [Victim::Bystander, Victim::Server, Victim::Client] {
        let daemon = if victim == Victim::Client { &peer } else { &server };
        carried.push(carry(&relay, daemon, victim, entrance, cli.replay_seconds).await?);
    }
    keys.ping(100).await.map_err(|error| format!("the peer's own connection: {error}"))?;
    server.must_run()?;
    peer.must_run()?;
    other.must_run()?;
    other.stop().await?;
    peer.stop().await?;
    server.stop().await?;

    let mut rows = Vec::new();
    for (name, carried) in
        ["a bystander", "the server", "the peer's client"].into_iter().zip(&carried)
    {
        let gbit = carried.full_speed * 8e-9;
        rows.push(Row::stated(
            format!("replays at {name}"),
            format!("{:.0} a second, another client at full speed {gbit:.2} Gbit/s", carried.rate),
        ));
    }
    for (name, carried) in ["the server", "the peer's client"].into_iter().zip(&carried[1..]) {
        rows.push(Row::judged(
            format!("memory of {name} grows by"),
            format!("{:.1} MiB", carried.grown_bytes as f64 / 1_048_576.0),
            "at most 32 MiB",
            carried.grown_bytes <= MEMORY_GOAL_BYTES,
        ));
    }
    let share = carried[1].share;
    rows.push(Row::judged(
        "another client gets of 100 Mbit/s each way",
        format!("{share:.2} while they come to the server"),
        "at least 0.9",
        share >= GOODPUT_GOAL,
    ));
    Ok(rows)
}

/// Bytes a second of a download and an upload at once.
async fn both_ways(entrance: SocketAddr, seconds: f64, rate: f64) -> Outcome<f64> {
    let of = |way| paced_bulk(entrance, way, seconds, rate);
    let (down, up) = tokio::join!(of(Way::Down), of(Way::Up));
    Ok(down? + up?)
}

/// Runs bulk on the other client while the victim receives copies.
async fn carry(
    relay: &Arc<Relay>,
    daemon: &Daemon,
    victim: Victim,
    entrance: SocketAddr,
    seconds: f64,
) -> Outcome<ReplayRound> {
    let direction = match victim {
        Victim::Client => Direction::ToClient,
        Victim::Bystander | Victim::Server => Direction::ToServer,
    };
    let copies = relay.recorded(direction);
    if copies.is_empty() {
        return Err("nothing was recorded".into());
    }
    let bystander = UdpSocket::bind("127.0.0.1:0").map_err(|error| format!("UDP: {error}"))?;
    let address = bystander.local_addr().map_err(|error| format!("UDP: {error}"))?;
    let before = daemon.settled_bytes().await?;
    let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let attacker = thread::spawn({
        let (stop, sent, relay) = (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(relay));
        move || {
            for copy in copies.iter().cycle() {
                if stop.load(Relaxed) {
                    return;
                }
                // Datagrams that the kernel drops count as sent: the attacker cannot tell.
                match victim {
                    Victim::Bystander => drop(bystander.send_to(&copy.bytes, address)),
                    Victim::Server | Victim::Client => drop(relay.inject(direction, copy)),
                }
                sent.fetch_add(1, Relaxed);
            }
        }
    });
    let mut most = before;
    let watch = async {
        loop {
            most = most.max(daemon.resident_bytes().unwrap_or(0));
            tokio::time::sleep(LOOK).await;
        }
    };
    let carry = async {
        let share = both_ways(entrance, seconds / 2.0, OFFERED).await? / (2.0 * OFFERED);
        Outcome::Ok((share, both_ways(entrance, seconds / 2.0, f64::INFINITY).await?))
    };
    let carried = tokio::select! {
        carried = carry => carried,
        () = watch => Err("never".into()),
    };
    let count = sent.load(Relaxed);
    stop.store(true, Relaxed);
    let _ = attacker.join();
    // `bulk` runs a quarter longer, for its warm-up.
    let rate = count as f64 / (seconds * 1.25);
    let (share, full_speed) = carried?;
    Ok(ReplayRound { rate, share, full_speed, grown_bytes: most.saturating_sub(before) })
}
