//! Provides two endpoints on loopback: one with our packet protection, one stock quinn with ring.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_pool::Pool;
use keypadd_provider::{
    ALPN, CryptoSettings, ListedClients, Meters, PinnedServer, PrivateKey, PublicKey,
    client_config, server_config,
};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::ring::default_provider;
use rustls::version::TLS13;

/// The end that is ours.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// A connection, seen from both ends.
pub(crate) struct Ends {
    pub(crate) ours: Connection,
    pub(crate) stock: Connection,
    pub(crate) meters: Arc<Meters>,
    _endpoints: [Endpoint; 2],
}

impl Ends {
    pub(crate) async fn connect(suite: Suite, role: Role, pool: Option<Pool>) -> Self {
        let (our_key, stock_key) = (key(), key());
        let meters = Arc::new(Meters::default());
        let settings = CryptoSettings {
            pool: pool.into(),
            meters: Arc::clone(&meters),
            ..CryptoSettings::plain(Arc::clone(&our_key), suite)
        };
        let (server, client) = match role {
            Role::Client => (
                stock_server(suite, &stock_key, our_key.public()),
                quinn::ClientConfig::new(
                    client_config(&settings, stock_key.public()).expect("client"),
                ),
            ),
            Role::Server => {
                let allowed = Arc::new(stock_key.public());
                let crypto = server_config(&settings, allowed).expect("server");
                (
                    quinn::ServerConfig::with_crypto(crypto),
                    stock_client(suite, &stock_key, our_key.public()),
                )
            }
        };
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listening = Endpoint::server(server, loopback).expect("server endpoint");
        let connecting = Endpoint::client(loopback).expect("client endpoint");
        let address = listening.local_addr().expect("bound");
        let accept = async { listening.accept().await.expect("incoming").await.expect("accepted") };
        let connect = async {
            let connecting = connecting.connect_with(client, address, "keypadd").expect("valid");
            connecting.await.expect("connected")
        };
        let (accepted, connected) = tokio::join!(accept, connect);
        let (ours, stock) = match role {
            Role::Client => (connected, accepted),
            Role::Server => (accepted, connected),
        };
        Self { ours, stock, meters, _endpoints: [listening, connecting] }
    }
}

pub(crate) fn key() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::generate().expect("randomness"))
}

/// ring's provider, reduced to one suite.
fn provider(suite: Suite) -> Arc<CryptoProvider> {
    let stock = match suite {
        Suite::AES_128_GCM => TLS13_AES_128_GCM_SHA256,
        Suite::CHACHA20_POLY1305 => TLS13_CHACHA20_POLY1305_SHA256,
        _ => TLS13_AES_256_GCM_SHA384,
    };
    Arc::new(CryptoProvider { cipher_suites: vec![stock], ..default_provider() })
}

fn initial() -> rustls::quic::Suite {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("TLS 1.3");
    suite.quic_suite().expect("QUIC")
}

fn stock_server(suite: Suite, key: &PrivateKey, client: PublicKey) -> quinn::ServerConfig {
    let mut tls = rustls::ServerConfig::builder_with_provider(provider(suite))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(Arc::new(ListedClients::new(Arc::new(client))))
        .with_cert_resolver(key.server_resolver().expect("key"));
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicServerConfig::with_initial(Arc::new(tls), initial()).expect("initial suite");
    quinn::ServerConfig::with_crypto(Arc::new(crypto))
}

pub(crate) fn stock_client(
    suite: Suite,
    key: &PrivateKey,
    server: PublicKey,
) -> quinn::ClientConfig {
    let mut tls = rustls::ClientConfig::builder_with_provider(provider(suite))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedServer::new(server)))
        .with_client_cert_resolver(key.client_resolver().expect("key"));
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::with_initial(Arc::new(tls), initial()).expect("initial suite");
    quinn::ClientConfig::new(Arc::new(crypto))
}
