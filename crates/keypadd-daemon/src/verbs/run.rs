//! `keypadd run`: runs server, client or both from a file, in one daemon. It has a server if the
//! file has a `listen`, a client for each peer with an endpoint, one pool and one control socket.
//! It is ready once its listeners are bound; connections to peers are retried forever.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use keypadd_cli::error::{Error, Exit, one_line, shown, system};
use keypadd_cli::shutdown::Shutdown;
use keypadd_config::{Changes, Config, Settings};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::command_line::ConfigArgs;
use crate::command_line::configfile::{self, Loaded};
use crate::control::forwards;
use crate::control::runtime_directory;
use crate::control::{Answer, Requests, WAITING_MAX};
use crate::daemon::Daemon;
use crate::daemon::confine::{Confinement, SandboxNeeds};
use crate::daemon::networks::{PeerNetworks, overlaps};
use crate::daemon::pooling::pool_suites;
use crate::daemon::preferences::Preferences;
use crate::daemon::ready::RunReady;
use crate::daemon::running_config::RunningConfig;
use crate::daemon::systemd;
use crate::kit::Kit;
use crate::replacement::{give, take};
use crate::verbs::bench::kit_for;
use crate::verbs::reload::RunsFile;

/// Printed as waiting for a restart if permits name TCP ports outside the sandbox.
const NEW_PORTS: &str = "TCP ports outside the sandbox";

/// Printed as waiting for a restart if networks need other devices, addresses or routes.
const NEW_DEVICES: &str = "devices of networks";

/// What waits for a restart if this process may not read it.
const HIDDEN_FILES: &str = "files that this process may not read";

/// The hint if this process may not read a file.
const OUT_OF_REACH: &str = "this process gave up access to it at startup; `keypadd reload \
    --binary` continues in one that can read it";

/// The file and what it sets.
#[derive(Debug)]
pub(crate) struct RunOptions {
    path: PathBuf,
    loaded: Loaded,
    kit: Option<Kit>,
    confinement: Confinement,
    networks: PeerNetworks,
}

impl RunOptions {
    /// Reads the file.
    ///
    /// # Errors
    /// Exit 3: the file or the key cannot be used. Exit 1: as for [`kit_for`].
    pub(crate) fn read(args: ConfigArgs, kit: Option<Kit>) -> Result<Self, Error> {
        let path = configfile::place(args.config)?;
        let loaded = configfile::load(&path, None)?;
        let kit = kit_for(&loaded.config.settings, kit)?;
        // Made absolute, so that a reload finds it whatever the working directory is then.
        let path = std::path::absolute(&path).unwrap_or(path);
        let (confinement, networks) = (Confinement::default(), PeerNetworks::default());
        Ok(Self { path, loaded, kit, confinement, networks })
    }

    /// Opens the devices of networks, and restricts the calling thread to what the file needs,
    /// before any other starts.
    ///
    /// # Errors
    /// As for [`PeerNetworks::open`] and [`Confinement::start_replaceable`].
    pub(crate) fn confined(mut self) -> Result<Self, Error> {
        let Loaded { config, key } = &self.loaded;
        // A process that takes over gets them from the old one.
        if !take::is_begun() {
            self.networks = PeerNetworks::open(config)?;
        }
        // A reload reads all of that directory.
        let any_part = configfile::peers_directory(&self.path).join("any.toml");
        let files = vec![self.path.clone(), any_part, key.path.clone()];
        let needs = SandboxNeeds { files, ..SandboxNeeds::of(config) };
        self.confinement = Confinement::start_replaceable(&config.settings, &needs)?;
        Ok(self)
    }

    /// What the file sets.
    pub(crate) fn settings(&self) -> &Settings {
        &self.loaded.config.settings
    }
}

/// The daemons that were there before this one. Looked for before the sandbox.
pub(crate) struct Others {
    file: PathBuf,
    sockets: Vec<PathBuf>,
}

impl Others {
    pub(crate) fn look(options: &RunOptions) -> Self {
        let sockets = match take::is_begun() {
            // It is about to end.
            true => Vec::new(),
            false => runtime_directory::all_sockets(),
        };
        Self { file: options.path.clone(), sockets }
    }

    /// Says that another daemon runs the file, if so, where this one could not bind an address.
    pub(crate) fn explain(self, error: Error) -> Error {
        if error.exit() != Exit::BindFailed {
            return error;
        }
        match RunsFile::find(&self.file, self.sockets) {
            Some(RunsFile { pid, .. }) => {
                let file = shown(self.file.to_string_lossy());
                Error::new(Exit::BindFailed, format!("already running: process {pid} runs {file}"))
                    .hint(
                        "`keypadd reload` applies changes to the file; to start over, stop that \
                         process first",
                    )
            }
            None => error,
        }
    }
}

/// Runs until `shutdown`; reloads the file on SIGHUP and when `keypadd reload` asks for it.
///
/// # Errors
/// Exit 6: an address cannot be bound. Exit 1: the pool, signals or the TLS library fail.
pub(crate) async fn run(
    options: RunOptions,
    shutdown: Shutdown,
    say: impl FnOnce(&RunReady),
) -> Result<(), Error> {
    let RunOptions { path, loaded, kit, confinement, networks } = options;
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| {
        Error::new(Exit::Runtime, format!("cannot install signal handlers: {}", system(&error)))
    })?;
    let expiring = loaded.config.expiry_warnings(SystemTime::now());
    for warning in loaded.config.warnings.iter().chain(&expiring) {
        let (cause, _) = configfile::in_file(&path, warning);
        tracing::warn!("{cause}");
    }
    for line in overlaps(&loaded.config) {
        tracing::warn!("{line}");
    }
    let Loaded { config, key } = loaded;
    let settings = config.settings.clone();
    let preferences = Preferences {
        suites: settings.suites(),
        kex: settings.key_exchanges(),
        pooled: pool_suites(&config),
        kit,
    };
    let mut daemon = Daemon::prepare(settings, key, &preferences, confinement).await?;
    daemon.networks = match daemon.replaces {
        true => PeerNetworks::inherit(&config, &daemon.transport.handover),
        false => networks,
    };
    let started = config.clone();
    let mut running = RunningConfig::start(&mut daemon, config).await?;
    let (reload_request, mut reloads) = mpsc::channel(WAITING_MAX);
    let (replace_request, mut replacements) = mpsc::channel(give::WAITING_MAX);
    let (forward_request, mut forward_requests) = mpsc::channel(WAITING_MAX);
    let requests = Requests {
        reload: Some(reload_request),
        forward: Some(forward_request),
        replace: Some(replace_request),
        carry: Some(running.sources()),
        drain: Some(running.sources()),
    };
    let place = path.display().to_string();
    let mut watching = daemon.watch("run", place, running.sources(), requests);
    daemon.confinement.seal()?;
    if !daemon.finish_takeover(running.servers(), &shutdown).await? {
        say(&running.ready(&daemon));
    }
    daemon.confinement.log();
    systemd::notify(&[sd_notify::NotifyState::Ready]);
    // A new process that has not bound its sockets. Other requests do not wait for it.
    let mut starting: Option<give::Preparation> = None;
    let mode = loop {
        let reply: Option<oneshot::Sender<Answer>> = tokio::select! {
            biased;
            mode = shutdown.requested() => break mode,
            _ = hangup.recv() => None,
            Some((request, reply)) = forward_requests.recv() => {
                let answer = tokio::select! {
                    mode = shutdown.requested() => break mode,
                    answer = running.forward(&request) => answer,
                };
                // The new process may share a listener that is closed now, or lack one.
                if !forwards::is_list(&request) && answer.get("error").is_none() {
                    give_up(&mut starting, "a change of forwards");
                }
                drop(reply.send(answer.into()));
                continue;
            }
            Some(reply) = reloads.recv() => Some(reply),
            Some(bound) = async { Some(starting.as_mut()?.await) } => {
                starting = None;
                let Some(channel) = bound else { continue };
                let handover = daemon.handover_source(running.servers(), running.clients());
                let replaced = tokio::select! {
                    mode = shutdown.requested() => break mode,
                    replaced = handover.hand_over_to(channel) => replaced,
                };
                if replaced {
                    handover.exit_replaced(&mut watching).await
                }
                continue;
            }
            Some(request) = replacements.recv(), if starting.is_none() => {
                let handover = daemon.handover_source(running.servers(), running.clients());
                starting = Some(handover.offer(request));
                continue;
            }
        };
        let replies = waiting(reply, &mut reloads).await;
        announce_reload();
        let outcome = tokio::select! {
            mode = shutdown.requested() => break mode,
            outcome = reload(&path, &started, &mut daemon, &mut running) => outcome,
        };
        systemd::notify(&[sd_notify::NotifyState::Ready]);
        // The new process may have read the file before.
        if outcome.is_ok() {
            give_up(&mut starting, "a reload");
        }
        let document = outcome.map_or_else(
            |error| refusal(&path, &error),
            |(changes, mut warnings)| {
                for line in &changes.applied {
                    tracing::info!("reloaded: {line}");
                }
                warnings.extend(daemon.pooling.fault());
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
        let document = Arc::new(document);
        for reply in replies {
            let _ = reply.send(Arc::clone(&document));
        }
    };
    // Requests from now on are refused immediately.
    drop((reloads, forward_requests, replacements, starting));
    systemd::notify_stopping(shutdown.drain_time(daemon.drain()).await);
    running.end(mode).await;
    watching.shutdown().await;
    Ok(())
}

/// This request and all that wait: the reload that begins now answers them.
async fn waiting<T>(first: Option<T>, queue: &mut mpsc::Receiver<T>) -> Vec<T> {
    let mut all = Vec::from_iter(first);
    for _ in 0..queue.len() {
        all.extend(queue.recv().await);
    }
    all
}

/// Gives up a new process that something else has overtaken.
fn give_up(starting: &mut Option<give::Preparation>, first: &str) {
    if starting.take().is_some() {
        tracing::warn!("not replaced: {first} came first; this process continues");
    }
}

/// Applies the changed file, all of it or nothing; returns what has changed, and warnings.
async fn reload(
    path: &Path,
    started: &Config,
    daemon: &mut Daemon,
    running: &mut RunningConfig,
) -> Result<(Changes, Vec<String>), Error> {
    let attempt = async {
        let out_of_reach = daemon.confinement.switches_user() || daemon.replaces;
        let known = out_of_reach.then_some((&running.config().key, &daemon.crypto.key));
        let loaded = configfile::load(path, known).map_err(|error| match is_hidden(path) {
            true => error.hint(OUT_OF_REACH),
            false => error,
        })?;
        let mut changes = Changes::between(started, running.config(), &loaded.config);
        let public_key = loaded.key.key.public();
        if public_key != daemon.public_key() {
            changes.applied.insert(0, format!("this host's public key is now {public_key}"));
        }
        if !daemon.confinement.admits(&SandboxNeeds::of(&loaded.config)) {
            changes.restart.push(NEW_PORTS);
        }
        if daemon.networks.needs_restart(&loaded.config) {
            changes.restart.push(NEW_DEVICES);
        }
        let warnings = running.apply(daemon, loaded).await?;
        Ok((changes, warnings))
    };
    let result: Result<_, Error> = attempt.await;
    match &result {
        Err(error) => {
            for (cause, hint) in error.parts() {
                tracing::error!("reload failed: {}", one_line(cause));
                if let Some(hint) = hint {
                    tracing::error!("reload failed: hint: {}", one_line(hint));
                }
            }
        }
        Ok((changes, _)) => {
            if !changes.restart.is_empty() {
                tracing::warn!("restart to apply: {}", changes.restart.join(", "));
            }
        }
    }
    result
}

/// Whether this process may not read what the file needs: what was made or replaced since the
/// start, where the sandbox or the user that it switched to reads only what was there.
fn is_hidden(path: &Path) -> bool {
    configfile::is_out_of_reach(path)
        || configfile::is_out_of_reach(&configfile::peers_directory(path))
}

/// The answer to `keypadd reload` when the old settings stay in force.
fn refusal(path: &Path, error: &Error) -> Value {
    let restart: &[&str] = if is_hidden(path) { &[HIDDEN_FILES] } else { &[] };
    json!({ "refused": error.to_string(), "exit": error.exit() as u8, "restart": restart })
}

/// Announces a reload to systemd, which then waits for READY=1 (sd_notify(3), Type=notify-reload).
fn announce_reload() {
    let now = sd_notify::NotifyState::monotonic_usec_now();
    match now {
        Ok(now) => systemd::notify(&[sd_notify::NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no monotonic clock for systemd"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use keypadd_cli::shutdown::{self, ShutdownMode};
    use rustix::process::{Signal, getpid, kill_process};
    use tokio::runtime::Builder;
    use tokio::task::{spawn_blocking, yield_now};
    use tokio::time::timeout;

    use super::*;

    /// RFC 8032, section 7.1, test 1, in PKCS#8 (RFC 8410).
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
        -----END PRIVATE KEY-----\n";

    #[tokio::test]
    async fn a_reload_answers_all_requests_that_came_before_it() {
        let (requests, mut queue) = mpsc::channel(4);
        for nth in 1..4 {
            requests.try_send(nth).unwrap();
        }
        assert_eq!(waiting(Some(0), &mut queue).await, [0, 1, 2, 3]);
        assert!(waiting(None, &mut queue).await.is_empty());
    }

    #[test]
    fn a_shutdown_does_not_wait_for_a_reload() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keypadd.toml");
        let key = directory.path().join("key");
        fs::write(&key, KEY).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        let peer = "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";
        let text = format!(
            "listen = \"127.0.0.1:0\"\nkey = \"key\"\npool = \"off\"\n[peer.laptop]\npublic-key = \
                \"{peer}\"\n"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // A reload works on the pool in another thread, of which there is one here.
        let runtime =
            Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let options = RunOptions::read(ConfigArgs { config: Some(path) }, None).unwrap();
            let (trigger, shutdown) = shutdown::channel();
            let (is_ready, ready) = oneshot::channel();
            let running = run(options, shutdown, |_| is_ready.send(()).unwrap());
            let (release, released) = std::sync::mpsc::channel::<()>();
            let stopping = async {
                ready.await.unwrap();
                spawn_blocking(move || released.recv());
                let mut hangup = signal(SignalKind::hangup()).unwrap();
                kill_process(getpid(), Signal::HUP).unwrap();
                hangup.recv().await;
                // The daemon has received it too, and begins when this yields.
                for _ in 0..8 {
                    yield_now().await;
                }
                trigger.request(ShutdownMode::Immediate);
            };
            let (ended, ()) = tokio::join!(timeout(Duration::from_secs(60), running), stopping);
            drop(release);
            ended.expect("it waits for the reload").unwrap();
        });
    }
}
