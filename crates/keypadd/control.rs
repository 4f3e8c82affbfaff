//! The control socket of a daemon: a client writes one line that says what it wants, the daemon answers
//! with one JSON document and closes. Only the daemon's user can connect (0600 in a 0700 directory).
//! One file per daemon, named by process; what dead daemons left is removed.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, geteuid, getpid, test_kill_process};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::figures::Figures;

/// Asks for the figures.
pub(crate) const STATUS_REQUEST: &str = "status";

/// Asks for the configuration to be read again.
pub(crate) const RELOAD_REQUEST: &str = "reload";

/// A reload may resolve names and wait for others before it.
pub(crate) const RELOAD_PATIENCE: Duration = Duration::from_secs(60);

/// What a daemon can be asked for.
#[derive(Clone, Debug)]
pub(crate) enum Requests {
    /// Its figures.
    Status,
    /// A reload as well; whoever takes the request from the queue sends the answer.
    Reload(mpsc::Sender<oneshot::Sender<Value>>),
}

/// Longest request, its newline included.
const REQUEST_BYTES_MAX: u64 = 256;

/// No answer is longer: a daemon with a thousand sessions needs about 1 MiB for its figures; a reload
/// says a line for each change, or for each fault of a file of 1 MiB.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A client says what it wants, and takes the answer, within this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Daemons of one process, as in tests.
const DAEMONS_MAX: u32 = 64;

/// Held while a daemon of this process binds, so that no other takes a socket that is bound and not
/// listening yet for one left behind.
static BINDING: Mutex<()> = Mutex::new(());

/// A bound control socket; its file goes when it is dropped.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// Where daemons of this user have their sockets; `None` where the system gives them no place.
pub(crate) fn directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(given) = variable("RUNTIME_DIRECTORY") {
        // systemd gives a list when a unit names several (systemd.exec(5)).
        let given = given.to_string_lossy();
        return given.split(':').next().map(PathBuf::from);
    }
    if geteuid().is_root() {
        return Some("/run/keypadd".into());
    }
    variable("XDG_RUNTIME_DIR").map(|given| PathBuf::from(given).join("keypadd"))
}

/// The sockets in a directory, by name.
pub(crate) fn sockets(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    paths.sort();
    paths
}

impl ControlSocket {
    /// Binds a socket in the directory, which is made if it is missing.
    ///
    /// # Errors
    /// When the directory cannot be made or the socket cannot be bound there.
    pub(crate) fn bind(directory: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let _turn = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
        sockets(directory).iter().filter(|path| is_stale(path)).for_each(|path| {
            let _ = fs::remove_file(path);
        });
        let pid = process::id();
        let names = (1..=DAEMONS_MAX).map(|nth| match nth {
            1 => format!("{pid}.sock"),
            nth => format!("{pid}-{nth}.sock"),
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

    /// Answers until it is dropped, also while the daemon ends.
    pub(crate) async fn serve(self, figures: Figures, requests: Requests) {
        loop {
            match self.listener.accept().await {
                Ok((client, _)) => {
                    // A client that does not read harms nobody: its answer has a time limit.
                    let (figures, requests) = (figures.clone(), requests.clone());
                    tokio::spawn(async move {
                        let _ = answer(client, &figures, &requests).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "control socket: cannot accept");
                    tokio::time::sleep(PATIENCE).await;
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

async fn answer(client: UnixStream, figures: &Figures, requests: &Requests) -> io::Result<()> {
    let (reader, mut writer) = client.into_split();
    let mut request = String::new();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX));
    timeout(PATIENCE, reader.read_line(&mut request)).await??;
    let document = match (request.trim_end(), requests) {
        (STATUS_REQUEST, _) => serde_json::to_vec(&figures.report())?,
        (RELOAD_REQUEST, Requests::Reload(queue)) => serde_json::to_vec(&reload(queue).await)?,
        (RELOAD_REQUEST, Requests::Status) => {
            serde_json::to_vec(&json!({ "no_file": figures.verb }))?
        }
        _ => serde_json::to_vec(&json!({ "error": "unknown request" }))?,
    };
    let written = async {
        writer.write_all(&document).await?;
        writer.shutdown().await
    };
    timeout(PATIENCE, written).await?
}

/// Has the daemon reload, and says how it went.
async fn reload(queue: &mpsc::Sender<oneshot::Sender<Value>>) -> Value {
    let (sender, answer) = oneshot::channel();
    let asked = async {
        queue.send(sender).await.ok()?;
        answer.await.ok()
    };
    match timeout(RELOAD_PATIENCE, asked).await {
        Ok(Some(outcome)) => outcome,
        _ => json!({ "error": "the daemon is about to end, or too busy" }),
    }
}

/// Asks the daemon behind a socket. `patience` bounds each read and write.
///
/// # Errors
/// When nobody listens there or takes the request in time, and when the answer is late or not
/// understood.
pub(crate) fn ask<A: DeserializeOwned>(
    path: &Path,
    request: &str,
    patience: Duration,
) -> io::Result<A> {
    let mut stream = connect(path)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Connects without waiting. A stopped daemon's queue may be full, which is `WouldBlock` here and would
/// be for ever otherwise.
///
/// # Errors
/// When there is no such socket, nobody listens or the queue is full.
fn connect(path: &Path) -> io::Result<StdUnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = StdUnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether the daemon behind a socket is gone: nobody listens, and its process, which the file is
/// named after, does not exist or is this one (in a container process numbers come again). The second
/// test spares another process between its bind and its listen; [`BINDING`] spares this one.
fn is_stale(path: &Path) -> bool {
    let refused = connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let pid = stem.split('-').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let gone = pid.is_none_or(|pid: Pid| {
        pid == getpid() || test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
    });
    refused && gone
}
