//! Tests a peer with a listed key that violates the protocol, at either end.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use keypadd_keystream::Suite;
use keypadd_provider::{
    Assertion, Channel, CryptoSettings, ProvedPeer, PublicKey, SessionToken, client_config,
    server_config,
};
use keypadd_transport::{Receipt, StreamName};
use keypadd_tunnel::{
    Destination, Peers, TransportSettings,
    wire::{
        CONNECTED, Claim, CloseCode, Frame, HoldGrant, HoldRequest, Instance, StreamCode,
        StreamHeader, VERSION,
    },
};
use quinn::crypto::ClientConfig;
use quinn::{Connection, ConnectionError, ConnectionId, Endpoint, RecvStream, SendStream};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::yield_now,
    time::timeout,
};

use crate::{hold::holding, support::*};

/// A connection after the handshake, without a hello.
async fn raw_connection(permits: &[&str]) -> (RunningServer, Endpoint, Connection) {
    let key = new_key();
    let server = RunningServer::start(key.public(), permits);
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let (endpoint, connection) = connect(&server, crypto).await;
    (server, endpoint, connection)
}

/// Connects as a client with this packet protection, up to the end of the handshake.
pub async fn connect(
    server: &RunningServer,
    crypto: Arc<dyn ClientConfig>,
) -> (Endpoint, Connection) {
    let endpoint = Endpoint::client("[::1]:0".parse().unwrap()).unwrap();
    let mut config = quinn::ClientConfig::new(crypto);
    // Even: marks a client's first connection, for sparse streams and flows.
    config.initial_dst_cid_provider(Arc::new(|| {
        let mut id = [Instance::generate().unwrap().0; 2].concat();
        id[0] &= !1;
        ConnectionId::new(&id[..20])
    }));
    let connecting = endpoint.connect_with(config, server.address, "keypadd");
    let connection = within(connecting.unwrap()).await.unwrap();
    (endpoint, connection)
}

pub fn hello() -> Vec<u8> {
    Frame::HelloClient { version: VERSION, instance: Instance([9; 16]), hold: None }.encode()
}

/// The hello that a server answers with.
pub fn server_hello() -> Frame {
    Frame::HelloServer { version: VERSION, hold: None, home: None }
}

pub fn header(target: &str) -> Vec<u8> {
    StreamHeader::Destination(Destination::Tcp(target.parse().unwrap())).encode()
}

pub async fn control(connection: &Connection, bytes: &[u8]) -> (SendStream, RecvStream) {
    let (mut send, recv) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    (send, recv)
}

pub async fn welcome(recv: &mut RecvStream) {
    let expected = server_hello().encode();
    let mut answer = vec![0; expected.len()];
    within(recv.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, expected);
}

/// A scripted peer, after the hellos.
pub struct RawPeer {
    pub connection: Connection,
    pub control: (SendStream, RecvStream),
    pub endpoint: Endpoint,
}

impl RawPeer {
    /// Connects as a client, and reads the server's first frames.
    pub async fn connect(server: &RunningServer, crypto: Arc<dyn ClientConfig>) -> Self {
        let (endpoint, connection) = connect(server, crypto).await;
        let (send, mut recv) = control(&connection, &hello()).await;
        assert_eq!(receive(&mut recv).await, server_hello());
        assert!(matches!(receive(&mut recv).await, Frame::MaxForwards { .. }));
        assert_eq!(receive(&mut recv).await, Frame::BulkOffer);
        Self { connection, control: (send, recv), endpoint }
    }

    /// Accepts a client as a server, and exchanges hellos.
    pub async fn accept(endpoint: Endpoint) -> Self {
        Self::accept_with(endpoint, None).await
    }

    /// The same, with this answer to what the client asks to hold.
    pub async fn accept_with(endpoint: Endpoint, hold: Option<HoldGrant>) -> Self {
        let connection = within(endpoint.accept()).await.unwrap().await.unwrap();
        let (mut send, mut recv) = within(connection.accept_bi()).await.unwrap();
        assert!(matches!(receive(&mut recv).await, Frame::HelloClient { .. }));
        let hello = Frame::HelloServer { version: VERSION, hold, home: None };
        send.write_all(&hello.encode()).await.unwrap();
        assert!(matches!(receive(&mut recv).await, Frame::MaxForwards { .. }));
        Self { connection, control: (send, recv), endpoint }
    }
}

/// Receives the next frame of a known type.
pub async fn receive(recv: &mut RecvStream) -> Frame {
    within(keypadd_tunnel::read_frame(recv)).await.unwrap()
}

/// An endpoint that accepts this client's key, with its address and key.
pub fn raw_server(
    settings: &CryptoSettings,
    client: PublicKey,
) -> (Endpoint, SocketAddr, PublicKey) {
    let config = raw_server_config(settings, client);
    let endpoint = Endpoint::server(config, "[::1]:0".parse().unwrap()).unwrap();
    let address = endpoint.local_addr().unwrap();
    (endpoint, address, settings.key.public())
}

/// The configuration of that endpoint.
pub fn raw_server_config(settings: &CryptoSettings, client: PublicKey) -> quinn::ServerConfig {
    let peers = Arc::new(Peers::new([allowed_peer(client, &[])]).unwrap());
    quinn::ServerConfig::with_crypto(server_config(settings, peers).unwrap())
}

/// The code with which the peer resets a stream that starts with these bytes.
pub async fn code_for(connection: &Connection, bytes: &[u8]) -> StreamCode {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    let _ = send.finish();
    let code = within(recv.received_reset()).await.unwrap().expect("a reset");
    StreamCode::from_value(code.into_inner())
}

/// A valid stream that the server has connected to the target.
pub async fn open_valid_stream(
    connection: &Connection,
    target: &TcpListener,
) -> (SendStream, RecvStream) {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let target_address = target.local_addr().unwrap().to_string();
    send.write_all(&header(&target_address)).await.unwrap();
    let mut answer = [0xff];
    within(recv.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, [CONNECTED]);
    (send, recv)
}

/// Checks that a valid stream still works.
async fn assert_alive(connection: &Connection, target: &TcpListener) {
    let _streams = open_valid_stream(connection, target).await;
    drop(accept(target).await);
}

#[tokio::test]
async fn a_connection_that_has_ended_needs_no_place() {
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &[], |it| it.connections_max = 2);
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    for _ in 0..20 {
        let peer = RawPeer::connect(&server, Arc::clone(&crypto)).await;
        peer.connection.close(0_u32.into(), b"");
        // It still waits for late packets.
        until("the session has ended", || server.sessions.live().is_empty()).await;
    }
}

/// Writes until the connection blocks; returns the number of bytes written.
async fn write_until_stuck(send: &mut SendStream) -> usize {
    let (block, mut written) = ([0x5a; 16 << 10], 0);
    while let Ok(bytes) = timeout(Duration::from_millis(700), send.write(&block)).await {
        written += bytes.unwrap();
    }
    written
}

/// Leaves a stream whose target reads nothing with more than the target's kernel takes, all of it
/// acknowledged; returns how much.
async fn leave_unread(
    peer: RawPeer,
    (mut send, mut recv): (SendStream, RecvStream),
    there: &mut TcpStream,
    server: &RunningServer,
) -> usize {
    there.shutdown().await.unwrap();
    assert!(within(recv.read_to_end(0)).await.unwrap().is_empty());
    let sent = write_until_stuck(&mut send).await;
    send.finish().unwrap();
    assert_eq!(within(send.stopped()).await.unwrap(), None);
    peer.connection.close(0_u32.into(), b"");
    until("the session has ended", || server.sessions.live().is_empty()).await;
    sent
}

/// The run of a scripted client.
pub const RUN: Instance = Instance([9; 16]);

/// A connection as proofs of tokens name it.
pub fn channel(connection: &Connection) -> Channel {
    let peer = connection.peer_identity().expect("a peer that has proved its key");
    peer.downcast::<ProvedPeer>().expect("ours").channel
}

/// Connects like [`RawPeer::connect`] as a client that holds, and has this token of its last
/// session; returns the server's grant, which is honest, and the token of the session that begins.
pub async fn holding_peer(
    server: &RunningServer,
    crypto: Arc<dyn ClientConfig>,
    last: Option<&SessionToken>,
) -> (RawPeer, HoldGrant, SessionToken) {
    let (endpoint, connection) = connect(server, crypto).await;
    let channel = channel(&connection);
    let proof = last.map(|last| channel.proof(last, Assertion::ClientResumes, &RUN.0));
    let hold = Some(HoldRequest { seconds: 600, proof });
    let hello = Frame::HelloClient { version: VERSION, instance: RUN, hold };
    let (send, mut recv) = control(&connection, &hello.encode()).await;
    let Frame::HelloServer { hold: Some(grant), .. } = receive(&mut recv).await else { panic!() };
    if let Some(proof) = &grant.proof {
        let last = last.expect("nothing to resume");
        assert!(channel.is_proof(proof, last, Assertion::ServerResumes, &RUN.0));
    }
    assert!(matches!(receive(&mut recv).await, Frame::MaxForwards { .. }));
    assert_eq!(receive(&mut recv).await, Frame::BulkOffer);
    (RawPeer { connection, control: (send, recv), endpoint }, grant, channel.token().clone())
}

/// A stream of a client that was opened in an earlier session of it, and the target's end.
async fn resumed_stream(
    server: &RunningServer,
    crypto: Arc<dyn ClientConfig>,
    target: &TcpListener,
    transport: &TransportSettings,
) -> (RawPeer, (SendStream, RecvStream), TcpStream) {
    let (peer, grant, token) = holding_peer(server, Arc::clone(&crypto), None).await;
    let (send, _recv) = open_valid_stream(&peer.connection, target).await;
    let there = accept(target).await;
    let stream = quinn::VarInt::from(send.id()).into_inner();
    peer.connection.close(CloseCode::Hold.value().into(), b"");
    until("it is held", || !transport.held.peers().is_empty()).await;
    let (mut peer, resumed, _) = holding_peer(server, crypto, Some(&token)).await;
    assert!(resumed.proof.is_some());
    peer.control.0.write_all(&Frame::Claims { count: 1 }.encode()).await.unwrap();
    let name = StreamName { epoch: grant.epoch, stream };
    let claim = StreamHeader::Resume(Claim { name, receipt: Receipt::default() });
    let (mut send, mut recv) = peer.connection.open_bi().await.unwrap();
    send.write_all(&claim.encode()).await.unwrap();
    within(recv.read_exact(&mut [0; 9])).await.unwrap();
    (peer, (send, recv), there)
}

#[tokio::test]
async fn what_a_gone_client_has_sent_in_a_resumed_stream_counts_among_the_deliveries_of_its_key() {
    let (key, target, transport) = (new_key(), listener().await, holding());
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = transport.clone();
        settings.sessions_per_key = 1;
    });
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let (peer, streams, mut first) =
        resumed_stream(&server, Arc::clone(&crypto), &target, &transport).await;
    let sent = leave_unread(peer, streams, &mut first, &server).await;

    let peer = RawPeer::connect(&server, crypto).await;
    let streams = open_valid_stream(&peer.connection, &target).await;
    let mut second = accept(&target).await;
    leave_unread(peer, streams, &mut second, &server).await;
    until("the second is reset", || second.take_error().unwrap().is_some()).await;
    assert_eq!(read_all(&mut first).await.unwrap().len(), sent);
}

#[tokio::test]
async fn what_gone_clients_of_a_key_have_sent_is_delivered_for_as_many_as_it_may_have_sessions() {
    let (key, target, transport) = (new_key(), listener().await, holding());
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = transport.clone();
        settings.sessions_per_key = 1;
    });
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let mut left = Vec::new();
    for _ in 0..2 {
        let peer = RawPeer::connect(&server, Arc::clone(&crypto)).await;
        let streams = open_valid_stream(&peer.connection, &target).await;
        let mut there = accept(&target).await;
        let sent = leave_unread(peer, streams, &mut there, &server).await;
        left.push((there, sent));
    }
    let [(mut first, sent), (second, _)] = left.try_into().unwrap();
    let is_reset = |stream: &TcpStream| stream.take_error().unwrap().is_some();
    until("the second is reset", || is_reset(&second)).await;

    let (peer, streams, mut third) = resumed_stream(&server, crypto, &target, &transport).await;
    leave_unread(peer, streams, &mut third, &server).await;
    until("the third is reset", || is_reset(&third)).await;

    // Had the others only run out of time, this one would have before.
    assert_eq!(read_all(&mut first).await.unwrap().len(), sent);
    until("all is delivered", || transport.limits.counts().descriptors == 0).await;
}

#[tokio::test]
async fn sessions_that_are_resumed_all_the_time_wait_and_keep_their_streams() {
    const RESUMED: u32 = 38;
    let (key, target) = (new_key(), listener().await);
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = holding();
    });
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let begin = Instant::now();
    let (mut peer, first, mut token) = holding_peer(&server, Arc::clone(&crypto), None).await;
    let (send, _recv) = open_valid_stream(&peer.connection, &target).await;
    let stream = quinn::VarInt::from(send.id()).into_inner();
    for _ in 0..RESUMED {
        let grant;
        (peer, grant, token) = holding_peer(&server, Arc::clone(&crypto), Some(&token)).await;
        assert!(grant.proof.is_some());
    }
    // 32 at once, and 4 a second.
    assert!(begin.elapsed() > Duration::from_millis(1_400), "{:?}", begin.elapsed());
    peer.control.0.write_all(&Frame::Claims { count: 1 }.encode()).await.unwrap();
    let name = StreamName { epoch: first.epoch, stream };
    let claim = StreamHeader::Resume(Claim { name, receipt: Receipt::default() });
    let (mut send, mut recv) = peer.connection.open_bi().await.unwrap();
    send.write_all(&claim.encode()).await.unwrap();
    within(recv.read_exact(&mut [0; 9])).await.unwrap();
}

#[tokio::test]
async fn a_key_has_few_connections_without_a_hello() {
    const SESSIONS: usize = 2;
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &[], |it| it.sessions_per_key = SESSIONS);
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let mut silent = Vec::new();
    for _ in 0..2 * SESSIONS {
        silent.push(connect(&server, Arc::clone(&crypto)).await);
    }
    let (_endpoint, refused) = connect(&server, Arc::clone(&crypto)).await;
    let ConnectionError::ApplicationClosed(close) = within(refused.closed()).await else {
        panic!("{:?}", refused.close_reason());
    };
    assert_eq!(close.error_code, u64::from(CloseCode::KeyFull.value()).try_into().unwrap());
    assert!(silent.iter().all(|(_, connection)| connection.close_reason().is_none()));
    silent.clear();
    within(async {
        loop {
            let (_endpoint, connection) = connect(&server, Arc::clone(&crypto)).await;
            let (_send, mut recv) = control(&connection, &hello()).await;
            if recv.read_exact(&mut [0]).await.is_ok() {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn connections_that_are_refused_while_streams_of_theirs_arrive_end() {
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &[], |it| {
        // Half of the connections arrive at the loop that does not own them.
        (it.sessions_per_key, it.transport.loops) = (1, 2);
    });
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let mut clients = Vec::new();
    for _ in 0..100 {
        let (endpoint, connection) = connect(&server, Arc::clone(&crypto)).await;
        for _ in 0..8 {
            let Ok(mut stream) = connection.open_uni().await else { break };
            let _ = stream.write_all(&[0; 16]).await;
            yield_now().await;
        }
        clients.push((endpoint, connection));
    }
    for (_, connection) in &clients {
        connection.close(0_u32.into(), b"");
    }
    within(server.handle.wait_closed()).await;
}

#[tokio::test]
async fn unknown_frames_are_skipped_before_and_after_the_hello() {
    let (_server, _endpoint, connection) = raw_connection(&["localhost:*"]).await;
    let mut unknown = vec![0xff, 0xff, 200];
    unknown.resize(3 + 0xffff, 0x77);
    let bytes = [unknown.clone(), vec![0, 0, 201], hello()].concat();
    let (mut send, mut recv) = control(&connection, &bytes).await;
    welcome(&mut recv).await;
    send.write_all(&unknown).await.unwrap();
    assert_alive(&connection, &listener().await).await;
}

#[tokio::test]
async fn unknown_frames_are_read_at_the_rate_of_all() {
    let (key, transport) = (new_key(), holding());
    let server =
        RunningServer::start_with(key.public(), &[], |it| it.transport = transport.clone());
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let (_endpoint, connection) = connect(&server, crypto).await;
    let (mut send, mut recv) = control(&connection, &hello()).await;
    welcome(&mut recv).await;
    send.write_all(&[0, 0, 200].repeat(1000)).await.unwrap();
    until("frames wait", || transport.limits.counts().frames_delayed > 0).await;
}

#[tokio::test]
async fn a_malformed_header_resets_only_its_stream() {
    let (_server, _endpoint, connection) = raw_connection(&["localhost:*"]).await;
    let (_send, mut recv) = control(&connection, &hello()).await;
    welcome(&mut recv).await;
    for header in [
        &b""[..],
        b"\x01",
        b"\x01\x00\x16",
        b"\x02\x00\x16\x01a",
        b"\x01\x00\x16\x00",
        b"\x01\x00\x16\x05abc",
        b"\x01\x00\x16\x02\xff\xfe",
        b"\x01\x00\x00\x01a",
        b"\x01\x00\x16\x03a b",
    ] {
        assert_eq!(code_for(&connection, header).await, StreamCode::BadHeader, "{header:?}");
    }
    for seed in 0..100 {
        let mut header = noise(seed, 40);
        header[0] |= 2; // an unknown kind
        assert_eq!(code_for(&connection, &header).await, StreamCode::BadHeader);
    }
    assert_alive(&connection, &listener().await).await;
}

#[tokio::test]
async fn streams_beyond_the_permits_are_told_code_2() {
    let (_server, _endpoint, connection) = raw_connection(&["localhost:1"]).await;
    let (_send, mut recv) = control(&connection, &hello()).await;
    welcome(&mut recv).await;
    for target in ["127.0.0.1:2", "10.0.0.1:1", "0.0.0.0:1"] {
        let header = header(target);
        assert_eq!(code_for(&connection, &header).await, StreamCode::NotPermitted, "{target}");
    }
}

#[tokio::test]
async fn a_permit_that_is_revoked_while_a_header_comes_admits_it_no_more() {
    let (server, _endpoint, connection) = raw_connection(&["localhost:*"]).await;
    let (_send, mut recv) = control(&connection, &hello()).await;
    welcome(&mut recv).await;
    let target = listener().await;
    let header = header(&target.local_addr().unwrap().to_string());
    let (begin, rest) = header.split_at(5);
    let (mut send, mut recv) = control(&connection, begin).await;
    // Streams are answered in their order.
    open_valid_stream(&connection, &target).await;
    let key = server.sessions.live()[0].key();
    server.handle.set_peers(Peers::new([allowed_peer(key, &[])]).unwrap());
    send.write_all(rest).await.unwrap();
    let code = within(recv.received_reset()).await.unwrap().expect("a reset");
    assert_eq!(StreamCode::from_value(code.into_inner()), StreamCode::NotPermitted);
}

#[tokio::test]
async fn an_invalid_hello_closes_the_connection() {
    let other_version =
        Frame::HelloClient { version: 9, instance: Instance([0; 16]), hold: None }.encode();
    for (bytes, reason) in [
        (&b"\x00\x01\x01\x01"[..], "control frame of type 1 is too short"),
        (&other_version, "the peer speaks version 9 of the control protocol, this end version 1"),
        (b"\x00\x01\x02\x01", "the first control frame is not a hello"),
    ] {
        let (server, _endpoint, connection) = raw_connection(&[]).await;
        let _streams = control(&connection, bytes).await;
        match within(connection.closed()).await {
            ConnectionError::ApplicationClosed(close) => {
                assert_eq!(String::from_utf8_lossy(&close.reason), reason);
            }
            other => panic!("{other:?}"),
        }
        assert!(server.sessions.live().is_empty());
    }
}

#[tokio::test]
async fn a_control_stream_that_ends_closes_the_connection() {
    let (server, _endpoint, connection) = raw_connection(&[]).await;
    let (mut send, mut recv) = control(&connection, &hello()).await;
    welcome(&mut recv).await;
    send.finish().unwrap();
    let closed = within(connection.closed()).await;
    assert!(matches!(closed, ConnectionError::ApplicationClosed(_)), "{closed:?}");
    until("the session has ended", || server.sessions.live().is_empty()).await;
}
