//! Generates load from the near namespace: bulk in either direction, round trips one after the
//! other.
//!
//! Each transfer is one TCP connection with TCP_NODELAY to a given address, where a tunnel or the
//! service itself listens. Every wait has a timeout. Checks that echoes match what was sent. Does
//! not know which arm it measures.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use keypadd_measure::statistics::nearest_rank;
use serde::Serialize;

use crate::service::{BLOCK_BYTES, ECHO, LAST, SINK, SOURCE};

/// Timeout for connecting and for each read and write.
const IO_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for draining a tunnel after a download.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A direction, as seen from the near end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Download,
    Upload,
}

/// One bulk transfer.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bulk {
    /// Payload bytes read by the receiver.
    pub(crate) bytes: u64,
    /// From the request to the last of these bytes; an upload ends when the sink has answered.
    pub(crate) seconds: f64,
    /// CPU time of the tunnel during the transfer; `None` for an arm without a tunnel.
    pub(crate) cpu_seconds: Option<f64>,
}

impl Bulk {
    /// Rate in Gbit/s.
    pub(crate) fn gbit_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e9
    }
}

/// Round-trip times of one connection, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RoundTrips {
    pub(crate) count: usize,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

/// When a sequence of round trips ends: at whichever comes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    pub(crate) count: usize,
    pub(crate) elapsed: Duration,
}

/// Transfers for `duration` and measures the CPU time of the tunnel with `cpu`.
///
/// # Errors
/// One line: the connection failed or stalled for 15 s.
pub(crate) fn bulk(
    address: SocketAddr,
    direction: Direction,
    duration: Duration,
    cpu: &dyn Fn() -> Option<f64>,
) -> Result<Bulk, String> {
    let (name, transfer): (_, fn(_, _, &dyn Fn() -> _) -> _) = match direction {
        Direction::Download => ("download", download),
        Direction::Upload => ("upload", upload),
    };
    transfer(address, duration, cpu).map_err(|error| format!("{name}: {}", words(&error)))
}

fn download(
    address: SocketAddr,
    duration: Duration,
    cpu: &dyn Fn() -> Option<f64>,
) -> io::Result<Bulk> {
    let mut block = vec![0; BLOCK_BYTES];
    let cpu_before = cpu();
    let mut stream = connect(address, SOURCE, 0)?;
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < duration {
        match stream.read(&mut block)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes += count as u64,
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = since(cpu_before, cpu());

    // Stops the service and drains the tunnel, so that the next measurement finds it idle.
    stream.write_all(&[0])?;
    let until = Instant::now() + DRAIN_TIMEOUT;
    // A reset counts as the end too: the service closes without reading a tunnel's leftovers.
    while let Ok(1..) = stream.read(&mut block) {
        if Instant::now() > until {
            return Err(io::Error::other("still data 30 s after the stop request"));
        }
    }
    Ok(Bulk { bytes, seconds, cpu_seconds })
}

fn upload(
    address: SocketAddr,
    duration: Duration,
    cpu: &dyn Fn() -> Option<f64>,
) -> io::Result<Bulk> {
    let mut block = vec![0; BLOCK_BYTES];
    let cpu_before = cpu();
    let mut stream = connect(address, SINK, 0)?;
    let start = Instant::now();
    while start.elapsed() < duration {
        stream.write_all(&block)?;
    }
    if let Some(first) = block.first_mut() {
        *first = LAST;
    }
    stream.write_all(&block)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = since(cpu_before, cpu());
    Ok(Bulk { bytes: u64::from_be_bytes(answer), seconds, cpu_seconds })
}

/// A connection for round trips of messages of one size.
#[derive(Debug)]
pub(crate) struct Echo {
    stream: TcpStream,
    message: Vec<u8>,
    answer: Vec<u8>,
    sequence: u64,
}

impl Echo {
    /// Connects, and makes one round trip to prove that the path works.
    ///
    /// # Errors
    /// One line: the connection or the round trip failed.
    pub(crate) fn open(address: SocketAddr, size: usize) -> Result<Self, String> {
        let open = || {
            let header = u32::try_from(size).map_err(io::Error::other)?;
            let stream = connect(address, ECHO, header)?;
            let (message, answer) = (vec![0; size], vec![0; size]);
            let mut echo = Self { stream, message, answer, sequence: 0 };
            echo.round_trip()?;
            Ok(echo)
        };
        open().map_err(|error: io::Error| format!("echo: {}", words(&error)))
    }

    /// Makes round trips, one after the other, each no sooner than `interval` after the last began.
    ///
    /// # Errors
    /// One line: the connection failed, stalled for 15 s or changed data.
    pub(crate) fn measure(
        &mut self,
        until: Until,
        interval: Duration,
    ) -> Result<RoundTrips, String> {
        let mut times = Vec::with_capacity(until.count.min(1 << 20));
        let start = Instant::now();
        while times.len() < until.count && (times.is_empty() || start.elapsed() < until.elapsed) {
            let sent = Instant::now();
            self.round_trip().map_err(|error| format!("echo: {}", words(&error)))?;
            let time = sent.elapsed();
            times.push(time.as_secs_f64() * 1e6);
            if time < interval {
                std::thread::sleep(interval - time);
            }
        }
        Ok(summarize(times))
    }

    fn round_trip(&mut self) -> io::Result<()> {
        self.sequence += 1;
        if let Some(head) = self.message.first_chunk_mut() {
            *head = self.sequence.to_be_bytes();
        }
        self.stream.write_all(&self.message)?;
        self.stream.read_exact(&mut self.answer)?;
        match self.answer == self.message {
            true => Ok(()),
            false => Err(io::Error::other("the answer differs from what was sent")),
        }
    }
}

/// Quantiles by nearest rank.
fn summarize(mut times: Vec<f64>) -> RoundTrips {
    times.sort_by(f64::total_cmp);
    let quantile = |q: f64| nearest_rank(&times, q).unwrap_or(f64::NAN);
    RoundTrips {
        count: times.len(),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        max_us: quantile(1.0),
    }
}

fn connect(address: SocketAddr, kind: u8, size: u32) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let [a, b, c, d] = size.to_be_bytes();
    stream.write_all(&[kind, a, b, c, d])?;
    Ok(stream)
}

fn since(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(after? - before?)
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no progress for {} s", IO_TIMEOUT.as_secs())
        }
        io::ErrorKind::UnexpectedEof => "connection closed".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let trips = summarize((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            (trips.count, trips.p50_us, trips.p99_us, trips.max_us),
            (200, 100.0, 198.0, 200.0)
        );
        let one = summarize(vec![7.0]);
        assert_eq!((one.p50_us, one.p99_us, one.max_us), (7.0, 7.0, 7.0));
    }

    #[test]
    fn bulk_and_round_trips_work_without_a_tunnel() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || crate::service::accept(&listener));
        let mut echo = Echo::open(address, 128).unwrap();
        let trips = echo.measure(Until { count: 20, elapsed: IO_TIMEOUT }, Duration::ZERO).unwrap();
        assert_eq!(trips.count, 20);
        assert!(trips.p50_us <= trips.p99_us && trips.p99_us <= trips.max_us);
        for direction in [Direction::Download, Direction::Upload] {
            let some = bulk(address, direction, Duration::from_millis(50), &|| Some(1.0)).unwrap();
            assert!(some.bytes > 0 && some.seconds >= 0.05);
            assert_eq!(some.cpu_seconds, Some(0.0));
        }
    }
}
