//! Transfers pseudorandom data both ways and compares every byte. Fails on corruption, not on a
//! reset.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A connection with no progress for this long hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Bytes between two pauses.
const CHUNK_BYTES: usize = 16 << 10;

/// What to transfer over a connection. Sent first, so that the target knows it too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) seed: u64,
    pub(crate) up_bytes: usize,
    pub(crate) down_bytes: usize,
    /// Pause after each 16 KiB, in each direction.
    pub(crate) pause: Duration,
}

/// Bytes of a [`Job`] on the wire.
const JOB_BYTES: usize = 32;

/// How a connection may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every byte arrived, both ways, and then the end of the stream.
    Exact,
    /// It was reset.
    Reset,
}

/// Why one direction ended before it was complete.
#[derive(Debug)]
enum Broken {
    Reset,
    /// Fails the test unless the other direction was reset: one of them sees the reset first.
    EndedEarly,
}

impl Job {
    /// The same amount each way, at full speed.
    pub(crate) fn each_way(seed: u64, bytes: usize) -> Self {
        Self { seed, up_bytes: bytes, down_bytes: bytes, pause: Duration::ZERO }
    }

    fn to_bytes(self) -> [u8; JOB_BYTES] {
        let pause = self.pause.as_micros() as u64;
        let fields = [self.seed, self.up_bytes as u64, self.down_bytes as u64, pause];
        fields.map(u64::to_be_bytes).concat().try_into().unwrap()
    }

    fn from_bytes(bytes: [u8; JOB_BYTES]) -> Self {
        let field =
            |index: usize| u64::from_be_bytes(bytes[index * 8..][..8].try_into().unwrap()) as usize;
        let pause = Duration::from_micros(field(3) as u64);
        Self { seed: field(0) as u64, up_bytes: field(1), down_bytes: field(2), pause }
    }

    fn up(self) -> Vec<u8> {
        text(self.seed, self.up_bytes)
    }

    fn down(self) -> Vec<u8> {
        text(!self.seed, self.down_bytes)
    }
}

fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut text = vec![0; bytes];
    Rng::with_seed(seed).fill(&mut text);
    text
}

/// Runs a job through the tunnel's listener.
///
/// # Panics
/// On a wrong byte, on an early end of stream, and when nothing moves for a minute.
pub(crate) async fn exchange(listener: SocketAddr, job: Job) -> Outcome {
    let stream = timeout(HANG, TcpStream::connect(listener)).await.expect("the listener hangs");
    let mut stream = stream.expect("the listener accepts on any network");
    let (mut source, mut sink) = stream.split();
    let (up, down) = (job.up(), job.down());
    let upward = async {
        moved(sink.write_all(&job.to_bytes())).await?;
        write(&mut sink, &up, job.pause).await
    };
    let (upward, downward) = tokio::join!(upward, read(&mut source, &down));
    judge(job, upward, downward)
}

fn judge(job: Job, one: Result<(), Broken>, other: Result<(), Broken>) -> Outcome {
    match (one, other) {
        (Ok(()), Ok(())) => Outcome::Exact,
        (Err(Broken::Reset), _) | (_, Err(Broken::Reset)) => Outcome::Reset,
        (one, other) => panic!("truncated data ended as complete: {one:?} {other:?} {job:?}"),
    }
}

async fn moved<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, Broken> {
    timeout(HANG, step).await.expect("nothing moved for a minute").map_err(|_| Broken::Reset)
}

async fn write(sink: &mut WriteHalf<'_>, text: &[u8], pause: Duration) -> Result<(), Broken> {
    let mut pauses = (!pause.is_zero()).then(|| tokio::time::interval(pause));
    for chunk in text.chunks(CHUNK_BYTES) {
        if let Some(pauses) = &mut pauses {
            pauses.tick().await;
        }
        let mut rest = chunk;
        while !rest.is_empty() {
            let written = moved(sink.write(rest)).await?;
            rest = &rest[written..];
        }
    }
    moved(sink.shutdown()).await
}

/// Reads to the end of the stream and compares.
async fn read(source: &mut ReadHalf<'_>, text: &[u8]) -> Result<(), Broken> {
    let mut buffer = vec![0; 64 << 10];
    let mut rest = text;
    loop {
        let bytes = moved(source.read(&mut buffer)).await?;
        if bytes == 0 {
            return if rest.is_empty() { Ok(()) } else { Err(Broken::EndedEarly) };
        }
        assert!(bytes <= rest.len(), "{} bytes too many", bytes - rest.len());
        let position = text.len() - rest.len();
        assert!(rest[..bytes] == buffer[..bytes], "wrong bytes after {position}");
        rest = &rest[bytes..];
    }
}

/// The service behind the server: runs any number of jobs at once.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    exact: Arc<AtomicU64>,
    serving: JoinHandle<()>,
}

impl Target {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let exact = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&exact);
        let serving = tokio::spawn(async move {
            let mut jobs = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (stream, counted) = (accepted.unwrap().0, Arc::clone(&counted));
                        jobs.spawn(async move {
                            if serve(stream).await == Outcome::Exact {
                                counted.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                    }
                    // A failed job fails the test through `Target::exact`.
                    Some(done) = jobs.join_next() => done.unwrap(),
                }
            }
        });
        Self { address, exact, serving }
    }

    /// Number of jobs that received every byte and then the end of the stream.
    ///
    /// # Panics
    /// If any job received wrong bytes or an early end of stream.
    pub(crate) fn exact(&self) -> u64 {
        assert!(!self.serving.is_finished(), "a job of the target failed");
        self.exact.load(Ordering::Relaxed)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream) -> Outcome {
    let (mut source, mut sink) = stream.split();
    let mut job = [0; JOB_BYTES];
    // The job header itself may be cut off, but then by a reset.
    match source.read_exact(&mut job).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            panic!("truncated data ended as complete: a job header")
        }
        Err(_) => return Outcome::Reset,
    }
    let job = Job::from_bytes(job);
    let (up, down) = (job.up(), job.down());
    let (downward, upward) =
        tokio::join!(write(&mut sink, &down, job.pause), read(&mut source, &up));
    judge(job, upward, downward)
}
