//! What a running server and client can be told: other peers, other permits, other keys of their own,
//! and a newer session of the same client.

use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_provider::{PublicKey, client_config, server_config};
use keypadd_tunnel::{Peers, wire::Instance};
use tokio::net::TcpStream;

use crate::support::*;

#[tokio::test]
async fn a_newer_session_of_the_same_instance_replaces_the_old_at_once() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let (_old_client, old) = connected(client_settings(&server, &key, &[])).await;
    let (_new_client, new) = connected(client_settings(&server, &key, &[])).await;
    until("the old one is gone", || server.sessions.live().len() == 1).await;
    until("its client knows", || old.live().has_ended()).await;
    let cause = old.lost().await.to_string();
    assert_eq!(cause, "closed by peer: replaced by a newer session of the same client");
    assert!(!new.live().has_ended());
}

#[tokio::test]
async fn another_instance_or_another_key_is_another_session() {
    let (key, other) = (new_key(), new_key());
    let server = RunningServer::start(key.public(), &[]);
    let both =
        Peers::new([allowed_peer(key.public(), &[]), allowed_peer(other.public(), &[])]).unwrap();
    server.handle.set_peers(both);
    let (_a, first) = connected(client_settings(&server, &key, &[])).await;
    let mut settings = client_settings(&server, &key, &[]);
    settings.instance = Instance([2; 16]);
    let (_b, second) = connected(settings).await;
    let (_c, third) = connected(client_settings(&server, &other, &[])).await;
    assert_eq!(server.sessions.live().len(), 3);
    for session in [&first, &second, &third] {
        assert!(!session.live().has_ended());
    }
}

#[tokio::test]
async fn peers_that_leave_the_list_are_closed_and_others_are_not_touched() {
    let target = listener().await;
    let (stays, goes, comes) = (new_key(), new_key(), new_key());
    let server = RunningServer::start(stays.public(), &[]);
    let set = |keys: [PublicKey; 2]| {
        let peers = keys.map(|key| allowed_peer(key, &["*:*"]));
        server.handle.set_peers(Peers::new(peers).unwrap());
    };
    set([stays.public(), goes.public()]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let stayer = RunningClient::start(client_settings(&server, &stays, &[forward])).await;
    let goer = RunningClient::start(client_settings(&server, &goes, &[forward])).await;
    let mut of_stayer = TcpStream::connect(stayer.entrances[0]).await.unwrap();
    let _at_stayers = talks(&mut of_stayer, &target).await;
    let mut of_goer = TcpStream::connect(goer.entrances[0]).await.unwrap();
    let _at_goers = talks(&mut of_goer, &target).await;

    set([stays.public(), comes.public()]);
    assert_reset(&mut of_goer).await;
    until("it is told why", || {
        goer.link.status().cause.is_some_and(|cause| cause.contains("does not allow this key"))
    })
    .await;
    let _comer = RunningClient::start(client_settings(&server, &comes, &[])).await;
    assert!(stayer.reconnects().is_empty() && !stayer.is_waiting());
    talks(&mut TcpStream::connect(stayer.entrances[0]).await.unwrap(), &target).await;

    // Let in again, it comes by itself.
    set([stays.public(), goes.public()]);
    until("it is back", || goer.reconnects() == [("unlisted", 1)]).await;
}

#[tokio::test]
async fn permits_change_from_the_next_stream_on() {
    let target = listener().await;
    let address = target.local_addr().unwrap().to_string();
    let key = new_key();
    let server = RunningServer::start(key.public(), &[&address]);
    let forward: &str = &format!("0:{address}");
    let client = RunningClient::start(client_settings(&server, &key, &[forward])).await;
    let mut before = TcpStream::connect(client.entrances[0]).await.unwrap();
    let mut there = talks(&mut before, &target).await;

    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &["10.0.0.1:1"])]).unwrap());
    assert_reset(&mut TcpStream::connect(client.entrances[0]).await.unwrap()).await;
    // What is open stays open.
    swap_a_byte(&mut before, &mut there).await;
    server.handle.set_peers(Peers::new([allowed_peer(key.public(), &[&address])]).unwrap());
    talks(&mut TcpStream::connect(client.entrances[0]).await.unwrap(), &target).await;
    assert!(client.reconnects().is_empty());
}

#[tokio::test]
async fn other_packet_protection_is_for_the_next_handshake() {
    let key = new_key();
    let server_key = new_key();
    let server = RunningServer::start_as(server_key.clone(), key.public(), &[], |_| {});
    let other = Suite::AES_256_CTR_HMAC_SHA256;
    let (client, before) = connected(client_settings(&server, &key, &[])).await;
    let peers = server.handle.peers();
    server.handle.set_crypto(server_config(&crypto(&server_key, other), peers).unwrap());
    client.set_crypto(client_config(&crypto(&key, other), server.key).unwrap());
    assert!(!before.live().has_ended());
    let after = within(client.connect()).await.unwrap();
    assert_eq!(before.live().handshake().suite, Suite::AES_128_GCM.protection());
    assert_eq!(after.live().handshake().suite, other.protection());

    // A client's own key as well: the server judges the one of this handshake.
    let stranger = Arc::clone(&new_key());
    client.set_crypto(client_config(&crypto(&stranger, other), server.key).unwrap());
    let refused = within(client.connect()).await.unwrap_err().to_string();
    assert!(refused.contains("does not allow this key"), "{refused}");
}
