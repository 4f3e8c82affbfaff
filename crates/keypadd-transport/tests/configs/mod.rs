//! Provides configurations of a client and its server.

use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, PrivateKey, client_config, server_config};
use keypadd_transport::{ClientConfig, ServerConfig};

/// A client and a server that accept only each other, without a pool.
pub fn configs(suite: Suite) -> (ClientConfig, ServerConfig) {
    let [client, server] =
        [(); 2].map(|()| CryptoSettings::plain(Arc::new(PrivateKey::generate().unwrap()), suite));
    let allowed = Arc::new(client.key.public());
    let client = client_config(&client, server.key.public()).unwrap();
    let server = server_config(&server, allowed).unwrap();
    (ClientConfig::new(client), ServerConfig::with_crypto(server))
}
