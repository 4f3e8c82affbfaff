//! Checks the path to each peer with a session without forwards: name, handshake, round trip, and
//! datagram size.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use keypadd_cli::error::{Error, Exit};
use keypadd_cli::refusal::explain;
use keypadd_config::{Outgoing, Peer};
use keypadd_keystream::Suite;
use keypadd_provider::{CryptoSettings, client_config};
use keypadd_tunnel::{Client, ClientSettings, ProxyHeaders, TransportSettings};
use tokio::time::sleep;

use crate::daemon::generate_instance;
use crate::daemon::pinned::pinned;

use super::configuration::Configuration;
use super::finding::{Finding, Findings};

/// How long one peer may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Enough for path MTU discovery: a handful of probes, a round trip each.
const DISCOVERY_TRIPS: f64 = 20.0;
const DISCOVERY_MIN: Duration = Duration::from_millis(300);
const DISCOVERY_MAX: Duration = Duration::from_secs(4);

/// UDP payload of an Ethernet path with IPv6, less a tunnel's header; a lower one means that
/// something limits it.
const MTU_GOOD: u16 = 1372;

/// # Errors
/// Exit 1: standard output fails.
pub(super) async fn check(
    here: &Configuration,
    peers: &[(&Peer, &Outgoing)],
    findings: &mut Findings,
) -> Result<(), Error> {
    for (peer, outgoing) in peers {
        let name = format!("peer {}", peer.name);
        findings.add(match probe(here, peer, outgoing).await {
            Ok(reached) => reached.findings(&name),
            Err(error) => Finding::failed(&name, &error),
        })?;
    }
    Ok(())
}

/// What a session has shown about the path.
#[derive(Debug)]
struct PathProbe {
    remote: SocketAddr,
    target: Option<String>,
    suite: String,
    rtt: Duration,
    datagram_bytes: u16,
    lost: u64,
    sent: u64,
}

/// Connects, waits until the datagram size is known, and says goodbye.
async fn probe(here: &Configuration, peer: &Peer, outgoing: &Outgoing) -> Result<PathProbe, Error> {
    let crypto = CryptoSettings {
        suites: outgoing.suites.iter().copied().map(Into::into).collect(),
        kex: vec![outgoing.kex.into()],
        ..CryptoSettings::plain(Arc::clone(&here.key), Suite::default())
    };
    let crypto = client_config(&crypto, pinned(&peer.keys)?)
        .map_err(|error| Error::new(Exit::Runtime, error.to_string()))?;
    let refused = |error| explain(error, here.key.public(), &peer.keys);
    let client = Client::bind(ClientSettings {
        server: outgoing.endpoint.clone(),
        crypto,
        name: Some(peer.name.clone()),
        forwards: Vec::new(),
        proxy_headers: ProxyHeaders::default(),
        transport: TransportSettings::default(),
        connect_timeout: TIMEOUT,
        instance: generate_instance()?,
    })
    .await
    .map_err(|error| refused(error.into()))?;
    client.set_valid_until(peer.valid_until);
    let session = client.connect().await.map_err(refused)?;
    let trip = session.live().status().rtt_seconds;
    let discovery = Duration::from_secs_f64((trip * DISCOVERY_TRIPS).clamp(0.0, 60.0));
    sleep(discovery.clamp(DISCOVERY_MIN, DISCOVERY_MAX)).await;
    let status = session.live().status();
    drop(session);
    client.close().await;
    Ok(PathProbe {
        remote: status.remote,
        target: status.target,
        suite: status.suite,
        rtt: Duration::from_secs_f64(status.rtt_seconds.max(0.0)),
        datagram_bytes: status.mtu_bytes,
        lost: status.lost_packets,
        sent: status.sent_packets,
    })
}

impl PathProbe {
    fn findings(self, name: &str) -> Vec<Finding> {
        let Self { remote, target, suite, rtt, datagram_bytes, lost, sent } = self;
        let target = target.map(|target| format!(" ({target})")).unwrap_or_default();
        let found = format!(
            "{remote}{target} answers, round trip {:.1} ms, suite {suite}; {lost} of {sent} \
                packets lost",
            rtt.as_secs_f64() * 1e3
        );
        let size = format!("datagrams of up to {datagram_bytes} bytes get through");
        let mtu = match datagram_bytes >= MTU_GOOD {
            true => Finding::ok(name, size),
            false => Finding::warn(
                name,
                format!("{size}: bulk data costs more CPU"),
                "look for a tunnel or a link with a small MTU on the path: `tracepath` shows where",
            ),
        };
        vec![Finding::ok(name, found), mtu]
    }
}
