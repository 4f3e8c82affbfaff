//! `keypadd connect`: a tunnel's connecting end as a daemon, with listeners (`-L`) or one connection over
//! standard input and output (`-W`). Listeners are bound before anything is sent.

use std::time::Duration;

use keypadd_cli::refusal::explain;
use keypadd_keystream::Class;
use keypadd_provider::{PublicKey, client_config};
use keypadd_tunnel::wire::Instance;
use keypadd_tunnel::{
    Client, ClientError, ClientSession, ClientSettings, Forward, Listen, LocalForward,
    RemoteForward, ServerAddress, Target,
};
use tokio::io::stdin;

use crate::cli::ConnectArgs;
use crate::control::Requests;
use crate::daemon::{Daemon, DaemonSettings, notify_stopping, notify_systemd};
use crate::error::{Error, Exit};
use crate::ready::{ClientReady, ForwardReady, suite_with_class};
use crate::shutdown::Shutdown;
use crate::sources::{Dialling, Source, Sources};
use crate::stdio::{self, ClosingStdout};

/// What a client is started with.
#[derive(Debug)]
pub(crate) struct Settings {
    server: ServerAddress,
    peer: PublicKey,
    work: Work,
    connect_timeout: Duration,
    daemon: DaemonSettings,
}

/// What a client is for.
#[derive(Debug)]
enum Work {
    Forwards(Vec<Forward>),
    Stdio(Target),
}

impl Settings {
    /// Reads the flags.
    ///
    /// # Errors
    /// Exit 2: no server key, nothing to forward, or a legacy suite that is not allowed.
    /// Exit 3: no usable key file.
    pub(crate) fn read(args: ConnectArgs) -> Result<Self, Error> {
        let peer = args.peer.ok_or_else(|| {
            Error::new(Exit::Usage, "--peer is missing: the server's public key")
                .hint("`keypadd pubkey`, run on the server, prints it")
        })?;
        let work = match args.stdio {
            Some(target) => Work::Stdio(target),
            None => {
                let local = args.local.into_iter().map(Forward::Local);
                let remote = args.remote.into_iter().map(Forward::Remote);
                let dynamic = args.dynamic.into_iter().map(Forward::Dynamic);
                Work::Forwards(local.chain(remote).chain(dynamic).collect())
            }
        };
        if matches!(&work, Work::Forwards(forwards) if forwards.is_empty()) {
            return Err(Error::new(
                Exit::Usage,
                "nothing to forward: none of -L, -R, -D and -W is given",
            )
            .hint("for example -L 2222:localhost:22, then `ssh -p 2222 localhost`"));
        }
        let daemon = DaemonSettings::read(args.daemon, vec![args.suite], vec![args.kex])?;
        let connect_timeout = args.connect_timeout;
        Ok(Self { server: args.server, peer, work, connect_timeout, daemon })
    }
}

/// Connects, and again when the connection is lost, and forwards until `shutdown`, or until the one connection of `-W` has ended; `on_ready` is
/// told once the server has said hello.
///
/// # Errors
/// Exit 6: a listener cannot be bound. Exit 4: one end refuses the other. Exit 5: no answer in time.
/// Exit 1: the connection of `-W` is lost, or its target cannot be reached or was cut off by `shutdown`.
pub(crate) async fn run(
    settings: Settings,
    shutdown: Shutdown,
    on_ready: impl FnOnce(&ClientReady),
) -> Result<(), Error> {
    let Settings { server, peer, work, connect_timeout, daemon } = settings;
    let mut daemon = Daemon::prepare(daemon).await?;
    let crypto = client_config(&daemon.crypto, peer)
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
    let (forwards, stdio) = match work {
        Work::Forwards(forwards) => (forwards, None),
        Work::Stdio(target) => (Vec::new(), Some(target)),
    };
    let client = Client::bind(ClientSettings {
        server: server.clone(),
        crypto,
        name: None,
        forwards,
        transport: daemon.transport.clone(),
        connect_timeout,
        instance: draw_instance()?,
    });
    let client = client
        .await
        .map_err(|error| explain(ClientError::Bind(error), daemon.public_key(), peer))?;
    let carried = stdio.clone();
    let dialling =
        Dialling { peer: peer.short(), endpoint: server.to_string(), link: client.link() };
    // `-W` carries one connection over one session, and makes no other.
    let dialling = stdio.is_none().then_some(dialling);
    let source = Source { sessions: client.sessions(), loops: client.loop_meter(), dialling };
    let sources = Sources::new(daemon.public_key(), vec![source]);
    let mut watching = daemon.watch("connect", server.to_string(), sources, Requests::Status);
    let connected = tokio::select! {
        biased;
        connected = connect(&client, stdio.is_some(), on_ready, (&server, peer)) => Some(connected),
        _ = shutdown.thrown() => None,
    };
    let (ended, cut) = match (connected, stdio) {
        (None, _) => (Ok(()), true),
        (Some(Err(error)), _) => (Err(error), false),
        (Some(Ok(session)), None) => {
            notify_systemd(&[sd_notify::NotifyState::Ready]);
            let ending = async {
                let drain = shutdown.clone().drained(daemon.drain).await;
                notify_stopping(drain);
                drain
            };
            client.run(Some(session), ending).await;
            (Ok(()), false)
        }
        // `-W` belongs to another program, which wants its end now and not when it is convenient.
        (Some(Ok(session)), Some(target)) => tokio::select! {
            biased;
            ended = client.carry(&session, &target, stdin(), ClosingStdout::new()) => (ended, false),
            _ = shutdown.thrown() => (Ok(()), true),
        },
    };
    // Asked before the goodbye: who still reads our output takes its end for the target's.
    let cut_off = carried.filter(|_| cut && stdio::is_read());
    // Where nobody answered there is nobody to say goodbye to.
    if !matches!(ended, Err(ClientError::Unreachable { .. })) {
        client.close().await;
    }
    watching.shutdown().await;
    match cut_off {
        Some(target) => {
            Err(Error::new(Exit::Runtime, format!("interrupted before {target} had finished")))
        }
        None => ended.map_err(|error| explain(error, daemon.public_key(), peer)),
    }
}

/// Connects for the first time.
async fn connect(
    client: &Client,
    stdio: bool,
    on_ready: impl FnOnce(&ClientReady),
    (server, peer): (&ServerAddress, PublicKey),
) -> Result<ClientSession, ClientError> {
    let session = client.connect().await?;
    session.all_listening()?;
    let suite = session.live().handshake().suite;
    if stdio && suite.class() == Class::Legacy {
        // `-W` prints no ready lines, which would say so.
        tracing::warn!("suite {}", suite_with_class(suite));
    }
    on_ready(&ready(client, &session, server, peer));
    Ok(session)
}

fn ready(
    client: &Client,
    session: &ClientSession,
    server: &ServerAddress,
    peer: PublicKey,
) -> ClientReady {
    let live = session.live();
    ClientReady {
        server: server.to_string(),
        remote: live.remote(),
        peer: peer.to_string(),
        suite: suite_with_class(live.handshake().suite),
        kex: live.handshake().kex.to_string(),
        rtt_seconds: live.status().rtt_seconds,
        forwards: forwards_ready(client)
            .into_iter()
            .filter(|forward| !matches!(forward, ForwardReady::Remote { .. }))
            .chain(remote_ready(session))
            .collect(),
    }
}

/// All forwards: those that listen here with the addresses that were bound, remote ones as asked for.
pub(crate) fn forwards_ready(client: &Client) -> Vec<ForwardReady> {
    let forwards = client.forwards().into_iter().filter_map(|(forward, bound)| {
        Some(match forward {
            Forward::Local(LocalForward { goal, .. }) => {
                ForwardReady::Local { listen: bound, target: goal.to_string() }
            }
            Forward::Dynamic(_) => ForwardReady::Dynamic { listen: bound },
            Forward::Remote(RemoteForward { listen, goal }) => ForwardReady::remote(&listen, &goal),
            // Measurements have it, and they are ready in other words.
            Forward::Bench(_) => return None,
        })
    });
    forwards.collect()
}

/// The forwards that the server listens for, each with the port that it has bound.
fn remote_ready(session: &ClientSession) -> impl Iterator<Item = ForwardReady> {
    session.remote_forwards().into_iter().map(|(RemoteForward { listen, goal }, port)| {
        let listen = match (listen, port) {
            (Listen::Tcp { bind, .. }, Ok(port)) => Listen::Tcp { bind, port },
            (listen, _) => listen,
        };
        ForwardReady::remote(&listen, &goal)
    })
}

/// The number that tells this run of the client from every other.
pub(crate) fn draw_instance() -> Result<Instance, Error> {
    Instance::draw().map_err(|error| {
        Error::new(Exit::Runtime, format!("no randomness from the system: {error}"))
    })
}
