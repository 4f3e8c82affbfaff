//! Tests bench streams, and measurement sessions, which carry only bench streams at both ends,
//! whatever the permits.

use std::{io, net::SocketAddr, sync::Arc};

use keypadd_keystream::{MeasureSuite, Protection, Suite};
use keypadd_provider::{
    CryptoSettings, Group, KeyExchange, MeasureKeyExchange, PrivateKey, PublicKey, Refusal,
    client_config, server_config,
};
use keypadd_tunnel::{
    AuthError, BenchForward, Bind, Client, ClientError, ClientSession, ClientSettings, Forward,
    Listen, Protocol,
    wire::{CONNECTED, Frame, ListenCode, StreamCode, StreamHeader},
};
use quinn::Connection;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::{hostile::*, support::*};

/// The packet protection of a connection.
#[derive(Clone, Copy, Debug)]
struct Setup {
    suite: Protection,
    kex: Group,
}

impl Setup {
    fn suite(suite: impl Into<Protection>) -> Self {
        Self { suite: suite.into(), kex: KeyExchange::X25519.into() }
    }

    fn crypto(self, key: &Arc<PrivateKey>) -> CryptoSettings {
        CryptoSettings { kex: vec![self.kex], ..crypto(key, self.suite) }
    }
}

/// Measurement sessions: one due to its suite, one due to its key exchange.
fn measurement_setups() -> [Setup; 2] {
    let kex = MeasureKeyExchange::MODP_768.into();
    [Setup::suite(MeasureSuite::NULL_HMAC_SHA1), Setup { kex, ..Setup::suite(Suite::AES_128_GCM) }]
}

/// A bench forward of datagrams.
fn bench_udp_forward() -> Forward {
    Forward::Bench(BenchForward { listen: Listen::Udp { bind: Bind::Loopback, port: 0 } })
}

fn bench_forward() -> Forward {
    Forward::Bench(BenchForward { listen: Listen::Tcp { bind: Bind::Loopback, port: 0 } })
}

/// A server with this protection that permits everything and has this bench service.
fn server(key: &Arc<PrivateKey>, setup: Setup, bench: Option<SocketAddr>) -> RunningServer {
    let own = new_key();
    let permits = ["localhost:*", "listen *:*"];
    RunningServer::start_as(Arc::clone(&own), key.public(), &permits, |settings| {
        settings.crypto = server_config(&setup.crypto(&own), settings.peers.clone()).unwrap();
        settings.bench = bench;
    })
}

fn settings(
    server: (SocketAddr, PublicKey),
    key: &Arc<PrivateKey>,
    setup: Setup,
    forwards: Vec<Forward>,
) -> ClientSettings {
    let crypto = client_config(&setup.crypto(key), server.1).unwrap();
    settings_for(server.0, crypto, forwards)
}

async fn raw(server: &RunningServer, key: &Arc<PrivateKey>, setup: Setup) -> RawPeer {
    RawPeer::connect(server, client_config(&setup.crypto(key), server.key).unwrap()).await
}

/// The other end's response to a stream with this header.
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
    StreamHeader::Destination(keypadd_tunnel::Destination::Tcp(
        target.local_addr().unwrap().to_string().parse().unwrap(),
    ))
}

/// Checks that no connection has arrived; called after a later one has.
async fn assert_unused(listener: &TcpListener) {
    let accepted = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
    assert!(accepted.is_err(), "a connection arrived");
}

#[tokio::test]
async fn bench_streams_reach_the_service_over_every_suite_and_key_exchange() {
    let service = listener().await;
    let groups = Group::all().map(|kex| Setup { kex, ..Setup::suite(Suite::AES_128_GCM) });
    for setup in Protection::all().map(Setup::suite).chain(groups) {
        let key = new_key();
        let server = server(&key, setup, service.local_addr().ok());
        let settings = settings((server.address, server.key), &key, setup, vec![bench_forward()]);
        let client = RunningClient::start(settings).await;
        let live = client.sessions.live();
        assert_eq!(live[0].handshake().suite, setup.suite);
        assert_eq!(live[0].handshake().kex, setup.kex);
        let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
        let mut there = assert_reaches(&mut here, &service).await;
        send_bytes_both_ways(&mut here, &mut there).await;
    }
}

#[tokio::test]
async fn bench_datagrams_reach_the_service_over_measurement_sessions_too() {
    for setup in measurement_setups().into_iter().chain([Setup::suite(Suite::AES_128_GCM)]) {
        let service = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let key = new_key();
        let server = server(&key, setup, service.local_addr().ok());
        let forwards = vec![bench_udp_forward()];
        let settings = settings((server.address, server.key), &key, setup, forwards);
        let client = RunningClient::start(settings).await;
        let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        here.connect(client.listeners[0]).await.unwrap();
        here.send(b"question").await.unwrap();
        let mut buffer = [0; 100];
        let (bytes, from) = within(service.recv_from(&mut buffer)).await.unwrap();
        assert_eq!(&buffer[..bytes], b"question");
        service.send_to(b"answer", from).await.unwrap();
        let bytes = within(here.recv(&mut buffer)).await.unwrap();
        assert_eq!(&buffer[..bytes], b"answer");
    }
}

#[tokio::test]
async fn a_server_without_the_service_refuses_bench_streams() {
    let key = new_key();
    let setup = Setup::suite(Suite::AES_128_GCM);
    let server = server(&key, setup, None);
    let raw = raw(&server, &key, setup).await;
    let refused = Err(StreamCode::NotPermitted);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        assert_eq!(answer(&raw.connection, &StreamHeader::Bench(protocol)).await, refused);
    }
    let target = listener().await;
    assert_eq!(answer(&raw.connection, &to(&target)).await, Ok(()), "other streams still work");
}

#[tokio::test]
async fn a_measure_connection_gets_nothing_but_the_service_from_its_server() {
    for setup in measurement_setups() {
        nothing_but_the_service(setup).await;
    }
}

async fn nothing_but_the_service(setup: Setup) {
    let (service, target) = (listener().await, listener().await);
    let key = new_key();
    let server = server(&key, setup, service.local_addr().ok());
    let mut raw = raw(&server, &key, setup).await;
    let (send, recv) = &mut raw.control;
    let connection = &raw.connection;
    let refused = Err(StreamCode::NotPermitted);
    assert_eq!(answer(connection, &to(&target)).await, refused);
    let socket =
        StreamHeader::Destination(keypadd_tunnel::Destination::Unix("/run/x".parse().unwrap()));
    assert_eq!(answer(connection, &socket).await, refused);
    assert_eq!(answer(connection, &StreamHeader::Remote(0)).await, Err(StreamCode::BadHeader));
    for (id, listen) in [
        (0, Listen::Tcp { bind: Bind::Loopback, port: 0 }),
        (1, Listen::Unix("/tmp/keypadd-nobody-listens".parse().unwrap())),
    ] {
        let listen = Frame::Listen { id, listen, headers: <_>::default() };
        send.write_all(&listen.encode()).await.unwrap();
        let refused = Frame::Listening { id, outcome: Err(ListenCode::NotPermitted) };
        assert_eq!(receive(recv).await, refused);
    }
    assert_eq!(answer(connection, &StreamHeader::Bench(Protocol::Tcp)).await, Ok(()));
    accept(&service).await;
    assert_unused(&target).await;
}

/// A scripted server, and a client connected to it.
async fn client_of_a_raw_server(
    setup: Setup,
    forwards: Vec<Forward>,
) -> (RawPeer, Client, ClientSession) {
    let key = new_key();
    let (endpoint, address, server) = raw_server(&setup.crypto(&new_key()), key.public());
    let settings = settings((address, server), &key, setup, forwards);
    let client = tokio::spawn(connect_client(settings));
    let raw = RawPeer::accept(endpoint).await;
    let (client, session) = within(client).await.unwrap();
    (raw, client, session)
}

#[tokio::test]
async fn a_client_asks_a_measure_connection_for_nothing_but_the_service() {
    for setup in measurement_setups() {
        requests_nothing_else(setup).await;
        refuses_standard_streams(setup).await;
    }
}

async fn refuses_standard_streams(setup: Setup) {
    let (_raw, client, session) = client_of_a_raw_server(setup, Vec::new()).await;
    let (target, empty) = ("localhost:1".parse().unwrap(), tokio::io::empty());
    let forwarded = client.forward_stdio(session, &target, empty, tokio::io::sink()).await;
    let code = StreamCode::NotPermitted;
    assert!(matches!(forwarded, Err(ClientError::Refused { code: found, .. }) if found == code));
}

async fn requests_nothing_else(setup: Setup) {
    let target = listener().await;
    let target_address = target.local_addr().unwrap();
    let texts = [&format!("0:{target_address}"), "-D 0", &format!("-R 0:{target_address}")];
    let mut forwards: Vec<_> = texts.into_iter().map(forward).collect();
    forwards.push(bench_forward());
    let (raw, client, session) = client_of_a_raw_server(setup, forwards).await;

    let [(_, outcome)] = &session.remote_forwards()[..] else { panic!("one remote forward") };
    assert_eq!(*outcome, Err(ListenCode::NotPermitted));
    assert!(session.all_listening().is_err());

    let listeners: Vec<_> = addresses(&client).iter().map(|all| all.first().copied()).collect();
    let [Some(local), Some(_), None, Some(bench)] = listeners[..] else { panic!("{listeners:?}") };
    let running = async {
        let mut refused = TcpStream::connect(local).await.unwrap();
        let ended = read_all(&mut refused).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let _measured = TcpStream::connect(bench).await.unwrap();
        // It is the first stream at the server: none was opened for the others.
        let (_send, mut recv) = within(raw.connection.accept_bi()).await.unwrap();
        let mut header = [0xff; 4];
        within(recv.read_exact(&mut header)).await.unwrap();
        assert_eq!(header[..], StreamHeader::Bench(Protocol::Tcp).encode());
        // The client refuses the server's streams as well.
        let remote = answer(&raw.connection, &StreamHeader::Remote(0)).await;
        assert_eq!(remote, Err(StreamCode::NotPermitted));
        assert_unused(&target).await;
    };
    tokio::select! {
        () = running => {}
        () = client.run(Some(session), std::future::pending()) => {}
    }
    client.close().await;
    // Nothing followed the hello on the control stream.
    let (_, mut recv) = raw.control;
    let mut byte = [0];
    assert!(!matches!(within(recv.read(&mut byte)).await, Ok(Some(1..))));
}

#[tokio::test]
async fn a_server_for_tunnels_refuses_handshakes_for_measurements() {
    let key = new_key();
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let refused = async |setup: Setup| {
        let settings = settings((server.address, server.key), &key, setup, Vec::new());
        let client = Client::bind(settings).await.unwrap();
        match within(client.connect()).await.expect_err("it connected") {
            ClientError::Auth { cause, .. } => cause,
            error => panic!("{error}"),
        }
    };
    // The server knows none of their names.
    let is_code_point = |offered: &str| offered.starts_with("0x") && offered.len() == 6;
    for suite in MeasureSuite::ALL {
        match refused(Setup::suite(suite)).await {
            AuthError::Refused(Refusal::NoCommonSuite { offered, allowed }) => {
                assert!(is_code_point(&offered) && &*allowed == "aes-128-gcm", "{offered}");
            }
            cause => panic!("{suite}: {cause}"),
        }
    }
    for kex in MeasureKeyExchange::ALL {
        let setup = Setup { kex: kex.into(), ..Setup::suite(Suite::AES_128_GCM) };
        match refused(setup).await {
            AuthError::Refused(Refusal::NoCommonKeyExchange { offered, allowed }) => {
                assert!(is_code_point(&offered) && &*allowed == "x25519", "{offered}");
            }
            cause => panic!("{kex}: {cause}"),
        }
    }
}
