//! Runs the server and the clients of a file, and changes them to those of a reloaded file, all or
//! nothing: steps that can fail come first and are undone if one does.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use keypadd_config::{Config, Outgoing, Peer};
use keypadd_provider::{CryptoSettings, PublicKey, server_config};
use keypadd_tunnel::{
    AllowedPeer, Client, Forward, ListenPermits, Peers, Permits, Server, ServerHandle,
};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::allowances::Allowances;
use super::links::{BoundLink, Link, crypto_for};
use super::pool_suites;
use crate::configfile::Loaded;
use crate::daemon::{Daemon, accepted, accepted_groups};
use crate::error::{Error, Exit};
use crate::forward;
use crate::pooling::PoolOptions;
use crate::ready::RunReady;
use crate::serve;
use crate::shutdown::{self, ShutdownMode, Trigger};
use crate::sources::{PeerTerms, Source, Sources};

/// The running server and clients, and their settings.
pub(super) struct RunningConfig {
    config: Config,
    allowances: Allowances,
    server: Option<Listening>,
    links: BTreeMap<String, Link>,
    sources: Sources,
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
    pub(super) async fn start(daemon: &mut Daemon, loaded: Loaded) -> Result<Self, Error> {
        let Loaded { config, .. } = loaded;
        let mut allowances = Allowances::default();
        allowances.prepare(&config);
        let mut server = match &config.settings.listen {
            Some(listen) => {
                let texts = ["listen", "listen = \"[::]:4434\""];
                Some(serve::bind(daemon, listen.value, peers(&config, &allowances)?, texts)?)
            }
            None => None,
        };
        let mut bound = Vec::new();
        for (peer, outgoing) in outgoing(&config) {
            let (crypto, transport) = (&daemon.crypto, &daemon.transport);
            let timeout = config.settings.connect_timeout.value;
            let crypto = &crypto_for(crypto, outgoing, allowances.of(peer));
            let instance = daemon.instance(&peer.name)?;
            bound
                .push(BoundLink::bind(peer, outgoing, crypto, transport, timeout, instance).await?);
        }
        let mut held = daemon.take_held().await?;
        if let Some(server) = &mut server {
            server.adopt(held.chains);
        }
        for client in &bound {
            if let Some(held) = held.clients.remove(client.name()) {
                client.adopt(held);
            }
        }
        let running = Self {
            config,
            allowances,
            server: server.map(|server| start_server(server, daemon.drain)),
            links: bound
                .into_iter()
                .map(|bound| (bound.name().to_owned(), bound.start(daemon.drain)))
                .collect(),
            sources: Sources::new(daemon.public_key(), Vec::new()),
        };
        running.show_sources(daemon);
        Ok(running)
    }

    /// The settings in force.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Sources of status, current after every change.
    pub(super) fn sources(&self) -> Sources {
        self.sources.clone()
    }

    /// The running server.
    pub(super) fn servers(&self) -> Vec<ServerHandle> {
        self.server.iter().map(|server| server.handle.clone()).collect()
    }

    /// The running clients, by their peers' names.
    pub(super) fn clients(&self) -> Vec<(String, &Client)> {
        self.links.iter().map(|(name, link)| (name.clone(), link.client())).collect()
    }

    /// What to print when ready.
    pub(super) fn ready(&self, daemon: &Daemon) -> RunReady {
        RunReady {
            public_key: daemon.public_key().to_string(),
            listen: self.server.as_ref().map(|server| server.place),
            incoming: incoming(&self.config).map(|peer| peer.name.clone()).collect(),
            dialing: self.links.values().map(Link::ready).collect(),
        }
    }

    /// Answers a request about the forwards of its clients.
    pub(super) async fn forward(&self, request: &str) -> Value {
        let clients = self.links.iter().map(|(name, link)| (name.as_str(), link.client()));
        forward::answer(request, &clients.collect::<Vec<_>>()).await
    }

    /// Applies new settings.
    ///
    /// # Errors
    /// Exit 6: an address cannot be bound. Exit 1: not enough memory for the pool, or a TLS error.
    /// The old settings stay in force.
    pub(super) async fn apply(
        &mut self,
        daemon: &mut Daemon,
        started: &Config,
        new: Loaded,
    ) -> Result<(), Error> {
        let Loaded { config: new, key, .. } = new;
        let (options, suites) = (PoolOptions::of(&new.settings), pool_suites(&new));
        let change = daemon.pooling.prepare(options, suites, daemon.crypto.cipher_engine).await?;
        let crypto = CryptoSettings {
            key,
            suites: accepted(&new.settings.suites(), daemon.bench().is_some()),
            kex: accepted_groups(&new.settings.key_exchanges(), daemon.bench().is_some()),
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
            let peers = peers(&new, &self.allowances)?;
            self.relink(daemon, &crypto, started, &new).await?;
            Ok((server_crypto, peers))
        };
        let (server_crypto, peers) = match attempt.await {
            Ok(made) => made,
            Err(error) => {
                daemon.pooling.undo(change).await;
                return Err(error);
            }
        };
        self.allowances.settle(&new);
        if let (Some(server), Some(crypto)) = (&self.server, server_crypto) {
            server.handle.set_peers(peers);
            server.handle.set_crypto(crypto);
        }
        let log_connections = new.settings.log_connections.value;
        daemon.transport.limits.set_log_connections(log_connections);
        daemon.crypto = crypto;
        daemon.transport.key_lifetimes.set(new.settings.key_lifetime());
        self.config = new;
        self.show_sources(daemon);
        daemon.pooling.apply(change);
        Ok(())
    }

    /// Changes the clients to the new settings. Closes old listeners before binding new ones, so that a
    /// forward can move from one peer to another.
    async fn relink(
        &mut self,
        daemon: &Daemon,
        crypto: &CryptoSettings,
        started: &Config,
        new: &Config,
    ) -> Result<(), Error> {
        let wanted: BTreeMap<&str, (&Peer, &Outgoing)> =
            outgoing(new).map(|(peer, outgoing)| (peer.name.as_str(), (peer, outgoing))).collect();
        let kept = |name: &str, link: &Link| {
            wanted.get(name).copied().filter(|(peer, outgoing)| link.leads_to(peer, outgoing))
        };
        for (name, link) in &self.links {
            let still = |forward: &&Forward| {
                kept(name, link).is_some_and(|(_, outgoing)| outgoing.forwards.contains(forward))
            };
            let forwards = link.forwards().iter().filter(still).cloned().collect();
            link.set_forwards(forwards, link.proxy_headers()).await?;
        }
        let mut bound = Vec::new();
        let taken = async {
            for (name, &(peer, outgoing)) in &wanted {
                match self.links.get(*name).filter(|link| link.leads_to(peer, outgoing)) {
                    Some(link) => {
                        let headers = outgoing.proxy_headers;
                        link.set_forwards(outgoing.forwards.clone(), headers).await?;
                    }
                    None => {
                        let timeout = started.settings.connect_timeout.value;
                        let crypto = &crypto_for(crypto, outgoing, self.allowances.of(peer));
                        let transport = &daemon.transport;
                        let instance = daemon.instance(name)?;
                        let binding =
                            BoundLink::bind(peer, outgoing, crypto, transport, timeout, instance);
                        bound.push(binding.await?);
                    }
                }
            }
            Ok(())
        };
        if let Err(error) = taken.await {
            for unused in bound {
                unused.close().await;
            }
            for link in self.links.values() {
                // If another program has taken an address in the meantime, the log names it.
                let (forwards, headers) = (link.forwards().to_vec(), link.proxy_headers());
                if let Err(lost) = link.set_forwards(forwards, headers).await {
                    tracing::error!("{}", lost.to_string().trim_end());
                }
            }
            return Err(error);
        }
        let gone: Vec<String> = self
            .links
            .iter()
            .filter(|(name, link)| kept(name, link).is_none())
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some(link) = self.links.remove(&name) {
                // Its task says goodbye to the peer.
                drop(link.end(ShutdownMode::Immediate));
            }
        }
        for (name, link) in &mut self.links {
            if let Some((peer, _)) = wanted.get(name.as_str()) {
                link.settle(peer, crypto, self.allowances.of(peer))?;
            }
        }
        let started = |bound: BoundLink| (bound.name().to_owned(), bound.start(daemon.drain));
        self.links.extend(bound.into_iter().map(started));
        Ok(())
    }

    fn show_sources(&self, daemon: &Daemon) {
        let server = self.server.iter().map(|server| server.source.clone());
        let sources = server.chain(self.links.values().map(Link::source)).collect();
        self.sources.replace(daemon.public_key(), sources);
        self.sources.set_peer_terms(peer_terms(&self.config));
    }

    /// Shuts everything down, with a goodbye to every peer.
    pub(super) async fn end(self, mode: ShutdownMode) {
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

/// The same, for the server.
fn peers(config: &Config, allowances: &Allowances) -> Result<Peers, Error> {
    let peers = config.peers.iter().filter_map(|peer| {
        let incoming = peer.incoming.as_ref()?;
        Some(AllowedPeer {
            name: Some(peer.name.clone()),
            keys: peer.keys.clone(),
            permits: Permits::new(incoming.permit_open.clone()),
            listen_permits: ListenPermits::new(incoming.permit_listen.clone()),
            allowance: allowances.of(peer),
            hold: peer.hold,
            valid_until: peer.valid_until,
        })
    });
    Peers::new(peers).map_err(|error| Error::new(Exit::Config, error.to_string()))
}

fn start_server(server: Server, drain: Duration) -> Listening {
    let (stop, stopped) = shutdown::channel();
    let source = Source { sessions: server.sessions(), loops: server.loop_meter(), dialing: None };
    let (handle, place) = (server.handle(), server.local_addr());
    let task = tokio::spawn(async move { server.run(stopped.drain_time(drain)).await });
    Listening { handle, place, source, stop, task }
}
