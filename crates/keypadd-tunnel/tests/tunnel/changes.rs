//! Tests changes to a running server and client: peers, permits, own keys, and a newer session of
//! the same client.

use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_provider::{PublicKey, client_config};
use keypadd_tunnel::{MemoryShares, Peers, SharedLimits, TransportSettings, wire::Instance};
use tokio::net::TcpStream;

use crate::support::*;

#[tokio::test]
async fn a_newer_session_of_the_same_instance_replaces_the_old_at_once() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let (_old_client, old) = connect_client(client_settings(&server, &key, &[])).await;
    let (_new_client, new) = connect_client(client_settings(&server, &key, &[])).await;
    until("the old session has ended", || server.sessions.live().len() == 1).await;
    until("its client has lost it", || old.live().has_ended()).await;
    let cause = old.ended().await.to_string();
    assert_eq!(cause, "closed by peer: \"replaced by a newer session of the same client\"");
    assert!(!new.live().has_ended());
}

#[tokio::test]
async fn another_instance_or_another_key_is_another_session() {
    let (key, other) = (new_key(), new_key());
    let server = RunningServer::start(key.public(), &[]);
    let both =
        Peers::new([allowed_peer(key.public(), &[]), allowed_peer(other.public(), &[])]).unwrap();
    server.handle.set_peers(both);
    let (_a, first) = connect_client(client_settings(&server, &key, &[])).await;
    let mut settings = client_settings(&server, &key, &[]);
    settings.instance = Instance([2; 16]);
    let (_b, second) = connect_client(settings).await;
    let (_c, third) = connect_client(client_settings(&server, &other, &[])).await;
    assert_eq!(server.sessions.live().len(), 3);
    for session in [&first, &second, &third] {
        assert!(!session.live().has_ended());
    }
}

#[tokio::test]
async fn removed_peers_are_disconnected_and_others_are_not_affected() {
    let target = listener().await;
    let (kept, removed, added) = (new_key(), new_key(), new_key());
    let server = RunningServer::start(kept.public(), &[]);
    let set = |keys: [PublicKey; 2]| {
        let peers = keys.map(|key| allowed_peer(key, &["localhost:*"]));
        server.handle.set_peers(Peers::new(peers).unwrap());
    };
    set([kept.public(), removed.public()]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let kept_client = RunningClient::start(client_settings(&server, &kept, &[forward])).await;
    let removed_client = RunningClient::start(client_settings(&server, &removed, &[forward])).await;
    let mut kept_here = TcpStream::connect(kept_client.listeners[0]).await.unwrap();
    let _kept_there = assert_reaches(&mut kept_here, &target).await;
    let mut removed_here = TcpStream::connect(removed_client.listeners[0]).await.unwrap();
    let _removed_there = assert_reaches(&mut removed_here, &target).await;

    set([kept.public(), added.public()]);
    assert_reset(&mut removed_here).await;
    until("the client knows why", || {
        removed_client
            .link
            .status()
            .cause
            .is_some_and(|cause| cause.contains("does not allow this key"))
    })
    .await;
    let _added_client = RunningClient::start(client_settings(&server, &added, &[])).await;
    assert!(kept_client.reconnects().is_empty() && !kept_client.is_waiting());
    assert_reaches(&mut TcpStream::connect(kept_client.listeners[0]).await.unwrap(), &target).await;

    // Listed again, the client reconnects.
    set([kept.public(), removed.public()]);
    until("it has reconnected", || removed_client.reconnects() == [("unlisted", 1)]).await;
}

#[tokio::test]
async fn changed_permits_apply_from_the_next_stream_on() {
    let target = listener().await;
    let address = target.local_addr().unwrap().to_string();
    let key = new_key();
    let server = RunningServer::start(key.public(), &[&address]);
    let forward: &str = &format!("0:{address}");
    let client = RunningClient::start(client_settings(&server, &key, &[forward])).await;
    let mut before = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = assert_reaches(&mut before, &target).await;

    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &["10.0.0.1:1"])]).unwrap());
    assert_reset(&mut TcpStream::connect(client.listeners[0]).await.unwrap()).await;
    // Open connections stay.
    send_bytes_both_ways(&mut before, &mut there).await;
    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &[&address])]).unwrap());
    assert_reaches(&mut TcpStream::connect(client.listeners[0]).await.unwrap(), &target).await;
    assert!(client.reconnects().is_empty());
}

#[tokio::test]
async fn changed_packet_protection_applies_to_the_next_handshake() {
    let key = new_key();
    let server_key = new_key();
    let server = RunningServer::start_as(server_key.clone(), key.public(), &[], |_| {});
    let other = Suite::AES_256_CTR_HMAC_SHA256;
    let (client, before) = connect_client(client_settings(&server, &key, &[])).await;
    server.use_crypto(&crypto(&server_key, other));
    client.set_crypto(client_config(&crypto(&key, other), server.key).unwrap());
    assert!(!before.live().has_ended());
    let after = within(client.connect()).await.unwrap();
    assert_eq!(before.live().handshake().suite, Suite::AES_128_GCM.protection());
    assert_eq!(after.live().handshake().suite, other.protection());

    // The same for the client's own key: the server checks the key of each handshake.
    let stranger = Arc::clone(&new_key());
    client.set_crypto(client_config(&crypto(&stranger, other), server.key).unwrap());
    let refused = within(client.connect()).await.unwrap_err().to_string();
    assert!(refused.contains("does not allow this key"), "{refused}");
}

#[tokio::test]
async fn descriptors_of_own_listeners_are_not_shared_out_while_they_are_open() {
    let (key, transport) = (new_key(), TransportSettings::default());
    let limits = Arc::new(SharedLimits::new(100, |_| 0, &MemoryShares::default()));
    let server = RunningServer::start(key.public(), &[]);
    let mut settings = client_settings(&server, &key, &["127.0.0.1:0:localhost:1"]);
    settings.transport = TransportSettings { limits: Arc::clone(&limits), ..transport };
    let client = RunningClient::start(settings).await;
    assert_eq!(limits.counts().descriptors_max, 99);
    client.set_forwards(&["127.0.0.1:0:udp:localhost:1", "[::1]:0:localhost:1"]).await;
    assert_eq!(limits.counts().descriptors_max, 97);
    client.set_forwards(&[]).await;
    assert_eq!(limits.counts().descriptors_max, 100);
}
