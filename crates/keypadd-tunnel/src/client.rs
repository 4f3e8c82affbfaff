//! The connecting end: one server, local listeners, and a stream for each connection.
//!
//! [`Client::bind`] takes the local ports before anything is sent, [`Client::connect`] makes one
//! session (`connect`), and [`Client::run`] serves until it is told to end: a session that is lost
//! is followed by another (`stay`). The listeners belong to the client, not to a session (`entrances`); connections that
//! come in meanwhile wait for the next one (`accept`).

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use keypadd_transport::{ClientConfig, Endpoint, LoopMeter, crypto};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use crate::{
    clock::monitor::Watchman,
    error::{BindError, ClientError},
    forwards::{
        accept::Accepting,
        listen::Bound,
        listeners::Entrances,
        open_stream::{OpenError, open_stream},
        splice::{Cut, splice_pair},
        tasks::Carried,
    },
    net::{
        bind::{ANY_PORT, bind_udp},
        lookup::Lookups,
    },
    server::GOODBYE_TIME,
    sessions::{
        server_link::Link,
        session::{Listed, LiveSession, Lost, Sessions},
    },
    spec::{
        forward::{Forward, Goal, RemoteForward},
        target::{ServerAddress, Target},
    },
    transport::{End, TransportSettings},
    wire::{CloseCode, Instance, ListenCode, StreamHeader},
};

mod bulk;
mod connect;
mod incoming;
mod reconnect;

/// What a client is made of.
pub struct ClientSettings {
    /// The server.
    pub server: ServerAddress,
    /// Packet protection, with the server's key pinned in it.
    pub crypto: Arc<dyn crypto::ClientConfig>,
    /// What the server is called in figures; without a name, its key's first characters.
    pub name: Option<String>,
    /// Forwards; may be none when only `carry` is used.
    pub forwards: Vec<Forward>,
    /// Windows and timers.
    pub transport: TransportSettings,
    /// Time from the first packet to the server's hello, over all its addresses.
    pub connect_timeout: Duration,
    /// This run of the client.
    pub instance: Instance,
}

/// A client whose local ports are bound.
pub struct Client {
    endpoint: Endpoint,
    config: Arc<Mutex<ClientConfig>>,
    server: ServerAddress,
    name: Option<String>,
    connect_timeout: Duration,
    instance: Instance,
    entrances: Entrances,
    carried: Carried,
    link: Link,
    sessions: Sessions,
    lookups: Lookups,
    watchman: Watchman,
}

/// A session with the server; dropped, it is closed.
#[derive(Debug)]
pub struct ClientSession {
    listed: Listed,
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.listed.session.close(CloseCode::Shutdown, "the client has nothing more to do");
    }
}

impl ClientSession {
    /// The session's figures and what the handshake agreed on.
    pub fn live(&self) -> &LiveSession {
        &self.listed.session
    }

    /// Each remote forward with the TCP port that the server listens on (0 for a unix socket), or
    /// with the reason why it does not.
    pub fn remote_forwards(&self) -> Vec<(RemoteForward, Result<u16, ListenCode>)> {
        self.listed.session.remotes.outcomes()
    }

    /// Whether the server listens for all remote forwards.
    ///
    /// # Errors
    /// [`ClientError::NotListening`] for the first that it does not listen for.
    pub fn all_listening(&self) -> Result<(), ClientError> {
        self.remote_forwards().into_iter().try_for_each(|(forward, outcome)| match outcome {
            Ok(_) => Ok(()),
            Err(code) => Err(ClientError::NotListening { forward, code }),
        })
    }

    /// Completes when the session has ended, with the reason.
    pub async fn lost(&self) -> Lost {
        self.listed.session.lost().await
    }
}

impl Client {
    /// Binds the listeners of all forwards, then a UDP port. Sends nothing. What comes in from now
    /// on waits for a session. Needs a tokio runtime.
    pub async fn bind(settings: ClientSettings) -> Result<Self, BindError> {
        let (link, carried) = (Link::default(), Carried::default());
        let forwards_max = settings.transport.forwards_max as usize;
        let accepting = Accepting::new(link.clone(), forwards_max, carried.clone());
        let entrances = Entrances::new(accepting);
        if let Some(error) = entrances.set(settings.forwards).await.into_iter().next() {
            return Err(error);
        }
        let failed = |source| BindError { address: "udp port".into(), source };
        let sockets = (0..settings.transport.loops.min(2))
            .map(|_| bind_udp(ANY_PORT, settings.transport.udp_buffer_bytes))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let watchman = Watchman::new(Arc::clone(&settings.transport.clocks));
        let egress = watchman.egress();
        let endpoint =
            settings.transport.endpoint(End::Client, sockets, None, 0, egress).map_err(failed)?;
        Ok(Self {
            endpoint,
            config: Arc::new(Mutex::new(ClientConfig::new(settings.crypto))),
            server: settings.server,
            name: settings.name,
            connect_timeout: settings.connect_timeout,
            instance: settings.instance,
            entrances,
            carried,
            link,
            sessions: Sessions::default(),
            lookups: Lookups::default(),
            watchman,
        })
    }

    /// Each forward with the addresses it listens on.
    pub fn forwards(&self) -> Vec<(Forward, Vec<Bound>)> {
        self.entrances.list()
    }

    /// Makes these the forwards: closes listeners that are not among them, opens those that are
    /// new, leaves the others alone; a remote one that the server has refused is asked for again.
    /// Established connections stay. What cannot be bound is left out and returned.
    pub async fn set_forwards(&self, forwards: Vec<Forward>) -> Vec<BindError> {
        let errors = self.entrances.set(forwards).await;
        if let Some(session) = self.link.now() {
            session.list_forwards(&self.forward_names());
            publish(&session, &self.remote_forwards()).await;
        }
        errors
    }

    /// From the next attempt to connect on, packet protection is this.
    pub fn set_crypto(&self, crypto: Arc<dyn crypto::ClientConfig>) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = ClientConfig::new(crypto);
    }

    /// Whether there is a session, and how often one was lost; it outlasts the client.
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    /// What its event loops cost; it outlasts the client.
    pub fn loop_meter(&self) -> LoopMeter {
        self.endpoint.meter()
    }

    fn forward_names(&self) -> Vec<String> {
        self.entrances.list().iter().map(|(forward, _)| forward.to_string()).collect()
    }

    fn remote_forwards(&self) -> Vec<RemoteForward> {
        let remote = |forward| match forward {
            Forward::Remote(remote) => Some(remote),
            Forward::Local(_) | Forward::Dynamic(_) | Forward::Bench(_) => None,
        };
        self.entrances.list().into_iter().filter_map(|(forward, _)| remote(forward)).collect()
    }

    /// The sessions that live: one at most, unless `connect` is called more than once.
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Serves the forwards over this session and those that follow it, until `shutdown` completes
    /// with the time that open connections may still have. Nothing new is let in then; what has not
    /// ended in that time is reset. When a session is lost its connections end with it (what had
    /// arrived by then is delivered, as long as it is taken), and another one is made, however many
    /// attempts that takes.
    pub async fn run(
        &self,
        first: Option<ClientSession>,
        shutdown: impl Future<Output = Duration>,
    ) {
        let mut current = first;
        let grace = tokio::select! {
            grace = shutdown => grace,
            never = self.stay_connected(&mut current) => match never {},
        };
        self.entrances.close().await;
        if let Some(session) = &current {
            publish(&session.listed.session, &[]).await;
        }
        let left_alone = async {
            if let Some(session) = &current {
                session.lost().await;
            }
            // Who still waits for a session waits in vain.
            self.link.over("shutting down");
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            () = self.carried.end(grace) => {}
            never = left_alone => match never {},
        }
        self.link.over("shut down");
    }

    /// Carries one connection to `target` over a reader and a writer (`-W`). The writer is shut
    /// down when the target has finished; the call returns when the reader has ended as well.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the server does not connect or the connection is reset,
    /// [`ClientError::Local`] when the reader or the writer fails, [`ClientError::Lost`].
    pub async fn carry(
        &self,
        session: &ClientSession,
        target: &Target,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin,
    ) -> Result<(), ClientError> {
        let live = &session.listed.session;
        let _open = live.forward_opened(&format!("-W {target}"));
        let refused = |code| ClientError::Refused { target: target.clone(), code };
        let header = StreamHeader::Goal(Goal::Tcp(target.clone()));
        let stream = match open_stream(live, &header).await {
            Ok(stream) => stream,
            Err(OpenError::Refused(code)) => return Err(refused(code)),
            Err(OpenError::Lost) => return Err(self.lost(session).await),
        };
        match splice_pair(reader, writer, stream).await {
            Ok(()) => Ok(()),
            Err(Cut::Remote(code)) => Err(refused(code)),
            Err(Cut::Local(error)) => Err(ClientError::Local(error)),
            Err(Cut::Lost) => Err(self.lost(session).await),
        }
    }

    /// Closes the UDP port: tells the server, and waits a few seconds at most until it knows.
    pub async fn close(self) {
        self.endpoint.close(CloseCode::Shutdown.value().into(), b"the client is shutting down");
        let _ = timeout(GOODBYE_TIME, self.endpoint.wait_idle()).await;
    }

    async fn lost(&self, session: &ClientSession) -> ClientError {
        ClientError::Lost { server: self.server.clone(), cause: session.lost().await }
    }
}

/// Makes these the remote forwards of a session, and asks again for those that were refused.
async fn publish(session: &LiveSession, wanted: &[RemoteForward]) {
    let frames = session.remotes.set(wanted).into_iter().chain(session.remotes.ask_again());
    for frame in frames {
        session.ask(frame).await;
    }
}
