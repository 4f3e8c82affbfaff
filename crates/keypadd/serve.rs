//! `keypadd serve`: a tunnel's listening end as a daemon. Everything that can be refused is refused
//! before anything is started.

use std::net::SocketAddr;
use std::sync::Arc;

use keypadd_keystream::{Class, Suite};
use keypadd_provider::{KeyExchange, server_config};
use keypadd_tunnel::{
    AllowedPeer, ListenPermit, ListenPermits, Peers, Permit, Permits, Server, ServerSettings,
};

use crate::cli::{Allowed, ServeArgs};
use crate::control::Requests;
use crate::daemon::{Daemon, DaemonSettings, notify_stopping, notify_systemd};
use crate::error::{Error, Exit, bind_hint, system};
use crate::ready::{ConnectLine, ServerReady, suite_with_class};
use crate::shutdown::Shutdown;
use crate::sources::{Source, Sources};

/// Clients at once. Each may hold its windows of memory (docs/DESIGN.md), so this bounds the daemon's.
const CONNECTIONS_MAX: usize = 1024;

/// What a server is started with.
#[derive(Debug)]
pub(crate) struct Settings {
    listen: SocketAddr,
    allow: Vec<Allowed>,
    permits: Vec<Permit>,
    listen_permits: Vec<ListenPermit>,
    daemon: DaemonSettings,
}

impl Settings {
    /// Reads the flags.
    ///
    /// # Errors
    /// Exit 2: nobody is let in, a peer is listed twice, or a legacy suite is not allowed.
    /// Exit 3: no usable key file.
    pub(crate) fn read(args: ServeArgs) -> Result<Self, Error> {
        if args.allow.is_empty() {
            return Err(Error::new(Exit::Usage, "--allow is missing: nobody could come in")
                .hint("--allow PUBKEY, as `keypadd pubkey` prints it on the other host"));
        }
        refuse_doubles(&args.allow)?;
        let suites = match args.suite.is_empty() {
            true => {
                Suite::ALL.into_iter().filter(|suite| suite.class() == Class::Standard).collect()
            }
            false => args.suite,
        };
        let kex = if args.kex.is_empty() { KeyExchange::ALL.to_vec() } else { args.kex };
        let daemon = DaemonSettings {
            permit_bench: args.permit_bench,
            ..DaemonSettings::read(args.daemon, suites, kex)?
        };
        Ok(Self {
            listen: args.listen,
            allow: args.allow,
            permits: args.permit_open,
            listen_permits: args.permit_listen,
            daemon,
        })
    }
}

/// A key or a name that stands for two peers would mix up what they may do and what is counted.
fn refuse_doubles(allow: &[Allowed]) -> Result<(), Error> {
    for (nth, peer) in allow.iter().enumerate() {
        for earlier in &allow[..nth] {
            let cause = match &peer.name {
                _ if peer.key == earlier.key => format!("--allow: {} is listed twice", peer.key),
                Some(name) if earlier.name.as_ref() == Some(name) => {
                    format!("--allow: the name `{name}` is given to two keys")
                }
                _ => continue,
            };
            return Err(
                Error::new(Exit::Usage, cause).hint("list each peer once, under its own name")
            );
        }
    }
    Ok(())
}

/// Serves until `shutdown`; `on_ready` is told once clients can come.
///
/// # Errors
/// Exit 6: an address cannot be bound. Exit 1: the pool or the TLS library fails.
pub(crate) async fn run(
    settings: Settings,
    shutdown: Shutdown,
    on_ready: impl FnOnce(&ServerReady),
) -> Result<(), Error> {
    let Settings { listen, allow, permits, listen_permits, daemon } = settings;
    let mut daemon = Daemon::prepare(daemon).await?;
    let peers = allow.into_iter().map(|Allowed { name, key }| AllowedPeer {
        name,
        key,
        permits: Permits::new(permits.clone()),
        listen_permits: ListenPermits::new(listen_permits.clone()),
        allowance: None,
    });
    let peers = Peers::new(peers).map_err(|error| {
        Error::new(Exit::Usage, format!("--allow: {error}")).hint("list each peer once")
    })?;
    let server = bind(&daemon, listen, peers, ["--listen", "--listen [::]:4434"])?;
    if permits.is_empty() && listen_permits.is_empty() && daemon.bench().is_none() {
        tracing::warn!(
            "no --permit-open: peers can come in and reach nothing; for example --permit-open localhost:22"
        );
    }
    let place = server.local_addr();
    let source = Source { sessions: server.sessions(), loops: server.loop_meter(), dialling: None };
    let sources = Sources::new(daemon.public_key(), vec![source]);
    let mut watching = daemon.watch("serve", place.to_string(), sources, Requests::Status);
    let line = ConnectLine {
        listen: place,
        key: daemon.public_key(),
        suites: &daemon.suites,
        kex: &daemon.kex,
        permits: &permits,
        listen_permits: &listen_permits,
    };
    on_ready(&ServerReady {
        listen: place,
        public_key: daemon.public_key().to_string(),
        suites: daemon.suites.iter().copied().map(suite_with_class).collect(),
        permit_bench: daemon.bench().is_some(),
        connect: line.to_string(),
    });
    notify_systemd(&[sd_notify::NotifyState::Ready]);
    server
        .run(async {
            let drain = shutdown.clone().drained(daemon.drain).await;
            notify_stopping(drain);
            drain
        })
        .await;
    watching.shutdown().await;
    Ok(())
}

/// Binds a daemon's server. `texts`: what its address is called where it is set, and how another one is
/// set.
///
/// # Errors
/// Exit 6: the address cannot be bound. Exit 1: the TLS library fails.
pub(crate) fn bind(
    daemon: &Daemon,
    listen: SocketAddr,
    peers: Peers,
    texts: [&str; 2],
) -> Result<Server, Error> {
    let peers = Arc::new(peers);
    let crypto = server_config(&daemon.crypto, peers.clone())
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
    let server = Server::bind(ServerSettings {
        listen,
        crypto,
        peers,
        transport: daemon.transport.clone(),
        connections_max: CONNECTIONS_MAX,
        bench: daemon.bench(),
    });
    let [setting, another] = texts;
    server.map_err(|error| {
        let reason = system(&error.source);
        let cause = format!("{setting}: cannot listen on {}: {reason}", error.address);
        Error::new(Exit::BindFailed, cause).hint(bind_hint(&error.source, another))
    })
}
