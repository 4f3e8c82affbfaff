//! The listening end: a UDP port, whom it answers, how it is changed and how it ends.
//!
//! Strangers are counted and turned away by the transport's loops, at no cost that they could drive
//! up; a client whose handshake is complete is served in `serving`.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use keypadd_transport::{
    Accepted, Endpoint, HandshakeFailed, LoopMeter, Refusal, ServerConfig, crypto,
};
use tokio::{task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

use self::serving::{Notice, Serving};
use crate::{
    error::BindError,
    net::{
        bind::bind_udp_group,
        source::{Source, plain},
    },
    permits::peers::Peers,
    sessions::session::{Lost, Sessions},
    transport::{End, TransportSettings},
    wire::CloseCode,
};

mod per_key_limit;
mod serving;

/// Time for connections to say goodbye when the server ends.
pub(crate) const GOODBYE_TIME: Duration = Duration::from_secs(3);

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
    config: ServerConfig,
    connections_max: usize,
    serving: Arc<Serving>,
}

/// Changes a server while it runs. It keeps the UDP port: drop it when the server has ended.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    endpoint: Endpoint,
    config: ServerConfig,
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
        self.endpoint.set_server_config(config);
    }
}

impl Server {
    /// Binds the UDP address. Nobody is answered before [`run`](Self::run). Needs a tokio runtime.
    pub fn bind(settings: ServerSettings) -> Result<Self, BindError> {
        let failed = |source| BindError { address: format!("udp {}", settings.listen), source };
        let mut config = ServerConfig::with_crypto(settings.crypto);
        // A client behind a NAT may come from another port at any time.
        config.migration(true);
        let TransportSettings { loops, udp_buffer_bytes, .. } = settings.transport;
        let sockets = bind_udp_group(settings.listen, loops, udp_buffer_bytes).map_err(failed)?;
        let serving = Arc::new(Serving::new(settings.peers, &settings.transport, settings.bench));
        let connections_max = settings.connections_max;
        let endpoint = settings
            .transport
            .endpoint(
                End::Server,
                sockets,
                Some(config.clone()),
                connections_max,
                serving.watchman.egress(),
            )
            .map_err(failed)?;
        Ok(Self { endpoint, config, connections_max, serving })
    }

    /// What changes the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        let (endpoint, config) = (self.endpoint.clone(), self.config.clone());
        ServerHandle { endpoint, config, serving: Arc::clone(&self.serving) }
    }

    /// The bound UDP address.
    pub fn local_addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// The sessions that live; the list outlasts the server.
    pub fn sessions(&self) -> Sessions {
        self.serving.sessions.clone()
    }

    /// What its event loops cost; it outlasts the server.
    pub fn loop_meter(&self) -> LoopMeter {
        self.endpoint.meter()
    }

    /// Serves until `shutdown` completes with the time that open connections may still have.
    /// Nothing new is let in then; what has not ended in that time is reset, all clients are told,
    /// and a few seconds later at most it has ended.
    pub async fn run(self, shutdown: impl Future<Output = Duration>) {
        tokio::select! {
            () = self.serve(shutdown) => {}
            never = self.reopen_egress() => match never {},
        }
    }

    /// Opens the egress gate again after each jump, also one that came before the call.
    async fn reopen_egress(&self) -> Infallible {
        let mut jumps = self.serving.watchman.jumps();
        loop {
            self.serving.watchman.egress().reopen(&self.endpoint).await;
            jumps.next().await;
        }
    }

    async fn serve(&self, shutdown: impl Future<Output = Duration>) {
        tokio::pin!(shutdown);
        let mut connections = JoinSet::new();
        let grace = loop {
            tokio::select! {
                grace = &mut shutdown => break grace,
                accepted = self.endpoint.accept() => match accepted {
                    Some(Accepted::Connection(connection)) => {
                        connections.spawn(Arc::clone(&self.serving).serve(connection));
                    }
                    Some(other) => self.note(&other),
                    None => break Duration::ZERO,
                },
                Some(_) = connections.join_next() => {}
            }
        };
        self.endpoint.refuse();
        self.serving.drain();
        let drained = async { while connections.join_next().await.is_some() {} };
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

    /// Logs what came to nothing, at a limited rate.
    fn note(&self, accepted: &Accepted) {
        let serving = &self.serving;
        match accepted {
            Accepted::Connection(_) => {}
            Accepted::Failed(HandshakeFailed { remote, error }) => {
                serving.log_stranger(plain(*remote), error);
            }
            Accepted::Refused(remote, refusal) => {
                let remote = plain(*remote);
                match refusal {
                    Refusal::Full if serving.may_log(Notice::Full(Source::of(remote))) => {
                        let max = self.connections_max;
                        warn!(source = %remote, max, "refused: too many connections");
                    }
                    Refusal::Displaced if serving.may_log(Notice::Crowd) => {
                        let total = self.endpoint.refusals().displaced;
                        warn!(
                            source = %remote,
                            total,
                            "too many handshakes at once: the oldest unproved one was dropped"
                        );
                    }
                    Refusal::Crowded if serving.may_log(Notice::Crowd) => {
                        let total = self.endpoint.refusals().crowded;
                        warn!(
                            source = %remote,
                            total,
                            "too many handshakes at once: addresses that complete none have to wait"
                        );
                    }
                    _ => debug!(source = %remote, ?refusal, "handshake dropped"),
                }
            }
        }
    }
}
