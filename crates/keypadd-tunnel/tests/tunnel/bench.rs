//! Streams to the bench service, and connections that are for measurements alone: they open and take such
//! streams and nothing else, at both ends, whatever is permitted.

use std::{io, net::SocketAddr, sync::Arc};

use keypadd_keystream::{MeasureSuite, Protection, Suite};
use keypadd_provider::{
    CryptoSettings, Group, KeyExchange, MeasureKeyExchange, PrivateKey, PublicKey, client_config,
    server_config,
};
use keypadd_tunnel::{
    AuthError, BenchForward, Bind, Client, ClientError, ClientSession, ClientSettings, Forward,
    Listen, Peers,
    wire::{CONNECTED, Frame, Instance, ListenCode, StreamCode, StreamHeader, VERSION},
};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// What protects a connection.
#[derive(Clone, Copy, Debug)]
struct How {
    suite: Protection,
    kex: Group,
}

impl How {
    fn suite(suite: impl Into<Protection>) -> Self {
        Self { suite: suite.into(), kex: KeyExchange::X25519.into() }
    }

    fn crypto(self, key: &Arc<PrivateKey>) -> CryptoSettings {
        CryptoSettings { kex: vec![self.kex], ..crypto(key, self.suite) }
    }
}

/// Connections for measurements alone: one by its suite, one by its key exchange.
fn measured() -> [How; 2] {
    let kex = MeasureKeyExchange::Modp768.into();
    [How::suite(MeasureSuite::NULL_HMAC_SHA1), How { kex, ..How::suite(Suite::AES_128_GCM) }]
}

fn bench_forward() -> Forward {
    Forward::Bench(BenchForward { bind: Bind::Loopback, port: 0 })
}

/// A server that is protected like this, permits everything, and has a bench service there.
fn server(key: &Arc<PrivateKey>, how: How, bench: Option<SocketAddr>) -> RunningServer {
    let own = new_key();
    let permits = ["*:*", "listen *:*"];
    RunningServer::start_as(Arc::clone(&own), key.public(), &permits, |settings| {
        settings.crypto = server_config(&how.crypto(&own), settings.peers.clone()).unwrap();
        settings.bench = bench;
    })
}

fn settings(
    server: (SocketAddr, PublicKey),
    key: &Arc<PrivateKey>,
    how: How,
    forwards: Vec<Forward>,
) -> ClientSettings {
    ClientSettings {
        server: server.0.to_string().parse().unwrap(),
        crypto: client_config(&how.crypto(key), server.1).unwrap(),
        name: None,
        forwards,
        transport: <_>::default(),
        connect_timeout: std::time::Duration::from_secs(20),
        instance: Instance([1; 16]),
    }
}

/// A peer of our own making, past its hello.
async fn raw(server: &RunningServer, key: &Arc<PrivateKey>, how: How) -> Raw {
    let endpoint = Endpoint::client("[::1]:0".parse().unwrap()).unwrap();
    let config = client_config(&how.crypto(key), server.key).unwrap();
    let config = quinn::ClientConfig::new(config);
    let connecting = endpoint.connect_with(config, server.address, "keypadd").unwrap();
    let connection = within(connecting).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let hello = Frame::HelloClient { version: VERSION, instance: Instance([9; 16]) };
    send.write_all(&hello.encode()).await.unwrap();
    let heard = within(keypadd_tunnel::read_frame(&mut recv)).await.unwrap();
    assert_eq!(heard, Frame::HelloServer { version: VERSION });
    let heard = within(keypadd_tunnel::read_frame(&mut recv)).await.unwrap();
    assert!(matches!(heard, Frame::BulkOffer { .. }), "{heard:?}");
    Raw { connection, control: (send, recv), _endpoint: endpoint }
}

struct Raw {
    connection: Connection,
    control: (SendStream, RecvStream),
    _endpoint: Endpoint,
}

/// How the other end answers a stream that begins with these bytes.
async fn answer(connection: &Connection, header: &StreamHeader) -> Result<(), StreamCode> {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&header.encode()).await.unwrap();
    let mut answer = [0xff];
    match within(recv.read_exact(&mut answer)).await {
        Ok(()) => {
            assert_eq!(answer, [CONNECTED]);
            Ok(())
        }
        Err(_) => {
            let code = within(recv.received_reset()).await.unwrap().expect("a reset");
            Err(StreamCode::from_value(code.into_inner()))
        }
    }
}

fn to(target: &TcpListener) -> StreamHeader {
    StreamHeader::Goal(keypadd_tunnel::Goal::Tcp(
        target.local_addr().unwrap().to_string().parse().unwrap(),
    ))
}

/// Nobody has connected; asked after something that came later has.
async fn assert_unused(listener: &TcpListener) {
    let accepted = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
    assert!(accepted.is_err(), "somebody came through");
}

#[tokio::test]
async fn bench_streams_reach_the_service_over_every_suite_and_key_exchange() {
    let service = listener().await;
    let groups = Group::all().map(|kex| How { kex, ..How::suite(Suite::AES_128_GCM) });
    for how in Protection::all().map(How::suite).chain(groups) {
        let key = new_key();
        let server = server(&key, how, service.local_addr().ok());
        let settings = settings((server.address, server.key), &key, how, vec![bench_forward()]);
        let client = RunningClient::start(settings).await;
        let live = client.sessions.live();
        assert_eq!(live[0].handshake().suite, how.suite);
        assert_eq!(live[0].handshake().kex, how.kex);
        let mut here = TcpStream::connect(client.entrances[0]).await.unwrap();
        let mut there = talks(&mut here, &service).await;
        swap_a_byte(&mut here, &mut there).await;
    }
}

#[tokio::test]
async fn a_server_without_the_service_refuses_bench_streams() {
    let key = new_key();
    let how = How::suite(Suite::AES_128_GCM);
    let server = server(&key, how, None);
    let raw = raw(&server, &key, how).await;
    let refused = Err(StreamCode::NotPermitted);
    assert_eq!(answer(&raw.connection, &StreamHeader::Bench).await, refused);
    let target = listener().await;
    assert_eq!(answer(&raw.connection, &to(&target)).await, Ok(()), "others go on");
}

#[tokio::test]
async fn a_measure_connection_gets_nothing_but_the_service_from_its_server() {
    for how in measured() {
        nothing_but_the_service(how).await;
    }
}

async fn nothing_but_the_service(how: How) {
    let (service, target) = (listener().await, listener().await);
    let key = new_key();
    let server = server(&key, how, service.local_addr().ok());
    let Raw { connection, control: (mut say, mut hear), _endpoint } = raw(&server, &key, how).await;
    let refused = Err(StreamCode::NotPermitted);
    assert_eq!(answer(&connection, &to(&target)).await, refused);
    let socket = StreamHeader::Goal(keypadd_tunnel::Goal::Unix("/run/x".parse().unwrap()));
    assert_eq!(answer(&connection, &socket).await, refused);
    assert_eq!(answer(&connection, &StreamHeader::Remote(0)).await, Err(StreamCode::BadHeader));
    for (id, listen) in [
        (0, Listen::Tcp { bind: Bind::Loopback, port: 0 }),
        (1, Listen::Unix("/tmp/keypadd-nobody-listens".parse().unwrap())),
    ] {
        say.write_all(&Frame::Listen { id, listen }.encode()).await.unwrap();
        let heard = within(keypadd_tunnel::read_frame(&mut hear)).await.unwrap();
        assert_eq!(heard, Frame::Listening { id, outcome: Err(ListenCode::NotPermitted) });
    }
    assert_eq!(answer(&connection, &StreamHeader::Bench).await, Ok(()));
    accept(&service).await;
    assert_unused(&target).await;
}

/// A server of our own making that would give a measure connection everything, and its client.
async fn client_of_a_made_server(how: How, forwards: Vec<Forward>) -> (Raw, Client, ClientSession) {
    let (own, key) = (new_key(), new_key());
    let peers = Arc::new(Peers::new([allowed_peer(key.public(), &[])]).unwrap());
    let config = server_config(&how.crypto(&own), peers).unwrap();
    let config = quinn::ServerConfig::with_crypto(config);
    let endpoint = Endpoint::server(config, "[::1]:0".parse().unwrap()).unwrap();
    let address = endpoint.local_addr().unwrap();
    let client = tokio::spawn(connected(settings((address, own.public()), &key, how, forwards)));
    let connection = within(endpoint.accept()).await.unwrap().await.unwrap();
    let (mut send, mut recv) = within(connection.accept_bi()).await.unwrap();
    let heard = within(keypadd_tunnel::read_frame(&mut recv)).await.unwrap();
    assert!(matches!(heard, Frame::HelloClient { .. }));
    send.write_all(&Frame::HelloServer { version: VERSION }.encode()).await.unwrap();
    let (client, session) = within(client).await.unwrap();
    (Raw { connection, control: (send, recv), _endpoint: endpoint }, client, session)
}

#[tokio::test]
async fn a_client_asks_a_measure_connection_for_nothing_but_the_service() {
    for how in measured() {
        asks_for_nothing_else(how).await;
    }
}

async fn asks_for_nothing_else(how: How) {
    let target = listener().await;
    let target_address = target.local_addr().unwrap();
    let texts = [&format!("0:{target_address}"), "-D 0", &format!("-R 0:{target_address}")];
    let mut forwards: Vec<_> = texts.into_iter().map(forward).collect();
    forwards.push(bench_forward());
    let (raw, client, session) = client_of_a_made_server(how, forwards).await;

    let [(_, outcome)] = &session.remote_forwards()[..] else { panic!("one remote forward") };
    assert_eq!(*outcome, Err(ListenCode::NotPermitted));
    assert!(session.all_listening().is_err());
    let goal = target_address.to_string().parse().unwrap();
    let carried = client.carry(&session, &goal, tokio::io::empty(), tokio::io::sink()).await;
    let code = StreamCode::NotPermitted;
    assert!(matches!(carried, Err(ClientError::Refused { code: found, .. }) if found == code));

    let entrances: Vec<_> = addresses(&client).iter().map(|all| all.first().copied()).collect();
    let [Some(local), Some(_), None, Some(bench)] = entrances[..] else { panic!("{entrances:?}") };
    let running = async {
        let mut refused = TcpStream::connect(local).await.unwrap();
        let ended = read_all(&mut refused).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let _measured = TcpStream::connect(bench).await.unwrap();
        // The first stream that the server sees is that one: of the others it was told nothing.
        let (_send, mut recv) = within(raw.connection.accept_bi()).await.unwrap();
        let mut header = [0xff; 4];
        within(recv.read_exact(&mut header)).await.unwrap();
        assert_eq!(header[..], StreamHeader::Bench.encode());
        // Nor does a stream of the server's come through.
        let remote = answer(&raw.connection, &StreamHeader::Remote(0)).await;
        assert_eq!(remote, Err(StreamCode::NotPermitted));
        assert_unused(&target).await;
    };
    tokio::select! {
        () = running => {}
        () = client.run(Some(session), std::future::pending()) => {}
    }
    client.close().await;
    // And on the control stream nothing followed the hello.
    let (_, mut recv) = raw.control;
    let mut byte = [0];
    assert!(!matches!(within(recv.read(&mut byte)).await, Ok(Some(1..))));
}

#[tokio::test]
async fn a_server_of_tunnels_shakes_no_hands_for_measurements() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &["*:*"]);
    let refused = async |how: How| {
        let settings = settings((server.address, server.key), &key, how, Vec::new());
        let client = Client::bind(settings).await.unwrap();
        match within(client.connect()).await.expect_err("it connected") {
            ClientError::Auth { cause, .. } => cause,
            error => panic!("{error}"),
        }
    };
    for suite in MeasureSuite::ALL {
        let lists = format!("no common suite: offered {suite}; allowed aes-128-gcm");
        assert_eq!(refused(How::suite(suite)).await, AuthError::NoCommonSuite(lists));
    }
    for kex in MeasureKeyExchange::ALL {
        let lists = format!("no common key exchange: offered {kex}; allowed x25519");
        let how = How { kex: kex.into(), ..How::suite(Suite::AES_128_GCM) };
        assert_eq!(refused(how).await, AuthError::NoCommonKeyExchange(lists));
    }
}
