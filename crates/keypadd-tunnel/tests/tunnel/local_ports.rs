//! Tests that quick connections of one peer leave local ports to a target to the others.

use std::{net::SocketAddr, sync::Arc};

use keypadd_keystream::Suite;
use keypadd_provider::{PrivateKey, server_config};
use keypadd_tunnel::{HostPorts, Peers, PortReuse, SharedLimits, TransportSettings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::*;

/// Local ports of the server, and how long it keeps those that it has closed first.
const PORTS: HostPorts = HostPorts { count: 60, reuse: PortReuse::Never };

/// A server with these ports, and a client of each key, with a forward to the target.
async fn site(keys: &[Arc<PrivateKey>], target: SocketAddr) -> (RunningServer, Vec<RunningClient>) {
    let private = new_key();
    let server = RunningServer::start_as(private.clone(), keys[0].public(), &[], |settings| {
        let allowed = keys.iter().map(|key| allowed_peer(key.public(), &["localhost:*"]));
        let peers = Arc::new(Peers::new(allowed).unwrap());
        settings.crypto =
            server_config(&crypto(&private, Suite::AES_128_GCM), peers.clone()).unwrap();
        settings.peers = peers;
        let limits = Arc::new(SharedLimits::default().with_local_ports(PORTS));
        settings.transport = TransportSettings { limits, ..<_>::default() };
    });
    let forward = format!("0:{target}");
    let mut clients = Vec::new();
    for key in keys {
        clients.push(RunningClient::start(client_settings(&server, key, &[&forward])).await);
    }
    (server, clients)
}

/// A connection through a forward: sends a byte and its end, and reads until the target's.
async fn quick(forward: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(forward).await?;
    stream.write_all(&[7]).await?;
    stream.shutdown().await?;
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await?;
    Ok(received)
}

/// How many of so many connections, one after the other, are exact. The others are reset.
async fn exact(client: &RunningClient, connections: usize) -> usize {
    let mut exact = 0;
    for _ in 0..connections {
        if let Ok(received) = within(quick(client.listeners[0])).await {
            assert_eq!(received, [7]);
            exact += 1;
        }
    }
    exact
}

#[tokio::test]
async fn quick_connections_of_one_peer_to_a_target_leave_local_ports_to_another() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = target.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    let keys = [new_key(), new_key()];
    let (_server, clients) = site(&keys, address).await;
    // Half of the ports, which stay closed for a minute.
    assert_eq!(exact(&clients[0], 70).await, 30);
    assert_eq!(exact(&clients[1], 10).await, 10);
}

#[tokio::test]
async fn connections_that_the_target_closes_first_leave_no_port_in_use() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = target.accept().await {
            let _ = stream.write_all(&[7]).await;
            let _ = stream.shutdown().await;
            tokio::spawn(async move {
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    let (server, clients) = site(&[new_key()], address).await;
    for _ in 0..70 {
        let mut stream = TcpStream::connect(clients[0].listeners[0]).await.unwrap();
        let mut received = Vec::new();
        within(stream.read_to_end(&mut received)).await.unwrap();
        assert_eq!(received, [7]);
        drop(stream);
        until("the connection has ended", || open(&server.sessions) == 0).await;
    }
}
