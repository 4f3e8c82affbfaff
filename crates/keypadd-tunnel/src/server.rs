//! The listening end: a UDP port, whom it answers, how it is changed and how it ends.
//!
//! Strangers are counted and turned away here, at no cost that they could drive up; a client that
//! is let in is served in `serving`. Connections and handshakes in flight are bounded.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use quinn::{Endpoint, Incoming, crypto};
use tokio::{task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

use self::serving::{InFlight, Notice, Serving};
use crate::{
    admission::{Attempt, Verdict, decide},
    error::BindError,
    peer::Peers,
    session::{Lost, Sessions, Shown},
    silence::endpoint_on,
    socket::bind_udp,
    source::{Source, plain},
    transport::{End, TransportSettings},
    wire::CloseCode,
};

mod serving;

/// Time for connections to say goodbye when the server ends.
pub(crate) const GOODBYE_TIME: Duration = Duration::from_secs(3);

/// Attempts to connect that wait for the accept loop; it never makes them wait long.
const WAITING_MAX: usize = 256;

/// Bytes that may come in for one waiting attempt, and for all of them.
const WAITING_BYTES: u64 = 64 << 10;
const WAITING_BYTES_TOTAL: u64 = 4 << 20;

/// What a server is made of.
pub struct ServerSettings {
    /// UDP address to listen on; port 0 for any that is free.
    pub listen: SocketAddr,
    /// Packet protection; it must have been made with the same list of peers.
    pub crypto: Arc<dyn crypto::ServerConfig>,
    /// Who may come in and what each may reach.
    pub peers: Arc<Peers>,
    /// Windows and timers.
    pub transport: TransportSettings,
    /// Connections at once; above it new ones are refused.
    pub connections_max: usize,
    /// The service that bench streams are connected to. Without one they are refused.
    pub bench: Option<SocketAddr>,
}

/// A bound server.
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    config: quinn::ServerConfig,
    local_addr: SocketAddr,
    connections_max: usize,
    serving: Arc<Serving>,
}

/// Changes a server while it runs. It keeps the UDP port: drop it when the server has ended.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    endpoint: Endpoint,
    config: quinn::ServerConfig,
    serving: Arc<Serving>,
}

impl ServerHandle {
    /// The list that the server and its packet protection share.
    pub fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.serving.peers)
    }

    /// Lists these clients and no others. Sessions of a key that is not among them are closed;
    /// others are not touched, and the new permits hold from their next stream on.
    pub fn set_peers(&self, peers: Peers) {
        self.serving.peers.replace(peers);
        for session in self.serving.sessions.live() {
            self.serving.end_unlisted(&session);
        }
    }

    /// From the next handshake on, packet protection is this. It must have been made with
    /// [`peers`](Self::peers).
    pub fn set_crypto(&self, crypto: Arc<dyn crypto::ServerConfig>) {
        let mut config = self.config.clone();
        config.crypto = crypto;
        self.endpoint.set_server_config(Some(config));
    }
}

impl Server {
    /// Binds the UDP address. Nobody is answered before [`run`](Self::run). Needs a tokio runtime.
    pub fn bind(settings: ServerSettings) -> Result<Self, BindError> {
        let failed = |source| BindError { address: format!("udp {}", settings.listen), source };
        let mut config = quinn::ServerConfig::with_crypto(settings.crypto);
        config
            .transport_config(settings.transport.quinn(End::Server))
            .max_incoming(WAITING_MAX)
            .incoming_buffer_size(WAITING_BYTES)
            .incoming_buffer_size_total(WAITING_BYTES_TOTAL)
            // A client behind a NAT may come from another port at any time.
            .migration(true);
        let socket =
            bind_udp(settings.listen, settings.transport.udp_buffer_bytes).map_err(failed)?;
        let serving = Arc::new(Serving::new(settings.peers, &settings.transport, settings.bench));
        let silence = serving.watchman.silence();
        let endpoint =
            endpoint_on(socket, Some(config.clone()), silence, settings.transport.meters.clone())
                .map_err(failed)?;
        let local_addr = endpoint.local_addr().map_err(failed)?;
        let connections_max = settings.connections_max;
        Ok(Self { endpoint, config, local_addr, connections_max, serving })
    }

    /// What changes the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        let (endpoint, config) = (self.endpoint.clone(), self.config.clone());
        ServerHandle { endpoint, config, serving: Arc::clone(&self.serving) }
    }

    /// The bound UDP address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The sessions that live; the list outlasts the server.
    pub fn sessions(&self) -> Sessions {
        self.serving.sessions.clone()
    }

    /// Serves until `shutdown` completes with the time that open connections may still have.
    /// Nothing new is let in then; what has not ended in that time is reset, all clients are told,
    /// and a few seconds later at most it has ended.
    pub async fn run(self, shutdown: impl Future<Output = Duration>) {
        tokio::select! {
            () = self.serve(shutdown) => {}
            never = self.speak_again() => match never {},
        }
    }

    /// Ends each silence, also one that fell before it was called.
    async fn speak_again(&self) -> Infallible {
        let mut jumps = self.serving.watchman.jumps();
        loop {
            self.serving.watchman.silence().outlast(&self.endpoint).await;
            jumps.next().await;
        }
    }

    async fn serve(&self, shutdown: impl Future<Output = Duration>) {
        tokio::pin!(shutdown);
        let silence = self.serving.watchman.silence();
        let mut connections = JoinSet::new();
        let grace = loop {
            tokio::select! {
                grace = &mut shutdown => break grace,
                incoming = self.endpoint.accept() => match incoming {
                    // It could not be answered, and would be a connection more to wait for.
                    Some(incoming) if silence.holds() => incoming.ignore(),
                    Some(incoming) => self.admit(incoming, &mut connections),
                    None => break Duration::ZERO,
                },
                Some(_) = connections.join_next() => {}
            }
        };
        self.serving.drain();
        let drained = async {
            loop {
                tokio::select! {
                    Some(incoming) = self.endpoint.accept() => incoming.refuse(),
                    done = connections.join_next() => if done.is_none() { break },
                }
            }
        };
        if timeout(grace, drained).await.is_err() && !grace.is_zero() {
            info!("what is still open is cut off");
        }
        let code = CloseCode::Shutdown.value().into();
        self.endpoint.close(code, Lost::Ending.to_string().as_bytes());
        let goodbye = async {
            while connections.join_next().await.is_some() {}
            self.endpoint.wait_idle().await;
        };
        if timeout(GOODBYE_TIME, goodbye).await.is_err() {
            debug!("some connections did not end in time");
        }
    }

    fn admit(&self, incoming: Incoming, connections: &mut JoinSet<()>) {
        let serving = &self.serving;
        let source = Source::of(incoming.remote_address());
        let validated = incoming.remote_address_validated();
        let attempt = Attempt {
            in_flight: serving.handshakes.now(),
            of_source: serving.handshakes_of.now(&(source, validated)),
            full: serving.connections.now() >= self.connections_max,
            validated,
        };
        match decide(attempt) {
            Verdict::Accept => {
                let in_flight = InFlight {
                    _all: serving.handshakes.add(),
                    _of_source: serving.handshakes_of.add((source, validated)),
                };
                let counted = (in_flight, serving.connections.add());
                match incoming.accept() {
                    Ok(connecting) => {
                        let serving = Arc::clone(serving);
                        connections.spawn(serving.serve(connecting, counted));
                    }
                    Err(error) => debug!(%source, error = %Shown(&error), "not accepted"),
                }
            }
            // An address that has proved itself cannot be asked again, and is not (`validated`).
            Verdict::Retry => drop(incoming.retry()),
            Verdict::Refuse => {
                if serving.may_log(Notice::Full(source)) {
                    let source = plain(incoming.remote_address());
                    warn!(%source, max = self.connections_max, "refused: too many connections");
                }
                incoming.refuse();
            }
            Verdict::IgnoreSource => incoming.ignore(),
            Verdict::IgnoreAll => {
                if serving.may_log(Notice::Crowd) {
                    let in_flight = attempt.in_flight;
                    warn!(in_flight, "too many handshakes at once: new clients are not answered");
                }
                incoming.ignore();
            }
        }
    }
}
