//! Two endpoints that shake hands and part again.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{
    AllowList, CryptoSettings, Group, Meters, PrivateKey, PublicKey, Supply, client_config,
    server_config,
};
use quinn::{Endpoint, TransportConfig, VarInt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Times;

/// Longest wait for a handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// Only the other end.
#[derive(Debug)]
struct Only(PublicKey);

impl AllowList for Only {
    fn allows(&self, key: &PublicKey) -> bool {
        *key == self.0
    }
}

/// A client and a server; clones are the same two.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    client: Endpoint,
    address: SocketAddr,
    /// Ends with the last clone.
    _accepting: Arc<JoinSet<()>>,
}

impl Ends {
    pub(crate) async fn new(group: Group) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let new_key = || PrivateKey::generate().map(Arc::new).map_err(|error| text(&error));
        let [client_key, server_key] = [new_key()?, new_key()?];
        let settings = |key: &Arc<PrivateKey>| CryptoSettings {
            key: Arc::clone(key),
            suites: vec![Suite::default().protection()],
            kex: vec![group],
            supply: Supply::default(),
            cipher_engine: CipherEngine::default(),
            meters: Arc::new(Meters::default()),
        };
        let allowed = Arc::new(Only(client_key.public()));
        let accepting = server_config(&settings(&server_key), allowed).map_err(|it| text(&it))?;
        let connecting = client_config(&settings(&client_key), server_key.public());
        let connecting = connecting.map_err(|error| text(&error))?;
        // A search for larger packets would be counted as part of the handshake.
        let mut transport = TransportConfig::default();
        transport.mtu_discovery_config(None);
        let transport = Arc::new(transport);
        let mut server = quinn::ServerConfig::with_crypto(accepting);
        server.transport_config(Arc::clone(&transport));
        let mut client = quinn::ClientConfig::new(connecting);
        client.transport_config(transport);

        let any_port = (Ipv4Addr::LOCALHOST, 0).into();
        let server = Endpoint::server(server, any_port).map_err(|error| text(&error))?;
        let address = server.local_addr().map_err(|error| text(&error))?;
        let mut connecting = Endpoint::client(any_port).map_err(|error| text(&error))?;
        connecting.set_default_client_config(client);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(server));
        Ok(Self { client: connecting, address, _accepting: Arc::new(accepting) })
    }

    pub(super) fn server(&self) -> SocketAddr {
        self.address
    }

    /// One handshake, directly or by way of a relay.
    pub(crate) async fn shake_hands(&self, relay: Option<SocketAddr>) -> Result<Times, String> {
        let start = Instant::now();
        let connecting = self.client.connect(relay.unwrap_or(self.address), "keypadd");
        let connecting = connecting.map_err(|error| error.to_string())?;
        let both = async {
            let connection = connecting.await.map_err(|error| error.to_string())?;
            let ready = start.elapsed();
            // The server closes as soon as it knows who came.
            match connection.closed().await {
                quinn::ConnectionError::ApplicationClosed(_) => {
                    Ok(Times { ready, done: start.elapsed() })
                }
                error => Err(error.to_string()),
            }
        };
        timeout(PATIENCE, both).await.unwrap_or_else(|_| Err("no answer".into()))
    }
}

/// Lets everybody in who proves to be allowed, and parts at once.
async fn accept(server: Endpoint) {
    while let Some(incoming) = server.accept().await {
        tokio::spawn(async move {
            // What the client sees of a handshake that failed is its error.
            let Ok(connecting) = incoming.accept() else { return };
            if let Ok(connection) = connecting.await {
                connection.close(VarInt::from_u32(0), b"");
            }
        });
    }
}
