//! Runs a server: binds a UDP port, accepts clients, applies changes, and shuts down.
//!
//! The transport's event loops reject unauthenticated peers at bounded cost. `serving` handles a
//! client after its handshake.

use std::{
    io, mem,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use keypadd_provider::{ResetKeys, ServerResetKey};
use keypadd_transport::{
    Accepted, Endpoint, HandshakeFailed, LoopMeter, Refusal, ServerConfig, crypto,
};
use tokio::{task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

use self::{
    client_log::LogLine,
    serving::{ServerContext, away::Adopted},
};
use crate::{
    error::{BindAddress, BindError},
    handover::{HandedLineage, HandedSocket, SocketRecord},
    net::{
        bind::bind_udp_group,
        source::{Source, plain},
    },
    permits::peers::Peers,
    sessions::{draining::Draining, registry::Sessions, session_end::SessionEnd},
    transport::{CLOSE_TIMEOUT, End, TransportSettings},
    wire::CloseCode,
};

mod client_log;
mod listed;
mod serving;
mod streams;

/// The settings of a server.
pub struct ServerSettings {
    /// UDP address to listen on; port 0 for any free one.
    pub listen: SocketAddr,
    /// Packet protection, made with the same list of peers.
    pub crypto: Arc<dyn crypto::ServerConfig>,
    /// Of the same private key and this host, for connections that a former process had.
    pub reset_keys: ResetKeys,
    /// The clients that may connect, with their permits.
    pub peers: Arc<Peers>,
    /// Transport settings.
    pub transport: TransportSettings,
    /// Maximum number of connections; more are refused.
    pub connections_max: usize,
    /// Maximum number of sessions of one key; more are refused.
    pub sessions_per_key: usize,
    /// Target of bench streams; without one they are refused.
    pub bench: Option<SocketAddr>,
}

/// A bound server.
pub struct Server {
    endpoint: Endpoint,
    config: ServerConfig,
    reset_key: Arc<ServerResetKey>,
    connections_max: usize,
    serving: Arc<ServerContext>,
    /// Clients of the old process.
    adopted: Mutex<Vec<Adopted>>,
    /// The UDP sockets, for the process that follows.
    udp: Arc<[OwnedFd]>,
}

/// Changes a running server. It keeps the UDP port open: drop it when the server has ended.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    endpoint: Endpoint,
    config: ServerConfig,
    reset_key: Arc<ServerResetKey>,
    serving: Arc<ServerContext>,
    udp: Arc<[OwnedFd]>,
}

impl ServerHandle {
    /// The UDP sockets, for the process that follows.
    ///
    /// # Errors
    /// There are too few descriptors.
    pub fn hand_over_sockets(&self) -> io::Result<Vec<HandedSocket>> {
        let record = || SocketRecord::Udp(self.endpoint.local_addr());
        let copy =
            |socket: &OwnedFd| Ok(HandedSocket { record: record(), socket: socket.try_clone()? });
        self.udp.iter().map(copy).collect()
    }

    /// Ends all sessions of a [suspended](crate::handover::Handover::suspend) daemon so that their
    /// streams are held, and describes the clients and the listeners of their remote forwards. The
    /// daemon's limits must have [settled](crate::SharedLimits::settled). Leaves what arrives to
    /// the process that follows, until [`resume`](Self::resume).
    ///
    /// # Errors
    /// There are too few descriptors.
    pub async fn hand_over(&self) -> io::Result<(Vec<HandedLineage>, Vec<HandedSocket>)> {
        self.endpoint.suspend(true);
        let mut listeners = self.serving.reservations.hand_over()?;
        listeners.extend(self.serving.handover.hand_over_remote()?);
        let (sessions, lineages) = (&self.serving.sessions, &self.serving.lineages);
        if !sessions.end_all(&SessionEnd::HandedOver, || lineages.all_held()).await {
            warn!("some connections could not be suspended in time and are reset");
        }
        let mut handed = lineages.hand_over(Instant::now())?;
        self.serving.name_by_listed_keys(&mut handed, &mut listeners);
        Ok((handed, listeners))
    }

    /// Completes when the peers of all sessions that were handed over have been told.
    pub async fn wait_closed(&self) {
        self.endpoint.wait_idle().await;
    }

    /// Takes what arrives again: no process followed.
    pub fn resume(&self) {
        self.endpoint.suspend(false);
        self.serving.reservations.resume();
    }

    /// Drains it.
    pub fn draining(&self) -> Draining {
        self.serving.draining.clone()
    }

    /// The list of peers, shared with the packet protection.
    pub fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.serving.peers)
    }

    /// Replaces the list of peers. Closes the sessions of keys that are not in it; for the others
    /// the new permits apply from the next stream on.
    pub fn set_peers(&self, peers: Peers) {
        self.serving.peers.replace(peers);
        self.serving.end_all_inadmissible();
    }

    /// Replaces the host's key: later handshakes use `crypto`, which was made with
    /// [`peers`](Self::peers), and stateless resets use `reset_keys`, which come from the private
    /// key of `crypto`.
    pub fn set_crypto(&self, crypto: Arc<dyn crypto::ServerConfig>, reset_keys: &ResetKeys) {
        let mut config = self.config.clone();
        config.crypto = crypto;
        self.endpoint.set_server_config(config);
        self.reset_key.replace(reset_keys);
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Server {
    /// Binds the UDP address. Answers no client before [`run`](Self::run). Needs a tokio runtime.
    pub fn bind(settings: ServerSettings) -> Result<Self, BindError> {
        let failed = |source| BindError { address: BindAddress::Udp(settings.listen), source };
        let mut config = ServerConfig::with_crypto(settings.crypto);
        // The port of a client behind a NAT can change at any time.
        config.migration(true);
        let TransportSettings { loops, udp_buffer_bytes, .. } = settings.transport;
        let handover = settings.transport.handover.clone();
        let inherited = handover.take_udp(settings.listen, loops);
        let sockets = bind_udp_group(settings.listen, loops, udp_buffer_bytes, inherited)
            .map_err(|error| failed(handover.explain(error, settings.listen.port())))?;
        let clones = sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned());
        let udp = clones.collect::<io::Result<Arc<[_]>>>().map_err(failed)?;
        let bound = sockets[0].local_addr().map_err(failed)?;
        let ServerSettings { peers, sessions_per_key, bench, .. } = settings;
        let serving =
            Arc::new(ServerContext::new(peers, &settings.transport, sessions_per_key, bench));
        let connections_max = settings.connections_max;
        let reset_key = Arc::new(settings.reset_keys.of_address(bound));
        let endpoint = settings
            .transport
            .endpoint(
                End::Server,
                sockets,
                Some(config.clone()),
                Some(Arc::<ServerResetKey>::clone(&reset_key)),
                connections_max,
                serving.clock_monitor.gate(),
            )
            .map_err(failed)?;
        let adopted = Mutex::default();
        Ok(Self { endpoint, config, reset_key, connections_max, serving, adopted, udp })
    }

    /// A handle to change the running server.
    pub fn handle(&self) -> ServerHandle {
        let (endpoint, config) = (self.endpoint.clone(), self.config.clone());
        let reset_key = Arc::clone(&self.reset_key);
        let (serving, udp) = (Arc::clone(&self.serving), Arc::clone(&self.udp));
        ServerHandle { endpoint, config, reset_key, serving, udp }
    }

    /// Goes on with the clients of another process. Those whose keys are not listed any more are
    /// reset. Needs a tokio runtime.
    pub fn adopt(&mut self, lineages: Vec<HandedLineage>) {
        let adopted = self.adopted.get_mut().unwrap_or_else(PoisonError::into_inner);
        adopted.extend(lineages.into_iter().filter_map(|lineage| self.serving.adopt(lineage)));
    }

    /// The bound UDP address.
    pub fn local_addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// The live sessions; the list outlives the server.
    pub fn sessions(&self) -> Sessions {
        self.serving.sessions.clone()
    }

    /// Drains it; outlives the server.
    pub fn draining(&self) -> Draining {
        self.serving.draining.clone()
    }

    /// The meter of its event loops; outlives the server.
    pub fn loop_meter(&self) -> LoopMeter {
        self.endpoint.meter()
    }

    /// Serves until `shutdown` returns the time to drain. Then accepts nothing new, resets the
    /// connections that have not ended within that time, and closes all sessions. Returns a few
    /// seconds later at most.
    pub async fn run(mut self, shutdown: impl Future<Output = Duration>) {
        let adopted = mem::take(&mut self.adopted).into_inner();
        let adopted = adopted.unwrap_or_else(PoisonError::into_inner);
        tokio::select! {
            () = self.serve(adopted, shutdown) => {}
            never = self.serving.watch_expiry() => match never {},
        }
    }

    async fn serve(&self, adopted: Vec<Adopted>, shutdown: impl Future<Output = Duration>) {
        tokio::pin!(shutdown);
        let mut connections = JoinSet::from_iter(adopted);
        let grace = loop {
            tokio::select! {
                grace = &mut shutdown => break grace,
                accepted = self.endpoint.accept() => match accepted {
                    Some(Accepted::Connection(connection)) => {
                        connections.spawn(Arc::clone(&self.serving).serve(connection));
                    }
                    Some(other) => self.log_rejected(&other),
                    None => break Duration::ZERO,
                },
                Some(_) = connections.join_next() => {}
            }
        };
        self.endpoint.refuse();
        self.serving.draining.stop();
        let code = CloseCode::Shutdown.value().into();
        let reason = SessionEnd::Shutdown.to_string();
        let drained = async {
            loop {
                tokio::select! {
                    ended = connections.join_next() => if ended.is_none() { break },
                    // An event loop may have accepted it before it got the command to refuse.
                    Some(accepted) = self.endpoint.accept() => {
                        if let Accepted::Connection(late) = accepted {
                            late.close(code, reason.as_bytes());
                        }
                    }
                }
            }
        };
        if timeout(grace, drained).await.is_err() && !grace.is_zero() {
            info!("drain timeout: resetting open connections");
        }
        self.endpoint.close(code, reason.as_bytes());
        let closed = async {
            while connections.join_next().await.is_some() {}
            self.endpoint.wait_idle().await;
        };
        if timeout(CLOSE_TIMEOUT, closed).await.is_err() {
            debug!("timed out closing connections");
        }
    }

    /// Logs a failed or refused handshake, at a limited rate.
    fn log_rejected(&self, accepted: &Accepted) {
        let serving = &self.serving;
        match accepted {
            Accepted::Connection(_) => {}
            Accepted::Failed(HandshakeFailed { remote, error }) => {
                serving.log.handshake_failure(&serving.peers, plain(*remote), error);
            }
            Accepted::Refused(remote, refusal) => {
                let remote = plain(*remote);
                match refusal {
                    Refusal::Full
                        if serving.log.allows(LogLine::ServerFull(Source::of(remote))) =>
                    {
                        let max = self.connections_max;
                        warn!(source = %remote, max, "refused: too many connections");
                    }
                    Refusal::Displaced if serving.log.allows(LogLine::Overload) => {
                        let total = self.endpoint.refusals().displaced;
                        warn!(
                            source = %remote,
                            total,
                            "too many concurrent handshakes: dropped the oldest unauthenticated one"
                        );
                    }
                    Refusal::Crowded if serving.log.allows(LogLine::Overload) => {
                        let total = self.endpoint.refusals().crowded;
                        warn!(
                            source = %remote,
                            total,
                            "too many concurrent handshakes: delaying addresses that complete none"
                        );
                    }
                    _ => debug!(source = %remote, ?refusal, "handshake dropped"),
                }
            }
        }
    }
}
