//! Runs the client for one peer with an endpoint: sends nothing before its listeners are bound,
//! retries forever once started, changes its forwards while it runs.

use std::sync::Arc;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit, listen_hint, system};
use keypadd_cli::shutdown::{self, ShutdownMode, Trigger};
use keypadd_config::{Outgoing, Peer};
use keypadd_provider::{CryptoSettings, PublicKey, client_config};
use keypadd_transport::crypto::ClientConfig;
use keypadd_tunnel::handover::HandedClient;
use keypadd_tunnel::{
    BindError, BoundForwards, Client, ClientSettings, Forward, TransportSettings,
};
use tokio::task::JoinHandle;

use super::allowances::Allowance;
use crate::control::carry;
use crate::daemon::Daemon;
use crate::daemon::pinned::pinned;
use crate::daemon::ready::DialingReady;
use crate::daemon::ready::forwards_ready;
use crate::status::sources::{Dialing, Source};

/// A running client.
pub(super) struct Link {
    client: Arc<Client>,
    peer: Peer,
    stop: Trigger,
    task: JoinHandle<()>,
}

/// A client that is not started.
pub(super) struct NewLink {
    client: Client,
    peer: Peer,
}

/// Packet protection for one peer, within its allowance of the pool.
fn crypto_for(
    settings: &CryptoSettings,
    outgoing: &Outgoing,
    allowance: Option<&Allowance>,
) -> CryptoSettings {
    let pool = match allowance {
        Some(allowance) => settings.pool.for_peer(allowance.pool.clone()),
        None => settings.pool.clone(),
    };
    CryptoSettings {
        pool,
        suites: outgoing.suites.iter().copied().map(Into::into).collect(),
        kex: vec![outgoing.kex.into()],
        ..settings.clone()
    }
}

/// Transport settings for one peer.
fn transport_for(
    peer: &Peer,
    transport: &TransportSettings,
    allowance: Option<&Allowance>,
) -> TransportSettings {
    let mut own = transport.clone();
    own.rate_cap = allowance.map(|allowance| allowance.rate.clone());
    own.hold.time = peer.hold.unwrap_or(own.hold.time);
    own
}

/// Packet protection for the connections to one peer.
///
/// # Errors
/// Exit 1: TLS error.
pub(super) fn client_crypto(
    peer: &Peer,
    outgoing: &Outgoing,
    crypto: &CryptoSettings,
    allowance: Option<&Allowance>,
) -> Result<Arc<dyn ClientConfig>, Error> {
    client_config(&crypto_for(crypto, outgoing, allowance), pinned(&peer.keys)?)
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))
}

impl NewLink {
    /// The peer's name.
    pub(super) fn name(&self) -> &str {
        &self.peer.name
    }

    /// Makes the client for a peer, which has no forwards yet.
    ///
    /// # Errors
    /// Exit 6: a UDP port cannot be bound. Exit 1: the system has no random bytes.
    pub(super) async fn new(
        peer: &Peer,
        outgoing: &Outgoing,
        crypto: Arc<dyn ClientConfig>,
        allowance: Option<&Allowance>,
        daemon: &Daemon,
    ) -> Result<Self, Error> {
        let client = Client::bind(ClientSettings {
            server: outgoing.endpoint.clone(),
            crypto,
            name: Some(peer.name.clone()),
            forwards: Vec::new(),
            proxy_headers: outgoing.proxy_headers,
            transport: transport_for(peer, &daemon.transport, allowance),
            connect_timeout: daemon.settings.connect_timeout.value,
            instance: daemon.instance(&peer.name)?,
        });
        let client = client.await.map_err(|error| bind_failed(&peer.name, &error))?;
        client.set_valid_until(peer.valid_until);
        if let Some(network) = daemon.networks.of(&peer.name) {
            client.carry_network(network);
        }
        Ok(Self { client, peer: peer.clone() })
    }

    /// Its client.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Resumes what the old process handed over.
    pub(super) fn adopt(&self, held: HandedClient) {
        carry::adopt(&self.client, held, &self.peer.keys);
    }

    /// Starts connecting. When told to drain, open connections may take this long.
    pub(super) fn start(self, drain: Duration) -> Link {
        let Self { client, peer } = self;
        let client = Arc::new(client);
        let (stop, stopped) = shutdown::channel();
        let running = Arc::clone(&client);
        let task = tokio::spawn(async move {
            running.run(None, stopped.drain_time(drain)).await;
            // Unless a change of its forwards is still in progress.
            if let Some(client) = Arc::into_inner(running) {
                client.close().await;
            }
        });
        Link { client, peer, stop, task }
    }
}

impl Link {
    /// Its client.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The forwards that its file does not have.
    pub(super) fn added_forwards(&self) -> Vec<Forward> {
        let of_file = self.peer.outgoing.as_ref().map_or(&[][..], |outgoing| &outgoing.forwards);
        let forwards = self.client.forwards().into_iter().map(|(forward, _)| forward);
        forwards.filter(|forward| !of_file.contains(forward)).collect()
    }

    /// Whether it connects to this peer at these addresses with a key that is still listed, and
    /// holds connections for the same time.
    pub(super) fn leads_to(&self, peer: &Peer, outgoing: &Outgoing) -> bool {
        let own = self.peer.outgoing.as_ref();
        let is_listed = |key: &PublicKey| peer.keys.contains(key);
        let proved = self.client.sessions().live().iter().all(|session| is_listed(&session.key()));
        let same = self.peer.keys.iter().any(is_listed) && proved && self.peer.hold == peer.hold;
        same && own.is_some_and(|own| own.endpoint == outgoing.endpoint)
    }

    /// Applies this peer's settings: its forwards at once, to new connections, the others from the
    /// next connection attempt on.
    pub(super) async fn settle(
        &mut self,
        peer: &Peer,
        outgoing: &Outgoing,
        crypto: Arc<dyn ClientConfig>,
        forwards: BoundForwards,
    ) {
        self.client.set_proxy_headers(outgoing.proxy_headers);
        self.client.use_forwards(forwards).await;
        // One may have begun since the keys were compared.
        self.client.end_unlisted(&peer.keys);
        self.client.set_crypto(crypto);
        self.client.set_valid_until(peer.valid_until);
        self.peer = peer.clone();
    }

    /// Its source of status.
    pub(super) fn source(&self) -> Source {
        Source {
            sessions: self.client.sessions(),
            loops: self.client.loop_meter(),
            draining: None,
            dialing: Some(Dialing {
                peer: self.peer.name.clone(),
                endpoint: self.endpoint(),
                link: self.client.link(),
                carrier: self.client.carrier(),
                valid_until: self.peer.valid_until,
            }),
        }
    }

    /// What to print about it when ready.
    pub(super) fn ready(&self) -> DialingReady {
        DialingReady {
            peer: self.peer.name.clone(),
            endpoint: self.endpoint(),
            forwards: forwards_ready(&self.client),
        }
    }

    fn endpoint(&self) -> String {
        let outgoing = self.peer.outgoing.as_ref();
        outgoing.map(|outgoing| outgoing.endpoint.to_string()).unwrap_or_default()
    }

    /// Shuts it down; the returned task says goodbye to the peer.
    pub(super) fn end(self, mode: ShutdownMode) -> JoinHandle<()> {
        let Self { client, stop, task, .. } = self;
        drop(client);
        stop.request(mode);
        task
    }
}

/// The error for a listener of a peer that cannot be bound.
pub(super) fn bind_failed(peer: &str, error: &BindError) -> Error {
    let cause =
        format!("peer {peer}: cannot listen on {}: {}", error.address, system(&error.source));
    let example = "local = [\"2223:localhost:22\"] or dynamic = [\"1081\"]";
    Error::new(Exit::BindFailed, cause).hint(listen_hint(&error.address, &error.source, example))
}
