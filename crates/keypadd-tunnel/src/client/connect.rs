//! Connects to the server once: resolves its name, tries its addresses, and exchanges hellos.
//!
//! Fails after the connect timeout, or when a clock jumps: then the keys of the attempt are
//! dropped.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError},
    time::Duration,
};

use keypadd_transport::{ConnectingError, Connection, Dial, Lane};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tracing::debug;

use super::{Client, ClientSession, bulk::BulkDialer, incoming::handle_incoming, resume::resume};
use crate::{
    addresses::target::ServerAddress,
    clock::monitor::Jumps,
    error::{ClientError, ConnectFailure},
    forwards::dial::share_of,
    net::lookup::{names_this_host, resolve},
    sessions::{
        control::Control,
        proof::proof_of,
        session::{FRAMES_MAX, NewSession},
        status::Role,
    },
    transport::SERVER_NAME,
    wire::{Frame, VERSION},
};

impl Client {
    /// Resolves the server, tries its addresses in order, and returns when the server has answered for
    /// each remote forward.
    ///
    /// # Errors
    /// [`ClientError::Auth`] if the ends do not accept each other,
    /// [`ClientError::TooManySessions`] if the server has too many of this key, else
    /// [`ClientError::Unreachable`] within the connect timeout.
    pub async fn connect(&self) -> Result<ClientSession, ClientError> {
        let deadline = Instant::now() + self.connect_timeout;
        let session = self.say_hello(self.connect_timeout, None).await?;
        let live = &session.registration.session;
        let settled = async {
            self.request_forwards(live).await;
            live.remote_forwards.settled().await;
        };
        let cause = tokio::select! {
            () = settled => return Ok(session),
            lost = session.lost() => lost.to_string(),
            () = sleep_until(deadline) => format!("no answer in {:?}", self.connect_timeout),
        };
        Err(ClientError::Unreachable { server: self.server.clone(), cause })
    }

    /// The same, until the server's hello. Once that has come this completes without another wait: streams
    /// that were held go on, and must not be cut short by a timeout.
    pub(super) async fn say_hello(
        &self,
        timeout_after: Duration,
        rtt: Option<Duration>,
    ) -> Result<ClientSession, ClientError> {
        self.reach(timeout_after, |address| self.attempt(address, rtt)).await
    }

    /// Resolves the server and makes the attempt at its addresses in order, until one succeeds or the
    /// server refuses. Returns at once what an attempt has made.
    pub(super) async fn reach<T, A: Future<Output = Result<T, ConnectFailure>>>(
        &self,
        timeout_after: Duration,
        attempt: impl Fn(SocketAddr) -> A,
    ) -> Result<T, ClientError> {
        let deadline = Instant::now() + timeout_after;
        let unreachable = |cause| ClientError::Unreachable { server: self.server.clone(), cause };
        let ServerAddress { host, port } = &self.server;
        let no_name = |error: std::io::Error| unreachable(format!("no such host: {error}"));
        let addresses = match timeout_at(deadline, resolve(host, *port, &self.lookups)).await {
            Ok(addresses) => addresses.map_err(no_name)?,
            Err(_) => return Err(unreachable("timed out resolving the name".into())),
        };
        // The message contains the address already if the user gave it.
        let given = self.server.to_string();
        let of = |address: SocketAddr, cause: String| match address.to_string() == given {
            true => cause,
            false => format!("{address}: {cause}"),
        };
        let mut causes = Vec::new();
        for (tried, &address) in addresses.iter().enumerate() {
            let share = share_of(deadline, addresses.len() - tried);
            let cause = match timeout(share, attempt(address)).await {
                Ok(Ok(made)) => return Ok(made),
                Ok(Err(ConnectFailure::Auth(cause))) => {
                    return Err(ClientError::Auth { server: self.server.clone(), cause });
                }
                Ok(Err(ConnectFailure::TooMany(cause))) => {
                    return Err(ClientError::TooManySessions {
                        server: self.server.clone(),
                        cause,
                    });
                }
                Ok(Err(ConnectFailure::NotPaired(cause))) => {
                    return Err(ClientError::NotPaired { server: self.server.clone(), cause });
                }
                Ok(Err(ConnectFailure::Unreachable(cause))) => of(address, cause),
                Err(_) => {
                    // Rounded up to milliseconds: the share is some microseconds below the timeout.
                    let waited = Duration::from_millis(share.as_micros().div_ceil(1000) as u64);
                    of(address, format!("no answer in {waited:?}"))
                }
            };
            causes.push(cause);
        }
        let mut cause = causes.join("; ");
        if names_this_host(host, &addresses) {
            cause.insert_str(0, "the name resolves to this host: ");
        }
        Err(unreachable(cause))
    }

    /// Connects to one address, over a path with this round trip if that is known. When dropped, the keys
    /// agreed on are dropped as well.
    pub(super) async fn attempt(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
    ) -> Result<ClientSession, ConnectFailure> {
        let (mut jumps, for_session) = (self.clock_monitor.jumps(), self.clock_monitor.jumps());
        let handshake = async {
            self.handover.resumed().await;
            self.clock_monitor.gate().reopen(&self.endpoint).await;
            self.shake_hands(address, rtt, for_session).await
        };
        tokio::select! {
            jump = jumps.next() => Err(ConnectFailure::Unreachable(jump.to_string())),
            () = self.replaced() => Err(ConnectFailure::Unreachable("suspended".into())),
            session = handshake => session,
        }
    }

    /// Completes when another process is about to go on, after this client could dial.
    async fn replaced(&self) {
        self.handover.resumed().await;
        self.handover.suspended().await;
    }

    /// Performs the handshake, over a path with this round trip if that is known.
    pub(super) async fn open(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
    ) -> Result<Connection, ConnectFailure> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (server_name, lane) = (SERVER_NAME, Lane::Sparse);
        match self.endpoint.connect(Dial { config, address, server_name, lane, rtt }).await {
            Ok(connection) => Ok(connection),
            Err(ConnectingError::Failed(error)) => Err(ConnectFailure::of(&error)),
            Err(error) => Err(ConnectFailure::Unreachable(error.to_string())),
        }
    }

    /// Performs the handshake and exchanges hellos.
    async fn shake_hands(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
        jumps: Jumps,
    ) -> Result<ClientSession, ConnectFailure> {
        let connection = self.open(address, rtt).await?;
        let proof = proof_of(&connection).ok_or_else(|| {
            ConnectFailure::Unreachable("the handshake did not authenticate a key".into())
        })?;

        let stream = connection.open_bi().await.map_err(|error| ConnectFailure::of(&error))?;
        let mut control = Control::new(stream);
        let hold = self.hold.request();
        let hello = Frame::HelloClient { version: VERSION, instance: self.instance, hold };
        // The server checks our key last: its refusal can arrive after our handshake is complete.
        let answer = match control.send(&hello).await {
            Ok(()) => control.receive().await,
            Err(error) => Err(error),
        };
        let (grant, features) = match answer {
            Ok(Frame::HelloServer { version: VERSION, hold, features }) => (hold, features),
            Ok(Frame::HelloServer { version, .. }) => {
                let cause = format!("the server uses version {version} of the control protocol");
                return Err(ConnectFailure::Unreachable(cause));
            }
            Ok(_) => {
                return Err(ConnectFailure::Unreachable("not a keypadd server".into()));
            }
            Err(error) => {
                return Err(match connection.close_reason() {
                    Some(error) => ConnectFailure::of(&error),
                    None => ConnectFailure::Unreachable(error.to_string()),
                });
            }
        };
        let older = self.sessions.newest(&proof.key, self.instance);
        let older = older.filter(|older| !older.has_ended() || older.is_held());
        let resumed = grant.as_ref().is_some_and(|grant| grant.resumed);
        let (hold, held) = self.hold.granted(grant);
        if let Some(hold) = &hold {
            connection.hold(&hold.streams, hold.epoch);
        }
        let (sender, outgoing) = mpsc::channel(FRAMES_MAX);
        let registration = self.sessions.add(NewSession {
            label: self.name.clone().unwrap_or_else(|| proof.key.short()),
            role: Role::Client,
            instance: self.instance,
            features,
            proof,
            connection,
            outgoing: sender,
            limits: Arc::clone(&self.limits),
            forwards: &self.forward_names(),
            counts: match hold {
                Some(_) => Arc::clone(&self.hold.counts),
                None => Arc::default(),
            },
            hold,
            lifetimes: self.key_lifetimes.clone(),
            renews: older.as_deref(),
            place: None,
        });
        let session = Arc::clone(&registration.session);
        self.sessions.replace_by(&session, resumed);
        let wants_bulk = older.as_ref().is_some_and(|older| older.has_bulk());
        let listens = older.map(|older| session.remote_forwards.go_on_with(&older.remote_forwards));
        let (tasks, lookups) = (self.tasks.clone(), self.lookups.clone());
        let dialer =
            BulkDialer { endpoint: self.endpoint.clone(), config: Arc::clone(&self.config) };
        tokio::spawn(async move {
            let (incoming, frames) = mpsc::channel(FRAMES_MAX);
            let bulk_wanted = Notify::new();
            tokio::select! {
                lost = session.supervise(control, outgoing, incoming, jumps) => {
                    debug!(peer = session.peer(), cause = %lost, "session ended");
                }
                () = handle_incoming(&session, frames, &tasks, &lookups, (&bulk_wanted, wants_bulk)) => {}
                () = resume(&session, held, listens) => {}
                () = dialer.run(&session, &bulk_wanted) => {}
            }
        });
        Ok(ClientSession { registration })
    }
}
