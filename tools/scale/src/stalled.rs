//! Opens many unread streams each way: keystrokes and bulk data are as fast as without them.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Outcome;
use crate::cli::Cli;
use crate::daemon::{Desk, Service};
use crate::service::{READ_FIRST_BYTES, SMALL_SOURCE, STALL, STALL_LATER, shrink_buffers};
use crate::table::Row;
use crate::traffic::{Pinger, Way, bulk, open_many};

/// A keystroke's round trip, as a multiple of what it was before.
const RTT_GOAL: f64 = 1.5;
/// Bulk data, as a share of the rate before.
const BULK_GOAL: f64 = 0.8;
/// Round trips per figure.
const PINGS: usize = 4_000;
/// A connection that takes nothing for this long is blocked.
const BLOCKED: Duration = Duration::from_millis(300);

/// The rates through one tunnel.
struct Throughput {
    trips: crate::traffic::RoundTrips,
    /// Bytes a second.
    down: f64,
    up: f64,
}

pub(crate) async fn measure(cli: &Cli, keypadd: &Path) -> Outcome<Vec<Row>> {
    let service = Service::start().await?;
    let desk = Desk::new(keypadd).await?;
    let most = (2 * cli.stalled + 16).to_string();
    let flags = ["--pool", "off", "--max-forwards", &most];
    let mut server = desk.serve(&[], &flags).await?;
    let (mut client, entrance) = desk.connect(server.listen()?, service.address, &flags).await?;
    let mut keys = Pinger::open(entrance).await?;
    keys.ping(PINGS / 4).await?;
    let seconds = cli.seconds;
    let figures = async |keys: &mut Pinger| {
        let trips = keys.ping(PINGS).await?;
        let down = bulk(entrance, Way::Down, seconds).await?;
        let up = bulk(entrance, Way::Up, seconds).await?;
        Outcome::Ok(Throughput { trips, down, up })
    };
    let before = figures(&mut keys).await?;
    let held_before = [server.settled_bytes().await?, client.settled_bytes().await?];

    let read_first = cli.stalled_read;
    let stalled = open_many(entrance, 2 * cli.stalled, |number, stream| {
        // Both ways alternate.
        let is_read = (number / 2) % 100 < read_first;
        stall(stream, number % 2 == 0, is_read)
    })
    .await?;
    let held = [server.settled_bytes().await?, client.settled_bytes().await?];
    let kernel_memory = tcp_memory();
    let beside = figures(&mut keys).await?;
    server.must_run()?;
    client.must_run()?;
    drop(stalled);
    client.stop().await?;
    server.stop().await?;

    let mib = |end: usize| held[end].saturating_sub(held_before[end]) >> 20;
    let ratio = beside.trips.over(before.trips);
    let rate = |name: &str, with: f64, without: f64| {
        let (gbit, share) = (|bytes: f64| bytes * 8e-9, with / without);
        Row::judged(
            name,
            format!("{:.2} of {:.2} Gbit/s: {share:.2}", gbit(with), gbit(without)),
            "at least 0.8",
            share >= BULK_GOAL,
        )
    };
    Ok(vec![
        Row::stated("memory for them", format!("server {} MiB, client {} MiB", mib(0), mib(1))),
        Row::stated("the kernel's memory for all TCP", kernel_memory),
        Row::stated("a keystroke without them", before.trips.text()),
        Row::stated("a keystroke beside them", beside.trips.text()),
        Row::judged("ratio of p50", format!("{ratio:.2}"), "at most 1.5", ratio <= RTT_GOAL),
        rate("bulk, download", beside.down, before.down),
        rate("bulk, upload", beside.up, before.up),
    ])
}

/// Kernel memory used by TCP buffers, and its limit: at the limit, every connection of the host
/// slows to a crawl (proc_net_sockstat in proc(5), tcp_mem in tcp(7)).
fn tcp_memory() -> String {
    let file = |path| std::fs::read_to_string(path).unwrap_or_default();
    let mib = |pages: Option<&str>| pages.and_then(|it| it.parse::<u64>().ok()).unwrap_or(0) >> 8;
    let (taken, limits) = (file("/proc/net/sockstat"), file("/proc/sys/net/ipv4/tcp_mem"));
    let taken = taken.lines().find(|line| line.starts_with("TCP:"));
    let taken = taken.and_then(|line| line.split_whitespace().last());
    format!("{} of {} MiB", mib(taken), mib(limits.split_whitespace().last()))
}

/// Makes a stream stall: an upload to a target that does not read, or a download that is not read
/// here.
async fn stall(
    mut stream: TcpStream,
    is_upload: bool,
    is_read: bool,
) -> std::io::Result<TcpStream> {
    match (is_upload, is_read) {
        (true, false) => {
            shrink_buffers(&stream);
            stream.write_all(&[STALL]).await?;
            fill(&mut stream).await?;
        }
        (true, true) => {
            stream.write_all(&[STALL_LATER]).await?;
            stream.write_all(&vec![0x5a; READ_FIRST_BYTES]).await?;
            if stream.read_u8().await? != STALL_LATER {
                return Err(Error::from(ErrorKind::InvalidData));
            }
            shrink_buffers(&stream);
            fill(&mut stream).await?;
        }
        (false, false) => {
            shrink_buffers(&stream);
            stream.write_all(&[SMALL_SOURCE]).await?;
        }
        (false, true) => {
            stream.write_all(&[SMALL_SOURCE]).await?;
            stream.read_exact(&mut vec![0; READ_FIRST_BYTES]).await?;
            shrink_buffers(&stream);
        }
    }
    Ok(stream)
}

/// Writes until the other end accepts no more.
async fn fill(stream: &mut TcpStream) -> std::io::Result<()> {
    let block = vec![0x5a; 64 << 10];
    while let Ok(written) = timeout(BLOCKED, stream.write(&block)).await {
        if written? == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}
