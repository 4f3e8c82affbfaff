//! Tests abuse of remote forwards: a server that requests more from its client than it registered,
//! and a client that requests thousands of listeners.

use std::{sync::Arc, time::Duration};

use keypadd_keystream::Suite;
use keypadd_provider::client_config;
use keypadd_tunnel::{
    Bind, Client, ClientSession, Destination, Listen,
    wire::{CONNECTED, Frame, Instance, StreamCode, StreamHeader},
};
use tokio::sync::oneshot;

use crate::{hostile::*, support::*};

/// A client with one remote forward, and a scripted server that has accepted it.
struct Pair {
    server: RawPeer,
    _client: (Client, ClientSession),
    id: u16,
}

async fn client_of_a_raw_server(remote: &str) -> Pair {
    let (server_key, key) = (new_key(), new_key());
    let settings = crypto(&server_key, Suite::AES_128_GCM);
    let (endpoint, address, server_key) = raw_server(&settings, key.public());
    let client = client_config(&crypto(&key, Suite::AES_128_GCM), server_key).unwrap();
    let client = tokio::spawn(connect_client(settings_for(address, client, vec![forward(remote)])));
    let mut server = RawPeer::accept(endpoint).await;
    let (send, recv) = &mut server.control;
    let Frame::Listen { id, .. } = receive(recv).await else { panic!("no listen") };
    send.write_all(&Frame::Listening { id, outcome: Ok(1) }.encode()).await.unwrap();
    Pair { server, _client: within(client).await.unwrap(), id }
}

#[tokio::test]
async fn a_client_connects_by_number_to_what_it_registered_and_to_nothing_else() {
    let (target, secret) = (listener().await, listener().await);
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let Pair { server, id, _client } = &client_of_a_raw_server(&forward).await;
    let connection = &server.connection;
    let secret_address = secret.local_addr().unwrap();
    let destination = Destination::Tcp(secret_address.to_string().parse().unwrap());
    let by_host = StreamHeader::Destination(destination).encode();
    assert_eq!(code_for(connection, &by_host).await, StreamCode::BadHeader);
    assert_eq!(code_for(connection, b"\x02\0\0\x06/run/x").await, StreamCode::BadHeader);
    assert_eq!(code_for(connection, b"\x03\0\0\x01a").await, StreamCode::BadHeader);
    let unknown = StreamHeader::Remote(id.wrapping_add(1)).encode();
    assert_eq!(code_for(connection, &unknown).await, StreamCode::Refused);

    let (mut send, mut recv) = within(connection.open_bi()).await.unwrap();
    send.write_all(&StreamHeader::Remote(*id).encode()).await.unwrap();
    let mut answer = [0xff];
    within(recv.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, [CONNECTED]);
    accept(&target).await;
    let accepted = tokio::time::timeout(std::time::Duration::from_millis(1), secret.accept()).await;
    assert!(accepted.is_err(), "the server reached a host that it named");
}

#[tokio::test]
async fn a_server_that_reads_nothing_delays_neither_a_reload_nor_the_end() {
    let (server_key, key) = (new_key(), new_key());
    let settings = crypto(&server_key, Suite::AES_128_GCM);
    let mut config = raw_server_config(&settings, key.public());
    let mut transport = quinn::TransportConfig::default();
    // Enough for the hello.
    transport.stream_receive_window(150_u32.into());
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::server(config, "[::1]:0".parse().unwrap()).unwrap();
    let address = endpoint.local_addr().unwrap();
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server_key.public()).unwrap();
    let connecting = connect_client(settings_for(address, crypto, vec![]));
    let ((client, session), _server) = tokio::join!(connecting, RawPeer::accept(endpoint));
    let (client, (stop, stopped)) = (Arc::new(client), oneshot::channel());
    let running = Arc::clone(&client);
    let running =
        tokio::spawn(async move { running.run(Some(session), stop_signal(stopped)).await });

    let forwards = (1..=100).map(|port| forward(&format!("-R {port}:localhost:22"))).collect();
    within(client.set_forwards(forwards)).await.unwrap();
    within(client.set_forwards(vec![])).await.unwrap();
    stop.send(Duration::ZERO).unwrap();
    within(running).await.unwrap();
}

#[tokio::test]
async fn a_client_that_requests_hundreds_of_listeners_gets_64_and_affects_no_other() {
    // More than the server reads at once.
    const REQUESTED: u16 = 200;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let mut peer = RawPeer::connect(&server, crypto).await;
    let (send, recv) = &mut peer.control;
    let requesting = async {
        for id in 0..REQUESTED {
            let listen = Listen::Tcp { bind: Bind::Loopback, port: 0 };
            let listen = Frame::Listen { id, listen, headers: <_>::default() };
            send.write_all(&listen.encode()).await.unwrap();
        }
    };
    let answers = async {
        let mut granted = 0;
        for _ in 0..REQUESTED {
            let Frame::Listening { outcome, .. } = receive(recv).await else { panic!("no answer") };
            granted += usize::from(outcome.is_ok());
        }
        granted
    };
    let ((), granted) = within(async { tokio::join!(requesting, answers) }).await;
    assert_eq!(granted, 64);
    // Another session of the same key is still served.
    let mut settings = client_settings(&server, &key, &["-R 0:web:80"]);
    settings.instance = Instance([8; 16]);
    let (_client, session) = connect_client(settings).await;
    assert!(session.all_listening().is_ok());
}
