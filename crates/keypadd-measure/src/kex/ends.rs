//! Runs two endpoints that complete a handshake and close, repeatedly.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, Group, PrivateKey, client_config, server_config};
use keypadd_traffic::Void;
use keypadd_transport::{
    Accepted, ClientConfig, ConnectionError, Dial, Endpoint, EndpointSettings, LoopMeter, Plan,
    Purpose, ServerConfig, TransportConfig, VarInt, Windows,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Times;

/// Close code of everything here.
const NO_ERROR: VarInt = VarInt::from_u32(0);

/// Longest wait for a handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum concurrent connections; more are refused, and more than can wait are never started.
const CONNECTIONS_MAX: usize = 1 << 16;

/// Maximum bytes in flight per connection: more than a handshake ever has.
const FLIGHT_MAX: u64 = 1 << 20;

/// A client and a server; clones share them.
#[derive(Clone, Debug)]
pub struct Ends {
    client: Endpoint,
    config: ClientConfig,
    address: SocketAddr,
    server: LoopMeter,
    /// Ends with the last clone.
    _accepting: Arc<JoinSet<()>>,
}

impl Ends {
    /// Starts both.
    ///
    /// # Errors
    /// In words: no port, no randomness.
    pub async fn new(group: Group) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let new_key = || PrivateKey::generate().map(Arc::new).map_err(|error| text(&error));
        let [client_key, server_key] = [new_key()?, new_key()?];
        let settings = |key: &Arc<PrivateKey>| CryptoSettings {
            kex: vec![group],
            ..CryptoSettings::plain(Arc::clone(key), Suite::default().protection())
        };
        let allowed = Arc::new(client_key.public());
        let accepting = server_config(&settings(&server_key), allowed).map_err(|it| text(&it))?;
        let connecting = client_config(&settings(&client_key), server_key.public());
        let connecting = connecting.map_err(|error| text(&error))?;
        let server = endpoint(Some(ServerConfig::with_crypto(accepting)));
        let server = server.map_err(|error| text(&error))?;
        let (address, meter) = (server.local_addr(), server.meter());
        let client = endpoint(None).map_err(|error| text(&error))?;
        let config = ClientConfig::new(connecting);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(server));
        Ok(Self { client, config, address, server: meter, _accepting: Arc::new(accepting) })
    }

    pub(super) fn server(&self) -> SocketAddr {
        self.address
    }

    /// Runs one handshake, directly or through a relay.
    pub async fn shake_hands(&self, relay: Option<SocketAddr>) -> Result<Times, String> {
        let start = Instant::now();
        let connecting = self.client.connect(Dial {
            config: self.config.clone(),
            address: relay.unwrap_or(self.address),
            server_name: "keypadd",
            purpose: Purpose::Sparse,
            home: None,
            rtt: None,
        });
        let both = async {
            let connection = connecting.await.map_err(|error| error.to_string())?;
            let ready = start.elapsed();
            // The server closes as soon as it knows the client.
            let times = match connection.closed().await {
                ConnectionError::ApplicationClosed(_) => Times { ready, done: start.elapsed() },
                error => return Err(error.to_string()),
            };
            let fired = |end: &LoopMeter| end.costly_datagrams_dropped() > 0;
            match fired(&self.client.meter()) || fired(&self.server) {
                true => Err(Void.to_string()),
                false => Ok(times),
            }
        };
        timeout(PATIENCE, both).await.unwrap_or_else(|_| Err("no answer".into()))
    }
}

/// Accepts every authorized client, and closes at once.
async fn accept(server: Endpoint) {
    while let Some(accepted) = server.accept().await {
        // A failed handshake is reported by the client.
        if let Accepted::Connection(connection) = accepted {
            connection.close(NO_ERROR, b"");
        }
    }
}

/// Only handshakes are carried.
const WINDOWS: Windows =
    Windows { stream: 1 << 16, first: 1 << 16, connection: 1 << 16, connection_max: 1 << 16 };

/// An endpoint of one loop on loopback.
fn endpoint(server: Option<ServerConfig>) -> io::Result<Endpoint> {
    let sockets = vec![UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?];
    Endpoint::start(EndpointSettings {
        plan: Plan {
            transport: Arc::new(|_| {
                // MTU probes would count as part of the handshake.
                let mut transport = TransportConfig::default();
                transport.mtu_discovery_config(None);
                transport
            }),
            sparse_windows: WINDOWS,
            bulk_windows: WINDOWS,
            long_path_bulk_windows: WINDOWS,
            flight_max: FLIGHT_MAX,
            connections_max: CONNECTIONS_MAX,
            ..Plan::plain()
        },
        ..EndpointSettings::plain(sockets, server)
    })
}
