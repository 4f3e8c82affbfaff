//! `keypadd run`: both roles in one daemon, from a file. One pool, one set of meters, one control socket; a
//! server where the file has a `listen`, a client for each peer that is dialled. Says that it is ready once
//! it listens; peers that cannot be reached are tried for ever.

mod allowances;
mod applied;
mod links;

use std::path::PathBuf;
use std::sync::Arc;

use keypadd_config::values::LogFormat;
use keypadd_config::{Changes, Config};
use keypadd_keystream::Suite;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::cli::ConfigArgs;
use crate::configfile::{self, Loaded};
use crate::control::Requests;
use crate::daemon::{Daemon, DaemonSettings, notify_stopping, notify_systemd};
use crate::error::{Error, Exit, system};
use crate::pooling::PoolOptions;
use crate::ready::RunReady;
use crate::shutdown::Shutdown;

use applied::Applied;

/// Requests to reload that wait; more are made to wait at the socket.
const RELOADS_WAITING_MAX: usize = 4;

/// What a daemon is run with.
#[derive(Debug)]
pub(crate) struct Settings {
    path: PathBuf,
    loaded: Loaded,
}

impl Settings {
    /// Reads the file.
    ///
    /// # Errors
    /// Exit 3: the file or the key cannot be used.
    pub(crate) fn read(args: ConfigArgs) -> Result<Self, Error> {
        let path = configfile::place(args.config)?;
        let loaded = configfile::load(&path)?;
        // A reload means this file, wherever the process is by then.
        let path = std::path::absolute(&path).unwrap_or(path);
        Ok(Self { path, loaded })
    }

    /// The file's filter of logs.
    pub(crate) fn log(&self) -> Option<&str> {
        self.loaded.config.log.as_deref()
    }

    /// The file's format of logs.
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        self.loaded.config.log_format
    }
}

/// Runs until `shutdown`; reloads the file on SIGHUP and when `keypadd reload` asks for it.
///
/// # Errors
/// Exit 6: an address cannot be bound. Exit 1: the pool, signals or the TLS library fail.
pub(crate) async fn run(
    settings: Settings,
    shutdown: Shutdown,
    say: impl FnOnce(&RunReady),
) -> Result<(), Error> {
    let Settings { path, loaded } = settings;
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot handle signals: {}", system(&error)))
    })?;
    for warning in &loaded.config.warnings {
        let (cause, _) = configfile::in_file(&path, warning);
        tracing::warn!("{cause}");
    }
    let mut daemon = Daemon::prepare(daemon_settings(&loaded)).await?;
    let started = loaded.config.clone();
    let mut applied = Applied::start(&daemon, loaded).await?;
    let (requests, mut reloads) = mpsc::channel(RELOADS_WAITING_MAX);
    let place = path.display().to_string();
    let mut watching = daemon.watch("run", place, applied.sources(), Requests::Reload(requests));
    say(&applied.ready(&daemon));
    notify_systemd(&[sd_notify::NotifyState::Ready]);
    let ending = loop {
        let asked: Option<oneshot::Sender<Value>> = tokio::select! {
            ending = shutdown.thrown() => break ending,
            _ = hangup.recv() => None,
            Some(asked) = reloads.recv() => Some(asked),
        };
        announce_reload();
        let outcome = reload(&path, &started, &mut daemon, &mut applied).await;
        notify_systemd(&[sd_notify::NotifyState::Ready]);
        let document = outcome.map_or_else(
            |error| refusal(&error),
            |changes| {
                for line in &changes.applied {
                    tracing::info!("reloaded: {line}");
                }
                let warnings: Vec<String> = daemon.pooling.fault().into_iter().collect();
                for line in &warnings {
                    tracing::warn!("{line}");
                }
                json!({
                    "file": path.display().to_string(),
                    "changed": changes.applied,
                    "restart": changes.restart,
                    "warnings": warnings,
                })
            },
        );
        if let Some(asked) = asked {
            let _ = asked.send(document);
        }
    };
    // Who asks for a reload from now on is told so at once.
    drop(reloads);
    notify_stopping(shutdown.drained(daemon.drain).await);
    applied.end(ending).await;
    watching.shutdown().await;
    Ok(())
}

/// Applies the file as it is now, as a whole or not at all.
async fn reload(
    path: &std::path::Path,
    started: &Config,
    daemon: &mut Daemon,
    applied: &mut Applied,
) -> Result<Changes, Error> {
    let attempt = async {
        let loaded = configfile::load(path)?;
        let mut changes = Changes::between(started, applied.config(), &loaded.config);
        if loaded.key.public() != daemon.public_key() {
            changes
                .applied
                .insert(0, format!("this host's public key is {} now", loaded.key.public()));
        }
        applied.apply(daemon, started, loaded).await?;
        Ok(changes)
    };
    let result: Result<Changes, Error> = attempt.await;
    match &result {
        Err(error) => {
            for line in error.to_string().lines() {
                tracing::error!("not reloaded: {}", line.trim_start_matches("keypadd: ").trim());
            }
        }
        Ok(changes) => {
            if !changes.restart.is_empty() {
                tracing::warn!("not until a restart: {}", changes.restart.join(", "));
            }
        }
    }
    result
}

/// What `keypadd reload` is told when the old settings stay in force.
fn refusal(error: &Error) -> Value {
    json!({ "refused": error.to_string(), "exit": error.exit() as u8 })
}

/// systemd waits for READY=1 after this (sd_notify(3), Type=notify-reload).
fn announce_reload() {
    let now = sd_notify::NotifyState::monotonic_usec_now();
    match now {
        Ok(now) => notify_systemd(&[sd_notify::NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no monotonic clock for systemd"),
    }
}

/// What a file says of the pool.
fn pool_options(config: &Config) -> PoolOptions {
    PoolOptions {
        mode: config.pool,
        budget_bytes: config.pool_budget_bytes,
        max_fill_cpu_percent: config.max_fill_cpu_percent,
        require_locked: config.require_locked,
    }
}

/// Suites that sessions can come to have: those accepted, where peers come in, and those offered.
fn pool_suites(config: &Config) -> Vec<Suite> {
    let mut suites = if config.listen.is_some() { config.suites.clone() } else { Vec::new() };
    for dialled in config.peers.iter().filter_map(|peer| peer.dialled.as_ref()) {
        if !suites.contains(&dialled.suite) {
            suites.push(dialled.suite);
        }
    }
    suites
}

fn daemon_settings(loaded: &Loaded) -> DaemonSettings {
    let Loaded { config, key, .. } = loaded;
    DaemonSettings {
        key: Arc::clone(key),
        suites: config.suites.clone(),
        kex: config.kex.clone(),
        permit_bench: config.permit_bench && config.listen.is_some(),
        pool: pool_options(config),
        pool_suites: pool_suites(config),
        cipher_engine: config.cipher_engine,
        congestion: config.congestion,
        spin: config.spin,
        loops: config.loops,
        max_forwards: config.max_forwards,
        metrics: config.metrics,
        control_socket: true,
        drain: config.drain_timeout,
    }
}
