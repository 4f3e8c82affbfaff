//! Provides configurations of a client and its server.

use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_provider::{
    AllowList, CryptoSettings, PrivateKey, PublicKey, client_config, server_config,
};
use keypadd_transport::{ClientConfig, ServerConfig};

#[derive(Debug)]
struct AllowAll;

impl AllowList for AllowAll {
    fn allows(&self, _: &PublicKey) -> bool {
        true
    }
}

/// A client that accepts only this server, and a server that accepts everyone, without a pool.
pub fn configs(suite: Suite) -> (ClientConfig, ServerConfig) {
    let [client, server] =
        [(); 2].map(|()| CryptoSettings::plain(Arc::new(PrivateKey::generate().unwrap()), suite));
    let client = client_config(&client, server.key.public()).unwrap();
    let server = server_config(&server, Arc::new(AllowAll)).unwrap();
    (ClientConfig::new(client), ServerConfig::with_crypto(server))
}
