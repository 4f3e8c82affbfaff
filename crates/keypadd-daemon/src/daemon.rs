//! Sets up what serve, connect and run share: key, pool, meters, bench service, control socket and
//! /metrics.
//!
//! Samples rates twice a second and notifies systemd. Nothing is global, so two daemons can run in
//! one process.

mod allowances;
mod bench;
pub(crate) mod confine;
pub(crate) mod descriptors;
mod host_identity;
mod links;
pub(crate) mod networks;
mod peers_report;
pub(crate) mod pinned;
pub(crate) mod pooling;
pub(crate) mod preferences;
pub(crate) mod ready;
pub(crate) mod running_config;
pub(crate) mod server;
pub(crate) mod status_builder;
pub(crate) mod systemd;

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keypadd_cli::error::{Error, Exit, system};
use keypadd_cli::keyfile;
use keypadd_cli::memory::{Memory, memory};
use keypadd_cli::shutdown::Shutdown;
use keypadd_config::Settings;
use keypadd_provider::{CryptoSettings, Meters, PublicKey, ResetKeys};
use keypadd_tunnel::handover::{Handover, SocketFile};
use keypadd_tunnel::wire::Instance;
use keypadd_tunnel::{
    Client, HoldSettings, HostPorts, KeyLifetimes, MemoryShares, ServerHandle, SharedLimits,
    TransportSettings,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use crate::command_line::host_key::HostKey;
use crate::command_line::server_id::server_id;
use crate::control::runtime_directory;
use crate::control::{ControlSocket, Requests};
use crate::kit::Kit;
use crate::replacement::give::{HandoverSource, Program};
use crate::replacement::take::{HeldState, Takeover};
use crate::status::metrics;
use crate::status::rates::{self, Rates};
use crate::status::sources::Sources;

use bench::Bench;
use confine::Confinement;
use descriptors::{free_descriptors, reserved};
use networks::PeerNetworks;
use pooling::{PoolOptions, Pooling, budget_cut};
use preferences::{Preferences, accepted, accepted_groups};
use status_builder::StatusBuilder;

/// A daemon without its server or client.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// The settings that it was started with, some of which a reload changes.
    pub(crate) settings: Settings,
    /// Settings of packet protection.
    pub(crate) crypto: CryptoSettings,
    /// Settings of the transport.
    pub(crate) transport: TransportSettings,
    /// The pool.
    pub(crate) pooling: Pooling,
    /// The sandbox.
    pub(crate) confinement: Confinement,
    /// The networks of its peers.
    pub(crate) networks: PeerNetworks,
    metrics: Option<Arc<TcpListener>>,
    bench: Option<Bench>,
    /// The process that this one is replacing, until that is done.
    takeover: Option<Takeover>,
    program: Option<Program>,
    /// For a process that takes over, which may be unable to open it.
    key_file: Option<Arc<File>>,
    /// Whether this process has replaced another one, and so may lack that one's access.
    pub(crate) replaces: bool,
}

impl Daemon {
    /// Binds the metrics port and creates the pool.
    ///
    /// # Errors
    /// Exit 6: the metrics port is taken. Exit 2: as for [`server_id`]. Exit 1: there is no memory
    /// for the pool.
    pub(crate) async fn prepare(
        settings: Settings,
        host_key: HostKey,
        preferences: &Preferences,
        confinement: Confinement,
    ) -> Result<Self, Error> {
        let program = Program::own();
        let Memory { bytes: memory_bytes, is_limited } = memory();
        let shares = MemoryShares::of(memory_bytes, is_limited);
        if shares.keeps_freed() {
            keypadd_transport::keep_freed_memory();
        }
        let limits = SharedLimits::new(free_descriptors(), reserved, &shares);
        let limits = Arc::new(limits.with_local_ports(HostPorts::of_this_host()));
        limits.set_log_connections(settings.log_connections.value);
        let bench = match preferences.kit {
            Some(kit) => Some(Bench::start(kit).await?),
            None => None,
        };
        let cipher_engine = settings.cipher_backend.value;
        let Preferences { suites, kex, pooled, kit } = preferences;
        if let Some(line) = budget_cut(&settings, memory_bytes) {
            tracing::warn!("{line}");
        }
        let pooling =
            Pooling::start(PoolOptions::of(&settings, memory_bytes), pooled, cipher_engine)?;
        let (takeover, handover) = Takeover::begin().await?;
        let metrics = match &settings.metrics {
            Some(address) => Some(Arc::new(metrics::bind(address.value, &handover)?)),
            None => None,
        };
        let defaults = TransportSettings::within(shares);
        let transport = TransportSettings {
            congestion: settings.congestion.value,
            peer_timeout: settings.peer_timeout.value,
            spin: settings.spin.value,
            loops: settings.loops.as_ref().map_or(defaults.loops, |loops| loops.value),
            server_id: server_id(&settings)?,
            forwards_max: settings.max_forwards.value,
            hold: HoldSettings { time: settings.hold.value, ..defaults.hold },
            key_lifetimes: KeyLifetimes::new(settings.key_lifetime()),
            limits,
            clocks: confinement.clocks(),
            handover,
            ..defaults
        };
        let HostKey { key, path } = host_key;
        let crypto = CryptoSettings {
            key,
            suites: accepted(suites, *kit),
            kex: accepted_groups(kex, *kit),
            pool: pooling.switch(),
            cipher_engine,
            meters: Arc::new(Meters::default()),
        };
        Ok(Self {
            settings,
            crypto,
            transport,
            pooling,
            confinement,
            networks: PeerNetworks::default(),
            metrics,
            bench,
            replaces: takeover.is_some(),
            takeover,
            program,
            key_file: keyfile::open(&path).ok().map(Arc::new),
        })
    }

    /// How long open connections may take to finish at shutdown.
    pub(crate) fn drain(&self) -> Duration {
        self.settings.drain_timeout.value
    }

    /// Hands over the file of a new key from now on. If this process may not open it, the key is
    /// the old one.
    pub(crate) fn use_key_file(&mut self, path: &Path) {
        if let Ok(file) = keyfile::open_anew(path) {
            self.key_file = Some(Arc::new(file));
        }
    }

    /// The instance number of the client of this name: the old process's, or a new one.
    ///
    /// # Errors
    /// Exit 1: the system has no random bytes.
    pub(crate) fn instance(&self, client: &str) -> Result<Instance, Error> {
        let before = self.takeover.as_ref().and_then(|takeover| takeover.instance(client));
        before.map_or_else(generate_instance, Ok)
    }

    /// Takes what the old process holds, once all sockets are bound; nothing if there is none.
    ///
    /// # Errors
    /// As for [`Takeover::receive`].
    pub(crate) async fn take_held(&mut self) -> Result<HeldState, Error> {
        match &mut self.takeover {
            Some(takeover) => takeover.receive(&self.transport.handover).await,
            None => Ok(HeldState::default()),
        }
    }

    /// Ends the old process, if there is one, and starts serving in its place; returns whether
    /// there was one.
    ///
    /// # Errors
    /// As for [`Takeover::finish`].
    pub(crate) async fn finish_takeover(
        &mut self,
        servers: impl IntoIterator<Item = ServerHandle>,
        shutdown: &Shutdown,
    ) -> Result<bool, Error> {
        let Some(takeover) = self.takeover.take() else { return Ok(false) };
        let handover = self.transport.handover.clone();
        let held = self.transport.held.peers().iter().map(|peer| peer.streams).sum();
        takeover.finish(&handover, held, shutdown).await?;
        handover.resume();
        servers.into_iter().for_each(|server| server.resume());
        tokio::spawn(close_unclaimed(handover));
        Ok(true)
    }

    /// What can be handed over to a process that takes over.
    pub(crate) fn handover_source<'d>(
        &'d self,
        servers: Vec<ServerHandle>,
        clients: Vec<(String, &'d Client)>,
    ) -> HandoverSource<'d> {
        HandoverSource {
            handover: &self.transport.handover,
            limits: &self.transport.limits,
            program: self.program,
            key_file: self.key_file.clone(),
            servers,
            clients,
            metrics: self.metrics.as_deref(),
            networks: self.networks.all(),
            notify_main_pid: systemd::notify_main_pid,
        }
    }

    /// The address of the bench service.
    pub(crate) fn bench(&self) -> Option<SocketAddr> {
        self.bench.as_ref().map(Bench::address)
    }

    /// What it answers measurements with.
    pub(crate) fn kit(&self) -> Option<Kit> {
        self.bench.as_ref().map(|bench| bench.kit)
    }

    /// The keys of stateless resets on this host, of these settings' private key.
    pub(crate) fn reset_keys(&self, crypto: &CryptoSettings) -> ResetKeys {
        crypto.key.reset_keys(self.confinement.host().as_bytes())
    }

    /// This host's public key.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.crypto.key.public()
    }

    /// Starts the control socket and the metrics server, which run until the returned set is
    /// dropped. `place` identifies the daemon: its UDP address or its file.
    pub(crate) fn watch(
        &mut self,
        verb: &'static str,
        place: String,
        sources: Sources,
        requests: Requests,
    ) -> JoinSet<()> {
        let status = StatusBuilder {
            verb,
            place,
            started: SystemTime::now(),
            pooling: self.pooling.clone(),
            confinement: self.confinement.clone(),
            meters: Arc::clone(&self.crypto.meters),
            send_seconds: Arc::clone(&self.transport.send_seconds),
            limits: Arc::clone(&self.transport.limits),
            held: self.transport.held.clone(),
            memory: self.transport.memory.clone(),
            networks: self.networks.clone(),
            sources,
            rates: Rates::default(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(sample(status.clone()));
        tasks.spawn(self.networks.clone().watch());
        tasks.spawn(report_suppressed(Arc::clone(&self.transport.limits)));
        match bind_control_socket() {
            Ok(socket) => {
                tracing::debug!(path = %socket.path().display(), "control socket");
                let (status, record) = (status.clone(), self.confinement.take_record());
                tasks.spawn(async move {
                    let _removed_with_the_socket = record;
                    socket.serve(status, requests).await;
                });
            }
            // The tunnel works without it.
            Err(cause) => {
                tracing::warn!(
                    "no control socket, so `keypadd status` cannot see this daemon: {cause}"
                );
            }
        }
        if let Some(listener) = self.metrics.clone() {
            let sources = status.sources.clone();
            tasks.spawn(metrics::serve(listener, status, sources));
        }
        tasks
    }
}

/// Logs once a minute how many log lines were suppressed, until it is dropped.
async fn report_suppressed(limits: Arc<SharedLimits>) {
    let mut ticks = interval(Duration::from_secs(60));
    loop {
        ticks.tick().await;
        limits.report_suppressed();
    }
}

/// Updates the rates, and every second what `--pool auto` chose, until it is dropped.
pub(crate) async fn sample(status: StatusBuilder) {
    let mut ticks = interval(rates::EVERY);
    loop {
        for is_second in [true, false] {
            let now = ticks.tick().await.into_std();
            let sessions: Vec<_> = status.sources.live().iter().map(|live| live.counts()).collect();
            status.rates.sample(now, &sessions);
            if is_second {
                status.pooling.follow(status.meters.lengths());
            }
        }
    }
}

fn bind_control_socket() -> Result<ControlSocket, String> {
    let directory = runtime_directory::own().ok_or("neither XDG_RUNTIME_DIR nor HOME is set")?;
    ControlSocket::bind(&directory)
        .map_err(|error| format!("{}: {}", directory.display(), system(&error)))
}

/// How long a listener of a remote forward waits for its client to ask for it again, which it does
/// as soon as it is back.
const INHERITED_FOR: Duration = Duration::from_secs(10);

/// Closes the listeners of remote forwards that no client has asked for in time.
async fn close_unclaimed(handover: Handover) {
    sleep(INHERITED_FOR).await;
    // If another process replaces this one meanwhile, they are that one's.
    handover.resumed().await;
    handover.close_remote().iter().for_each(SocketFile::remove);
}

/// A random number that identifies a run of a client.
pub(crate) fn generate_instance() -> Result<Instance, Error> {
    Instance::generate().map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot get random bytes from the system: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use keypadd_tunnel::handover::HandedSocket;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn listeners_that_no_client_asks_for_are_closed_unless_another_process_has_them() {
        let handover = Handover::default();
        let remote = json!({
            "key": "", "instance": ([0; 16]), "number": 0, "bound": { "tcp": "127.0.0.1:9" },
        });
        let record = serde_json::from_value(json!({ "remote": remote })).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap().into();
        handover.inherit_remote(HandedSocket { record, socket });
        let closing = tokio::spawn(close_unclaimed(handover.clone()));
        handover.suspend();
        sleep(2 * INHERITED_FOR).await;
        assert_eq!(handover.hand_over_remote().unwrap().len(), 1);
        // It failed.
        handover.resume();
        closing.await.unwrap();
        assert!(handover.hand_over_remote().unwrap().is_empty());
    }
}
