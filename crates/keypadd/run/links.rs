//! One client for each dialled peer: bound before anything is sent, trying for ever once it is started, its
//! forwards changed while it runs. Knows one peer at a time.

use std::sync::Arc;
use std::time::Duration;

use keypadd_config::{Dialled, Peer};
use keypadd_provider::{Allowance, CryptoSettings, client_config};
use keypadd_tunnel::{BindError, Client, ClientSettings, Forward, TransportSettings};
use tokio::task::JoinHandle;

use crate::connect::{draw_instance, forwards_ready};
use crate::error::{Error, Exit, listen_hint, system};
use crate::ready::DiallingReady;
use crate::shutdown::{self, Ending, Trigger};
use crate::sources::{Dialling, Source};

/// A client that runs.
pub(super) struct Link {
    client: Arc<Client>,
    peer: Peer,
    stop: Trigger,
    task: JoinHandle<()>,
}

/// A client whose listeners are bound, and nothing more.
pub(super) struct Bound {
    client: Client,
    peer: Peer,
}

/// Packet protection towards one peer, which may have an allowance of the pool.
pub(super) fn crypto_for(
    settings: &CryptoSettings,
    dialled: &Dialled,
    allowance: Option<Allowance>,
) -> CryptoSettings {
    let pool = match allowance {
        Some(allowance) => settings.pool.for_peer(allowance),
        None => settings.pool.clone(),
    };
    CryptoSettings {
        pool,
        suites: vec![dialled.suite.into()],
        kex: vec![dialled.kex.into()],
        ..settings.clone()
    }
}

impl Bound {
    /// The peer's name.
    pub(super) fn name(&self) -> &str {
        &self.peer.name
    }

    /// Binds the listeners of a dialled peer, for which this packet protection is.
    ///
    /// # Errors
    /// Exit 6: an address is not to be had. Exit 1: the TLS library refuses.
    pub(super) async fn bind(
        peer: &Peer,
        dialled: &Dialled,
        crypto: &CryptoSettings,
        transport: &TransportSettings,
        connect_timeout: Duration,
    ) -> Result<Self, Error> {
        let crypto = client_config(crypto, peer.key)
            .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
        let client = Client::bind(ClientSettings {
            server: dialled.endpoint.clone(),
            crypto,
            name: Some(peer.name.clone()),
            forwards: dialled.forwards.clone(),
            transport: transport.clone(),
            connect_timeout,
            instance: draw_instance()?,
        });
        let client = client.await.map_err(|error| bind_failed(&peer.name, &error))?;
        Ok(Self { client, peer: peer.clone() })
    }

    /// Starts to try. When it is told to drain, what is open may take this long.
    pub(super) fn start(self, drain: Duration) -> Link {
        let Self { client, peer } = self;
        let client = Arc::new(client);
        let (stop, stopped) = shutdown::switch();
        let running = Arc::clone(&client);
        let task = tokio::spawn(async move {
            running.run(None, stopped.drained(drain)).await;
            // Whoever changed the client's forwards is done by now, or it is not worth a goodbye.
            if let Some(client) = Arc::into_inner(running) {
                client.close().await;
            }
        });
        Link { client, peer, stop, task }
    }
}

impl Link {
    /// What it is for.
    pub(super) fn forwards(&self) -> &[Forward] {
        self.peer.dialled.as_ref().map_or(&[], |dialled| &dialled.forwards)
    }

    /// Whether it leads to this peer at this place.
    pub(super) fn leads_to(&self, peer: &Peer, dialled: &Dialled) -> bool {
        let own = self.peer.dialled.as_ref();
        self.peer.key == peer.key && own.is_some_and(|own| own.endpoint == dialled.endpoint)
    }

    /// Makes these the forwards; established connections stay.
    ///
    /// # Errors
    /// Exit 6: an address is not to be had; the others are bound.
    pub(super) async fn set_forwards(&self, forwards: Vec<Forward>) -> Result<(), Error> {
        match self.client.set_forwards(forwards).await.first() {
            Some(error) => Err(bind_failed(&self.peer.name, error)),
            None => Ok(()),
        }
    }

    /// From the next attempt on, it connects as this peer's settings say.
    ///
    /// # Errors
    /// Exit 1: the TLS library refuses.
    pub(super) fn settle(
        &mut self,
        peer: &Peer,
        crypto: &CryptoSettings,
        allowance: Option<Allowance>,
    ) -> Result<(), Error> {
        if let Some(dialled) = &peer.dialled {
            let crypto = client_config(&crypto_for(crypto, dialled, allowance), peer.key)
                .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
            self.client.set_crypto(crypto);
        }
        self.peer = peer.clone();
        Ok(())
    }

    /// Where figures of it come from.
    pub(super) fn source(&self) -> Source {
        Source {
            sessions: self.client.sessions(),
            loops: self.client.loop_meter(),
            dialling: Some(Dialling {
                peer: self.peer.name.clone(),
                endpoint: self.endpoint(),
                link: self.client.link(),
            }),
        }
    }

    /// What to say of it once it listens.
    pub(super) fn ready(&self) -> DiallingReady {
        DiallingReady {
            peer: self.peer.name.clone(),
            endpoint: self.endpoint(),
            forwards: forwards_ready(&self.client),
        }
    }

    fn endpoint(&self) -> String {
        let dialled = self.peer.dialled.as_ref();
        dialled.map(|dialled| dialled.endpoint.to_string()).unwrap_or_default()
    }

    /// Ends it in this way; the task says goodbye to the peer.
    pub(super) fn end(self, ending: Ending) -> JoinHandle<()> {
        let Self { client, stop, task, .. } = self;
        drop(client);
        stop.end(ending);
        // The switch is thrown and stays so without its trigger.
        task
    }
}

/// A listener that cannot be bound, with the peer it is for.
fn bind_failed(peer: &str, error: &BindError) -> Error {
    let cause =
        format!("peer {peer}: cannot listen on {}: {}", error.address, system(&error.source));
    let example = "local = [\"2223:localhost:22\"] or dynamic = [\"1081\"]";
    Error::new(Exit::BindFailed, cause).hint(listen_hint(&error.address, &error.source, example))
}
