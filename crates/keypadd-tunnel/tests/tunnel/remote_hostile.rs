//! Peers that hold the right keys and abuse remote forwards: a server that asks its client for more
//! than it was given, a client that asks for thousands of listeners.

use std::sync::Arc;

use keypadd_keystream::Suite;
use keypadd_provider::{PublicKey, client_config, server_config};
use keypadd_tunnel::{
    Bind, Client, ClientSession, ClientSettings, Listen, Peers,
    wire::{
        CONNECTED, FRAME_HEAD_BYTES, Frame, FrameHead, Instance, StreamCode, StreamHeader, VERSION,
    },
};
use quinn::{Connection, Endpoint, RecvStream, SendStream};

use crate::support::*;

async fn hear(recv: &mut RecvStream) -> Frame {
    loop {
        let mut head = [0; FRAME_HEAD_BYTES];
        within(recv.read_exact(&mut head)).await.unwrap();
        let head = FrameHead::decode(head);
        let mut body = vec![0; head.body_bytes.into()];
        within(recv.read_exact(&mut body)).await.unwrap();
        if let Some(frame) = Frame::decode(head.kind, &body).unwrap() {
            return frame;
        }
    }
}

/// A client with one remote forward, and a server of our own making that has agreed to listen.
struct Pair {
    connection: Connection,
    _control: (SendStream, RecvStream),
    _endpoint: Endpoint,
    _client: (Client, ClientSession),
    id: u16,
}

async fn client_of_a_made_server(forward: &str) -> Pair {
    let (server_key, client_key) = (new_key(), new_key());
    let peers = Arc::new(Peers::new([allowed_peer(client_key.public(), &[])]).unwrap());
    let crypto_of_server = server_config(&crypto(&server_key, Suite::AES_128_GCM), peers).unwrap();
    let endpoint = Endpoint::server(
        quinn::ServerConfig::with_crypto(crypto_of_server),
        "[::1]:0".parse().unwrap(),
    )
    .unwrap();
    let settings = settings_for(&endpoint, server_key.public(), &client_key, forward);
    let client = tokio::spawn(connected(settings));
    let connection = within(endpoint.accept()).await.unwrap().await.unwrap();
    let (mut send, mut recv) = within(connection.accept_bi()).await.unwrap();
    assert!(matches!(hear(&mut recv).await, Frame::HelloClient { .. }));
    send.write_all(&Frame::HelloServer { version: VERSION }.encode()).await.unwrap();
    let Frame::Listen { id, .. } = hear(&mut recv).await else { panic!("no listen") };
    send.write_all(&Frame::Listening { id, outcome: Ok(1) }.encode()).await.unwrap();
    let client = within(client).await.unwrap();
    Pair { connection, _control: (send, recv), _endpoint: endpoint, _client: client, id }
}

fn settings_for(
    endpoint: &Endpoint,
    server: PublicKey,
    key: &Arc<keypadd_provider::PrivateKey>,
    remote: &str,
) -> ClientSettings {
    ClientSettings {
        server: endpoint.local_addr().unwrap().to_string().parse().unwrap(),
        crypto: client_config(&crypto(key, Suite::AES_128_GCM), server).unwrap(),
        name: None,
        forwards: vec![forward(remote)],
        transport: <_>::default(),
        connect_timeout: std::time::Duration::from_secs(20),
        instance: Instance([1; 16]),
    }
}

/// The code with which the client gives a stream up that begins with these bytes.
async fn code_for(connection: &Connection, bytes: &[u8]) -> StreamCode {
    let (mut send, mut recv) = within(connection.open_bi()).await.unwrap();
    send.write_all(bytes).await.unwrap();
    let code = within(recv.received_reset()).await.unwrap().expect("a reset");
    StreamCode::from_value(code.into_inner())
}

#[tokio::test]
async fn a_client_connects_by_number_to_what_it_registered_and_to_nothing_else() {
    let (target, secret) = (listener().await, listener().await);
    let forward = format!("-R 0:{}", target.local_addr().unwrap());
    let Pair { connection, id, _client, _control, _endpoint } =
        &client_of_a_made_server(&forward).await;
    let secret_address = secret.local_addr().unwrap();
    let goal = keypadd_tunnel::Goal::Tcp(secret_address.to_string().parse().unwrap());
    let asked_by_host = StreamHeader::Goal(goal).encode();
    assert_eq!(code_for(connection, &asked_by_host).await, StreamCode::BadHeader);
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
    let nobody = tokio::time::timeout(std::time::Duration::from_millis(1), secret.accept()).await;
    assert!(nobody.is_err(), "the server reached a host of its own choosing");
}

#[tokio::test]
async fn a_client_that_asks_for_thousands_of_listeners_gets_few_and_harms_nobody() {
    const ASKED: u16 = 10_000;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["listen localhost:*"]);
    let endpoint = Endpoint::client("[::1]:0".parse().unwrap()).unwrap();
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server.key).unwrap();
    let connecting =
        endpoint.connect_with(quinn::ClientConfig::new(crypto), server.address, "keypadd");
    let connection = within(connecting.unwrap()).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let hello = Frame::HelloClient { version: VERSION, instance: Instance([9; 16]) };
    send.write_all(&hello.encode()).await.unwrap();
    assert!(matches!(hear(&mut recv).await, Frame::HelloServer { .. }));
    assert!(matches!(hear(&mut recv).await, Frame::BulkOffer { .. }));
    let asking = async {
        for id in 0..ASKED {
            let listen = Listen::Tcp { bind: Bind::Loopback, port: 0 };
            send.write_all(&Frame::Listen { id, listen }.encode()).await.unwrap();
        }
    };
    let answers = async {
        let mut granted = 0;
        for _ in 0..ASKED {
            let Frame::Listening { outcome, .. } = hear(&mut recv).await else {
                panic!("no answer")
            };
            granted += usize::from(outcome.is_ok());
        }
        granted
    };
    let ((), granted) = within(async { tokio::join!(asking, answers) }).await;
    assert_eq!(granted, 64);
    // Another session of the same key is served meanwhile.
    let mut settings = client_settings(&server, &key, &["-R 0:web:80"]);
    settings.instance = Instance([8; 16]);
    let (_client, session) = connected(settings).await;
    assert!(session.all_listening().is_ok());
}
