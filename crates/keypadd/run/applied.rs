//! The settings that are in force: the server, the clients, and how they become those of another file. A
//! change happens as a whole or not at all: what can fail comes first, and is undone if something does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use keypadd_config::{Config, Dialled, Peer};
use keypadd_provider::{CryptoSettings, server_config};
use keypadd_tunnel::{AllowedPeer, Forward, ListenPermits, Peers, Permits, Server, ServerHandle};
use tokio::task::JoinHandle;

use super::allowances::Allowances;
use super::links::{Bound, Link, crypto_for};
use super::{pool_options, pool_suites};
use crate::configfile::Loaded;
use crate::daemon::{Daemon, accepted, accepted_groups};
use crate::error::{Error, Exit};
use crate::ready::RunReady;
use crate::serve;
use crate::shutdown::{self, Ending, Trigger};
use crate::sources::{Source, Sources};

/// What runs, and the settings it runs by.
pub(super) struct Applied {
    config: Config,
    allowances: Allowances,
    server: Option<Listening>,
    links: BTreeMap<String, Link>,
    sources: Sources,
}

/// A server that runs.
#[derive(Debug)]
struct Listening {
    handle: ServerHandle,
    place: SocketAddr,
    source: Source,
    stop: Trigger,
    task: JoinHandle<()>,
}

impl Applied {
    /// Binds everything, then starts everything.
    ///
    /// # Errors
    /// Exit 6: an address cannot be bound. Exit 1: the TLS library refuses.
    pub(super) async fn start(daemon: &Daemon, loaded: Loaded) -> Result<Self, Error> {
        let Loaded { config, .. } = loaded;
        let mut allowances = Allowances::default();
        allowances.prepare(&config);
        let server = match config.listen {
            Some(listen) => {
                let texts = ["listen", "listen = \"[::]:4434\""];
                Some(serve::bind(daemon, listen, peers(&config, &allowances)?, texts)?)
            }
            None => None,
        };
        let mut bound = Vec::new();
        for (peer, dialled) in dialled(&config) {
            let (crypto, transport) = (&daemon.crypto, &daemon.transport);
            let timeout = config.connect_timeout;
            let crypto = &crypto_for(crypto, dialled, allowances.of(peer));
            bound.push(Bound::bind(peer, dialled, crypto, transport, timeout).await?);
        }
        let applied = Self {
            config,
            allowances,
            server: server.map(|server| start_server(server, daemon.drain)),
            links: bound
                .into_iter()
                .map(|bound| (bound.name().to_owned(), bound.start(daemon.drain)))
                .collect(),
            sources: Sources::new(daemon.public_key(), Vec::new()),
        };
        applied.show_sources(daemon);
        Ok(applied)
    }

    /// The settings in force.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Where figures come from, now and after every change.
    pub(super) fn sources(&self) -> Sources {
        self.sources.clone()
    }

    /// What to say once it runs.
    pub(super) fn ready(&self, daemon: &Daemon) -> RunReady {
        RunReady {
            public_key: daemon.public_key().to_string(),
            listen: self.server.as_ref().map(|server| server.place),
            incoming: incoming(&self.config).map(|peer| peer.name.clone()).collect(),
            dialling: self.links.values().map(Link::ready).collect(),
        }
    }

    /// Makes these the settings.
    ///
    /// # Errors
    /// Exit 6: an address cannot be bound. Exit 1: no memory for the pool, or the TLS library refuses.
    /// The old settings are in force then.
    pub(super) async fn apply(
        &mut self,
        daemon: &mut Daemon,
        started: &Config,
        new: Loaded,
    ) -> Result<(), Error> {
        let Loaded { config: new, key, .. } = new;
        let (options, suites) = (pool_options(&new), pool_suites(&new));
        let change = daemon.pooling.prepare(options, &suites, daemon.crypto.cipher_engine)?;
        let crypto = CryptoSettings {
            key,
            suites: accepted(&new.suites, daemon.bench().is_some()),
            kex: accepted_groups(&new.kex, daemon.bench().is_some()),
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
                daemon.pooling.undo(&change);
                return Err(error);
            }
        };
        self.allowances.settle(&new);
        if let (Some(server), Some(crypto)) = (&self.server, server_crypto) {
            server.handle.set_peers(peers);
            server.handle.set_crypto(crypto);
        }
        daemon.crypto = crypto;
        self.config = new;
        self.show_sources(daemon);
        daemon.pooling.apply(change);
        Ok(())
    }

    /// Brings the clients to the new settings. Listeners are let go before others are bound, so that a
    /// forward can move from one peer to another.
    async fn relink(
        &mut self,
        daemon: &Daemon,
        crypto: &CryptoSettings,
        started: &Config,
        new: &Config,
    ) -> Result<(), Error> {
        let wanted: BTreeMap<&str, (&Peer, &Dialled)> =
            dialled(new).map(|(peer, dialled)| (peer.name.as_str(), (peer, dialled))).collect();
        let kept = |name: &str, link: &Link| {
            wanted.get(name).copied().filter(|(peer, dialled)| link.leads_to(peer, dialled))
        };
        for (name, link) in &self.links {
            let still = |forward: &&Forward| {
                kept(name, link).is_some_and(|(_, dialled)| dialled.forwards.contains(forward))
            };
            link.set_forwards(link.forwards().iter().filter(still).cloned().collect()).await?;
        }
        let mut bound = Vec::new();
        let taken = async {
            for (name, &(peer, dialled)) in &wanted {
                match self.links.get(*name).filter(|link| link.leads_to(peer, dialled)) {
                    Some(link) => link.set_forwards(dialled.forwards.clone()).await?,
                    None => {
                        let (transport, timeout) = (&daemon.transport, started.connect_timeout);
                        let crypto = &crypto_for(crypto, dialled, self.allowances.of(peer));
                        bound.push(Bound::bind(peer, dialled, crypto, transport, timeout).await?);
                    }
                }
            }
            Ok(())
        };
        if let Err(error) = taken.await {
            drop(bound);
            for link in self.links.values() {
                // They were bound a moment ago; if somebody was quicker, the log says which is missing.
                if let Err(lost) = link.set_forwards(link.forwards().to_vec()).await {
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
                // It says goodbye by itself.
                drop(link.end(Ending::AtOnce));
            }
        }
        for (name, link) in &mut self.links {
            if let Some((peer, _)) = wanted.get(name.as_str()) {
                link.settle(peer, crypto, self.allowances.of(peer))?;
            }
        }
        let started = |bound: Bound| (bound.name().to_owned(), bound.start(daemon.drain));
        self.links.extend(bound.into_iter().map(started));
        Ok(())
    }

    fn show_sources(&self, daemon: &Daemon) {
        let server = self.server.iter().map(|server| server.source.clone());
        let sources = server.chain(self.links.values().map(Link::source)).collect();
        self.sources.replace(daemon.public_key(), sources);
    }

    /// Ends everything in this way, with a goodbye to every peer.
    pub(super) async fn end(self, ending: Ending) {
        let server = self.server.map(|server| {
            server.stop.end(ending);
            server.task
        });
        let links = self.links.into_values().map(|link| link.end(ending));
        let tasks: Vec<_> = links.chain(server).collect();
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// The peers that may come in.
fn incoming(config: &Config) -> impl Iterator<Item = &Peer> {
    config.peers.iter().filter(|peer| peer.incoming.is_some())
}

/// The peers that are dialled.
fn dialled(config: &Config) -> impl Iterator<Item = (&Peer, &Dialled)> {
    config.peers.iter().filter_map(|peer| Some((peer, peer.dialled.as_ref()?)))
}

/// The peers that may come in, as the server lists them.
fn peers(config: &Config, allowances: &Allowances) -> Result<Peers, Error> {
    let peers = config.peers.iter().filter_map(|peer| {
        let incoming = peer.incoming.as_ref()?;
        Some(AllowedPeer {
            name: Some(peer.name.clone()),
            key: peer.key,
            permits: Permits::new(incoming.permit_open.clone()),
            listen_permits: ListenPermits::new(incoming.permit_listen.clone()),
            allowance: allowances.of(peer),
        })
    });
    Peers::new(peers).map_err(|error| Error::new(Exit::Config, error.to_string()))
}

fn start_server(server: Server, drain: Duration) -> Listening {
    let (stop, stopped) = shutdown::switch();
    let source = Source { sessions: server.sessions(), loops: server.loop_meter(), dialling: None };
    let (handle, place) = (server.handle(), server.local_addr());
    let task = tokio::spawn(async move { server.run(stopped.drained(drain)).await });
    Listening { handle, place, source, stop, task }
}
