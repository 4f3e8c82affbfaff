//! Tests connections and listeners that go on in a process that replaces the one of either end.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Weak},
    time::Duration,
};

use keypadd_keystream::Suite;
use keypadd_provider::{Assertion, PrivateKey, client_config};
use keypadd_tunnel::{
    Bind, Listen, LiveSession, TransportSettings,
    handover::{HandedSocket, Handover},
    wire::{CloseCode, Frame, HoldGrant, Instance, VERSION},
};
use quinn::ConnectionError;
use testbed::LineSettings;
use tokio::net::TcpStream;

use crate::{
    hold::{Site, holding},
    hostile::{RUN, RawPeer, channel, connect, control, holding_peer, raw_server, receive},
    support::*,
};

/// One way, so that an answer is in flight for a while.
const FAR: Duration = Duration::from_millis(200);

/// Ends with a handover each, and a long path.
async fn far_site(permits: &[&str], forwards: &[&str]) -> Site {
    let patient = || TransportSettings { peer_timeout: Duration::from_secs(60), ..holding() };
    let site = Site::start_with([patient(), patient()], permits, forwards).await;
    site.relay.set_both(LineSettings { delay: FAR, ..<_>::default() });
    site
}

#[tokio::test]
async fn a_connection_that_is_being_opened_goes_on_in_the_process_that_replaces_its_client() {
    let site = far_site(&["localhost:*"], &[]).await;
    let _here = TcpStream::connect(site.client.listeners[0]).await.unwrap();
    let _there = accept(&site.target).await;
    site.transports[0].handover.suspend();
    within(site.transports[0].limits.settled()).await;
    assert_eq!(site.client.hand_over().await, 1);
}

#[tokio::test]
async fn a_connection_that_is_being_opened_goes_on_in_the_process_that_replaces_its_server() {
    let target = listener().await;
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let site = far_site(&["listen localhost:*"], &[&forward]).await;
    let _here = TcpStream::connect(("127.0.0.1", site.client.remote_port())).await.unwrap();
    let _there = accept(&target).await;
    site.transports[1].handover.suspend();
    within(site.transports[1].limits.settled()).await;
    let (lineages, _) = within(site.server.handle.hand_over()).await.unwrap();
    assert_eq!(lineages.iter().map(|lineage| lineage.streams.len()).sum::<usize>(), 1);
}

/// A server whose clients may listen, and may have this many sessions.
fn listening_server(key: &Arc<PrivateKey>, sessions_per_key: usize) -> RunningServer {
    RunningServer::start_with(key.public(), &["listen localhost:*"], |settings| {
        settings.transport = holding();
        settings.sessions_per_key = sessions_per_key;
    })
}

/// A process of a client.
async fn process(
    server: &RunningServer,
    key: &Arc<PrivateKey>,
    instance: u8,
    forwards: &[&str],
) -> (RunningClient, Handover) {
    let mut settings = client_settings(server, key, forwards);
    settings.transport = holding();
    settings.instance = Instance([instance; 16]);
    let handover = settings.transport.handover.clone();
    (RunningClient::start(settings).await, handover)
}

/// Hands the client over to a process that has not started; returns its session at the server,
/// which has ended.
async fn leave(
    server: &RunningServer,
    (client, handover): &(RunningClient, Handover),
) -> Weak<LiveSession> {
    let session = Arc::downgrade(&server.sessions.live()[0]);
    handover.suspend();
    client.hand_over().await;
    until("the server notices", || server.sessions.live().is_empty()).await;
    session
}

fn is_open(port: u16) -> bool {
    std::net::TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_ok()
}

#[tokio::test]
async fn a_remote_listener_stays_open_while_a_new_process_replaces_its_client() {
    let (target, key) = (listener().await, new_key());
    let server = listening_server(&key, 16);
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let old = process(&server, &key, 1, &[&forward]).await;
    let port = old.0.remote_port();
    let session = leave(&server, &old).await;

    let here = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (new, _) = process(&server, &key, 1, &[&forward]).await;
    assert_eq!(new.remote_port(), port);
    until_without_timeouts("what is taken over keeps nothing", || session.strong_count() == 0)
        .await;
    exchange(here, accept(&target).await).await;
}

#[tokio::test]
async fn a_session_that_leaves_no_listener_is_forgotten_at_once() {
    let key = new_key();
    let server = listening_server(&key, 16);
    let session = leave(&server, &process(&server, &key, 1, &[]).await).await;
    until_without_timeouts("it is forgotten", || session.strong_count() == 0).await;
}

#[tokio::test]
async fn no_more_sessions_leave_listeners_than_their_key_may_have() {
    let key = new_key();
    let server = listening_server(&key, 1);
    let mut ports = Vec::new();
    for instance in 1..=3 {
        let client = process(&server, &key, instance, &["-R 0:localhost:9"]).await;
        ports.push(client.0.remote_port());
        leave(&server, &client).await;
    }
    until_without_timeouts("the older ones close", || !ports[..2].iter().any(|&it| is_open(it)))
        .await;
    assert!(is_open(ports[2]));
}

#[tokio::test]
async fn a_remote_listener_stays_open_if_a_bulk_connection_says_first_that_its_client_will_be_back()
{
    let key = new_key();
    let server = listening_server(&key, 16);
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let session = async || {
        let (mut peer, _, token) = holding_peer(&server, Arc::clone(&crypto), None).await;
        let listen = Listen::Tcp { bind: Bind::Loopback, port: 0 };
        let listen = Frame::Listen { id: 1, listen, headers: <_>::default() };
        peer.control.0.write_all(&listen.encode()).await.unwrap();
        let Frame::Listening { outcome: Ok(port), .. } = receive(&mut peer.control.1).await else {
            panic!("no listener")
        };
        (peer, token, port)
    };
    let (peer, token, port) = session().await;
    let (_endpoint, bulk) = connect(&server, Arc::clone(&crypto)).await;
    let channel = channel(&bulk);
    let [own, expected] = [Assertion::ClientBulk, Assertion::ServerBulk].map(|by| {
        let proof = channel.proof(&token, by, &RUN.0);
        Frame::HelloBulk { version: VERSION, instance: RUN, proof }
    });
    let (_send, mut recv) = control(&bulk, &own.encode()).await;
    assert_eq!(receive(&mut recv).await, expected);
    bulk.close(CloseCode::Hold.value().into(), b"");
    within(peer.connection.closed()).await;
    let (_peer, _, taken_over) = session().await;
    assert_eq!(taken_over, port);
}

#[tokio::test]
async fn a_bulk_connection_that_its_server_has_not_answered_does_not_end_what_a_client_leaves_held()
{
    let (server_key, key) = (new_key(), new_key());
    let (endpoint, address, server_key) =
        raw_server(&crypto(&server_key, Suite::AES_128_GCM), key.public());
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server_key).unwrap();
    let mut settings = settings_for(address, crypto, Vec::new());
    settings.transport = holding();
    let hold = HoldGrant { seconds: 600, epoch: 0, proof: None };
    let (peer, client) =
        tokio::join!(RawPeer::accept_with(endpoint, Some(hold)), RunningClient::start(settings));
    let RawPeer { connection, control: (mut send, _recv), endpoint } = peer;

    for frame in [Frame::BulkOffer, Frame::BulkWanted] {
        send.write_all(&frame.encode()).await.unwrap();
    }
    let bulk = within(endpoint.accept()).await.unwrap().await.unwrap();
    let (_send, mut recv) = within(bulk.accept_bi()).await.unwrap();
    let Frame::HelloBulk { instance, proof, .. } = receive(&mut recv).await else {
        panic!("no hello")
    };
    let (token, by) = (channel(&connection).token().clone(), Assertion::ClientBulk);
    assert!(channel(&bulk).is_proof(&proof, &token, by, &instance.0));
    client.hand_over().await;
    for connection in [connection, bulk] {
        let ConnectionError::ApplicationClosed(close) = within(connection.closed()).await else {
            panic!("it has not said why")
        };
        assert_eq!(close.error_code, CloseCode::Hold.value().into());
    }
}

#[tokio::test]
async fn a_remote_listener_stays_open_while_no_new_process_replaces_its_server() {
    let target = listener().await;
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let site = Site::start_with([holding(), holding()], &["listen localhost:*"], &[&forward]).await;
    let [_, TransportSettings { handover, .. }] = &site.transports;
    handover.suspend();
    // The new process ends with all it was given.
    drop(within(site.server.handle.hand_over()).await.unwrap());
    let here = TcpStream::connect(("127.0.0.1", site.client.remote_port())).await.unwrap();
    handover.resume();
    site.server.handle.resume();
    exchange(here, accept(&target).await).await;
}

/// A site with a remote forward, whose server is being replaced.
async fn site_being_replaced() -> Site {
    let site =
        Site::start_with([holding(), holding()], &["listen localhost:*"], &["-R 0:localhost:9"])
            .await;
    site.transports[1].handover.suspend();
    site
}

#[tokio::test]
async fn a_server_that_is_being_replaced_leaves_new_connections_to_the_next_process() {
    let site = site_being_replaced().await;
    let _here = TcpStream::connect(("127.0.0.1", site.client.remote_port())).await.unwrap();
    let (_, listeners) = within(site.server.handle.hand_over()).await.unwrap();
    let listeners = listeners.into_iter().map(|it| std::net::TcpListener::from(it.socket));
    let queued = listeners.filter(|listener| listener.accept().is_ok());
    assert_eq!(queued.count(), 1, "the old process has accepted it");
}

#[tokio::test]
async fn a_udp_port_whose_client_is_moving_to_another_session_is_free_for_the_next_process() {
    let key = new_key();
    let transport = holding();
    let server = RunningServer::start_with(key.public(), &["listen udp:localhost:*"], |settings| {
        settings.transport = transport.clone();
    });
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let (mut before, _, token) = holding_peer(&server, Arc::clone(&crypto), None).await;
    let listen = Listen::Udp { bind: Bind::Loopback, port: 0 };
    let listen = Frame::Listen { id: 1, listen, headers: <_>::default() };
    before.control.0.write_all(&listen.encode()).await.unwrap();
    let Frame::Listening { outcome: Ok(port), .. } = receive(&mut before.control.1).await else {
        panic!("no listener")
    };
    // It has new keys, and has not asked for its listener again.
    let _after = holding_peer(&server, crypto, Some(&token)).await;
    within(before.connection.closed()).await;

    transport.handover.suspend();
    within(server.handle.hand_over()).await.unwrap();
    let is_free = || UdpSocket::bind(("127.0.0.1", port)).is_ok();
    until_without_timeouts("the port is free", is_free).await;
}

#[tokio::test]
async fn a_remote_listener_goes_on_to_the_next_process_if_its_client_is_not_back_yet() {
    let site = site_being_replaced().await;
    let (_, listeners) = within(site.server.handle.hand_over()).await.unwrap();
    let records = |of: &[HandedSocket]| of.iter().map(|it| it.record.clone()).collect::<Vec<_>>();
    let first = records(&listeners);
    assert!(!first.is_empty());

    let transport = holding();
    let handover = transport.handover.clone();
    listeners.into_iter().for_each(|listener| handover.inherit_remote(listener));
    let next = RunningServer::start_with(new_key().public(), &[], |settings| {
        settings.transport = transport;
    });
    handover.suspend();
    let (_, listeners) = within(next.handle.hand_over()).await.unwrap();
    assert_eq!(records(&listeners), first);
}
