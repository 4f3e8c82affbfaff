//! Binds a daemon's server for a bounded number of clients; an address that cannot be bound is
//! reported by the name of its setting.

use std::net::SocketAddr;
use std::sync::Arc;

use keypadd_cli::error::{Error, Exit, bind_hint, system};
use keypadd_provider::server_config;
use keypadd_tunnel::{Peers, Server, ServerSettings};

use crate::daemon::Daemon;

/// Binds a daemon's server. `texts`: the name of the setting for its address, and an example with
/// another address.
///
/// # Errors
/// Exit 6: the address cannot be bound. Exit 1: the TLS library fails.
pub(crate) fn bind(
    daemon: &Daemon,
    listen: SocketAddr,
    peers: Peers,
    texts: [&str; 2],
) -> Result<Server, Error> {
    let peers = Arc::new(peers);
    let crypto = server_config(&daemon.crypto, peers.clone())
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
    let server = Server::bind(ServerSettings {
        listen,
        crypto,
        reset_keys: daemon.reset_keys(&daemon.crypto),
        peers,
        transport: daemon.transport.clone(),
        connections_max: daemon.transport.memory.connections_max(),
        sessions_per_key: daemon.settings.max_sessions_per_key.value as usize,
        bench: daemon.bench(),
    });
    let [setting, another] = texts;
    server.map_err(|error| {
        let reason = system(&error.source);
        let cause = format!("{setting}: cannot listen on {}: {reason}", error.address);
        Error::new(Exit::BindFailed, cause).hint(bind_hint(&error.source, another))
    })
}
