//! The same tunnel with and without a delay in between: what is measured differs by the delay.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use keypadd_bench::{Arm, Place, Service, Terminal, TunnelArm, Typing};
use keypadd_keystream::{CipherEngine, Suite};
use keypadd_provider::{CryptoSettings, KeyExchange, Meters, PrivateKey, server_config};
use keypadd_tunnel::{
    AllowedPeer, ListenPermits, Peers, Permits, Server, ServerSettings, TransportSettings,
};
use tokio::task::JoinSet;
use udp_relay::{Impairments, Relay};

use crate::measure;

/// Of each direction.
const DELAY: Duration = Duration::from_millis(5);
/// Of a key and its echo, in microseconds.
const INJECTED_US: f64 = 10_000.0;
/// More than timers of two relays' directions and a busy machine add to the quickest of many keys.
const SLACK_US: f64 = 10_000.0;
/// Latencies are kept to three digits.
const DIGITS: f64 = 0.999;

/// A server that lets `key` measure, for as long as the tasks live.
async fn serve(key: &Arc<PrivateKey>, tasks: &mut JoinSet<()>) -> Server {
    let service = Service::bind().await.unwrap();
    let bench = Some(service.address());
    tasks.spawn(service.run());
    let crypto = CryptoSettings {
        key: Arc::clone(key),
        suites: vec![Suite::AES_256_GCM.into()],
        kex: vec![KeyExchange::X25519.into()],
        pool: None,
        cipher_engine: CipherEngine::default(),
        meters: Arc::new(Meters::default()),
    };
    let peers = Arc::new(
        Peers::new([AllowedPeer {
            name: None,
            key: key.public(),
            permits: Permits::default(),
            listen_permits: ListenPermits::default(),
            allowance: None,
        }])
        .unwrap(),
    );
    Server::bind(ServerSettings {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        crypto: server_config(&crypto, peers.clone()).unwrap(),
        peers,
        transport: TransportSettings::default(),
        connections_max: 2,
        bench,
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_behind_an_injected_delay_measures_that_much_more() {
    let (key, mut tasks) = (Arc::new(PrivateKey::generate().unwrap()), JoinSet::new());
    let server = serve(&key, &mut tasks).await;
    let relays = [Relay::start(server.local_addr(), 1).await.unwrap(), {
        let delayed = Relay::start(server.local_addr(), 1).await.unwrap();
        delayed.set_both(&Impairments { delay: DELAY, ..<_>::default() });
        delayed
    }];
    tasks.spawn(async move { server.run(std::future::pending()).await });

    let suite = Suite::AES_256_GCM.protection();
    let arm = Arm::Tunnel(TunnelArm { suite, pool: false, engine: CipherEngine::default() });
    let typing = Typing::Fixed { per_second: 100.0, bytes: 64 };
    let terminal = Terminal { typing, time: Duration::from_millis(300), seed: 1 };
    let mut quickest = Vec::new();
    for relay in &relays {
        let server = relay.address().to_string().parse().unwrap();
        let place = Place::There { server, peer: key.public(), key: Arc::clone(&key) };
        let runs = measure(&terminal, arm, place, 4).await;
        let rounds = runs.arms[0].1.iter().map(|turn| turn.measured.quantile_us(0.0).unwrap());
        quickest.push(rounds.fold(f64::INFINITY, f64::min));
    }
    let (direct, delayed) = (quickest[0], quickest[1]);
    assert!(delayed >= INJECTED_US * DIGITS, "{delayed} us of at least {INJECTED_US}");
    let more = delayed - direct;
    assert!(direct < INJECTED_US && more < INJECTED_US + SLACK_US, "{direct} us, {more} us more");
}
