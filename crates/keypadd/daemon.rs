//! What `serve`, `connect` and `run` share: key, pool, meters, and the two ways to look inside a running daemon,
//! the control socket and `/metrics`. A daemon owns all of it and two can run in one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keypadd_keystream::{CipherEngine, Class, MeasureSuite, Protection, Suite};
use keypadd_provider::{
    CryptoSettings, Group, KeyExchange, MeasureKeyExchange, Meters, PrivateKey, PublicKey,
};
use keypadd_traffic::Service;
use keypadd_tunnel::{Congestion, SpinShare, TransportSettings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::cli::{DaemonFlags, memory_bytes};
use crate::control::{self, ControlSocket, Requests};
use crate::error::{Error, Exit, system};
use crate::figures::Figures;
use crate::pooling::{PoolOptions, Pooling};
use crate::rates::{self, Rates};
use crate::sources::Sources;
use crate::{keyfile, metrics};

/// Of this host's memory, what slow readers of all sessions may hold beyond their windows.
const STALLED_ONE_IN: u64 = 4;

/// What both kinds of daemon are started with.
#[derive(Debug)]
pub(crate) struct DaemonSettings {
    /// This host's key.
    pub(crate) key: Arc<PrivateKey>,
    /// Suites to offer or accept, most wanted first.
    pub(crate) suites: Vec<Suite>,
    /// Key exchanges to offer or accept, most wanted first.
    pub(crate) kex: Vec<KeyExchange>,
    /// Whether measurements are answered, and what is there for them alone is accepted.
    pub(crate) permit_bench: bool,
    /// Whether, and how, keystream is made ahead of need.
    pub(crate) pool: PoolOptions,
    /// Suites that sessions can come to have.
    pub(crate) pool_suites: Vec<Suite>,
    /// What computes DES.
    pub(crate) cipher_engine: CipherEngine,
    /// How fast to send.
    pub(crate) congestion: Congestion,
    /// How much of one core each event loop may spend on polling.
    pub(crate) spin: SpinShare,
    /// How many event loops an endpoint has; unless given, this host's cores decide.
    pub(crate) loops: Option<usize>,
    /// How many connections a session forwards at once, each way, unless it is the tunnel's default.
    pub(crate) max_forwards: Option<u32>,
    /// Where metrics are served, if they are.
    pub(crate) metrics: Option<SocketAddr>,
    /// Whether there is a control socket, for `status`.
    pub(crate) control_socket: bool,
    /// How long what is open may take to finish when the daemon ends.
    pub(crate) drain: Duration,
}

impl DaemonSettings {
    /// Reads the flags that both verbs have.
    ///
    /// # Errors
    /// Exit 2: a legacy suite that is not allowed. Exit 3: no usable key file.
    pub(crate) fn read(
        flags: DaemonFlags,
        suites: Vec<Suite>,
        kex: Vec<KeyExchange>,
    ) -> Result<Self, Error> {
        let legacy = suites.iter().find(|suite| suite.class() == Class::Legacy);
        if let Some(suite) = legacy.filter(|_| !flags.allow_legacy) {
            return Err(Error::new(
                Exit::Usage,
                format!("--suite: `{suite}` is insecure (legacy)"),
            )
            .hint("choose aes-256-gcm, or add --allow-legacy if it must be this one"));
        }
        let path = flags.key.map_or_else(keyfile::default_path, Ok)?;
        Ok(Self {
            key: Arc::new(keyfile::read(&path)?),
            pool: PoolOptions {
                mode: flags.pool,
                budget_bytes: flags.pool_budget,
                max_fill_cpu_percent: flags.max_fill_cpu,
                require_locked: flags.require_locked,
            },
            pool_suites: suites.clone(),
            suites,
            kex,
            permit_bench: false,
            cipher_engine: flags.cipher_backend,
            congestion: flags.congestion,
            spin: flags.spin,
            loops: flags.loops,
            max_forwards: flags.max_forwards,
            metrics: flags.metrics,
            control_socket: true,
            drain: flags.drain_timeout,
        })
    }
}

/// A daemon that has everything but a tunnel.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// Packet protection's part.
    pub(crate) crypto: CryptoSettings,
    /// The tunnel's part.
    pub(crate) transport: TransportSettings,
    /// How long what is open may take to finish when the daemon ends.
    pub(crate) drain: Duration,
    /// The suites that were chosen: what is accepted but for measurements.
    pub(crate) suites: Vec<Suite>,
    /// The key exchanges that were chosen, likewise.
    pub(crate) kex: Vec<KeyExchange>,
    /// Where its pads come from.
    pub(crate) pooling: Pooling,
    metrics: Option<TcpListener>,
    control_socket: bool,
    bench: Option<Bench>,
}

/// The service that answers measurements, for as long as this lives.
#[derive(Debug)]
struct Bench {
    address: SocketAddr,
    _service: JoinSet<()>,
}

impl Bench {
    async fn start() -> Result<Self, Error> {
        let service = Service::bind().await.map_err(|error| {
            let cause = format!("--permit-bench: no port on 127.0.0.1: {}", system(&error));
            Error::new(Exit::BindFailed, cause)
        })?;
        let address = service.address();
        let mut task = JoinSet::new();
        task.spawn(service.run());
        Ok(Self { address, _service: task })
    }
}

impl Daemon {
    /// Binds the metrics port and makes the pool.
    ///
    /// # Errors
    /// Exit 6: the metrics port is taken. Exit 1: there is no memory for the pool.
    pub(crate) async fn prepare(settings: DaemonSettings) -> Result<Self, Error> {
        raise_descriptor_limit();
        let metrics = match settings.metrics {
            Some(address) => Some(metrics::bind(address).await?),
            None => None,
        };
        let bench = if settings.permit_bench { Some(Bench::start().await?) } else { None };
        let pooling = Pooling::start(settings.pool, &settings.pool_suites, settings.cipher_engine)?;
        let defaults = TransportSettings::default();
        let transport = TransportSettings {
            congestion: settings.congestion,
            spin: settings.spin,
            loops: settings.loops.unwrap_or(defaults.loops),
            forwards_max: settings.max_forwards.unwrap_or(defaults.forwards_max),
            stalled_bytes: defaults.stalled_bytes.min(memory_bytes() / STALLED_ONE_IN),
            ..defaults
        };
        let crypto = CryptoSettings {
            key: settings.key,
            suites: accepted(&settings.suites, settings.permit_bench),
            kex: accepted_groups(&settings.kex, settings.permit_bench),
            supply: pooling.supply(),
            cipher_engine: settings.cipher_engine,
            meters: Arc::new(Meters::default()),
        };
        let DaemonSettings { drain, suites, kex, control_socket, .. } = settings;
        Ok(Self { crypto, transport, drain, suites, kex, pooling, metrics, control_socket, bench })
    }

    /// Where measurements are answered, if they are.
    pub(crate) fn bench(&self) -> Option<SocketAddr> {
        self.bench.as_ref().map(|bench| bench.address)
    }

    /// This host's public key.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.crypto.key.public()
    }

    /// Opens the daemon to `status` and to scrapes, until the returned set is dropped. `place` is the
    /// UDP address, or the file, that the daemon is known by.
    pub(crate) fn watch(
        &mut self,
        verb: &'static str,
        place: String,
        sources: Sources,
        requests: Requests,
    ) -> JoinSet<()> {
        let figures = Figures {
            verb,
            place,
            started: SystemTime::now(),
            pooling: self.pooling.clone(),
            meters: Arc::clone(&self.crypto.meters),
            send_seconds: Arc::clone(&self.transport.send_seconds),
            sources,
            rates: Rates::default(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(sample(figures.clone()));
        if self.control_socket {
            match bind_control_socket() {
                Ok(socket) => {
                    tracing::debug!(path = %socket.path().display(), "control socket");
                    tasks.spawn(socket.serve(figures.clone(), requests));
                }
                // The tunnel works without it, so this ends nothing.
                Err(cause) => {
                    tracing::warn!("no control socket, so `keypadd status` is blind: {cause}");
                }
            }
        }
        if let Some(listener) = self.metrics.take() {
            tasks.spawn(metrics::serve(listener, figures));
        }
        tasks
    }
}

/// Raises the soft limit of open files to the hard one: each forwarded connection takes a descriptor
/// here, two once it is bulk, and shells and service managers commonly set the soft limit to 1,024 for
/// the sake of programs that use select(2).
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// What packet protection accepts: the chosen suites first.
pub(crate) fn accepted(suites: &[Suite], permit_bench: bool) -> Vec<Protection> {
    let measured = MeasureSuite::ALL.into_iter().filter(|_| permit_bench).map(Into::into);
    suites.iter().copied().map(Into::into).chain(measured).collect()
}

/// Likewise.
pub(crate) fn accepted_groups(kex: &[KeyExchange], permit_bench: bool) -> Vec<Group> {
    let measured = MeasureKeyExchange::ALL.into_iter().filter(|_| permit_bench).map(Into::into);
    kex.iter().copied().map(Into::into).chain(measured).collect()
}

/// Keeps the rates up to date, until it is dropped.
async fn sample(figures: Figures) {
    let mut ticks = interval(rates::EVERY);
    loop {
        let now = ticks.tick().await.into_std();
        let sessions: Vec<_> = figures.sources.live().iter().map(|live| live.status()).collect();
        figures.rates.sample(now, &sessions);
    }
}

fn bind_control_socket() -> Result<ControlSocket, String> {
    let directory = control::directory().ok_or("XDG_RUNTIME_DIR is not set")?;
    ControlSocket::bind(&directory)
        .map_err(|error| format!("{}: {}", directory.display(), system(&error)))
}

/// What ending takes besides the time that is given to what is open.
const ENDING_TIME: Duration = Duration::from_secs(5);

/// Tells systemd that the daemon ends, and not to lose patience with it before that can be done.
pub(crate) fn notify_stopping(drain: Duration) {
    let micros = u32::try_from((drain + ENDING_TIME).as_micros()).unwrap_or(u32::MAX);
    let patience = sd_notify::NotifyState::ExtendTimeoutUsec(micros);
    notify_systemd(&[sd_notify::NotifyState::Stopping, patience]);
    if !drain.is_zero() {
        tracing::info!(
            "ending: what is open may finish for {}, another signal cuts it off",
            humantime::format_duration(drain)
        );
    }
}

/// Tells systemd, where it started us, that the daemon is ready, reloads or is about to end (sd_notify(3)).
pub(crate) fn notify_systemd(states: &[sd_notify::NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd could not be told");
    }
}
