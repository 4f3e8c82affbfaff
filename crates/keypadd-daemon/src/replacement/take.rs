//! Takes a daemon over from the old process: listens on its sockets, resumes what it held, and
//! reports to `keypadd reload`.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::shutdown::Shutdown;
use keypadd_sandbox::limit_capabilities;
use keypadd_transport::HandedStream;
use keypadd_tunnel::handover::{HandedClient, HandedLineage, HandedSocket, Handover, SocketFile};
use keypadd_tunnel::wire::Instance;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdout};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::channel::{Channel, Received, unexpected};
use super::privileges::{Excess, Privileges};
use super::{HANDOVER_TIMEOUT, Message, OF_COMMAND, STALL_TIMEOUT, VARIABLE};

/// A daemon that replaces another one.
#[derive(Debug)]
pub(crate) struct Takeover {
    channel: Channel,
    instances: BTreeMap<String, [u8; 16]>,
    /// Forwarded connections that the old process has handed over.
    received: usize,
}

/// What the old process held.
#[derive(Debug, Default)]
pub(crate) struct HeldState {
    pub(crate) lineages: Vec<HandedLineage>,
    /// By name: one for each server that has streams.
    pub(crate) clients: BTreeMap<String, Vec<HandedClient>>,
    /// Whether its server was drained, and how long what is open may stay if there is a limit.
    pub(crate) draining: Option<Option<Duration>>,
}

/// What `keypadd reload` is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TakeoverReport {
    pub(crate) pid: u32,
    pub(crate) release: String,
    /// Forwarded connections that continue.
    pub(crate) held: usize,
    /// How many connections do not: [`RESET`].
    pub(crate) reset: usize,
}

/// Why connections are reset in the new process.
pub(crate) const RESET: &str =
    "their peers or keys are not in the settings, have expired, or were away too long";

impl Takeover {
    /// Begins to replace the process at standard input, if this one was started for that; else
    /// returns no takeover and a daemon that is not suspended.
    ///
    /// # Errors
    /// Exit 1: the old process has given up.
    pub(crate) async fn begin() -> Result<(Option<Self>, Handover), Error> {
        if !is_begun() {
            return Ok((None, Handover::default()));
        }
        let begun = async {
            let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
            let mut channel = Channel::new(socket)?;
            channel.tell(&Message::Begin).await?;
            let mut sockets = Vec::new();
            loop {
                let Received { frame, descriptors, .. } =
                    timeout(STALL_TIMEOUT, channel.receive()).await??;
                match frame {
                    Message::Socket(record) => {
                        let [socket] = descriptors.take()?;
                        sockets.push(HandedSocket { record, socket });
                    }
                    Message::Sockets(instances) => {
                        let this = Self { channel, instances, received: 0 };
                        return Ok((Some(this), Handover::suspended_with(sockets)));
                    }
                    frame => return Err(unexpected(&frame)),
                }
            }
        };
        begun.await.map_err(|error: io::Error| failed(&error))
    }

    /// The old instance number of the client of this name.
    pub(crate) fn instance(&self, client: &str) -> Option<Instance> {
        self.instances.get(client).copied().map(Instance)
    }

    /// Takes what the old process holds, once all sockets are bound.
    ///
    /// # Errors
    /// Exit 1: the old process has given up, and continues.
    pub(crate) async fn receive(&mut self, handover: &Handover) -> Result<HeldState, Error> {
        let received = timeout(HANDOVER_TIMEOUT, self.receive_all(handover)).await;
        let received = received.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        received.map_err(|error| failed(&error))
    }

    async fn receive_all(&mut self, handover: &Handover) -> io::Result<HeldState> {
        self.channel.tell(&Message::Bound).await?;
        let mut held = HeldState::default();
        // The name of the last one.
        let mut client: Option<String> = None;
        loop {
            let Received { frame, data, descriptors, .. } = self.channel.receive().await?;
            let (record, socket, descriptors) = match frame {
                Message::Stream(record) => {
                    let [socket] = descriptors.take()?;
                    (record, socket, Arc::default())
                }
                Message::Carried(record) => {
                    let [socket, of_command @ ..] = descriptors.take::<{ 1 + OF_COMMAND }>()?;
                    (record, socket, Arc::from(of_command))
                }
                Message::Socket(record) => {
                    let [socket] = descriptors.take()?;
                    handover.inherit_remote(HandedSocket { record, socket });
                    continue;
                }
                Message::Lineage(record) => {
                    held.lineages.push(HandedLineage { record, streams: Vec::new() });
                    continue;
                }
                Message::Client(name, record) => {
                    client = Some(name.clone());
                    let handed = HandedClient { record, streams: Vec::new() };
                    held.clients.entry(name).or_default().push(handed);
                    continue;
                }
                Message::Draining(millis) => {
                    held.draining = Some(millis.map(Duration::from_millis));
                    continue;
                }
                Message::End => return Ok(held),
                frame => return Err(unexpected(&frame)),
            };
            let streams = match &client {
                Some(name) => {
                    let last = held.clients.get_mut(name).and_then(|all| all.last_mut());
                    last.map(|client| &mut client.streams)
                }
                None => held.lineages.last_mut().map(|lineage| &mut lineage.streams),
            };
            let unreceipted = if data.is_empty() { Vec::new() } else { vec![data.into()] };
            let stream = HandedStream { record, unreceipted, socket, descriptors };
            streams.ok_or(ErrorKind::InvalidData)?.push(stream);
            self.received += 1;
        }
    }

    /// Ends the old process and takes its standard streams; this one goes on with `held`
    /// connections. If this process is shutting down, fails instead.
    ///
    /// # Errors
    /// Exit 1: the old process has given up or does not answer, and continues.
    pub(crate) async fn finish(
        mut self,
        handover: &Handover,
        held: usize,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        if shutdown.is_requested() {
            return Err(failed(&ErrorKind::Interrupted.into()));
        }
        let ended = self.end_old(handover.close_unnamed()).await;
        let bye = ended.map_err(|error| failed(&error))?;
        // From here on nobody else serves.
        let reset = self.received.saturating_sub(held);
        tell_reload(held, reset);
        if let Err(error) = use_streams(bye) {
            tracing::warn!(%error, "the old process's standard streams cannot be used");
        }
        if reset > 0 {
            tracing::warn!(reset, "reset connections: {RESET}");
        }
        tracing::info!(held, "took over from the old process");
        Ok(())
    }

    /// Says that this process has everything; returns the old one's [`Message::Bye`], none if it
    /// has died.
    ///
    /// # Errors
    /// The old process continues.
    async fn end_old(&mut self, unnamed: Vec<SocketFile>) -> io::Result<Option<Received>> {
        match self.channel.tell(&Message::Done(process::id(), unnamed)).await {
            // It has died, or has said that it continues.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            told => told?,
        }
        match self.channel.receive_last(STALL_TIMEOUT).await {
            Ok(received) if matches!(received.frame, Message::Bye) => Ok(Some(received)),
            Ok(Received { frame, .. }) => Err(unexpected(&frame)),
            // It has died: it would have said that it continues. ECONNRESET: it died with our
            // frames unread.
            Err(error)
                if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset]
                    .contains(&error.kind()) =>
            {
                tracing::warn!("the old process has died; this one has taken over everything");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether this process was started to replace another one.
pub(crate) fn is_begun() -> bool {
    env::var_os(VARIABLE).is_some()
}

/// What this process may keep of its own privileges in place of the process that it replaces, if
/// there is one. Gives up the capabilities that it may not keep.
///
/// # Errors
/// Exit 1: it may do more than that one, and cannot give that up.
pub(crate) fn limited(own: io::Result<Privileges>) -> Result<io::Result<Privileges>, Error> {
    let Some(old) = env::var_os(VARIABLE) else { return Ok(own) };
    let refused = |cause: &str| {
        let cause = format!("cannot replace the old process: {cause}");
        Error::new(Exit::Runtime, cause)
    };
    let old = serde_json::from_slice(old.as_encoded_bytes())
        .map_err(|error| refused(&format!("{VARIABLE}: {error}")))?;
    let own = own.map_err(|error| refused(&system(&error)))?;
    let had = own.permitted();
    let limited = own.limited_to(&old).map_err(|excess| {
        let (what, hint) = match excess {
            Excess::Given(what) => (what, FROM_ELSEWHERE),
            Excess::Set(what) => (what, "restart it; its connections will close"),
        };
        refused(&format!("this one would be less confined: {what}")).hint(hint)
    })?;
    if limited.permitted() != had {
        limit_capabilities(limited.permitted()).map_err(|cause| refused(&cause))?;
    }
    Ok(Ok(limited))
}

/// What to do about a new process that was given more than the old one.
const FROM_ELSEWHERE: &str =
    "replace it from where it was started, as with `systemctl reload`, or restart it";

fn tell_reload(held: usize, reset: usize) {
    let release = env!("CARGO_PKG_VERSION").to_owned();
    let outcome = TakeoverReport { pid: process::id(), release, held, reset };
    let text = serde_json::to_vec(&outcome).unwrap_or_default();
    // Unbuffered: `keypadd reload` may have been stopped, and buffered bytes would go to the
    // daemon's own output.
    let _ = rustix::io::write(stdout(), &text);
}

/// Closes what `keypadd reload` reads, and takes over an old process's standard streams, unless it
/// has died.
fn use_streams(bye: Option<Received>) -> io::Result<()> {
    dup2_stdout(stderr())?;
    let Some(bye) = bye else { return Ok(()) };
    let [stdin, stdout, stderr] = bye.descriptors.take()?;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    Ok(())
}

fn failed(error: &io::Error) -> Error {
    let failed =
        |cause: &str| Error::new(Exit::Runtime, format!("cannot replace the old process: {cause}"));
    match error.kind() {
        // It has closed the channel.
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => failed(
            "it has stopped waiting for this one, has been reloaded, has changed its \
                forwards, or has exited",
        )
        .hint("run `keypadd reload --binary` again"),
        _ => failed(&system(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::time::Duration;

    use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
    use tokio::task::yield_now;
    use tokio::time::Instant;

    use super::*;

    /// A process that has everything, and the end of the old one.
    fn takeover() -> (Takeover, Channel) {
        let (new, old) = UnixStream::pair().unwrap();
        let channel = Channel::new(new).unwrap();
        let takeover = Takeover { channel, instances: BTreeMap::new(), received: 0 };
        (takeover, Channel::new(old).unwrap())
    }

    /// Waits until all of `Done` is there, and leaves it unread.
    async fn done_arrives(old: &Channel) {
        let mut seen = [0; 64];
        let mut peek = || recv(old, &mut seen, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        while !peek().is_ok_and(|(_, length)| length > 8 + "{\"done\":[1,".len()) {
            yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_process_that_is_stopped_is_given_up_and_can_only_continue() {
        let (mut new, mut old) = takeover();
        let began = Instant::now();
        let ended = timeout(Duration::from_secs(3_600), new.end_old(Vec::new())).await;
        let error = ended.expect("the new process waits forever").unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (ErrorKind::TimedOut, STALL_TIMEOUT));
        // It goes on while the new process is exiting.
        assert!(matches!(old.receive().await.unwrap().frame, Message::Done(..)));
        let error = old.tell(&Message::Bye).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bye_that_was_sent_counts_however_late_it_is_read() {
        for is_said_first in [true, false] {
            let (mut new, old) = takeover();
            let head = [0, 0, 0, 5, 0, 0, 0, 0];
            let mut nothing = SendAncillaryBuffer::default();
            sendmsg(&old, &[IoSlice::new(&head)], &mut nothing, SendFlags::NOSIGNAL).unwrap();
            let saying = async {
                assert!(matches!(old.receive().await.unwrap().frame, Message::Done(..)));
                // The timers of both expire at once.
                tokio::time::sleep(STALL_TIMEOUT).await;
                sendmsg(&old, &[IoSlice::new(b"\"bye\"")], &mut nothing, SendFlags::NOSIGNAL)
                    .is_ok()
            };
            let ending = new.end_old(Vec::new());
            let (ended, said) = match is_said_first {
                true => {
                    let (said, ended) = tokio::join!(biased; saying, ending);
                    (ended, said)
                }
                false => tokio::join!(biased; ending, saying),
            };
            assert_eq!((ended.is_ok(), said), (is_said_first, is_said_first));
        }
    }

    #[tokio::test]
    async fn a_new_process_with_everything_goes_on_if_the_old_one_dies_but_not_if_it_continues() {
        for (reads, continues) in [(false, false), (true, false), (false, true), (true, true)] {
            let (mut new, old) = takeover();
            let ending = async {
                match reads {
                    true => drop(old.receive().await.unwrap()),
                    false => done_arrives(&old).await,
                }
                if continues {
                    old.end_with(&Message::Continues);
                }
                drop(old);
            };
            let (ended, ()) = tokio::join!(new.end_old(Vec::new()), ending);
            assert_eq!(ended.is_err(), continues, "{reads} {ended:?}");
        }
    }

    #[tokio::test]
    async fn a_bye_without_its_descriptors_is_a_bye() {
        let (mut new, mut old) = takeover();
        let (ended, said) = tokio::join!(new.end_old(Vec::new()), old.tell(&Message::Bye));
        said.unwrap();
        assert!(ended.unwrap().unwrap().descriptors.take::<3>().is_err());
    }
}
