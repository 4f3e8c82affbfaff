//! Runs the server and the clients of a file, and changes them to those of a reloaded file. It
//! changes all or nothing: steps that can fail come first, and what runs does not notice them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::memory::memory;
use keypadd_cli::shutdown::{self, ShutdownMode, Trigger};
use keypadd_config::{Config, Outgoing, Peer};
use keypadd_provider::{CryptoSettings, PublicKey, server_config};
use keypadd_transport::crypto::ClientConfig;
use keypadd_tunnel::{
    AllowedPeer, BoundForwards, Client, Forward, ListenPermits, Peers, Permits, Server,
    ServerHandle, SpareSockets,
};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::allowances::Allowances;
use super::links::{Link, NewLink, bind_failed, client_crypto};
use super::networks::{PeerNetworks, overlaps};
use super::peers_report;
use crate::command_line::configfile::Loaded;
use crate::command_line::host_key::HostKey;
use crate::control::forwards;
use crate::daemon::Daemon;
use crate::daemon::pooling::{PoolOptions, budget_cut, pool_suites};
use crate::daemon::preferences::{accepted, accepted_groups};
use crate::daemon::ready::RunReady;
use crate::daemon::server;
use crate::status::sources::{PeerTerms, Source, Sources};

/// The running server and clients, and their settings.
pub(crate) struct RunningConfig {
    config: Config,
    allowances: Allowances,
    server: Option<Listening>,
    links: BTreeMap<String, Link>,
    sources: Sources,
}

/// The clients of new settings, by their peers' names.
type PreparedLinks<'n> = BTreeMap<&'n str, PreparedLink<'n>>;

/// What a client needs for new settings.
struct PreparedLink<'n> {
    peer: &'n Peer,
    outgoing: &'n Outgoing,
    crypto: Arc<dyn ClientConfig>,
    /// The client, if the running one cannot go on.
    new: Option<NewLink>,
    forwards: BoundForwards,
}

/// The running server.
#[derive(Debug)]
struct Listening {
    handle: ServerHandle,
    place: SocketAddr,
    source: Source,
    stop: Trigger,
    task: JoinHandle<()>,
}

impl RunningConfig {
    /// Binds all listeners, then starts everything.
    ///
    /// # Errors
    /// Exit 6: an address cannot be bound. Exit 1: TLS error.
    pub(crate) async fn start(daemon: &mut Daemon, config: Config) -> Result<Self, Error> {
        let mut allowances = Allowances::default();
        allowances.prepare(&config);
        daemon.networks.apply(&config);
        let mut server = match &config.settings.listen {
            Some(listen) => {
                let texts = ["listen", "listen = \"[::]:4434\""];
                let peers = peers(&config, &allowances, &daemon.networks)?;
                Some(server::bind(daemon, listen.value, peers, texts)?)
            }
            None => None,
        };
        let mut bound = Vec::new();
        let mut spare = SpareSockets::default();
        for (peer, outgoing) in outgoing(&config) {
            let allowance = allowances.of(peer);
            let crypto = client_crypto(peer, outgoing, &daemon.crypto, allowance)?;
            let link = NewLink::new(peer, outgoing, crypto, allowance, daemon).await?;
            let forwards = bind(&peer.name, link.client(), outgoing, &mut spare).await?;
            link.client().use_forwards(forwards).await;
            bound.push(link);
        }
        let mut held = daemon.take_held().await?;
        if let Some(server) = &mut server {
            server.adopt(held.lineages);
            held.draining.into_iter().for_each(|time| server.handle().draining().begin(time));
        }
        for client in &bound {
            let held = held.clients.remove(client.name());
            held.into_iter().flatten().for_each(|held| client.adopt(held));
        }
        let running = Self {
            config,
            allowances,
            server: server.map(|server| start_server(server, daemon.drain())),
            links: bound
                .into_iter()
                .map(|bound| (bound.name().to_owned(), bound.start(daemon.drain())))
                .collect(),
            sources: Sources::new(daemon.public_key(), Vec::new()),
        };
        running.show_sources(daemon);
        Ok(running)
    }

    /// The settings in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Sources of status, current after every change.
    pub(crate) fn sources(&self) -> Sources {
        self.sources.clone()
    }

    /// The running server.
    pub(crate) fn servers(&self) -> Vec<ServerHandle> {
        self.server.iter().map(|server| server.handle.clone()).collect()
    }

    /// The running clients, by their peers' names.
    pub(crate) fn clients(&self) -> Vec<(String, &Client)> {
        self.links.iter().map(|(name, link)| (name.clone(), link.client())).collect()
    }

    /// What to print when ready.
    pub(crate) fn ready(&self, daemon: &Daemon) -> RunReady {
        RunReady {
            public_key: daemon.public_key().to_string(),
            listen: self.server.as_ref().map(|server| server.place),
            incoming: incoming(&self.config).map(|peer| peer.name.clone()).collect(),
            dialing: self.links.values().map(Link::ready).collect(),
        }
    }

    /// Answers a request about the forwards of its clients.
    pub(crate) async fn forward(&self, request: &str) -> Value {
        let clients = self.links.iter().map(|(name, link)| (name.as_str(), link.client()));
        forwards::answer(request, &clients.collect::<Vec<_>>()).await
    }

    /// Applies new settings; returns warnings.
    ///
    /// # Errors
    /// Exit 6: an address cannot be bound. Exit 1: not enough memory for the pool, or a TLS error.
    /// The old settings stay in force.
    pub(crate) async fn apply(
        &mut self,
        daemon: &mut Daemon,
        new: Loaded,
    ) -> Result<Vec<String>, Error> {
        let Loaded { config: new, key: HostKey { key, path } } = new;
        let (options, suites) = (PoolOptions::of(&new.settings, memory().bytes), pool_suites(&new));
        let change = daemon.pooling.prepare(options, suites, daemon.crypto.cipher_engine).await?;
        let crypto = CryptoSettings {
            key,
            suites: accepted(&new.settings.suites(), daemon.kit()),
            kex: accepted_groups(&new.settings.key_exchanges(), daemon.kit()),
            ..daemon.crypto.clone()
        };
        self.allowances.prepare(&new);
        let attempt = async {
            let server_crypto = match &self.server {
                Some(server) => {
                    let config = server_config(&crypto, server.handle.peers());
                    Some(config.map_err(|error| Error::new(Exit::Runtime, error.to_string()))?)
                }
                None => None,
            };
            let peers = peers(&new, &self.allowances, &daemon.networks)?;
            let links = self.prepare_links(daemon, &crypto, &new).await?;
            Ok((server_crypto, peers, links))
        };
        let (server_crypto, peers, (links, mut warnings)) = match attempt.await {
            Ok(made) => made,
            Err(error) => {
                daemon.pooling.undo(change).await;
                return Err(error);
            }
        };
        warnings.extend(budget_cut(&new.settings, memory().bytes));
        warnings.extend(overlaps(&new));
        self.use_links(daemon, links).await;
        self.allowances.settle(&new);
        daemon.networks.apply(&new);
        if let (Some(server), Some(server_crypto)) = (&self.server, server_crypto) {
            server.handle.set_peers(peers);
            server.handle.set_crypto(server_crypto, &daemon.reset_keys(&crypto));
        }
        let log_connections = new.settings.log_connections.value;
        daemon.transport.limits.set_log_connections(log_connections);
        daemon.crypto = crypto;
        daemon.use_key_file(&path);
        daemon.transport.key_lifetimes.set(new.settings.key_lifetime());
        self.config = new;
        self.show_sources(daemon);
        daemon.pooling.apply(change);
        Ok(warnings)
    }

    /// Prepares and binds what the clients of the new settings need. Running clients do not notice.
    /// Also returns warnings. A listen address that stays, or goes to another client, keeps its
    /// sockets, so that nobody else can take it.
    async fn prepare_links<'n>(
        &self,
        daemon: &Daemon,
        crypto: &CryptoSettings,
        new: &'n Config,
    ) -> Result<(PreparedLinks<'n>, Vec<String>), Error> {
        // Sessions come and go meanwhile.
        let kept: Vec<&str> = outgoing(new)
            .filter(|(peer, outgoing)| {
                self.links.get(&peer.name).is_some_and(|link| link.leads_to(peer, outgoing))
            })
            .map(|(peer, _)| peer.name.as_str())
            .collect();
        let mut spare = SpareSockets::default();
        for (name, link) in &self.links {
            let stay =
                outgoing(new).find(|(peer, _)| peer.name == *name && kept.contains(&name.as_str()));
            let stay = stay.map_or(&[][..], |(_, outgoing)| &outgoing.forwards);
            link.client().add_spare(name, stay, &mut spare);
        }
        let mut prepared = PreparedLinks::new();
        for (peer, outgoing) in outgoing(new) {
            let name = peer.name.as_str();
            let allowance = self.allowances.of(peer);
            let crypto = client_crypto(peer, outgoing, crypto, allowance)?;
            let old = self.links.get(name).filter(|_| kept.contains(&name));
            let (link, forwards) = match old {
                Some(link) => (None, bind(name, link.client(), outgoing, &mut spare).await?),
                None => {
                    let crypto = Arc::clone(&crypto);
                    let link = NewLink::new(peer, outgoing, crypto, allowance, daemon).await?;
                    let forwards = bind(name, link.client(), outgoing, &mut spare).await?;
                    (Some(link), forwards)
                }
            };
            prepared.insert(name, PreparedLink { peer, outgoing, crypto, new: link, forwards });
        }
        let mut warnings = Vec::new();
        for (name, PreparedLink { outgoing, forwards, .. }) in &mut prepared {
            let Some(link) = self.links.get(*name) else { continue };
            let added = link.added_forwards().into_iter();
            for forward in added.filter(|forward| !outgoing.forwards.contains(forward)) {
                let line = format!(
                    "peer {name}: the added forward {forward} is closed: the file uses its address"
                );
                if !forwards.keep(name, forward, &mut spare) {
                    warnings.push(line);
                }
            }
        }
        for (name, link) in self.links.iter().filter(|(name, _)| !prepared.contains_key(&***name)) {
            let added: Vec<_> = link.added_forwards().iter().map(Forward::to_string).collect();
            if !added.is_empty() {
                warnings.push(format!(
                    "peer {name}: added forwards are closed, as the file no longer connects to \
                        it: {}",
                    added.join(", ")
                ));
            }
        }
        Ok((prepared, warnings))
    }

    /// Changes the clients to what was prepared.
    async fn use_links(&mut self, daemon: &Daemon, prepared: PreparedLinks<'_>) {
        // Sockets are given up before others use them.
        let stays = |name: &str| prepared.get(name).filter(|link| link.new.is_none());
        for (name, link) in &self.links {
            match stays(name) {
                Some(PreparedLink { forwards, .. }) => link.client().close_except(forwards).await,
                None => link.client().close_except(&BoundForwards::default()).await,
            }
        }
        let gone = self.links.keys().filter(|name| stays(name).is_none());
        for name in gone.cloned().collect::<Vec<_>>() {
            if let Some(link) = self.links.remove(&name) {
                // Its task says goodbye to the peer.
                drop(link.end(ShutdownMode::Immediate));
            }
        }
        for (name, PreparedLink { peer, outgoing, crypto, new, forwards }) in prepared {
            if let Some(link) = new {
                link.client().use_forwards(forwards).await;
                self.links.insert(name.to_owned(), link.start(daemon.drain()));
            } else if let Some(link) = self.links.get_mut(name) {
                link.settle(peer, outgoing, crypto, forwards).await;
            }
        }
    }

    fn show_sources(&self, daemon: &Daemon) {
        let server = self.server.iter().map(|server| server.source.clone());
        let sources = server.chain(self.links.values().map(Link::source)).collect();
        self.sources.replace(daemon.public_key(), sources);
        self.sources.set_peer_terms(peer_terms(&self.config));
        self.sources.set_peers(peers_report::of(&self.config));
        let accepts = self.server.is_some() && self.config.settings.suite.is_none();
        // A set suite is offered alone.
        let offers = outgoing(&self.config).any(|(_, outgoing)| outgoing.suites.len() > 1);
        self.sources.set_ranks_suites(accepts || offers);
    }

    /// Shuts everything down, with a goodbye to every peer.
    pub(crate) async fn end(self, mode: ShutdownMode) {
        let server = self.server.map(|server| {
            server.stop.request(mode);
            server.task
        });
        let links = self.links.into_values().map(|link| link.end(mode));
        let tasks: Vec<_> = links.chain(server).collect();
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// Binds what the forwards of a client need, or takes spare sockets for them.
///
/// # Errors
/// Exit 6: an address cannot be bound.
async fn bind(
    peer: &str,
    client: &Client,
    outgoing: &Outgoing,
    spare: &mut SpareSockets,
) -> Result<BoundForwards, Error> {
    let bound = client.bind_forwards(peer, outgoing.forwards.clone(), spare).await;
    bound.map_err(|error| bind_failed(peer, &error))
}

/// The peers that may connect to this host.
fn incoming(config: &Config) -> impl Iterator<Item = &Peer> {
    config.peers.iter().filter(|peer| peer.incoming.is_some())
}

/// The peers to connect to.
fn outgoing(config: &Config) -> impl Iterator<Item = (&Peer, &Outgoing)> {
    config.peers.iter().filter_map(|peer| Some((peer, peer.outgoing.as_ref()?)))
}

/// What the file says about each key of a peer.
fn peer_terms(config: &Config) -> HashMap<PublicKey, PeerTerms> {
    let of_peer = |peer: &Peer| PeerTerms {
        has_other_key: peer.keys.len() > 1,
        valid_until: peer.valid_until,
    };
    let peers = config.peers.iter();
    peers.flat_map(|peer| peer.keys.iter().map(move |key| (*key, of_peer(peer)))).collect()
}

/// The peers that may connect to this host, as the server knows them.
fn peers(
    config: &Config,
    allowances: &Allowances,
    networks: &PeerNetworks,
) -> Result<Peers, Error> {
    let peers = config.peers.iter().filter_map(|peer| {
        let incoming = peer.incoming.as_ref()?;
        let allowance = allowances.of(peer);
        Some(AllowedPeer {
            name: Some(peer.name.clone()),
            keys: peer.keys.clone(),
            permits: Permits::new(incoming.permit_open.clone()),
            listen_permits: ListenPermits::new(incoming.permit_listen.clone()),
            allowance: allowance.map(|allowance| allowance.pool.clone()),
            rate_cap: allowance.map(|allowance| allowance.rate.clone()),
            hold: peer.hold,
            valid_until: peer.valid_until,
            network: networks.of(&peer.name),
        })
    });
    Peers::new(peers).map_err(|error| Error::new(Exit::Config, error.to_string()))
}

fn start_server(server: Server, drain: Duration) -> Listening {
    let (stop, stopped) = shutdown::channel();
    let source = Source::of(&server);
    let (handle, place) = (server.handle(), server.local_addr());
    let task = tokio::spawn(async move { server.run(stopped.drain_time(drain)).await });
    Listening { handle, place, source, stop, task }
}
