//! Tells what a file says about its peers.

use keypadd_config::{Config, Peer};
use keypadd_tunnel::unix_seconds;

use crate::status::peers::{PeerReport, texts};

/// The peers of these settings, in their order.
pub(super) fn of(config: &Config) -> Vec<PeerReport> {
    let accepts = config.settings.listen.is_some();
    let report = |peer: &Peer| {
        let incoming = peer.incoming.as_ref().filter(|_| accepts);
        let permits = incoming.map(|it| (texts(&it.permit_open), texts(&it.permit_listen)));
        let (permit_open, permit_listen) = permits.unwrap_or_default();
        let networks = peer.networks.as_ref().map(|networks| texts(&networks.prefixes));
        PeerReport {
            name: Some(peer.name.clone()),
            public_keys: texts(&peer.keys),
            part: config.part_of(peer).map(str::to_owned),
            connected: false,
            endpoint: peer.outgoing.as_ref().map(|outgoing| outgoing.endpoint.to_string()),
            permit_open,
            permit_listen,
            networks: networks.unwrap_or_default(),
            valid_until_unix_seconds: peer.valid_until.map(unix_seconds),
        }
    };
    config.peers.iter().map(report).collect()
}
