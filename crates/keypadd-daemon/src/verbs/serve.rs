//! `keypadd serve`: runs a server from flags. Checks everything that can be wrong before starting
//! anything.

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::shutdown::Shutdown;
use keypadd_config::{Settings, values_of};
use keypadd_provider::PublicKey;
use keypadd_tunnel::{AllowedPeer, ListenPermit, ListenPermits, Peers, Permit, Permits};
use tokio::sync::mpsc;

use crate::command_line::host_key::HostKey;
use crate::command_line::{Allowed, ServeArgs};
use crate::control::Requests;
use crate::daemon::Daemon;
use crate::daemon::confine::{Confinement, SandboxNeeds};
use crate::daemon::preferences::Preferences;
use crate::daemon::ready::{ConnectLine, ServerReady, suite_with_class};
use crate::daemon::server;
use crate::daemon::systemd;
use crate::kit::Kit;
use crate::replacement::give;
use crate::replacement::take::HeldState;
use crate::status::peers::{PeerReport, texts};
use crate::status::sources::{Source, Sources};
use crate::verbs::bench::kit_for;

/// What a server is started with.
#[derive(Debug)]
pub(crate) struct ServeOptions {
    allow: Vec<Allowed>,
    settings: Settings,
    preferences: Preferences,
    key: HostKey,
    confinement: Confinement,
}

impl ServeOptions {
    /// Reads the flags.
    ///
    /// # Errors
    /// Exit 2: no peer is allowed, one is listed twice or has this host's key, or a legacy suite is
    /// not allowed. Exit 3: no usable key file. Exit 1: as for [`kit_for`].
    pub(crate) fn read(args: ServeArgs, kit: Option<Kit>) -> Result<Self, Error> {
        if args.allow.is_empty() {
            return Err(Error::new(Exit::Usage, "--allow is missing: no peer could connect")
                .hint("run `keypadd pubkey` on the other host, then add --allow PUBKEY"));
        }
        refuse_duplicates(&args.allow)?;
        let settings = args.flags.settings;
        let (suites, kex) = (settings.suites(), settings.key_exchanges());
        let preferences = Preferences {
            kit: kit_for(&settings, kit)?,
            ..Preferences::of_flags(&settings, suites, kex)?
        };
        let key = HostKey::of_flags(&settings)?;
        refuse_own_key(&args.allow, key.key.public())?;
        let confinement = Confinement::default();
        Ok(Self { allow: args.allow, settings, preferences, key, confinement })
    }

    /// Restricts the calling thread to what these options need, before any other starts.
    ///
    /// # Errors
    /// As for [`Confinement::start_replaceable`].
    pub(crate) fn confined(mut self) -> Result<Self, Error> {
        let (open_permits, listen_permits) = permits(&self.settings);
        let needs = SandboxNeeds { open_permits, listen_permits, ..SandboxNeeds::default() };
        self.confinement = Confinement::start_replaceable(&self.settings, &needs)?;
        Ok(self)
    }
}

/// What peers may connect to, and where they may listen.
fn permits(settings: &Settings) -> (Vec<Permit>, Vec<ListenPermit>) {
    let open = values_of(settings.permit_open.as_deref().unwrap_or_default());
    (open, values_of(settings.permit_listen.as_deref().unwrap_or_default()))
}

/// Refuses a key or name that is listed twice: permits and counters would get mixed up.
fn refuse_duplicates(allow: &[Allowed]) -> Result<(), Error> {
    for (nth, peer) in allow.iter().enumerate() {
        for earlier in &allow[..nth] {
            let cause = match &peer.name {
                _ if peer.key == earlier.key => format!("--allow: {} is listed twice", peer.key),
                Some(name) if earlier.name.as_ref() == Some(name) => {
                    format!("--allow: two keys have the name `{name}`")
                }
                _ => continue,
            };
            return Err(
                Error::new(Exit::Usage, cause).hint("list each peer once, with its own name")
            );
        }
    }
    Ok(())
}

/// Refuses this host's own key, which comes from running `keypadd pubkey` on the wrong host.
fn refuse_own_key(allow: &[Allowed], own: PublicKey) -> Result<(), Error> {
    match allow.iter().any(|peer| peer.key == own) {
        true => Err(Error::new(Exit::Usage, format!("--allow: {own} is this host's own key"))
            .hint("run `keypadd pubkey` on the other host, and give its key")),
        false => Ok(()),
    }
}

/// Serves until `shutdown`; calls `on_ready` once clients can connect.
///
/// # Errors
/// Exit 6: an address cannot be bound. Exit 1: the pool or the TLS library fails.
pub(crate) async fn run(
    options: ServeOptions,
    shutdown: Shutdown,
    on_ready: impl FnOnce(&ServerReady),
) -> Result<(), Error> {
    let ServeOptions { allow, settings, preferences, key, confinement } = options;
    let listen = settings.listen.as_ref().expect("--listen has a default").value;
    let (permits, listen_permits) = permits(&settings);
    let mut daemon = Daemon::prepare(settings, key, &preferences, confinement).await?;
    let listed = allow.iter().map(|Allowed { name, key }| PeerReport {
        name: name.clone(),
        public_keys: vec![key.to_string()],
        permit_open: texts(&permits),
        permit_listen: texts(&listen_permits),
        ..PeerReport::default()
    });
    let listed = listed.collect();
    let peers = allow.into_iter().map(|Allowed { name, key }| AllowedPeer {
        name,
        keys: vec![key],
        permits: Permits::new(permits.clone()),
        listen_permits: ListenPermits::new(listen_permits.clone()),
        allowance: None,
        rate_cap: None,
        hold: None,
        valid_until: None,
        network: None,
    });
    let peers = Peers::new(peers).map_err(|error| {
        Error::new(Exit::Usage, format!("--allow: {error}")).hint("list each peer once")
    })?;
    let mut server = server::bind(&daemon, listen, peers, ["--listen", "--listen [::]:4434"])?;
    let HeldState { lineages, draining, .. } = daemon.take_held().await?;
    server.adopt(lineages);
    draining.into_iter().for_each(|time| server.handle().draining().begin(time));
    if permits.is_empty() && listen_permits.is_empty() && daemon.bench().is_none() {
        tracing::warn!(
            "peers may connect but have no permits; for example --permit-open localhost:22"
        );
    }
    let place = server.local_addr();
    let sources = Sources::new(daemon.public_key(), vec![Source::of(&server)]);
    sources.set_peers(listed);
    sources.set_ranks_suites(daemon.settings.suite.is_none());
    let (replace, mut replacements) = mpsc::channel(give::WAITING_MAX);
    let drain = Some(sources.clone());
    let requests = Requests { replace: Some(replace), drain, ..Requests::default() };
    let mut watching = daemon.watch("serve", place.to_string(), sources, requests);
    daemon.confinement.seal()?;
    let line = ConnectLine {
        listen: place,
        key: daemon.public_key(),
        suites: &preferences.suites,
        kex: &preferences.kex,
        permits: &permits,
        listen_permits: &listen_permits,
    };
    let ready = ServerReady {
        listen: place,
        public_key: daemon.public_key().to_string(),
        suites: preferences.suites.iter().copied().map(suite_with_class).collect(),
        permit_bench: daemon.bench().is_some(),
        connect: line.text(),
    };
    let handle = server.handle();
    if !daemon.finish_takeover([handle.clone()], &shutdown).await? {
        on_ready(&ready);
    }
    daemon.confinement.log();
    systemd::notify(&[sd_notify::NotifyState::Ready]);
    let running = server.run(async {
        let drain = shutdown.clone().drain_time(daemon.drain()).await;
        systemd::notify_stopping(drain);
        drain
    });
    let handover = daemon.handover_source(vec![handle], Vec::new());
    tokio::select! {
        () = running => {}
        () = handover.give(&mut replacements, &shutdown) => {
            handover.exit_replaced(&mut watching).await
        }
    }
    watching.shutdown().await;
    Ok(())
}
