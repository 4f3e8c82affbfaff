//! Generates traffic through a forward: round trips, bulk, many connections at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::Outcome;
use crate::service::{ECHO, SINK, SOURCE};

/// Timeout of any single step.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a round trip: a keystroke with its overhead.
const PING_BYTES: usize = 128;
/// Block sizes for bulk data, at full speed and paced.
const BLOCK_BYTES: usize = 256 << 10;
const PACED_BLOCK_BYTES: usize = 16 << 10;
/// Connections that are opened at the same time.
const AT_ONCE: usize = 64;
/// Pause before a round trip, so that round trips are not one burst.
const PAUSE: Duration = Duration::from_micros(500);

/// Round-trip times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrips {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl RoundTrips {
    pub(crate) fn text(self) -> String {
        format!("p50 {} us, p99 {} us", self.p50.as_micros(), self.p99.as_micros())
    }

    /// The ratio of the medians, this one over the other.
    pub(crate) fn over(self, before: Self) -> f64 {
        self.p50.as_secs_f64() / before.p50.as_secs_f64()
    }
}

/// One connection to the echo service.
#[derive(Debug)]
pub(crate) struct Pinger(TcpStream);

impl Pinger {
    pub(crate) async fn open(entrance: SocketAddr) -> Outcome<Self> {
        let open = move || {
            let mut stream = TcpStream::connect_timeout(&entrance, STEP_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(STEP_TIMEOUT))?;
            stream.write_all(&[ECHO])?;
            let mut pinger = Self(stream);
            pinger.round_trip()?;
            Ok(pinger)
        };
        blocking("echo", open).await
    }

    fn round_trip(&mut self) -> std::io::Result<Duration> {
        let sent = [fastrand::u8(..); PING_BYTES];
        let mut heard = [0; PING_BYTES];
        let began = Instant::now();
        self.0.write_all(&sent)?;
        self.0.read_exact(&mut heard)?;
        if sent == heard { Ok(began.elapsed()) } else { Err(ErrorKind::InvalidData.into()) }
    }

    /// This many round trips, one after the other.
    pub(crate) async fn ping(&mut self, count: usize) -> Outcome<RoundTrips> {
        let stream = self.0.try_clone().map_err(|error| format!("echo: {error}"))?;
        let ping = move || {
            let mut pinger = Self(stream);
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                std::thread::sleep(PAUSE);
                times.push(pinger.round_trip()?);
            }
            times.sort_unstable();
            Ok(RoundTrips { p50: times[count / 2], p99: times[count * 99 / 100] })
        };
        blocking("echo", ping).await
    }
}

async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Outcome<T> {
    match spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| format!("{what}: {error}")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// Which way bulk data goes, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Down,
    Up,
}

/// Throughput in bytes per second of one TCP connection through the forward.
pub(crate) async fn bulk(entrance: SocketAddr, way: Way, seconds: f64) -> Outcome<f64> {
    paced_bulk(entrance, way, seconds, f64::INFINITY).await
}

/// Like [`bulk`], with at most `rate` bytes per second offered or requested.
pub(crate) async fn paced_bulk(
    entrance: SocketAddr,
    way: Way,
    seconds: f64,
    rate: f64,
) -> Outcome<f64> {
    let work = move || {
        let mut stream = TcpStream::connect_timeout(&entrance, STEP_TIMEOUT)?;
        stream.set_read_timeout(Some(STEP_TIMEOUT))?;
        stream.set_write_timeout(Some(STEP_TIMEOUT))?;
        stream.write_all(&[if way == Way::Down { SOURCE } else { SINK }])?;
        let block_bytes = if rate.is_finite() { PACED_BLOCK_BYTES } else { BLOCK_BYTES };
        let mut block = vec![0x5a; block_bytes];
        let mut step = |bytes: &mut u64| -> std::io::Result<()> {
            *bytes += match way {
                Way::Down => match stream.read(&mut block)? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    read => read as u64,
                },
                Way::Up => stream.write(&block)? as u64,
            };
            Ok(())
        };
        // A connection becomes bulk only after a while.
        let (mut ignored, mut bytes) = (0, 0);
        let warm_up = Instant::now();
        while warm_up.elapsed().as_secs_f64() < seconds / 4.0 {
            step(&mut ignored)?;
        }
        let began = Instant::now();
        while began.elapsed().as_secs_f64() < seconds {
            step(&mut bytes)?;
            let ahead = bytes as f64 / rate - began.elapsed().as_secs_f64();
            if ahead > 0.0 {
                std::thread::sleep(Duration::from_secs_f64(ahead));
            }
        }
        Ok(bytes as f64 / began.elapsed().as_secs_f64())
    };
    blocking(if way == Way::Down { "download" } else { "upload" }, work).await
}

/// Opens many connections and runs a task on each; returns the results in any order.
pub(crate) async fn open_many<T, F>(
    entrance: SocketAddr,
    count: u32,
    work: impl Fn(u32, tokio::net::TcpStream) -> F,
) -> Outcome<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = std::io::Result<T>> + Send + 'static,
{
    let mut opening = JoinSet::new();
    let mut opened = Vec::new();
    for number in 0..count {
        if opening.len() >= AT_ONCE {
            opened.extend(next(&mut opening).await?);
        }
        let stream = tokio::net::TcpStream::connect(entrance);
        let stream = stream.await.map_err(|error| format!("connection {number}: {error}"))?;
        let work = work(number, stream);
        opening.spawn(async move {
            match timeout(STEP_TIMEOUT, work).await {
                Ok(done) => done.map_err(|error| format!("connection {number}: {error}")),
                Err(_) => Err(format!("connection {number}: nothing for {STEP_TIMEOUT:?}")),
            }
        });
    }
    while let Some(done) = next(&mut opening).await? {
        opened.push(done);
    }
    Ok(opened)
}

/// The result of the next task that ends.
pub(crate) async fn next<T: 'static>(opening: &mut JoinSet<Outcome<T>>) -> Outcome<Option<T>> {
    match opening.join_next().await {
        None => Ok(None),
        Some(Ok(done)) => done.map(Some),
        Some(Err(error)) => Err(error.to_string()),
    }
}

/// Sends one byte and gets it back, over a connection that is an echo from then on.
pub(crate) async fn begin_echo(
    mut stream: tokio::net::TcpStream,
) -> std::io::Result<tokio::net::TcpStream> {
    stream.set_nodelay(true)?;
    stream.write_all(&[ECHO]).await?;
    echo_once(&mut stream).await?;
    Ok(stream)
}

/// One byte there and back.
pub(crate) async fn echo_once(stream: &mut tokio::net::TcpStream) -> std::io::Result<()> {
    let sent = fastrand::u8(..);
    stream.write_all(&[sent]).await?;
    if stream.read_u8().await? == sent { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}
