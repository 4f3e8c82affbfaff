//! The connecting end: one server, local listeners, and a stream for each TCP connection.
//!
//! [`Client::bind`] takes the local ports before anything is sent, [`Client::connect`] makes one
//! session and [`Client::run`] serves it until it is lost. The listeners belong to the client, not
//! to the session: whoever wants to reconnect calls `connect` and `run` again, and connections that
//! came in meanwhile wait in the listeners' queues.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use quinn::{Endpoint, TokioRuntime, crypto};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tracing::info;

use crate::{
    accept::{Accepting, accept_loop},
    control::Control,
    dial::share_of,
    error::{Attempt, BindError, ClientError},
    forward::LocalForward,
    listen::bind_forward,
    lookup::{Lookups, resolve},
    peer::short,
    server::GOODBYE_TIME,
    session::{Listed, LiveSession, NewSession, Sessions, proved},
    socket::{ANY_PORT, bind_udp},
    splice::{Cut, splice_pair},
    status::Role,
    stream::{OpenError, open_stream},
    target::{ServerAddress, Target},
    transport::{End, SERVER_NAME, TransportSettings, endpoint_config},
    wire::{CloseCode, Frame, Instance, VERSION},
};

/// What a client is made of.
pub struct ClientSettings {
    /// The server.
    pub server: ServerAddress,
    /// Packet protection, with the server's key pinned in it.
    pub crypto: Arc<dyn crypto::ClientConfig>,
    /// What the server is called in figures; without a name, its key's first characters.
    pub name: Option<String>,
    /// Local forwards; may be none when only `carry` is used.
    pub forwards: Vec<LocalForward>,
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
    config: quinn::ClientConfig,
    server: ServerAddress,
    name: Option<String>,
    connect_timeout: Duration,
    instance: Instance,
    forwards_max: usize,
    forwards: Vec<BoundForward>,
    sessions: Sessions,
    lookups: Lookups,
}

struct BoundForward {
    forward: LocalForward,
    listeners: Vec<Arc<TcpListener>>,
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
}

impl Client {
    /// Binds the listeners of all forwards, then a UDP port. Sends nothing.
    pub async fn bind(settings: ClientSettings) -> Result<Self, BindError> {
        let mut forwards = Vec::new();
        for forward in settings.forwards {
            let listeners = bind_forward(&forward).await?.into_iter().map(Arc::new).collect();
            forwards.push(BoundForward { forward, listeners });
        }
        let failed = |source| BindError { address: "udp port".into(), source };
        let socket = bind_udp(ANY_PORT, settings.transport.udp_buffer_bytes).map_err(failed)?;
        let endpoint = Endpoint::new(endpoint_config(), None, socket, Arc::new(TokioRuntime))
            .map_err(failed)?;
        let mut config = quinn::ClientConfig::new(settings.crypto);
        config.transport_config(settings.transport.quinn(End::Client));
        Ok(Self {
            endpoint,
            config,
            server: settings.server,
            name: settings.name,
            connect_timeout: settings.connect_timeout,
            instance: settings.instance,
            forwards_max: settings.transport.forwards_max as usize,
            forwards,
            sessions: Sessions::default(),
            lookups: Lookups::default(),
        })
    }

    /// Each forward with the addresses it listens on.
    pub fn forwards(&self) -> impl Iterator<Item = (&LocalForward, Vec<SocketAddr>)> {
        self.forwards.iter().map(|bound| {
            let addresses =
                bound.listeners.iter().filter_map(|listener| listener.local_addr().ok());
            (&bound.forward, addresses.collect())
        })
    }

    /// The sessions that live: one at most, unless `connect` is called more than once.
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Resolves the server, tries its addresses in turn, and returns when it has said hello.
    ///
    /// # Errors
    /// [`ClientError::Auth`] at once when the ends do not accept each other, else
    /// [`ClientError::Unreachable`] within the time to connect.
    pub async fn connect(&self) -> Result<ClientSession, ClientError> {
        let deadline = Instant::now() + self.connect_timeout;
        let unreachable = |cause| ClientError::Unreachable { server: self.server.clone(), cause };
        let ServerAddress { host, port } = &self.server;
        let no_name = |error: std::io::Error| unreachable(format!("no such host: {error}"));
        let addresses = match timeout_at(deadline, resolve(host, *port, &self.lookups)).await {
            Ok(addresses) => addresses.map_err(no_name)?,
            Err(_) => return Err(unreachable("the name did not resolve in time".into())),
        };
        let mut causes = Vec::new();
        for (tried, &address) in addresses.iter().enumerate() {
            let share = share_of(deadline, addresses.len() - tried);
            let cause = match timeout(share, self.attempt(address)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(Attempt::Auth(cause))) => {
                    return Err(ClientError::Auth { server: self.server.clone(), cause });
                }
                Ok(Err(Attempt::Failed(cause))) => format!("{address}: {cause}"),
                Err(_) => {
                    // Whole milliseconds: the share has lost some microseconds since it was given.
                    let waited = Duration::from_millis(share.as_micros().div_ceil(1000) as u64);
                    format!("{address}: no answer in {waited:?}")
                }
            };
            causes.push(cause);
        }
        Err(unreachable(causes.join("; ")))
    }

    /// One attempt: handshake and hellos.
    async fn attempt(&self, address: SocketAddr) -> Result<ClientSession, Attempt> {
        let connecting = self
            .endpoint
            .connect_with(self.config.clone(), address, SERVER_NAME)
            .map_err(|error| Attempt::Failed(error.to_string()))?;
        let connection = connecting.await.map_err(|error| Attempt::of(&error))?;
        let proved = proved(&connection)
            .ok_or_else(|| Attempt::Failed("the handshake proved no key".into()))?;

        let streams = connection.open_bi().await.map_err(|error| Attempt::of(&error))?;
        let mut control = Control::new(streams);
        let hello = Frame::HelloClient { version: VERSION, instance: self.instance };
        // The server judges our key last: a refusal arrives when we are already done.
        let answer = match control.say(&hello).await {
            Ok(()) => control.hear().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Frame::HelloServer { version: VERSION }) => {}
            Ok(Frame::HelloServer { version }) => {
                let cause = format!("the server speaks version {version} of the control protocol");
                return Err(Attempt::Failed(cause));
            }
            Ok(Frame::HelloClient { .. }) => {
                return Err(Attempt::Failed("this is not a keypadd server".into()));
            }
            Err(error) => {
                return Err(match connection.close_reason() {
                    Some(error) => Attempt::of(&error),
                    None => Attempt::Failed(error.to_string()),
                });
            }
        }
        let names: Vec<_> = self.forwards.iter().map(|bound| bound.forward.to_string()).collect();
        let listed = self.sessions.add(NewSession {
            label: self.name.clone().unwrap_or_else(|| short(&proved.key)),
            role: Role::Client,
            instance: self.instance,
            proved,
            connection,
            forwards: &names,
        });
        let session = Arc::clone(&listed.session);
        tokio::spawn(async move {
            let lost = session.supervise(control).await;
            info!(peer = session.peer(), cause = %lost, "session ended");
        });
        Ok(ClientSession { listed })
    }

    /// Serves the forwards over a session. Returns `Ok` when `shutdown` completes, else
    /// [`ClientError::Lost`]; either way every forwarded connection has ended by then. When the
    /// session is lost, what had arrived by then is delivered first, as long as it is taken.
    pub async fn run(
        &self,
        session: &ClientSession,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ClientError> {
        let accepting = Accepting::new(Arc::clone(&session.listed.session), self.forwards_max);
        let mut loops = JoinSet::new();
        for BoundForward { forward, listeners } in &self.forwards {
            for listener in listeners {
                let listener = Arc::clone(listener);
                loops.spawn(accept_loop(accepting.clone(), listener, forward.clone()));
            }
        }
        let served = async {
            let lost = self.lost(session).await;
            // The loops end by themselves when their connection has; see the server.
            while loops.join_next().await.is_some() {}
            lost
        };
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            lost = served => Err(lost),
        };
        loops.shutdown().await;
        ended
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
        let pair = match open_stream(&live.connection, target).await {
            Ok(pair) => pair,
            Err(OpenError::Refused(code)) => return Err(refused(code)),
            Err(OpenError::Lost) => return Err(self.lost(session).await),
        };
        match splice_pair(reader, writer, pair).await {
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
        let cause = session.listed.session.lost().await;
        ClientError::Lost { server: self.server.clone(), cause }
    }
}
