//! Asks a running daemon to carry the connection of `keypadd connect @NAME -W` if it has a session
//! with that peer, so that many `ssh` sessions share one tunnel. The daemon's side is in `carry`.
//!
//! Copies between standard input and output and the socket that the daemon passes.

use std::io::{self, Write};
use std::mem;
use std::net;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use keypadd_cli::error::{Error, Exit, one_line};
use keypadd_cli::refusal::explain;
use keypadd_cli::shutdown::Shutdown;
use keypadd_keystream::{Class, Suite};
use keypadd_tunnel::wire::StreamCode;
use keypadd_tunnel::{ClientError, Target, proxy_protocol};
use rustix::process::geteuid;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, stdin};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::stdio::{self, ClosingStdout};
use crate::control::carry::{CarryReply, CarryRequest};
use crate::control::runtime_directory;
use crate::control::{self, CARRY_REQUEST};
use crate::daemon::confine::Confinement;
use crate::daemon::ready::suite_with_class;
use crate::replacement::channel::{Channel, Received};

/// How long all daemons together may take to say whether they can carry the connection: a stopped
/// one never answers, and the others wait two seconds for a request. Only one is asked at a time,
/// as it then connects.
const ANSWERS_TIMEOUT: Duration = Duration::from_millis(1500);

/// How long it may take to report the target's answer, more than the tunnel's own timeouts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// What a command asks of the daemons of its user.
#[derive(Debug)]
pub(crate) struct CarryClient {
    pub(crate) request: CarryRequest,
    /// Whether the target gets a PROXY header first.
    pub(crate) sends_header: bool,
    /// Connected to the daemons.
    daemons: Vec<StdUnixStream>,
}

/// A connection that a daemon carries.
struct CarriedConnection {
    /// Messages from the daemon; closed when it exits.
    replies: mpsc::Receiver<CarryReply>,
    /// Bytes from and to the target.
    data: UnixStream,
    /// The daemon's end: while this is open, `data` ends only when the daemon says so.
    other: StdUnixStream,
}

impl CarryClient {
    /// Nobody is asked before [`CarryClient::connect_to_daemons`].
    pub(crate) fn new(request: CarryRequest, sends_header: bool) -> Self {
        Self { request, sends_header, daemons: Vec::new() }
    }

    /// Connects to the daemons of this user. Comes before the sandbox, in which root cannot connect
    /// to those that run as another user.
    pub(crate) fn connect_to_daemons(&mut self) {
        // Root's directories belong to the service, which may run as another user.
        let is_trusted =
            |path: &PathBuf| geteuid().is_root() || runtime_directory::check(path).is_ok();
        for directory in runtime_directory::all().into_iter().filter(is_trusted) {
            for socket in runtime_directory::sockets(&directory) {
                match control::connect(&socket) {
                    Ok(daemon) => self.daemons.push(daemon),
                    Err(error) => not_reused(&error),
                }
            }
        }
    }

    /// Has a daemon carry the connection until it ends; `None` if none can, and nothing was sent.
    ///
    /// # Errors
    /// As without a daemon. Exit 1: the daemon has exited.
    pub(crate) async fn run(
        mut self,
        confinement: &Confinement,
        shutdown: &Shutdown,
    ) -> Option<Result<(), Error>> {
        let daemons = mem::take(&mut self.daemons);
        let connected = tokio::select! {
            biased;
            _ = shutdown.requested() => return Some(interrupted(&self.request.target)),
            connected = self.connect(daemons) => connected?,
        };
        Some(match connected {
            Ok(carried) => match confinement.seal() {
                Ok(()) => carried.run(&self, shutdown).await,
                Err(error) => Err(error),
            },
            Err(code) => Err(self.refused(code)),
        })
    }

    /// The connection over the first daemon that can carry it, or the code with which the server
    /// refused it.
    async fn connect(
        &self,
        daemons: Vec<StdUnixStream>,
    ) -> Option<Result<CarriedConnection, StreamCode>> {
        let until = Instant::now() + ANSWERS_TIMEOUT;
        let mut daemons = daemons.into_iter();
        let (daemon, suite) = loop {
            // What the others have left is shared by those that remain.
            let remaining = u32::try_from(daemons.len().max(1)).unwrap_or(u32::MAX);
            let share = until.saturating_duration_since(Instant::now()) / remaining;
            match self.ask(daemons.next()?, share).await {
                Ok(Some(found)) => break found,
                Ok(None) => {}
                Err(error) => not_reused(&error),
            }
        };
        // The others need not wait for a request.
        drop(daemons);
        self.connected(daemon, &suite).await.unwrap_or_else(|error| {
            not_reused(&error);
            None
        })
    }

    /// Asks one daemon; if it can carry the connection, returns it with the suite of its session.
    async fn ask(
        &self,
        mut daemon: StdUnixStream,
        within: Duration,
    ) -> io::Result<Option<(Channel, String)>> {
        daemon.write_all(format!("{CARRY_REQUEST} {}\n", self.request.line()).as_bytes())?;
        let mut daemon = Channel::new(daemon)?;
        Ok(match receive(&mut daemon, within).await?.frame {
            CarryReply::Connecting(suite) => Some((daemon, suite)),
            _ => None,
        })
    }

    /// Waits until the daemon has connected to the target.
    async fn connected(
        &self,
        mut daemon: Channel,
        suite: &str,
    ) -> io::Result<Option<Result<CarriedConnection, StreamCode>>> {
        let received = receive(&mut daemon, CONNECT_TIMEOUT).await?;
        match received.frame {
            CarryReply::Connected => {}
            CarryReply::Refused(code) => return Ok(Some(Err(StreamCode::from_value(code)))),
            // Its session has just been lost.
            _ => return Ok(None),
        }
        let [data, other] = received.descriptors.take()?;
        if let Ok(suite) = suite.parse::<Suite>()
            && suite.class() == Class::Legacy
        {
            // `-W` prints no ready lines, which would show this.
            tracing::warn!("suite {}", suite_with_class(suite));
        }
        let data = StdUnixStream::from(data);
        data.set_nonblocking(true)?;
        let data = UnixStream::from_std(data)?;
        let (sender, replies) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok(received) = daemon.receive_as().await {
                if sender.send(received.frame).await.is_err() {
                    return;
                }
            }
        });
        Ok(Some(Ok(CarriedConnection { replies, data, other: other.into() })))
    }

    fn refused(&self, code: StreamCode) -> Error {
        let target = self.request.target.clone();
        self.explain(ClientError::Refused { target, code })
    }

    fn failed_here(&self, error: io::Error) -> Error {
        self.explain(ClientError::Local(error))
    }

    fn explain(&self, error: ClientError) -> Error {
        explain(error, self.request.own, &self.request.peers)
    }

    /// The error for the daemon's last message; `None` if it exited without one.
    fn failure(&self, reply: Option<CarryReply>) -> Error {
        match reply {
            Some(CarryReply::Refused(code)) => self.refused(StreamCode::from_value(code)),
            Some(CarryReply::Lost(cause)) => Error::new(Exit::Runtime, one_line(&cause)),
            _ => {
                let target = &self.request.target;
                let cause = "the daemon that carried it has exited";
                Error::new(Exit::Runtime, format!("connection to {target} lost: {cause}"))
                    .hint("run it again; without a daemon it makes its own tunnel")
            }
        }
    }
}

impl CarriedConnection {
    /// Copies until both directions have finished, or the daemon says that the connection has
    /// failed.
    async fn run(self, reuse: &CarryClient, shutdown: &Shutdown) -> Result<(), Error> {
        let Self { mut replies, mut data, other } = self;
        let target = &reuse.request.target;
        let header = match reuse.sends_header {
            true => &proxy_protocol::LOCAL_HEADER[..],
            false => &[],
        };
        let mut input = header.chain(stdin());
        // Borrowed halves: dropping them does not end the output, so every end is intentional.
        let (mut from_target, mut to_target) = data.split();
        let outward = async {
            let copied = copy(&mut input, &mut to_target).await;
            let _ = to_target.shutdown().await;
            copied
        };
        let inward = async {
            let mut output = ClosingStdout::new();
            copy(&mut from_target, &mut output).await?;
            Ok::<_, io::Error>(output)
        };
        let (mut outward, mut inward) = (pin!(outward), pin!(inward));
        let (mut sending, mut receiving) = (true, true);
        let mut other = Some(other);
        // Why it failed; data that has arrived is written first.
        let mut failed: Option<Error> = None;
        loop {
            let is_told = other.is_some();
            tokio::select! {
                biased;
                _ = shutdown.requested() => return interrupted(target),
                news = replies.recv(), if is_told => match news {
                    Some(CarryReply::Closed) if receiving => {
                        let finishing = async { finish(inward.as_mut().await).await };
                        return tokio::select! {
                            biased;
                            _ = shutdown.requested() => interrupted(target),
                            finished = finishing => finished.map_err(|e| reuse.failed_here(e)),
                        };
                    }
                    Some(CarryReply::Closed) => return Ok(()),
                    news => {
                        failed = Some(reuse.failure(news));
                        sending = false;
                        // No more data comes: end it after what has arrived.
                        if let Some(other) = other.take() {
                            let _ = other.shutdown(net::Shutdown::Write);
                        }
                    }
                },
                received = &mut inward, if receiving => {
                    receiving = false;
                    // After a failure, leave standard output open: its reader would take an end of
                    // file for the target's.
                    let finished = match received {
                        Ok(_) if failed.is_some() => Ok(()),
                        received => finish(received).await,
                    };
                    finished.map_err(|error| reuse.failed_here(error))?;
                }
                sent = &mut outward, if sending => {
                    sending = false;
                    // If the target stops reading, the daemon reports it.
                    match sent {
                        Err(error) if !is_of_socket(&error) => return Err(reuse.failed_here(error)),
                        _ => {}
                    }
                }
            }
            if let Some(error) = failed.take_if(|_| !receiving) {
                return Err(error);
            }
        }
    }
}

fn not_reused(error: &io::Error) {
    tracing::debug!(%error, "a daemon is not reused");
}

/// Closes standard output, as the target has ended.
async fn finish(received: io::Result<impl AsyncWrite + Unpin>) -> io::Result<()> {
    received?.shutdown().await
}

/// Whether writing to the socket failed, rather than reading standard input.
fn is_of_socket(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

async fn receive(daemon: &mut Channel, within: Duration) -> io::Result<Received<CarryReply>> {
    timeout(within, daemon.receive_as()).await?
}

/// The result after a signal; no error if nobody reads standard output any more.
fn interrupted(target: &Target) -> Result<(), Error> {
    match stdio::is_read() {
        true => Err(Error::new(Exit::Runtime, format!("interrupted before {target} finished"))),
        false => Ok(()),
    }
}
