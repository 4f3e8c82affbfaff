//! Tests key rotation: during it, two keys are accepted as those of one peer.

use keypadd_keystream::Suite;
use keypadd_provider::{PinnedServer, client_config};
use keypadd_tunnel::{AllowedPeer, KeyLifetime, KeyLifetimes, Peers, TransportSettings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{hold::holding, support::*};

/// Both ends hold, and keys do not expire unless a test says so.
fn lasting() -> TransportSettings {
    TransportSettings { key_lifetimes: KeyLifetimes::new(KeyLifetime::UNLIMITED), ..holding() }
}

#[tokio::test]
async fn a_client_accepts_the_old_and_the_new_key_of_its_server() {
    let (key, old, new) = (new_key(), new_key(), new_key());
    let pinned = || PinnedServer::one_of(old.public(), [new.public()]);
    for of_server in [&old, &new] {
        let server = RunningServer::start_as(of_server.clone(), key.public(), &[], |_| {});
        let mut settings = client_settings(&server, &key, &[]);
        settings.crypto = client_config(&crypto(&key, Suite::AES_128_GCM), pinned()).unwrap();
        let (_client, session) = connect_client(settings).await;
        assert_eq!(session.live().key(), of_server.public());
    }
}

/// Both ends rotate their keys while a connection is open, first the client, then the server; both
/// lists have the old and the new key, and then only the new one.
#[tokio::test]
async fn connections_outlive_the_replacement_of_both_ends_keys() {
    let target = listener().await;
    let [old, new, old_server, new_server] = [new_key(), new_key(), new_key(), new_key()];
    let list = |keys: &[&std::sync::Arc<keypadd_provider::PrivateKey>]| {
        let peer = allowed_peer(old.public(), &["localhost:*"]);
        let keys = keys.iter().map(|key| key.public()).collect();
        Peers::new([AllowedPeer { name: Some("laptop".into()), keys, ..peer }]).unwrap()
    };
    let server =
        RunningServer::start_as(old_server.clone(), old.public(), &["localhost:*"], |settings| {
            settings.transport = lasting();
            // The new key needs no extra session slot.
            settings.sessions_per_key = 1;
        });
    server.handle.set_peers(list(&[&old, &new]));
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &old, &[&forward]);
    let pinned = || PinnedServer::one_of(old_server.public(), [new_server.public()]);
    settings.crypto = client_config(&crypto(&old, Suite::AES_128_GCM), pinned()).unwrap();
    settings.transport = lasting();
    let (lifetimes, held) =
        (settings.transport.key_lifetimes.clone(), settings.transport.held.clone());
    let client = RunningClient::start(settings).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = accept(&target).await;
    send_bytes_both_ways(&mut here, &mut there).await;

    let renew = async || {
        let before = client.link.status().renewals;
        lifetimes.set(KeyLifetime { bytes: 1, ..KeyLifetime::UNLIMITED });
        until("keys are renewed", || client.link.status().renewals > before).await;
        lifetimes.set(KeyLifetime::UNLIMITED);
        until("one session is left", || {
            [&client.sessions, &server.sessions].iter().all(|all| all.live().len() == 1)
        })
        .await;
    };
    client.set_crypto(client_config(&crypto(&new, Suite::AES_128_GCM), pinned()).unwrap());
    renew().await;
    assert_eq!(server.sessions.live()[0].key(), new.public());
    assert_eq!(server.sessions.live()[0].peer(), "laptop");
    server.handle.set_peers(list(&[&new]));
    send_bytes_both_ways(&mut here, &mut there).await;

    server.use_crypto(&crypto(&new_server, Suite::AES_128_GCM));
    renew().await;
    assert_eq!(client.sessions.live()[0].key(), new_server.public());
    send_bytes_both_ways(&mut here, &mut there).await;
    assert!(client.reconnects().is_empty(), "{:?}", client.reconnects());
    assert_eq!(held.counts().streams_reset, 0);
    exchange(here, there).await;
}

#[tokio::test]
async fn both_keys_of_a_client_share_its_limits() {
    let (old, new) = (new_key(), new_key());
    let server = RunningServer::start_with(old.public(), &[], |s| s.sessions_per_key = 1);
    let peer = allowed_peer(old.public(), &[]);
    let keys = vec![old.public(), new.public()];
    server.handle.set_peers(Peers::new([AllowedPeer { keys, ..peer }]).unwrap());
    let _first = connect_client(client_settings(&server, &old, &[])).await;
    let mut settings = client_settings(&server, &new, &[]);
    settings.instance = keypadd_tunnel::wire::Instance([2; 16]);
    let error = crate::refusals::connect_error(settings).await.to_string();
    assert!(error.contains("already has 1 session"), "{error}");
}

#[tokio::test]
async fn a_session_ends_when_the_key_of_its_bulk_connection_leaves_either_list() {
    for clients in [true, false] {
        let target = listener().await;
        let [key, bulk_key, server_key, server_bulk_key] =
            [new_key(), new_key(), new_key(), new_key()];
        let list = |keys: &[&std::sync::Arc<keypadd_provider::PrivateKey>]| {
            let peer = allowed_peer(key.public(), &["localhost:*"]);
            let keys = keys.iter().map(|key| key.public()).collect();
            Peers::new([AllowedPeer { keys, ..peer }]).unwrap()
        };
        let server =
            RunningServer::start_as(server_key.clone(), key.public(), &["localhost:*"], |_| {});
        server.handle.set_peers(list(&[&key, &bulk_key]));
        let pinned = || PinnedServer::one_of(server_key.public(), [server_bulk_key.public()]);
        let forward = format!("0:{}", target.local_addr().unwrap());
        let mut settings = client_settings(&server, &key, &[&forward]);
        settings.crypto = client_config(&crypto(&key, Suite::AES_128_GCM), pinned()).unwrap();
        let client = RunningClient::start(settings).await;
        client.set_crypto(client_config(&crypto(&bulk_key, Suite::AES_128_GCM), pinned()).unwrap());
        server.use_crypto(&crypto(&server_bulk_key, Suite::AES_128_GCM));

        let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
        let mut there = accept(&target).await;
        let session = client.sessions.live().remove(0);
        let (sent, mut read) = (noise(1, 1 << 20), vec![0; 1 << 20]);
        while session.keys().count() < 2 {
            let (one, two) =
                within(async { tokio::join!(here.write_all(&sent), there.read_exact(&mut read)) })
                    .await;
            assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
        }
        match clients {
            true => server.handle.set_peers(list(&[&key])),
            false => client.end_unlisted(&[server_key.public()]),
        }
        until("the session has ended", || session.has_ended()).await;
        assert_reset(&mut here).await;
    }
}
