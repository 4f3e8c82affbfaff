//! Takes a daemon over from the old process: listens on its sockets, resumes what it held, and reports to
//! `keypadd reload`.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;

use keypadd_transport::HandedStream;
use keypadd_tunnel::handover::{HandedChain, HandedClient, HandedSocket, Handover};
use keypadd_tunnel::wire::Instance;
use rustix::io::Errno;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdout};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::channel::{Channel, Received, unexpected};
use super::{Frame, HANDOVER_TIMEOUT, VARIABLE};
use crate::carry::OF_COMMAND;
use crate::error::{Error, Exit, system};
use crate::shutdown::Shutdown;

/// A daemon that replaces another one.
#[derive(Debug)]
pub(crate) struct Takeover {
    channel: Channel,
    instances: BTreeMap<String, [u8; 16]>,
    held: usize,
}

/// What the old process held.
#[derive(Debug, Default)]
pub(crate) struct HeldState {
    pub(crate) chains: Vec<HandedChain>,
    /// By name.
    pub(crate) clients: BTreeMap<String, HandedClient>,
}

/// What `keypadd reload` is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TakeoverReport {
    pub(crate) pid: u32,
    pub(crate) release: String,
    /// Forwarded connections that continue.
    pub(crate) held: usize,
}

impl Takeover {
    /// Begins to replace the process at standard input, if this one was started for that; else returns no
    /// takeover and a daemon that is not suspended.
    ///
    /// # Errors
    /// Exit 1: the old process has given up.
    pub(crate) async fn begin() -> Result<(Option<Self>, Handover), Error> {
        if env::var_os(VARIABLE).is_none() {
            return Ok((None, Handover::default()));
        }
        let begun = async {
            let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
            let mut channel = Channel::new(socket)?;
            channel.tell(&Frame::Begin).await?;
            let mut sockets = Vec::new();
            loop {
                let mut received = channel.receive().await?;
                match received.frame {
                    Frame::Socket(ref record) => {
                        let record = record.clone();
                        sockets.push(HandedSocket { record, socket: received.descriptor()? });
                    }
                    Frame::Sockets(instances) => {
                        let this = Self { channel, instances, held: 0 };
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
        let received = received.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        received.map_err(|error| failed(&error))
    }

    async fn receive_all(&mut self, handover: &Handover) -> io::Result<HeldState> {
        self.channel.tell(&Frame::Bound).await?;
        let mut held = HeldState::default();
        let mut client: Option<(String, HandedClient)> = None;
        loop {
            let mut received = self.channel.receive().await?;
            match received.frame {
                Frame::Socket(ref record) => {
                    let record = record.clone();
                    handover
                        .inherit_remote(HandedSocket { record, socket: received.descriptor()? });
                }
                Frame::Chain(record) => {
                    held.chains.push(HandedChain { record, streams: Vec::new() });
                }
                Frame::Client(name, record) => {
                    held.clients.extend(
                        client.replace((name, HandedClient { record, streams: Vec::new() })),
                    );
                }
                Frame::Stream(ref record) | Frame::Carried(ref record) => {
                    let record = record.clone();
                    let stream = stream(record, received)?;
                    let last = held.chains.last_mut().map(|chain| &mut chain.streams);
                    match (&mut client, last) {
                        (Some((_, client)), _) => client.streams.push(stream),
                        (None, Some(streams)) => streams.push(stream),
                        (None, None) => return Err(io::ErrorKind::InvalidData.into()),
                    }
                    self.held += 1;
                }
                Frame::End => {
                    held.clients.extend(client);
                    return Ok(held);
                }
                frame => return Err(unexpected(&frame)),
            }
        }
    }

    /// Ends the old process and takes its standard streams. If this process is shutting down, fails instead.
    ///
    /// # Errors
    /// Exit 1: the old process has given up, and continues.
    pub(crate) async fn finish(
        mut self,
        handover: &Handover,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let finished = async {
            if shutdown.is_requested() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let unnamed = handover.close_unnamed();
            self.channel.tell(&Frame::Done(process::id(), unnamed)).await?;
            // Without this answer the old process may continue: then this one must not.
            let Received { frame, descriptors, .. } = self.channel.receive().await?;
            let (Frame::Bye, [stdin, stdout, stderr]) = (&frame, &descriptors[..]) else {
                return Err(unexpected(&frame));
            };
            self.tell_reload();
            dup2_stdin(stdin)?;
            dup2_stdout(stdout)?;
            dup2_stderr(stderr)?;
            Ok(())
        };
        finished.await.map_err(|error: io::Error| failed(&error))?;
        tracing::info!(held = self.held, "took over from the old process");
        Ok(())
    }

    fn tell_reload(&self) {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        let outcome = TakeoverReport { pid: process::id(), release, held: self.held };
        let text = serde_json::to_vec(&outcome).unwrap_or_default();
        // Unbuffered: `keypadd reload` may have been stopped, and buffered bytes would go to the daemon's own
        // output.
        let _ = rustix::io::write(stdout(), &text);
    }
}

fn stream(record: keypadd_transport::StreamRecord, received: Received) -> io::Result<HandedStream> {
    let count = match received.frame {
        Frame::Carried(_) => 1 + OF_COMMAND,
        _ => 1,
    };
    let Received { data, descriptors, .. } = received;
    // The kernel drops those that this process is not allowed to have.
    if descriptors.len() != count {
        return Err(Errno::MFILE.into());
    }
    let mut descriptors = descriptors.into_iter();
    let socket = descriptors.next().ok_or(Errno::MFILE)?;
    let unreceipted = if data.is_empty() { Vec::new() } else { vec![data.into()] };
    Ok(HandedStream { record, unreceipted, socket, descriptors: descriptors.collect() })
}

fn failed(error: &io::Error) -> Error {
    let cause = format!("cannot replace the old process: {}", system(error));
    Error::new(Exit::Runtime, cause)
}
