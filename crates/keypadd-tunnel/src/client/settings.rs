//! Defines what a client is given: server, keys, forwards, timeouts, and which run it is.

use std::{sync::Arc, time::Duration};

use keypadd_transport::crypto;

use crate::{
    addresses::{
        forward::{Forward, ProxyHeaders},
        servers::ServerAddresses,
    },
    transport::TransportSettings,
    wire::Instance,
};

/// The settings of a client.
pub struct ClientSettings {
    /// Where the server is; or where others are that serve in its place, in order of preference.
    pub server: ServerAddresses,
    /// Packet protection, with the server's keys pinned in it.
    pub crypto: Arc<dyn crypto::ClientConfig>,
    /// The server's name in the status; if absent, the first characters of its key.
    pub name: Option<String>,
    /// Forwards; may be empty if only `forward_stdio` is used.
    pub forwards: Vec<Forward>,
    /// Which connections begin with a PROXY header.
    pub proxy_headers: ProxyHeaders,
    /// Transport settings.
    pub transport: TransportSettings,
    /// Timeout from the first packet to the server's hello, over all its addresses.
    pub connect_timeout: Duration,
    /// This run of the client.
    pub instance: Instance,
}

#[cfg(test)]
impl ClientSettings {
    /// Of a client with this key that forwards nothing, of a server with these.
    pub(super) fn bare(
        server: &str,
        own: &Arc<keypadd_provider::PrivateKey>,
        key: keypadd_provider::PublicKey,
    ) -> Self {
        use keypadd_keystream::Suite;
        use keypadd_provider::{CryptoSettings, client_config};

        let crypto = CryptoSettings::plain(Arc::clone(own), Suite::AES_128_GCM);
        Self {
            server: server.parse().unwrap(),
            crypto: client_config(&crypto, key).unwrap(),
            name: None,
            forwards: Vec::new(),
            proxy_headers: <_>::default(),
            transport: TransportSettings::default(),
            connect_timeout: Duration::from_secs(60),
            instance: Instance([1; 16]),
        }
    }
}
