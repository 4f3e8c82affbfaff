//! Generates a sample's traffic: bulk data, checked byte by byte, and small messages sent at fixed
//! times and echoed.
//!
//! Sockets stay in the network namespace they were created in, whatever thread uses them. Knows
//! neither arms nor lines nor networks.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::interleave::INTERRUPTED;

/// Bytes of a small message: a keystroke with ssh's overhead.
pub(crate) const PING_BYTES: usize = 128;

/// First byte of a connection: echo messages, send bulk, receive bulk.
const ECHO: u8 = b'e';
const SOURCE: u8 = b's';
const SINK: u8 = b'k';

/// Bytes of one write and of the largest read.
const PIECE_BYTES: usize = 64 << 10;

/// Bulk data repeats after this many bytes: a prime, so that a shift by any buffer's size shows.
const PERIOD: usize = 65_521;

/// Bulk data: at least one piece long from any offset in its period.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(PERIOD as u64);
    let period: Vec<u8> = (0..PERIOD).map(|_| random.u8(..)).collect();
    period.iter().copied().cycle().take(PERIOD + PIECE_BYTES).collect()
});

/// Timeout for connecting and for each read that waits for the other end.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a wait checks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// What a receiver has read, and when.
#[derive(Debug, Default)]
pub(crate) struct ReceiveLog(Mutex<ReceiveLogState>);

#[derive(Debug, Default)]
struct ReceiveLogState {
    reads: Vec<(Instant, u64)>,
    failure: Option<String>,
}

impl ReceiveLog {
    /// Bytes that arrived between two times.
    pub(crate) fn bytes(&self, from: Instant, until: Instant) -> u64 {
        let inner = self.lock();
        let within = inner.reads.iter().filter(|(at, _)| *at >= from && *at < until);
        within.map(|(_, bytes)| bytes).sum()
    }

    /// Why it has stopped reading, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Reads and checks until the end.
    fn read(&self, mut stream: &TcpStream) {
        let (mut buffer, mut place) = (vec![0; PIECE_BYTES], 0);
        let failure = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break "the connection was closed".to_owned(),
                Ok(len) => {
                    let expected = PATTERN.get(place..place + len);
                    if expected != buffer.get(..len) {
                        break "bytes arrived that differ from what was sent".to_owned();
                    }
                    place = (place + len) % PERIOD;
                    self.lock().reads.push((Instant::now(), len as u64));
                }
                Err(error) => break error.to_string(),
            }
        };
        self.lock().failure = Some(failure);
    }

    /// The guarded lists are consistent at any moment.
    fn lock(&self) -> MutexGuard<'_, ReceiveLogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The service at the far host. If dropped, its connections end.
#[derive(Debug)]
pub(crate) struct Service {
    listener: Arc<TcpListener>,
    state: Arc<ServiceState>,
}

#[derive(Debug, Default)]
struct ServiceState {
    /// The bytes of the last upload.
    sunk: Mutex<Arc<ReceiveLog>>,
    /// Connections that may be open.
    streams: Mutex<Vec<Weak<TcpStream>>>,
    is_over: AtomicBool,
}

impl Service {
    /// Serves every connection.
    pub(crate) fn start(listener: TcpListener) -> io::Result<Self> {
        let service = Self { listener: Arc::new(listener), state: Arc::default() };
        let (listener, state) = (Arc::clone(&service.listener), Arc::clone(&service.state));
        thread::Builder::new().name("service".into()).spawn(move || {
            for stream in listener.incoming() {
                if state.is_over.load(Relaxed) {
                    return;
                }
                let Ok(stream) = stream.map(Arc::new) else { continue };
                let mut streams = state.streams.lock().unwrap_or_else(PoisonError::into_inner);
                streams.retain(|it| it.strong_count() > 0);
                streams.push(Arc::downgrade(&stream));
                drop(streams);
                let of = Arc::clone(&state);
                // A client that is not served notices.
                let _ = thread::Builder::new().spawn(move || of.serve(&stream));
            }
        })?;
        Ok(service)
    }

    /// The bytes of the last upload.
    fn sunk(&self) -> Arc<ReceiveLog> {
        Arc::clone(&self.state.sunk.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.state.is_over.store(true, Relaxed);
        // Wakes up the thread that accepts.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        let streams = self.state.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in streams.iter().filter_map(Weak::upgrade) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl ServiceState {
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut kind = [0];
        { stream }.read_exact(&mut kind)?;
        match kind {
            [ECHO] => echo(stream),
            [SOURCE] => send(stream),
            [SINK] => {
                let received = Arc::new(ReceiveLog::default());
                *self.sunk.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&received);
                // Tells the client that `sunk` now counts this upload.
                { stream }.write_all(&[SINK])?;
                received.read(stream);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn echo(mut stream: &TcpStream) -> io::Result<()> {
    let mut message = [0; PING_BYTES];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

/// Sends bulk data until the connection fails.
fn send(mut stream: &TcpStream) -> io::Result<()> {
    let mut place = 0;
    loop {
        let piece = PATTERN.get(place..place + PIECE_BYTES).unwrap_or_default();
        let sent = stream.write(piece)?;
        if sent == 0 {
            return Ok(());
        }
        place = (place + sent) % PERIOD;
    }
}

/// A connection to the service that has not announced its kind yet.
pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether a round trip to this address succeeds.
pub(crate) fn carries(address: SocketAddr) -> bool {
    let trip = || {
        let stream = connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Pings::prove(&stream)
    };
    trip().is_ok()
}

/// A bulk transfer in progress. If dropped, its connection is closed.
#[derive(Debug)]
pub(crate) struct Bulk {
    stream: Arc<TcpStream>,
    /// What has arrived.
    pub(crate) received: Arc<ReceiveLog>,
}

impl Bulk {
    /// Starts bulk data from the service.
    pub(crate) fn down(stream: TcpStream) -> io::Result<Self> {
        { &stream }.write_all(&[SOURCE])?;
        let (stream, received) = (Arc::new(stream), Arc::new(ReceiveLog::default()));
        let (from, by) = (Arc::clone(&stream), Arc::clone(&received));
        thread::Builder::new().spawn(move || by.read(&from))?;
        Ok(Self { stream, received })
    }

    /// Bulk data to the service, ready to start.
    pub(crate) fn up(stream: TcpStream, service: &Service) -> io::Result<Self> {
        { &stream }.write_all(&[SINK])?;
        stream.set_read_timeout(Some(PATIENCE))?;
        { &stream }.read_exact(&mut [0])?;
        Ok(Self { stream: Arc::new(stream), received: service.sunk() })
    }

    /// Starts sending.
    pub(crate) fn send(&self) -> io::Result<()> {
        let stream = Arc::clone(&self.stream);
        thread::Builder::new().spawn(move || send(&stream)).map(drop)
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Small messages at fixed times, whatever happens to earlier ones. If dropped, they end.
#[derive(Debug)]
pub(crate) struct Pings {
    stream: Arc<TcpStream>,
    start: Instant,
    interval: Duration,
    is_over: Arc<AtomicBool>,
    answers: Arc<Mutex<Vec<Instant>>>,
}

impl Pings {
    /// Announces the connection's kind, and makes a round trip.
    pub(crate) fn prove(mut stream: &TcpStream) -> io::Result<()> {
        stream.write_all(&[ECHO])?;
        stream.write_all(&[0; PING_BYTES])?;
        stream.read_exact(&mut [0; PING_BYTES])
    }

    /// Sends a message every `interval`, from now on, over a connection that is
    /// [proved](Self::prove).
    pub(crate) fn start(stream: TcpStream, interval: Duration) -> io::Result<Self> {
        stream.set_read_timeout(None)?;
        let pings = Self {
            stream: Arc::new(stream),
            start: Instant::now(),
            interval,
            is_over: Arc::default(),
            answers: Arc::default(),
        };
        let (to, is_over, start) =
            (Arc::clone(&pings.stream), Arc::clone(&pings.is_over), pings.start);
        thread::Builder::new().spawn(move || {
            let mut message = [0; PING_BYTES];
            for nth in 0_u32.. {
                thread::sleep((start + nth * interval).saturating_duration_since(Instant::now()));
                message[..4].copy_from_slice(&nth.to_be_bytes());
                if is_over.load(Relaxed) || { &*to }.write_all(&message).is_err() {
                    return;
                }
            }
        })?;
        let (from, answers) = (Arc::clone(&pings.stream), Arc::clone(&pings.answers));
        thread::Builder::new().spawn(move || {
            let mut message = [0; PING_BYTES];
            for nth in 0_u32.. {
                let read = { &*from }.read_exact(&mut message);
                if read.is_err() || message[..4] != nth.to_be_bytes() {
                    return;
                }
                answers.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            }
        })?;
        Ok(pings)
    }

    /// Time from when each message was due until its answer, for those due in the interval. One
    /// without an answer counts with the time it has waited so far.
    pub(crate) fn times(&self, from: Instant, until: Instant) -> Vec<Duration> {
        let now = Instant::now();
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |nth: u32| self.start + nth * self.interval;
        (0_u32..)
            .map(due)
            .take_while(|due| *due < until)
            .enumerate()
            .filter(|(_, due)| *due >= from)
            .map(|(nth, due)| answers.get(nth).map_or(now, |at| *at).saturating_duration_since(due))
            .collect()
    }
}

impl Drop for Pings {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Sleeps until a time; an error once `stop` is set.
pub(crate) fn wait_until(until: Instant, stop: &AtomicBool) -> Result<(), String> {
    while !stop.load(Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK));
    }
    Err(INTERRUPTED.into())
}

/// An error of the system in words.
pub(crate) fn words(error: io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> (Service, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (Service::start(listener).unwrap(), address)
    }

    /// Waits until this many bytes have arrived.
    fn wait_for(received: &ReceiveLog, bytes: u64) {
        let start = Instant::now();
        while received.bytes(start - PATIENCE, Instant::now()) < bytes {
            assert_eq!(received.failure(), None);
            assert!(start.elapsed() < PATIENCE, "{received:?}");
            thread::yield_now();
        }
    }

    #[test]
    fn bulk_arrives_either_way_and_is_what_was_sent() {
        let (service, address) = service();
        let down = Bulk::down(connect(address).unwrap()).unwrap();
        wait_for(&down.received, 3 << 20);
        let up = Bulk::up(connect(address).unwrap(), &service).unwrap();
        up.send().unwrap();
        wait_for(&up.received, 3 << 20);
        assert_eq!(down.received.failure(), None);
    }

    #[test]
    fn a_dropped_service_ends_its_connections_and_takes_no_more() {
        let (service, address) = service();
        let down = Bulk::down(connect(address).unwrap()).unwrap();
        wait_for(&down.received, 1);
        drop(service);
        while down.received.failure().is_none() {
            thread::yield_now();
        }
        while connect(address).is_ok() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_changed_byte_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut bytes = PATTERN[..1_000].to_vec();
        bytes[500] ^= 1;
        sender.write_all(&bytes).unwrap();
        drop(sender);
        let received = ReceiveLog::default();
        received.read(&stream);
        assert!(received.failure().unwrap().contains("differ"));
    }

    #[test]
    fn every_message_that_was_due_has_a_time_answered_or_not() {
        let (_service, address) = service();
        assert!(carries(address));
        let stream = connect(address).unwrap();
        Pings::prove(&stream).unwrap();
        let pings = Pings::start(stream, Duration::from_millis(1)).unwrap();
        while pings.answers.lock().unwrap().len() < 5 {
            thread::yield_now();
        }
        // Those of the next hour have not even been sent.
        let times = pings.times(pings.start, pings.start + Duration::from_millis(100));
        assert_eq!(times.len(), 100);
        assert_eq!(
            pings
                .times(
                    pings.start + Duration::from_millis(10),
                    pings.start + Duration::from_millis(12)
                )
                .len(),
            2
        );
    }
}
