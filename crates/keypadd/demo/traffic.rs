//! The demo's traffic: a typist and a bulk sender at the near end of the tunnel, a screen and a sink
//! at the far end. Every byte is compared with what it has to be. Knows TCP addresses and no tunnel.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::failed;
use super::measured::Latencies;
use crate::error::{Error, system};

/// Bytes that a keystroke sends, about what ssh makes of one.
const KEY_BYTES: usize = 64;

/// Bytes that come back for each, a changed part of a screen.
pub(super) const SCREEN_BYTES: usize = 1024;

/// Longest wait for a screen before the tunnel counts as broken.
const SCREEN_TIME: Duration = Duration::from_secs(3);

/// Bytes of one read or write of bulk data.
const BULK_STEP: usize = 32 << 10;

/// Random bytes that bulk data repeats: a prime number, so that no block size or packet size hides a
/// piece that is lost, doubled or out of place.
const PERIOD: usize = 65_521;

/// The bytes of bulk data and of keys, by position.
#[derive(Debug)]
pub(super) struct Pattern(Vec<u8>);

impl Pattern {
    /// # Errors
    /// The system has no randomness.
    pub(super) fn draw() -> Result<Self, Error> {
        let mut bytes = random(PERIOD)?;
        bytes.extend_from_within(..BULK_STEP);
        Ok(Self(bytes))
    }

    /// `len` bytes from `position` on; at most [`BULK_STEP`].
    fn at(&self, position: u64, len: usize) -> &[u8] {
        let start = (position % PERIOD as u64) as usize;
        &self.0[start..start + len]
    }

    fn key(&self, nth: usize) -> &[u8] {
        self.at((nth * KEY_BYTES) as u64, KEY_BYTES)
    }
}

/// When keys are pressed, counted from the first: the same for every arm, and settled beforehand, so
/// that a slow screen delays no later key and hides no wait behind it (open loop).
#[derive(Debug)]
pub(super) struct Schedule(Vec<Duration>);

impl Schedule {
    /// Keys at irregular moments, `per_second` on average.
    ///
    /// # Errors
    /// The system has no randomness.
    pub(super) fn draw(keys: usize, per_second: u32) -> Result<Self, Error> {
        let mean = Duration::from_secs(1) / per_second;
        let mut due = Duration::ZERO;
        let gap = |byte: u8| mean.mul_f64(0.5 + f64::from(byte) / 255.0);
        Ok(Self(
            random(keys)?
                .into_iter()
                .map(|byte| {
                    due += gap(byte);
                    due
                })
                .collect(),
        ))
    }
}

fn random(len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    getrandom::fill(&mut bytes)
        .map_err(|error| failed(format!("no randomness from the system: {error}")))?;
    Ok(bytes)
}

/// Answers each key with a screen full of it, one connection after the other.
pub(super) async fn answer_keys(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let mut key = [0; KEY_BYTES];
        while stream.read_exact(&mut key).await.is_ok() {
            if stream.write_all(&screen(&key)).await.is_err() {
                break;
            }
        }
    }
}

fn screen(key: &[u8]) -> [u8; SCREEN_BYTES] {
    std::array::from_fn(|nth| key[nth % KEY_BYTES])
}

/// Types by `schedule` at a forward's `address` and records, for each key, the time from the moment it
/// was due to the arrival of its whole screen. Dropping the future stops it.
///
/// # Errors
/// A screen is not what it has to be, or does not come.
pub(super) async fn type_keys(
    address: SocketAddr,
    schedule: Arc<Schedule>,
    pattern: Arc<Pattern>,
    latencies: Latencies,
) -> Result<(), Error> {
    let open = async {
        let stream = TcpStream::connect(address).await?.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SCREEN_TIME))?;
        Ok((Unplug(stream.try_clone()?), stream))
    };
    let (unplug, stream) = open.await.map_err(|error| broken("typing", &error))?;
    let typing = tokio::task::spawn_blocking(move || {
        type_and_read(&stream, &schedule, &pattern, &latencies)
    });
    let typed = typing.await.unwrap_or_else(|_| Err(failed("the typist ended on a fault")));
    drop(unplug);
    typed
}

/// Ends the blocking reads and writes of a connection when its owner has gone.
struct Unplug(std::net::TcpStream);

impl Drop for Unplug {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Threads of their own: tokio's timer rounds to milliseconds, more than a keystroke takes.
fn type_and_read(
    stream: &std::net::TcpStream,
    schedule: &Schedule,
    pattern: &Pattern,
    latencies: &Latencies,
) -> Result<(), Error> {
    let mut typist = stream;
    let mut reader = stream;
    let mut shown = [0; SCREEN_BYTES];
    let mut expect = |nth: usize| -> Result<(), Error> {
        reader.read_exact(&mut shown).map_err(|error| broken("typing", &error))?;
        if shown == screen(pattern.key(nth)) { Ok(()) } else { Err(altered("a screen")) }
    };
    // One key that does not count: it opens the forward.
    typist.write_all(pattern.key(0)).map_err(|error| broken("typing", &error))?;
    expect(0)?;
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            // Wake when asked, not up to 50 us later; refused, all arms are late by as much.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            for (nth, due) in schedule.0.iter().enumerate() {
                thread::sleep((start + *due).saturating_duration_since(Instant::now()));
                if typist.write_all(pattern.key(nth)).is_err() {
                    return; // the reader says why
                }
            }
        });
        for (nth, due) in schedule.0.iter().enumerate() {
            if let Err(error) = expect(nth) {
                let _ = stream.shutdown(Shutdown::Both);
                return Err(error);
            }
            latencies.record((start + *due).elapsed());
        }
        Ok(())
    })
}

/// What has come out at the far end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    bytes: u64,
    altered: bool,
}

/// Swallows one connection's bulk data and compares it.
pub(super) async fn swallow(
    listener: TcpListener,
    pattern: Arc<Pattern>,
    arrived: watch::Sender<Arrived>,
) {
    let Ok((mut stream, _)) = listener.accept().await else { return };
    let mut bytes = vec![0; BULK_STEP];
    while let Ok(len @ 1..) = stream.read(&mut bytes).await {
        arrived.send_modify(|arrived| {
            arrived.altered |= bytes[..len] != *pattern.at(arrived.bytes, len);
            arrived.bytes += len as u64;
        });
    }
}

/// The near end of the bulk connection.
#[derive(Debug)]
pub(super) struct Bulk {
    stream: TcpStream,
    position: u64,
    pattern: Arc<Pattern>,
    arrived: watch::Receiver<Arrived>,
}

impl Bulk {
    /// Connects to a forward that leads to [`swallow`].
    ///
    /// # Errors
    /// The forward does not take the connection.
    pub(super) async fn open(
        address: SocketAddr,
        pattern: Arc<Pattern>,
        arrived: watch::Receiver<Arrived>,
    ) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| broken("the bulk transfer", &error))?;
        Ok(Self { stream, position: 0, pattern, arrived })
    }

    /// Sends `bytes` as fast as they go, until all have arrived or `deadline`. Mbit/s.
    ///
    /// # Errors
    /// What arrives has been altered, or the connection breaks.
    pub(super) async fn burst(&mut self, bytes: u64, deadline: Instant) -> Result<f64, Error> {
        let start = Instant::now();
        let before = self.arrived.borrow().bytes;
        let mut arrived = self.arrived.clone();
        let all = arrived.wait_for(|arrived| arrived.altered || arrived.bytes >= before + bytes);
        let send_and_wait = async {
            self.send(bytes).await?;
            all.await.map(drop).map_err(|_| failed("the bulk transfer: its far end closed early"))
        };
        // Not all in time is a slow burst, not a failed one.
        timeout_at(deadline.into(), send_and_wait).await.unwrap_or(Ok(()))?;
        self.rate(before, start)
    }

    /// Sends without a pause; first for `lead`, then for `time`, which is what counts. Mbit/s.
    ///
    /// # Errors
    /// As for [`burst`](Self::burst).
    pub(super) async fn flood(&mut self, lead: Duration, time: Duration) -> Result<f64, Error> {
        let mut from = (0, Instant::now());
        for part in [lead, time] {
            from = (self.arrived.borrow().bytes, Instant::now());
            let end = Instant::now() + part;
            timeout_at(end.into(), self.send(u64::MAX)).await.unwrap_or(Ok(()))?;
        }
        self.rate(from.0, from.1)
    }

    /// May be dropped between any two writes: `position` counts what was taken.
    async fn send(&mut self, bytes: u64) -> Result<(), Error> {
        let mut left = bytes;
        while left > 0 {
            let len = left.min(BULK_STEP as u64) as usize;
            let taken = self.stream.write(self.pattern.at(self.position, len)).await;
            let taken = taken.map_err(|error| broken("the bulk transfer", &error))?;
            self.position += taken as u64;
            left -= taken as u64;
        }
        Ok(())
    }

    fn rate(&self, before: u64, start: Instant) -> Result<f64, Error> {
        let Arrived { bytes, altered: false } = *self.arrived.borrow() else {
            return Err(altered("bulk data"));
        };
        Ok((bytes - before) as f64 * 8.0 / 1e6 / start.elapsed().as_secs_f64())
    }
}

fn altered(what: &str) -> Error {
    failed(format!("{what} came out of the tunnel altered: this is a bug, please report it"))
}

fn broken(what: &str, error: &io::Error) -> Error {
    let cause = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer in {} s", SCREEN_TIME.as_secs())
        }
        _ => system(error),
    };
    failed(format!("{what} through the tunnel stopped: {cause}"))
}
