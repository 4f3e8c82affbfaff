//! `keypadd connect`: runs a client from flags, with forwards (`-L`, `-R`, `-D`) or one connection
//! over standard input and output (`-W`). Binds its listeners before sending anything.

mod reuse;
mod ssh;
mod stdio;

use std::time::SystemTime;

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::refusal::explain;
use keypadd_cli::shutdown::Shutdown;
use keypadd_config::{Setting, Settings, offered, values_of};
use keypadd_keystream::Class;
use keypadd_provider::{PublicKey, client_config};
use keypadd_tunnel::{
    Client, ClientError, ClientSession, ClientSettings, Forward, Listen, ProxyHeaders,
    RemoteForward, ServerAddresses, Target,
};
use tokio::io::stdin;
use tokio::sync::mpsc;

use crate::command_line::host_key::HostKey;
use crate::command_line::named::{self, Named};
use crate::command_line::{ConnectArgs, Flags, Server};
use crate::control::carry::{self, CarryRequest};
use crate::control::forwards;
use crate::control::{Requests, WAITING_MAX};
use crate::daemon::Daemon;
use crate::daemon::confine::{Confinement, SandboxNeeds};
use crate::daemon::pinned::pinned;
use crate::daemon::preferences::Preferences;
use crate::daemon::ready::{ClientReady, ForwardReady, forwards_ready, suite_with_class};
use crate::daemon::systemd;
use crate::replacement::give;
use crate::status::peers::PeerReport;
use crate::status::sources::{Dialing, PeerTerms, Source, Sources};

use reuse::CarryClient;
use stdio::ClosingStdout;

/// Settings of a tunnel: a running daemon's may differ. Suites and key exchange are compared
/// instead.
const OF_TUNNEL: [&str; 7] = [
    "cipher-backend",
    "congestion",
    "hold",
    "key-lifetime",
    "key-lifetime-bytes",
    "metrics",
    "peer-timeout",
];

/// The client's name in a handover; there is only one client.
const ONLY_CLIENT: &str = "";

/// What a client is started with.
#[derive(Debug)]
pub(crate) struct ConnectOptions {
    server: ServerAddresses,
    peer: Vec<PublicKey>,
    valid_until: Option<SystemTime>,
    /// Its name in the configuration file, if it was given by name.
    name: Option<String>,
    work: Work,
    proxy_headers: ProxyHeaders,
    /// How to let a running daemon carry the connection instead.
    reuse: Option<CarryClient>,
    settings: Settings,
    preferences: Preferences,
    key: HostKey,
    confinement: Confinement,
}

/// What a client is for.
#[derive(Debug)]
enum Work {
    Forwards(Vec<Forward>),
    Stdio(Target),
}

impl ConnectOptions {
    /// Reads the flags, and the file if the server is given by name.
    ///
    /// # Errors
    /// Exit 2: no server key or two, no peer of that name, nothing to forward, or a legacy suite
    /// that is not allowed. Exit 3: no usable key file or configuration file.
    pub(crate) fn read(args: ConnectArgs) -> Result<Self, Error> {
        let Flags { mut settings, peer: peer_settings, .. } = args.flags;
        ssh::check(&args.ssh, &args.server)?;
        let mut suites = offered(peer_settings.suite.as_ref().map(|suite| suite.value));
        let mut kex = peer_settings.kex.as_ref().map(|kex| kex.value).unwrap_or_default();
        let (server, peer, valid_until, name) = match (args.server, args.peer) {
            (Server::At(typed), Some(peer)) => {
                (ssh::addresses(&typed, &args.ssh)?, vec![peer], None, None)
            }
            (Server::At(typed), None) => {
                let server = ssh::addresses(&typed, &args.ssh)?;
                let hint = match named::meant(&server, args.config) {
                    Some(name) => format!("did you mean @{name}, from the configuration file?"),
                    None => "run `keypadd pubkey` on the server to print it".into(),
                };
                return Err(Error::new(Exit::Usage, "--peer is missing: the server's public key")
                    .hint(hint));
            }
            (Server::Named(name), Some(_)) => {
                let cause = format!("--peer: @{name} has its public key in the configuration file");
                return Err(Error::new(Exit::Usage, cause).hint("leave out --peer, or name a host"));
            }
            (Server::Named(name), None) => {
                let Named { keys, valid_until, outgoing, own_key, allow_legacy } =
                    named::find(&name, args.config)?;
                if peer_settings.suite.is_none() {
                    suites = outgoing.suites;
                    // The file has allowed its own suite, but not one from the command line.
                    settings.allow_legacy = allow_legacy;
                }
                if peer_settings.kex.as_ref().is_none_or(|kex| kex.at.is_none()) {
                    kex = outgoing.kex;
                }
                settings.key.get_or_insert_with(|| Setting {
                    text: own_key.display().to_string(),
                    value: own_key,
                    at: None,
                });
                (outgoing.endpoint, keys, valid_until, Some(name))
            }
        };
        let server = ssh::narrowed(server, &args.ssh);
        let work = match args.stdio {
            Some(target) => Work::Stdio(target),
            None => Work::Forwards(values_of(&peer_settings.forwards())),
        };
        if matches!(&work, Work::Forwards(forwards) if forwards.is_empty()) {
            return Err(Error::new(
                Exit::Usage,
                "nothing to forward: give at least one of -L, -R, -D and -W",
            )
            .hint("for example -L 2222:localhost:22, then `ssh -p 2222 localhost`"));
        }
        let proxy_headers = peer_settings.proxy_headers();
        if proxy_headers.accept && matches!(work, Work::Stdio(_)) {
            return Err(Error::new(Exit::Usage, "--accept-proxy: -W has no listener")
                .hint("leave it out; it applies to -L and -R"));
        }
        let asks_for_own_tunnel = settings
            .entries()
            .any(|(key, value)| OF_TUNNEL.contains(&key.name) && !value.is_default())
            || ssh::narrows(&args.ssh);
        let preferences = Preferences::of_flags(&settings, suites, vec![kex])?;
        let key = HostKey::of_flags(&settings)?;
        let reuse = match &work {
            Work::Stdio(target) if name.is_some() && !asks_for_own_tunnel => {
                let request = CarryRequest {
                    own: key.key.public(),
                    peers: peer.clone(),
                    suites: preferences.suites.clone(),
                    kex,
                    target: target.clone(),
                };
                Some(CarryClient::new(request, proxy_headers.send))
            }
            _ => None,
        };
        Ok(Self {
            server,
            peer,
            valid_until,
            name,
            work,
            proxy_headers,
            reuse,
            settings,
            preferences,
            key,
            confinement: Confinement::default(),
        })
    }

    /// Restricts the calling thread to what these options need, before any other starts.
    ///
    /// # Errors
    /// As for [`Confinement::start_replaceable`].
    pub(crate) fn confined(mut self) -> Result<Self, Error> {
        let (forwards, adds_forwards) = match &self.work {
            Work::Forwards(forwards) => (forwards.iter().collect(), true),
            Work::Stdio(_) => (Vec::new(), false),
        };
        let needs = SandboxNeeds { forwards, adds_forwards, ..SandboxNeeds::default() };
        if let Some(reuse) = &mut self.reuse {
            reuse.connect_to_daemons();
        }
        self.confinement = match &self.work {
            Work::Forwards(_) => Confinement::start_replaceable(&self.settings, &needs)?,
            Work::Stdio(_) => Confinement::start(&self.settings, &needs)?,
        };
        Ok(self)
    }
}

/// Connects, reconnects when the connection is lost, and forwards until `shutdown`, or until the
/// one connection of `-W` ends; calls `on_ready` once connected. If a running daemon carries that
/// connection, connects nowhere.
///
/// # Errors
/// Exit 6: a listener cannot be bound. Exit 4: one end rejects the other. Exit 5: no answer in
/// time. Exit 1: the connection of `-W` is lost, its target cannot be reached, or `shutdown`
/// interrupts it.
pub(crate) async fn run(
    options: ConnectOptions,
    shutdown: Shutdown,
    on_ready: impl FnOnce(&ClientReady),
) -> Result<(), Error> {
    if let Some(reuse) = options.reuse
        && let Some(ended) = reuse.run(&options.confinement, &shutdown).await
    {
        return ended;
    }
    let ConnectOptions { server, peer, valid_until, name, preferences, .. } = options;
    let mut daemon =
        Daemon::prepare(options.settings, options.key, &preferences, options.confinement).await?;
    let crypto = client_config(&daemon.crypto, pinned(&peer)?)
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
    let (forwards, stdio) = match options.work {
        Work::Forwards(forwards) => (forwards, None),
        Work::Stdio(target) => (Vec::new(), Some(target)),
    };
    let client = Client::bind(ClientSettings {
        server: server.clone(),
        crypto,
        name: name.clone(),
        forwards,
        proxy_headers: options.proxy_headers,
        transport: daemon.transport.clone(),
        connect_timeout: daemon.settings.connect_timeout.value,
        instance: daemon.instance(ONLY_CLIENT)?,
    });
    let client = client
        .await
        .map_err(|error| explain(ClientError::Bind(error), daemon.public_key(), &peer))?;
    client.set_valid_until(valid_until);
    if let Some(held) = daemon.take_held().await?.clients.remove(ONLY_CLIENT) {
        held.into_iter().for_each(|held| carry::adopt(&client, held, &peer));
    }
    let carried = stdio.clone();
    let label = name.or_else(|| peer.first().map(PublicKey::short)).unwrap_or_default();
    let dialing = Dialing {
        peer: label.clone(),
        endpoint: server.to_string(),
        link: client.link(),
        carrier: client.carrier(),
        valid_until,
    };
    // `-W` does not reconnect.
    let dialing = stdio.is_none().then_some(dialing);
    let (sessions, loops) = (client.sessions(), client.loop_meter());
    let source = Source { sessions, loops, dialing, draining: None };
    let sources = Sources::new(daemon.public_key(), vec![source]);
    let peer_terms = PeerTerms { has_other_key: peer.len() > 1, valid_until };
    sources.set_peer_terms(peer.iter().map(|key| (*key, peer_terms)).collect());
    sources.set_peers(vec![PeerReport::dialed(&label, &peer, &server, valid_until)]);
    // A set suite is offered alone.
    sources.set_ranks_suites(preferences.suites.len() > 1);
    let (forward_request, mut requests) = mpsc::channel(WAITING_MAX);
    let (replace_request, mut replacements) = mpsc::channel(give::WAITING_MAX);
    let answered = match stdio.is_some() {
        // No other process can take over standard input and output.
        true => Requests::default(),
        false => Requests {
            forward: Some(forward_request),
            replace: Some(replace_request),
            carry: Some(sources.clone()),
            ..Requests::default()
        },
    };
    let mut watching = daemon.watch("connect", server.to_string(), sources, answered);
    daemon.confinement.seal()?;
    let connected = if daemon.finish_takeover([], &shutdown).await? {
        Some(Ok(None))
    } else {
        tokio::select! {
            biased;
            connected = connect(&client, stdio.is_some(), on_ready, &server) => {
                Some(connected.map(Some))
            }
            _ = shutdown.requested() => None,
        }
    };
    let (ended, cut) = match (connected, stdio) {
        (None, _) => (Ok(()), true),
        (Some(Err(error)), _) => (Err(error), false),
        (Some(Ok(session)), None) => {
            daemon.confinement.log();
            systemd::notify(&[sd_notify::NotifyState::Ready]);
            let draining = async {
                let drain = shutdown.clone().drain_time(daemon.drain()).await;
                systemd::notify_stopping(drain);
                drain
            };
            let answer = async {
                loop {
                    tokio::select! {
                        _ = shutdown.requested() => break,
                        Some((request, reply)) = requests.recv() => {
                            let answer = forwards::answer(&request, &[(&label, &client)]).await;
                            let _ = reply.send(answer.into());
                        }
                        else => break,
                    }
                }
                // A draining client no longer listens.
                requests.close();
                std::future::pending().await
            };
            let handover = daemon.handover_source(Vec::new(), vec![(ONLY_CLIENT.into(), &client)]);
            tokio::select! {
                () = client.run(session, draining) => {}
                never = answer => never,
                () = handover.give(&mut replacements, &shutdown) => {
                    handover.exit_replaced(&mut watching).await
                }
            }
            (Ok(()), false)
        }
        // `-W` runs inside another program, which expects it to stop immediately.
        // Only a daemon with forwards replaces another.
        (Some(Ok(None)), Some(_)) => (Ok(()), false),
        (Some(Ok(Some(session))), Some(target)) => tokio::select! {
            biased;
            ended = client.forward_stdio(session, &target, stdin(), ClosingStdout::new()) => {
                (ended, false)
            }
            _ = shutdown.requested() => (Ok(()), true),
        },
    };
    // Checked before the goodbye: a reader of our output would take its end for the target's.
    let cut_off = carried.filter(|_| cut && stdio::is_read());
    // If nobody answered, there is nobody to say goodbye to.
    if !matches!(ended, Err(ClientError::Unreachable { .. })) {
        client.close().await;
    }
    watching.shutdown().await;
    match cut_off {
        Some(target) => {
            Err(Error::new(Exit::Runtime, format!("interrupted before {target} finished")))
        }
        None => ended.map_err(|error| explain(error, daemon.public_key(), &peer)),
    }
}

/// Connects for the first time.
async fn connect(
    client: &Client,
    stdio: bool,
    on_ready: impl FnOnce(&ClientReady),
    server: &ServerAddresses,
) -> Result<ClientSession, ClientError> {
    let session = client.connect().await?;
    session.all_listening()?;
    let suite = session.live().handshake().suite;
    if stdio && suite.class() == Class::Legacy {
        // `-W` prints no ready lines, which would show this.
        tracing::warn!("suite {}", suite_with_class(suite));
    }
    on_ready(&ready(client, &session, server));
    Ok(session)
}

fn ready(client: &Client, session: &ClientSession, server: &ServerAddresses) -> ClientReady {
    let live = session.live();
    ClientReady {
        server: server.to_string(),
        remote: live.remote(),
        peer: live.key().to_string(),
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

/// The remote forwards, each with the port that the server bound.
fn remote_ready(session: &ClientSession) -> impl Iterator<Item = ForwardReady> {
    session.remote_forwards().into_iter().map(|(RemoteForward { listen, destination }, port)| {
        let listen = match (listen, port) {
            (Listen::Tcp { bind, .. }, Ok(port)) => Listen::Tcp { bind, port },
            (Listen::Udp { bind, .. }, Ok(port)) => Listen::Udp { bind, port },
            (listen, _) => listen,
        };
        ForwardReady::remote(&listen, &destination)
    })
}
