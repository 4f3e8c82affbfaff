//! Runs a client: binds local listeners, connects to one server, or to another in its place, and
//! opens a stream for each connection.
//!
//! [`Client::bind`] binds the local ports before anything is sent, [`Client::connect`] makes one
//! session, and [`Client::run`] serves until shutdown, reconnecting when a session is lost.
//! Listeners outlive sessions; connections accepted without a session wait for the next one.

use std::{
    convert::Infallible,
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use keypadd_provider::PublicKey;
use keypadd_transport::{ClientConfig, Endpoint, LoopMeter, RateCap, crypto};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::info;

use crate::{
    addresses::{
        forward::{Forward, ProxyHeaders, RemoteForward},
        servers::ServerAddresses,
    },
    clock::monitor::ClockMonitor,
    error::{BindAddress, BindError},
    forwards::{
        accept::{Acceptor, SharedHeaders},
        carrier::Carrier,
        listener_group::Bound,
        listeners::{BoundForwards, ForwardListeners},
        spare_sockets::SpareSockets,
        tasks::ConnectionTasks,
    },
    handover::Handover,
    limits::SharedLimits,
    net::{
        bind::{ANY_PORT, bind_udp},
        lookup::Lookups,
    },
    networks::Network,
    sessions::{
        hold::held_list::HeldList, lifetime::KeyLifetimes, registry::Sessions,
        server_link::ServerLink, session::LiveSession,
    },
    transport::{CLOSE_TIMEOUT, End, TransportSettings},
    wire::{CloseCode, ListenCode},
};

mod attempts;
mod bulk;
mod client_session;
mod connect;
mod expiry;
mod failover;
mod hand_over;
mod incoming;
pub(crate) mod join;
mod leaving;
mod lineage;
mod listed;
mod reach;
mod reconnect;
mod renewal;
mod resume;
mod settings;
mod stdio;

pub use self::{client_session::ClientSession, settings::ClientSettings};
use self::{
    leaving::LeftQueue,
    lineage::{Lineage, Lineages},
    listed::ListedKeys,
};

/// A client with its local ports bound.
pub struct Client {
    endpoint: Endpoint,
    config: Arc<Mutex<ClientConfig>>,
    listed: ListedKeys,
    server: ServerAddresses,
    name: Option<String>,
    connect_timeout: Duration,
    lineages: Lineages,
    left: LeftQueue,
    listeners: ForwardListeners,
    headers: SharedHeaders,
    tasks: ConnectionTasks,
    link: ServerLink,
    sessions: Sessions,
    lookups: Lookups,
    clock_monitor: ClockMonitor,
    limits: Arc<SharedLimits>,
    /// The peers whose streams are held.
    held: HeldList,
    handover: Handover,
    key_lifetimes: KeyLifetimes,
    rate_cap: Option<RateCap>,
    return_interval: Duration,
    renewing: renewal::RenewalAttempts,
    /// What the server is counted by: the first key that it proved.
    identity: OnceLock<PublicKey>,
    /// When the server is not to be connected to any more, by this host's clock.
    valid_until: watch::Sender<Option<SystemTime>>,
    /// The networks behind the server, if it has any.
    network: OnceLock<Arc<Network>>,
}

impl Client {
    /// Binds a UDP port and the listeners of all forwards. Sends nothing. Connections accepted
    /// from now on wait for a session. Needs a tokio runtime.
    pub fn bind(settings: ClientSettings) -> BoxFuture<'static, Result<Self, BindError>> {
        Box::pin(async move {
            let (link, tasks) = (ServerLink::default(), ConnectionTasks::default());
            let forwards_max = settings.transport.forwards_max as usize;
            let limits = Arc::clone(&settings.transport.limits);
            let held = settings.transport.held.clone();
            let handover = settings.transport.handover.clone();
            let headers = SharedHeaders::default();
            headers.set(settings.proxy_headers);
            let acceptor = Acceptor::new(
                (link.clone(), headers.clone()),
                forwards_max,
                Arc::clone(&limits),
                tasks.clone(),
                handover.clone(),
            );
            let failed = |source| BindError { address: BindAddress::AnyUdpPort, source };
            let sockets = (0..settings.transport.loops.min(2))
                .map(|_| bind_udp(ANY_PORT, settings.transport.udp_buffer_bytes))
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            let clock_monitor = ClockMonitor::new(Arc::clone(&settings.transport.clocks));
            let gate = clock_monitor.gate();
            let endpoint = settings
                .transport
                .endpoint(End::Client, sockets, None, None, 0, gate)
                .map_err(failed)?;
            let listeners = ForwardListeners::new(acceptor, handover.clone());
            let bound = listeners.bind("", settings.forwards, &mut SpareSockets::default()).await?;
            listeners.set(bound).await;
            let TransportSettings { hold, memory, .. } = &settings.transport;
            let lineage = Lineage::new(settings.instance, *hold, &memory.budgets.sent);
            Ok(Self {
                endpoint,
                config: Arc::new(Mutex::new(ClientConfig::new(settings.crypto))),
                listed: ListedKeys::default(),
                server: settings.server,
                name: settings.name,
                connect_timeout: settings.connect_timeout,
                lineages: Lineages::new(lineage),
                left: LeftQueue::default(),
                listeners,
                headers,
                tasks,
                link,
                sessions: Sessions::default(),
                lookups: Lookups::with_nameservers(settings.transport.nameservers),
                clock_monitor,
                limits,
                held,
                handover,
                key_lifetimes: settings.transport.key_lifetimes,
                rate_cap: settings.transport.rate_cap,
                return_interval: settings.transport.return_interval,
                renewing: Default::default(),
                identity: OnceLock::new(),
                valid_until: watch::Sender::new(None),
                network: OnceLock::new(),
            })
        })
    }

    /// Each forward with its bound addresses.
    pub fn forwards(&self) -> Vec<(Forward, Vec<Bound>)> {
        self.listeners.list()
    }

    /// Sets the forwards: closes listeners that are not among them, opens the new ones, and leaves
    /// the others alone. Requests refused remote forwards again. Open connections stay.
    ///
    /// # Errors
    /// One cannot be bound: nothing has changed.
    pub async fn set_forwards(&self, forwards: Vec<Forward>) -> Result<(), BindError> {
        let mut spare = SpareSockets::default();
        self.add_spare("", &forwards, &mut spare);
        let bound = self.bind_forwards("", forwards, &mut spare).await?;
        self.use_forwards(bound).await;
        Ok(())
    }

    /// Waits for the server's answer to a remote forward: a port, or why it does not listen. `None`
    /// without a session, or if that ends first.
    pub async fn answer_to(&self, forward: &RemoteForward) -> Option<Result<u16, ListenCode>> {
        let session = self.link.current()?;
        tokio::select! {
            answer = session.remote_forwards.answer(forward) => answer,
            _ = session.ended() => None,
        }
    }

    /// Adds the listening sockets of forwards that are not among these, as those of `owner`.
    pub fn add_spare(&self, owner: &str, forwards: &[Forward], spare: &mut SpareSockets) {
        self.listeners.add_spare(owner, forwards, spare);
    }

    /// Binds the sockets that these forwards lack: those already open, and spare ones of any
    /// client, are reused; a port that the system chose only by its `owner`. Nothing else changes
    /// until [`use_forwards`](Self::use_forwards).
    ///
    /// # Errors
    /// One cannot be bound.
    pub async fn bind_forwards(
        &self,
        owner: &str,
        forwards: Vec<Forward>,
        spare: &mut SpareSockets,
    ) -> Result<BoundForwards, BindError> {
        self.listeners.bind(owner, forwards, spare).await
    }

    /// Stops using listening sockets that are not among these. Clients that give sockets to others
    /// do so before those use them.
    pub async fn close_except(&self, bound: &BoundForwards) {
        self.listeners.close_except(bound).await;
    }

    /// Sets the forwards to these, as [`set_forwards`](Self::set_forwards) does.
    pub async fn use_forwards(&self, bound: BoundForwards) {
        self.listeners.set(bound).await;
        if let Some(session) = self.link.current() {
            session.pin_forwards(&self.forward_names());
            self.request_forwards(&session);
        }
    }

    /// Sets which connections begin with a PROXY header, from the next one on that is accepted
    /// here; at the server once the forwards have been set.
    pub fn set_proxy_headers(&self, headers: ProxyHeaders) {
        self.headers.set(headers);
    }

    /// Carries these networks in each session from the next one on. Only the first call counts.
    pub fn carry_network(&self, network: Arc<Network>) {
        let _ = self.network.set(network);
    }

    /// Sets the packet protection for the next attempt to connect.
    pub fn set_crypto(&self, crypto: Arc<dyn crypto::ClientConfig>) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = ClientConfig::new(crypto);
    }

    /// Ends sessions whose server has proved another key than these, also those about to begin;
    /// their connections are reset. Call it before [`set_crypto`](Self::set_crypto) when the keys
    /// change.
    pub fn end_unlisted(&self, keys: &[PublicKey]) {
        self.listed.set(keys);
        for session in self.sessions.live() {
            self.listed.check(&session);
        }
    }

    /// Carries connections of other processes; outlives the client.
    pub fn carrier(&self) -> Carrier {
        self.listeners.carrier(self.server.clone())
    }

    /// The state of the link to the server; outlives the client.
    pub fn link(&self) -> ServerLink {
        self.link.clone()
    }

    /// The meter of its event loops; outlives the client.
    pub fn loop_meter(&self) -> LoopMeter {
        self.endpoint.meter()
    }

    fn forward_names(&self) -> Vec<String> {
        self.listeners.list().iter().map(|(forward, _)| forward.to_string()).collect()
    }

    fn remote_forwards(&self) -> Vec<RemoteForward> {
        let remote = |forward| match forward {
            Forward::Remote(remote) => Some(remote),
            Forward::Local(_) | Forward::Dynamic(_) | Forward::Bench(_) => None,
        };
        self.listeners.list().into_iter().filter_map(|(forward, _)| remote(forward)).collect()
    }

    /// Asks the server for the remote forwards.
    fn request_forwards(&self, session: &LiveSession) {
        let requests = &session.remote_forwards;
        requests.set(&self.remote_forwards(), self.headers.get());
        requests.retry_refused();
    }

    /// The live sessions: one that carries new connections, and those at drained servers that
    /// still have connections; more if `connect` is called more than once.
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Serves the forwards until `shutdown` returns the time to drain. Then accepts nothing new,
    /// and resets the connections that have not ended within that time. When a session is lost, its
    /// connections end (data that has arrived is still delivered), and the client reconnects, with
    /// any number of attempts.
    pub async fn run(
        &self,
        first: Option<ClientSession>,
        shutdown: impl Future<Output = Duration>,
    ) {
        let mut current = first;
        let mut keeping = pin!(self.keep_left());
        let (grace, until) = {
            let mut staying = self.stay_connected(&mut current);
            let grace = tokio::select! {
                grace = shutdown => grace,
                never = &mut staying => match never {},
                never = &mut keeping => match never {},
            };
            let until = Instant::now() + grace;
            // The server may have ended the old session already.
            tokio::select! {
                biased;
                () = self.renewing.underway.none() => {}
                () = sleep_until(until) => {}
                never = staying => match never {},
                never = &mut keeping => match never {},
            }
            (grace, until)
        };
        self.listeners.close().await;
        if let Some(session) = &current {
            let requests = &session.registration.session.remote_forwards;
            requests.set(&[], ProxyHeaders::default());
        }
        let session_lost = async {
            if let Some(session) = &current {
                session.ended().await;
            }
            // No more reconnects: connections must not wait for a session.
            self.link.close("shutting down");
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            finished = self.tasks.drain(until) => if !finished && !grace.is_zero() {
                info!("drain timeout: resetting open connections");
            },
            never = session_lost => match never {},
            never = keeping => match never {},
        }
        self.link.close("shut down");
    }

    /// Closes all connections and the UDP port. Waits a few seconds at most for the server to know.
    pub async fn close(self) {
        self.endpoint.close(CloseCode::Shutdown.value().into(), b"the client is shutting down");
        let _ = timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle()).await;
    }
}
