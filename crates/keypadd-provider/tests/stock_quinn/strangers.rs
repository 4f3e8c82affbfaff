//! Tests that strangers cost no keystream: a server has 1-RTT keys before it knows who the client
//! is, and must not fill lanes for just anyone.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_pool::{Pool, PoolSettings};
use keypadd_provider::{CryptoSettings, server_config};
use quinn::{ConnectionError, Endpoint};

use crate::ends::{key, stock_client};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlisted_key_fills_no_chunk_and_a_listed_one_does() {
    let suite = Suite::AES_256_GCM;
    let (our_key, listed, stranger) = (key(), key(), key());
    let pool = Pool::new(PoolSettings { budget_bytes: 4 << 20 }).expect("a pool of 4 MiB");
    let settings = CryptoSettings {
        pool: Some(pool.clone()).into(),
        ..CryptoSettings::plain(Arc::clone(&our_key), suite)
    };
    let crypto = server_config(&settings, Arc::new(listed.public())).expect("server");
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server =
        Endpoint::server(quinn::ServerConfig::with_crypto(crypto), loopback).expect("endpoint");
    let address = server.local_addr().expect("bound");
    let client = Endpoint::client(loopback).expect("endpoint");

    for _ in 0..20 {
        let config = stock_client(suite, &stranger, our_key.public());
        let connect = async {
            // The client's handshake completes before the server has verified its key.
            let connection = client.connect_with(config, address, "keypadd").expect("valid").await;
            match connection {
                Ok(connection) => connection.closed().await,
                Err(error) => error,
            }
        };
        let accept = async { server.accept().await.expect("incoming").await };
        let (refused, accepted) = tokio::join!(connect, accept);
        let Err(ConnectionError::TransportError(error)) = accepted else {
            panic!("a stranger was accepted");
        };
        assert_eq!(error.reason, format!("key not allowed: {}", stranger.public()));
        let ConnectionError::ConnectionClosed(close) = refused else { panic!("{refused}") };
        assert_eq!(close.reason, error.reason.as_bytes());
    }
    // A lane would have been filled by now or would be counted against the budget; there is none.
    assert_eq!(pool.snapshot().fill_bytes_total, 0);

    let config = stock_client(suite, &listed, our_key.public());
    let connect = async { client.connect_with(config, address, "keypadd").expect("valid").await };
    let accept = async { server.accept().await.expect("incoming").await };
    let (connected, accepted) = tokio::join!(connect, accept);
    let _both = (connected.expect("connected"), accepted.expect("accepted"));
    while pool.snapshot().fill_bytes_total == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
