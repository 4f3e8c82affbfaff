//! Serves and queries a daemon's control socket: the client writes a one-line request, the daemon
//! answers with one JSON document and closes. Only the daemon's user can connect (0600 in a 0700
//! directory). Socket files are named by process ID; a new daemon removes stale ones.

pub(crate) mod carry;
pub(crate) mod drain;
pub(crate) mod forwards;
pub(crate) mod runtime_directory;

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keypadd_share::{Bucket, Rate, Waiting};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, getpid, test_kill_process};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::replacement::Message;
use crate::replacement::channel::Channel;
use crate::replacement::give::{self, Program};
use crate::replacement::record;
use crate::status::sources::Sources;

/// Version of what the socket's clients see: docs/control.md. It rises when a request or a field
/// goes or means something else, not when one is added.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

/// Requests the status.
pub(crate) const STATUS_REQUEST: &str = "status";

/// Requests the connections, of all peers or of one (`connections NAME`).
pub(crate) const CONNECTIONS_REQUEST: &str = "connections";

/// Requests the peers.
pub(crate) const PEERS_REQUEST: &str = "peers";

/// Requests a reload.
pub(crate) const RELOAD_REQUEST: &str = "reload";

/// Begins a request about forwards (`forward`).
pub(crate) const FORWARD_REQUEST: &str = "forward";

/// Begins a request about whether the server is drained (`drain`).
pub(crate) const DRAIN_REQUEST: &str = "drain";

/// Begins a request to carry a connection (`carry`).
pub(crate) const CARRY_REQUEST: &str = "carry";

/// Timeout of a reload, which may resolve names and wait for earlier ones.
pub(crate) const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon that reports its status.
pub(crate) trait Status: Clone + Send + Sync + 'static {
    /// The command it runs.
    fn verb(&self) -> &'static str;

    /// The status as JSON.
    fn document(&self) -> serde_json::Result<Vec<u8>>;

    /// The connections of this peer, or of all, as JSON.
    fn connections(&self, peer: Option<&str>) -> serde_json::Result<Vec<u8>>;

    /// The peers in force, as JSON.
    fn peers(&self) -> serde_json::Result<Vec<u8>>;
}

/// Asks to be replaced by a new process; with a device and inode, only if the daemon runs another
/// program. `replacement` describes what follows.
pub(crate) const REPLACE_REQUEST: &str = "replace";

/// An answer, perhaps to several requests.
pub(crate) type Answer = Arc<Value>;

/// The requests that a daemon answers besides those for its status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    /// To reload its file; the receiver of a queued request sends the answer.
    pub(crate) reload: Option<mpsc::Sender<oneshot::Sender<Answer>>>,
    /// About its forwards.
    pub(crate) forward: Option<ForwardRequests>,
    /// To be replaced by a new process.
    pub(crate) replace: Option<mpsc::Sender<give::Request>>,
    /// To carry connections to the peers that it connects to.
    pub(crate) carry: Option<Sources>,
    /// To drain its server.
    pub(crate) drain: Option<Sources>,
}

/// Where requests about forwards are queued, each with a sender for the answer.
pub(crate) type ForwardRequests = mpsc::Sender<(String, oneshot::Sender<Answer>)>;

/// Longest request, including its newline: a forward from path to path.
const REQUEST_BYTES_MAX: u64 = 512;

/// Longest answer: the status of 16,384 sessions takes about 16 MiB and 100 bytes for each of their
/// forwards; a reload's answer has a line for each change or each fault, and this is room for
/// 400,000. Parsed, an answer takes up to 85 times its length of memory.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Timeout for reading a request and for writing an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Connections at once; more wait. One that has sent no request makes room, so there are more
/// places than programs that ask at the same time.
pub(crate) const CONNECTIONS_MAX: usize = 128;

/// Requests of a kind that wait for the daemon; more are refused, so that there are always places
/// for others.
pub(crate) const WAITING_MAX: usize = CONNECTIONS_MAX / 4;

/// How the name of a socket's file ends.
const SOCKET_EXTENSION: &str = "sock";

/// Most daemons in one process, as in tests.
const DAEMONS_MAX: u32 = 64;

/// Held while a daemon of this process binds, so that another does not take a socket that is bound
/// but not yet listening for a stale one.
static BINDING: Mutex<()> = Mutex::new(());

/// A bound control socket; dropping it removes its file.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Binds a socket in the directory, creating it if it is missing.
    ///
    /// # Errors
    /// The directory cannot be created or the socket cannot be bound.
    pub(crate) fn bind(directory: &Path) -> io::Result<Self> {
        runtime_directory::prepare(directory)?;
        let _turn = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
        remove_stale(directory);
        let pid = process::id();
        let names = (1..=DAEMONS_MAX).map(|nth| match nth {
            1 => format!("{pid}.{SOCKET_EXTENSION}"),
            nth => format!("{pid}-{nth}.{SOCKET_EXTENSION}"),
        });
        for path in names.map(|name| directory.join(name)) {
            match UnixListener::bind(&path) {
                Ok(listener) => {
                    let socket = Self { listener, path };
                    fs::set_permissions(&socket.path, Permissions::from_mode(0o600))?;
                    return Ok(socket);
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AddrInUse.into())
    }

    /// The socket's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Answers requests until dropped. A panic affects only the request that caused it, whose
    /// answer is empty.
    pub(crate) async fn serve(self, status: impl Status, requests: Requests) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        // Those that have sent no request.
        let mut silent = Waiting::default();
        let mut log_limit = Bucket::FULL;
        loop {
            match self.listener.accept().await {
                Ok((client, _)) => {
                    if slots.available_permits() == 0 {
                        silent.displace();
                    }
                    let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
                    let displaced = silent.add(());
                    let (status, requests) = (status.clone(), requests.clone());
                    tokio::spawn(async move {
                        let _ = answer(client, displaced, &status, &requests).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    if log_limit.take(Rate::ONE_A_MINUTE, Instant::now()).is_ok() {
                        tracing::warn!(%error, "control socket: accept failed");
                    }
                    match silent.displace() {
                        // It closes its file.
                        true => tokio::task::yield_now().await,
                        false => tokio::time::sleep(TIMEOUT).await,
                    }
                }
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Answers a request, unless the connection is displaced before it has sent one.
async fn answer(
    client: UnixStream,
    displaced: oneshot::Receiver<()>,
    status: &impl Status,
    requests: &Requests,
) -> io::Result<()> {
    let (reader, mut writer) = client.into_split();
    let mut request = String::new();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX));
    tokio::select! {
        biased;
        read = timeout(TIMEOUT, reader.read_line(&mut request)) => drop(read??),
        _ = displaced => return Ok(()),
    }
    let request = request.trim_end();
    let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
    let document = match (verb, requests) {
        (STATUS_REQUEST, _) => status.document()?,
        (PEERS_REQUEST, _) => status.peers()?,
        (CONNECTIONS_REQUEST, _) => {
            status.connections(Some(rest).filter(|name| !name.is_empty()))?
        }
        (RELOAD_REQUEST, Requests { reload: Some(queue), .. }) => {
            serde_json::to_vec(&*queued(queue, |answer| answer).await)?
        }
        (REPLACE_REQUEST, Requests { replace: Some(queue), .. }) => {
            let unless = Program::read(rest);
            let socket = reunite(reader, writer)?;
            // The daemon drops it when it shuts down, which the other end sees.
            return match queue.try_send(give::Request { socket, unless }) {
                Err(TrySendError::Full(give::Request { socket, .. })) => {
                    Channel::new(socket)?.end_with(&Message::Continues);
                    Ok(())
                }
                _ => Ok(()),
            };
        }
        (CARRY_REQUEST, Requests { carry: Some(sources), .. }) => {
            let answered = carry::answer(reunite(reader, writer)?, rest, sources);
            return timeout(TIMEOUT, answered).await?;
        }
        (DRAIN_REQUEST, Requests { drain, .. }) => {
            serde_json::to_vec(&drain::answer(rest, drain.as_ref(), status.verb()))?
        }
        (RELOAD_REQUEST, _) => serde_json::to_vec(&json!({ "no_file": status.verb() }))?,
        (FORWARD_REQUEST, requests) => serde_json::to_vec(&*match &requests.forward {
            Some(queue) => queued(queue, |answer| (rest.to_owned(), answer)).await,
            None => json!({ "error": "this daemon cannot change forwards" }).into(),
        })?,
        _ => serde_json::to_vec(&json!({ "error": "unknown request" }))?,
    };
    let written = async {
        writer.write_all(&document).await?;
        writer.shutdown().await
    };
    timeout(TIMEOUT, written).await?
}

/// The request's socket, for the exchange that follows. The other end sends nothing after the line
/// until it gets an answer.
fn reunite(
    reader: BufReader<Take<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
) -> io::Result<StdUnixStream> {
    let reader = reader.into_inner().into_inner();
    reader.reunite(writer).map_err(io::Error::other)?.into_std()
}

/// Queues a request for the daemon, unless too many wait, and returns its answer.
async fn queued<T>(
    queue: &mpsc::Sender<T>,
    request: impl FnOnce(oneshot::Sender<Answer>) -> T,
) -> Answer {
    let (sender, answer) = oneshot::channel();
    let asked = async {
        queue.try_send(request(sender)).ok()?;
        answer.await.ok()
    };
    match timeout(RELOAD_TIMEOUT, asked).await {
        Ok(Some(outcome)) => outcome,
        _ => json!({ "error": "the daemon is shutting down or too busy" }).into(),
    }
}

/// Reads until a deadline; then fails as a read that has timed out.
struct ReadUntil {
    stream: StdUnixStream,
    deadline: Instant,
}

impl Read for ReadUntil {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

/// Sends a request to the daemon of a socket. The whole answer must arrive within `timeout`.
///
/// # Errors
/// No daemon listens, it does not answer in time, or its answer is invalid: `InvalidData` if it is
/// too long or not the JSON expected.
pub(crate) fn ask<A: DeserializeOwned>(
    path: &Path,
    request: &str,
    timeout: Duration,
) -> io::Result<A> {
    let deadline = Instant::now() + timeout;
    let mut stream = connect(path)?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    ReadUntil { stream, deadline }.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut answer)?;
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, "longer than 64 MiB"));
    }
    Ok(serde_json::from_slice(&answer)?)
}

/// Connects without blocking: a stopped daemon's queue may be full, which would block forever and
/// is `WouldBlock` here.
///
/// # Errors
/// The socket does not exist, no process listens or the queue is full.
pub(crate) fn connect(path: &Path) -> io::Result<StdUnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = StdUnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether a daemon listens on a socket.
pub(crate) fn is_listening(path: &Path) -> bool {
    // `WouldBlock`: its queue is full.
    connect(path).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |_| true)
}

/// Removes what processes left that were killed.
fn remove_stale(directory: &Path) {
    let remove = |path: &PathBuf| {
        let _ = fs::remove_file(path);
    };
    let sockets = runtime_directory::files(directory, SOCKET_EXTENSION);
    sockets.iter().filter(|path| is_stale(path)).for_each(remove);
    let is_without_process = |path: &&PathBuf| {
        let process_is_gone = process_of(path).is_some_and(is_gone);
        process_is_gone && !path.with_extension(SOCKET_EXTENSION).exists()
    };
    let records = runtime_directory::files(directory, record::EXTENSION);
    records.iter().filter(is_without_process).for_each(remove);
}

/// Whether a socket is stale: no process listens, and the process that the file is named after does
/// not exist or is this one (containers reuse process IDs). The second check spares another process
/// between bind and listen; [`BINDING`] spares this one.
fn is_stale(path: &Path) -> bool {
    let refused = connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    refused && process_of(path).is_none_or(|pid| pid == getpid() || is_gone(pid))
}

/// The process that a socket or record is named after.
fn process_of(path: &Path) -> Option<Pid> {
    let stem = path.file_stem()?.to_string_lossy();
    stem.split('-').next()?.parse().ok().and_then(Pid::from_raw)
}

fn is_gone(process: Pid) -> bool {
    test_kill_process(process) == Err(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::thread;

    use tokio::task::spawn_blocking;

    use super::*;

    /// A daemon whose status panics this many times.
    #[derive(Clone)]
    struct Panics(Arc<AtomicUsize>);

    impl Status for Panics {
        fn verb(&self) -> &'static str {
            "serve"
        }

        fn document(&self) -> serde_json::Result<Vec<u8>> {
            let left = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            assert!(left.is_err(), "this status fails, as the test wants it");
            Ok(b"{}".to_vec())
        }

        fn connections(&self, _: Option<&str>) -> serde_json::Result<Vec<u8>> {
            Ok(b"{}".to_vec())
        }

        fn peers(&self) -> serde_json::Result<Vec<u8>> {
            Ok(b"{}".to_vec())
        }
    }

    #[test]
    fn an_answer_that_comes_in_small_pieces_has_one_deadline() {
        // All of it takes longer than the deadline, and each piece much less.
        const PIECES: usize = 300;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slow.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let answering = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            for _ in 0..PIECES {
                thread::sleep(Duration::from_millis(10));
                if client.write_all(b" ").is_err() {
                    // The deadline is over.
                    break;
                }
            }
        });
        let error = ask::<Value>(&path, STATUS_REQUEST, Duration::from_millis(500)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        answering.join().unwrap();
    }

    #[test]
    fn an_answer_that_is_too_long_is_refused_as_such() {
        const LONGEST: u64 = 64 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("long.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for (length, expected) in
            [(LONGEST, Ok(json!(1))), (LONGEST + 1, Err("longer than 64 MiB"))]
        {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut client, _) = listener.accept().unwrap();
                    client.read_exact(&mut [0; STATUS_REQUEST.len() + 1]).unwrap();
                    let mut answer = vec![b' '; length as usize];
                    *answer.last_mut().unwrap() = b'1';
                    let _ = client.write_all(&answer);
                });
                let answer = ask::<Value>(&path, STATUS_REQUEST, RELOAD_TIMEOUT);
                let answer = answer.map_err(|error| error.to_string());
                assert_eq!(answer, expected.map_err(str::to_owned));
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_send_nothing_or_wait_for_the_daemon_do_not_delay_a_request() {
        for said in ["", "replace\n", "reload\n", "forward\n"] {
            let directory = tempfile::tempdir().unwrap();
            let socket = ControlSocket::bind(directory.path()).unwrap();
            let path = socket.path().to_owned();
            // Another one is being answered.
            let (replace, _to_replace) = mpsc::channel(1);
            let (reload, _to_reload) = mpsc::channel(1);
            let (forward, _to_forward) = mpsc::channel(1);
            let requests = Requests {
                reload: Some(reload),
                forward: Some(forward),
                replace: Some(replace),
                ..Requests::default()
            };
            let serving = tokio::spawn(socket.serve(Panics(Arc::default()), requests));
            let ask = async |request: &str| {
                let mut client = UnixStream::connect(&path).await.unwrap();
                client.write_all(request.as_bytes()).await.unwrap();
                client
            };
            let began = tokio::time::Instant::now();
            let mut others = Vec::new();
            for _ in 0..=CONNECTIONS_MAX {
                others.push(ask(said).await);
            }
            let mut answer = String::new();
            let answered = async { ask("status\n").await.read_to_string(&mut answer).await };
            let _ = timeout(RELOAD_TIMEOUT, answered).await;
            assert_eq!((&*answer, began.elapsed()), ("{}", Duration::ZERO), "{said}");
            serving.abort();
        }
    }

    #[test]
    fn the_page_on_the_control_socket_has_its_version_and_every_request() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control.md");
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains(&format!("Version {PROTOCOL_VERSION}\n")));
        for request in [
            STATUS_REQUEST,
            CONNECTIONS_REQUEST,
            PEERS_REQUEST,
            RELOAD_REQUEST,
            FORWARD_REQUEST,
            DRAIN_REQUEST,
            CARRY_REQUEST,
            REPLACE_REQUEST,
        ] {
            let row = format!("| `{request}");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[tokio::test]
    async fn a_panicking_status_fails_only_its_own_request_however_often() {
        let directory = tempfile::tempdir().unwrap();
        let socket = ControlSocket::bind(directory.path()).unwrap();
        let path = socket.path().to_owned();
        let panics = 2 * CONNECTIONS_MAX;
        let status = Panics(Arc::new(AtomicUsize::new(panics)));
        let serving = tokio::spawn(socket.serve(status, Requests::default()));
        let ask = |request: &'static str| {
            let path = path.clone();
            spawn_blocking(move || ask::<Value>(&path, request, RELOAD_TIMEOUT))
        };
        for _ in 0..panics {
            ask(STATUS_REQUEST).await.unwrap().unwrap_err();
            assert_eq!(ask(RELOAD_REQUEST).await.unwrap().unwrap(), json!({ "no_file": "serve" }));
        }
        assert_eq!(ask(STATUS_REQUEST).await.unwrap().unwrap(), json!({}));
        assert!(!serving.is_finished());
        serving.abort();
    }
}
