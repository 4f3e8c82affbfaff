//! Sends requests on schedule (open loop) or back to back, checks every response byte, and reports
//! when each response completed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::exchange::{Exchange, HEADER_BYTES, PatternBytes, STEP_BYTES};

/// Longest silence while an answer is due, before the way there counts as broken.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Exchanges that are sent and not yet answered, at most, when they follow each other without a
/// pause.
const UNDERWAY: usize = 1024;

/// A request and when it is due, counted from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When it is to be sent.
    pub at: Duration,
    /// What is to be sent.
    pub exchange: Exchange,
}

/// Schedules one exchange `per_second` times a second, evenly, for `time`.
pub fn even(per_second: f64, exchange: Exchange, time: Duration) -> Vec<Due> {
    let count = (time.as_secs_f64() * per_second) as u64;
    let at = |nth: u64| Duration::from_secs_f64((nth as f64 + 0.5) / per_second);
    (0..count).map(|nth| Due { at: at(nth), exchange }).collect()
}

/// What to send.
#[derive(Clone, Debug)]
pub enum Requests {
    /// Each at its time, the earliest first.
    At(Vec<Due>),
    /// One exchange, repeated without a pause for this long. It is due when it can be sent.
    WithoutPause(Exchange, Duration),
}

/// A request whose answer is complete. Times are counted from the start.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// What it was.
    pub exchange: Exchange,
    /// When it was due.
    pub due: Duration,
    /// When the last byte of its answer had come.
    pub at: Duration,
}

impl Answered {
    /// From the moment it was due to its whole answer.
    pub fn latency(&self) -> Duration {
        self.at.saturating_sub(self.due)
    }
}

/// Why an exchange did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// Nobody takes the connection.
    #[error("cannot connect to {0}: {1}")]
    Refused(SocketAddr, #[source] io::Error),
    /// The connection ended, or nothing came for [`PATIENCE`].
    #[error("the benchmark connection was lost: {}", without_number(.0))]
    Stopped(#[source] io::Error),
    /// What came back is not what was sent.
    #[error("response data was corrupted: this is a bug, please report it")]
    Altered,
}

/// An error of the system in its words, without its number.
fn without_number(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

impl Broken {
    /// A thread of ours panicked.
    pub fn fault() -> Self {
        Self::Stopped(io::Error::other("a measurement thread panicked"))
    }
}

/// A connection to a service, past its first exchange. Dropped, it is closed.
#[derive(Debug)]
pub struct Requester {
    stream: TcpStream,
    requests: PatternBytes,
    responses: PatternBytes,
    underway: usize,
    received: Arc<AtomicU64>,
}

impl Requester {
    /// Connects and makes one exchange that does not count: it opens what is behind a forward.
    ///
    /// # Errors
    /// Nobody answers there.
    pub async fn open(address: SocketAddr) -> Result<Self, Broken> {
        blocking(move || {
            let refused = |error| Broken::Refused(address, error);
            let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(refused)?;
            stream.set_nodelay(true).map_err(refused)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(refused)?;
            let (requests, responses) = (PatternBytes::default(), PatternBytes::default());
            let (underway, received) = (UNDERWAY, Arc::default());
            let mut opened = Self { stream, requests, responses, underway, received };
            let first = Exchange::new(0, 0);
            write(&opened.stream, &mut opened.requests, first).map_err(Broken::Stopped)?;
            let first_answer = AtomicU64::new(0);
            read(&opened.stream, &mut opened.responses, first, &first_answer, &mut buffer())?;
            Ok(opened)
        })
        .await
    }

    /// Has no more exchanges under way than so many, so that what is sent without a pause does not
    /// pile up before a slow path.
    #[must_use]
    pub fn at_most(self, underway: usize) -> Self {
        Self { underway, ..self }
    }

    /// Counts the bytes of answers, as each arrives and has been found right. The answer of
    /// [`open`](Self::open) is none of them.
    pub fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }

    /// Sends `requests` and tells `record` of each answer, in order. `start` may lie ahead, so that
    /// several begin together. Dropping the future ends it.
    ///
    /// # Errors
    /// The connection ends, stays silent, or what comes back is not what it has to be.
    pub async fn run<R: Send + 'static>(
        mut self,
        requests: Requests,
        start: Instant,
        mut record: R,
        tell: impl Fn(&mut R, Answered) + Send + 'static,
    ) -> Result<(Self, R), Broken> {
        let unplug = Unplug::of(&self.stream).map_err(Broken::Stopped)?;
        let done = blocking(move || {
            self.exchange(requests, start, |answered| tell(&mut record, answered))?;
            Ok((self, record))
        })
        .await;
        if done.is_ok() {
            unplug.keep();
        }
        done
    }

    /// Makes the same exchange so many times, each when the answer to the one before has come and a
    /// pause has passed (a closed loop); how long each took.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub async fn one_by_one(
        mut self,
        exchange: Exchange,
        count: u32,
        pause: Duration,
    ) -> Result<(Self, Vec<Duration>), Broken> {
        let unplug = Unplug::of(&self.stream).map_err(Broken::Stopped)?;
        let done = blocking(move || {
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let (mut times, mut bytes) = (Vec::with_capacity(count as usize), buffer());
            for _ in 0..count {
                thread::sleep(pause);
                let start = Instant::now();
                write(&self.stream, &mut self.requests, exchange).map_err(Broken::Stopped)?;
                read(&self.stream, &mut self.responses, exchange, &self.received, &mut bytes)?;
                times.push(start.elapsed());
            }
            Ok((self, times))
        })
        .await;
        if done.is_ok() {
            unplug.keep();
        }
        done
    }

    fn exchange(
        &mut self,
        requests: Requests,
        start: Instant,
        mut tell: impl FnMut(Answered),
    ) -> Result<(), Broken> {
        let Self { stream, requests: sent, responses, underway, received } = self;
        let (underway, sending) = mpsc::sync_channel(*underway);
        let mut bytes = buffer();
        thread::scope(|scope| {
            scope.spawn(|| {
                // The reader says why if this fails.
                let _ = send(stream, sent, requests, start, underway);
            });
            for (exchange, due) in sending {
                if let Err(error) = read(stream, responses, exchange, received, &mut bytes) {
                    let _ = stream.shutdown(Shutdown::Both);
                    return Err(error);
                }
                tell(Answered { exchange, due, at: start.elapsed() });
            }
            Ok(())
        })
    }
}

/// Sends each request when it is due and says so beforehand, so that the reader waits for its
/// answer.
fn send(
    stream: &TcpStream,
    pattern: &mut PatternBytes,
    requests: Requests,
    start: Instant,
    underway: mpsc::SyncSender<(Exchange, Duration)>,
) -> io::Result<()> {
    // Wake when asked, not up to 50 us later; refused, all arms are late by as much.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    match requests {
        Requests::At(schedule) => {
            for Due { at, exchange } in schedule {
                thread::sleep((start + at).saturating_duration_since(Instant::now()));
                underway.send((exchange, at)).map_err(gone)?;
                write(stream, pattern, exchange)?;
            }
        }
        Requests::WithoutPause(exchange, time) => {
            thread::sleep(start.saturating_duration_since(Instant::now()));
            while start.elapsed() < time {
                underway.send((exchange, start.elapsed())).map_err(gone)?;
                write(stream, pattern, exchange)?;
            }
        }
    }
    Ok(())
}

fn write(mut stream: &TcpStream, pattern: &mut PatternBytes, exchange: Exchange) -> io::Result<()> {
    let mut left = exchange.request_bytes() - HEADER_BYTES as u64;
    // One write for what fits in one, so that a keystroke is one packet.
    let mut first = Vec::with_capacity(HEADER_BYTES + left.min(STEP_BYTES as u64) as usize);
    first.extend(exchange.header());
    let bytes = pattern.next(left);
    first.extend(bytes);
    stream.write_all(&first)?;
    left -= bytes.len() as u64;
    while left > 0 {
        let bytes = pattern.next(left);
        stream.write_all(bytes)?;
        left -= bytes.len() as u64;
    }
    Ok(())
}

fn read(
    mut stream: &TcpStream,
    pattern: &mut PatternBytes,
    exchange: Exchange,
    received: &AtomicU64,
    buffer: &mut [u8],
) -> Result<(), Broken> {
    let mut left = exchange.response_bytes();
    while left > 0 {
        let most = left.min(buffer.len() as u64) as usize;
        let len = match stream.read(&mut buffer[..most]) {
            Ok(0) => {
                let closed = "the connection was closed";
                return Err(Broken::Stopped(io::Error::new(io::ErrorKind::UnexpectedEof, closed)));
            }
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let silence = format!("no answer in {} s", PATIENCE.as_secs());
                return Err(Broken::Stopped(io::Error::new(io::ErrorKind::TimedOut, silence)));
            }
            Err(error) => return Err(Broken::Stopped(error)),
        };
        if !pattern.matches_next(&buffer[..len]) {
            return Err(Broken::Altered);
        }
        received.fetch_add(len as u64, Relaxed);
        left -= len as u64;
    }
    Ok(())
}

fn buffer() -> Vec<u8> {
    vec![0; STEP_BYTES]
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Broken> + Send + 'static,
) -> Result<T, Broken> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(Broken::fault()))
}

/// Ends the blocking reads and writes of a connection when its owner has gone.
struct Unplug(Option<TcpStream>);

impl Unplug {
    fn of(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self(Some(stream.try_clone()?)))
    }

    /// Leaves the connection as it is.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unplug {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Service;

    /// Answers `requests` over a direct connection to a service.
    async fn answered(requests: Requests) -> Vec<Answered> {
        let service = Service::bind().await.unwrap();
        let address = service.address();
        let serving = tokio::spawn(service.run());
        let requester = Requester::open(address).await.unwrap();
        let (_, answers) =
            requester.run(requests, Instant::now(), Vec::new(), Vec::push).await.unwrap();
        serving.abort();
        answers
    }

    #[tokio::test]
    async fn every_request_is_answered_once_and_in_order() {
        let large = Exchange::new(300_000, 200_000);
        let mut schedule = even(1_000.0, Exchange::new(64, 64), Duration::from_millis(50));
        schedule.push(Due { at: Duration::from_millis(50), exchange: large });
        let answers = answered(Requests::At(schedule.clone())).await;
        let seen: Vec<_> = answers.iter().map(|answer| (answer.due, answer.exchange)).collect();
        let sent: Vec<_> = schedule.iter().map(|due| (due.at, due.exchange)).collect();
        assert_eq!(seen, sent);
        assert!(answers.iter().all(|answer| answer.at >= answer.due));
    }

    #[tokio::test]
    async fn without_a_pause_there_are_requests_until_the_time_is_over() {
        let time = Duration::from_millis(200);
        let answers = answered(Requests::WithoutPause(Exchange::new(1 << 20, 1), time)).await;
        assert!(answers.len() > 1 && answers.iter().all(|answer| answer.due < time));
        assert!(answers.is_sorted_by_key(|answer| answer.at));
    }

    #[tokio::test]
    async fn a_wait_counts_for_every_key_that_was_due_in_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wait = Duration::from_millis(300);
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut key = [0; HEADER_BYTES];
            let mut pattern = PatternBytes::default();
            for nth in 0.. {
                if stream.read_exact(&mut key).is_err() {
                    break;
                }
                if nth == 1 {
                    thread::sleep(wait);
                }
                stream.write_all(pattern.next(1)).unwrap();
            }
        });
        let requester = Requester::open(address).await.unwrap();
        let schedule = even(100.0, Exchange::new(0, 0), Duration::from_millis(200));
        let (_, answers) = requester
            .run(Requests::At(schedule), Instant::now(), Vec::new(), Vec::push)
            .await
            .unwrap();
        // Twenty keys were due while the first one waited: they waited too (no coordinated
        // omission).
        assert_eq!(answers.len(), 20);
        assert!(answers.iter().all(|answer| answer.at >= wait));
        assert!(answers[19].latency() >= Duration::from_millis(100));
    }

    #[tokio::test]
    async fn an_altered_answer_is_told_from_a_lost_one() {
        for (sent, altered) in [(vec![0xFF; 8], true), (Vec::new(), false)] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(PatternBytes::default().next(1)).unwrap();
                stream.read_exact(&mut [0; 2 * HEADER_BYTES]).unwrap();
                stream.write_all(&sent).unwrap();
            });
            let requester = Requester::open(address).await.unwrap();
            let schedule = even(1.0, Exchange::new(16, 8), Duration::from_secs(1));
            let schedule = schedule.into_iter().map(|due| Due { at: Duration::ZERO, ..due });
            let requests = Requests::At(schedule.collect());
            let error = requester.run(requests, Instant::now(), (), |(), _| ()).await.unwrap_err();
            assert_eq!(matches!(error, Broken::Altered), altered, "{error}");
        }
    }
}
