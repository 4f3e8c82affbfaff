//! Tests unix sockets on either side of a local forward.

use std::{fs, path::Path};

use keypadd_tunnel::{BindError, Client};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixListener, UnixStream},
};

use crate::support::*;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn unix_sockets_on_both_sides_carry_exact_bytes_and_half_closes() {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (directory.path().join("here"), directory.path().join("there"));
    let target = UnixListener::bind(&there).unwrap();
    let forward = format!("{}:{}", text(&here), text(&there));
    let mut tunnel = Tunnel::start(&[text(&there)], &[&forward]).await;

    let near = UnixStream::connect(&here).await.unwrap();
    let (far, _) = within(target.accept()).await.unwrap();
    exchange(near, far).await;
    until("all connections are closed", || tunnel.open() == (0, 0)).await;
    tunnel.stop_client().await;
    tunnel.client_ended().await;
    assert!(!here.exists(), "the socket's file still exists");
}

#[tokio::test]
async fn connections_wait_for_a_unix_target_whose_queue_is_full() {
    const CONNECTIONS: u64 = 8;
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("there");
    let target = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    target.bind(&SockAddr::unix(&there).unwrap()).unwrap();
    target.listen(1).unwrap();
    target.set_nonblocking(true).unwrap();
    let target = UnixListener::from_std(target.into()).unwrap();
    let forward = format!("0:{}", text(&there));
    let tunnel = Tunnel::start(&[text(&there)], &[&forward]).await;
    let mut near = Vec::new();
    for _ in 0..CONNECTIONS {
        near.push(TcpStream::connect(tunnel.addresses[0][0]).await.unwrap());
    }
    until("all connections have arrived", || tunnel.open().1 == CONNECTIONS).await;
    for _ in 0..CONNECTIONS {
        let (mut far, _) = within(target.accept()).await.unwrap();
        far.write_all(b"x").await.unwrap();
    }
    for mut stream in near {
        assert_eq!(within(read_all(&mut stream)).await.unwrap(), b"x");
    }
}

#[tokio::test]
async fn a_forward_can_join_a_unix_socket_and_a_port() {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (directory.path().join("here"), directory.path().join("there"));
    let unix_target = UnixListener::bind(&there).unwrap();
    let tcp_target = listener().await;
    let port = tcp_target.local_addr().unwrap();
    let forwards = [format!("0:{}", text(&there)), format!("{}:{port}", text(&here))];
    let tunnel = Tunnel::start(
        &[text(&there), "localhost:*"],
        &[forwards[0].as_str(), forwards[1].as_str()],
    )
    .await;

    let mut near = TcpStream::connect(tunnel.addresses[0][0]).await.unwrap();
    let (mut far, _) = within(unix_target.accept()).await.unwrap();
    near.write_all(b"to a socket").await.unwrap();
    near.shutdown().await.unwrap();
    assert_eq!(read_all(&mut far).await.unwrap(), b"to a socket");

    let mut near = UnixStream::connect(&here).await.unwrap();
    let mut far = accept(&tcp_target).await;
    near.write_all(b"to a port").await.unwrap();
    near.shutdown().await.unwrap();
    assert_eq!(read_all(&mut far).await.unwrap(), b"to a port");
}

#[tokio::test]
async fn a_tcp_reset_closes_the_unix_socket_and_unread_data_resets_the_tcp_connection() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("there");
    let target = UnixListener::bind(&there).unwrap();
    let tunnel = Tunnel::start(&[text(&there)], &[&format!("0:{}", text(&there))]).await;

    let near = tunnel.enter().await;
    let (mut far, _) = within(target.accept()).await.unwrap();
    reset(near);
    // A unix socket has no reset: its reader sees end of file, its writer an error.
    assert_eq!(within(far.read(&mut [0; 8])).await.unwrap(), 0);
    let error = within(async {
        loop {
            if let Err(error) = far.write_all(&[0; 1024]).await {
                break error;
            }
        }
    });
    assert_eq!(error.await.kind(), std::io::ErrorKind::BrokenPipe);

    let mut near = tunnel.enter().await;
    let (mut far, _) = within(target.accept()).await.unwrap();
    near.write_all(b"only the first byte is read").await.unwrap();
    within(far.read_u8()).await.unwrap();
    drop(far);
    assert_reset(&mut near).await;
}

#[tokio::test]
async fn an_unpermitted_or_missing_socket_resets_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let (unpermitted, missing) =
        (directory.path().join("unpermitted"), directory.path().join("missing"));
    let _target = UnixListener::bind(&unpermitted).unwrap();
    let forwards = [format!("0:{}", text(&unpermitted)), format!("0:{}", text(&missing))];
    let tunnel = Tunnel::start(
        &[text(&missing), "localhost:*"],
        &[forwards[0].as_str(), forwards[1].as_str()],
    )
    .await;
    for address in [tunnel.addresses[0][0], tunnel.addresses[1][0]] {
        assert_reset(&mut TcpStream::connect(address).await.unwrap()).await;
    }
}

#[tokio::test]
async fn an_existing_file_is_a_bind_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "precious").unwrap();
    let key = new_key();
    let server = RunningServer::start(key.public(), &[]);
    let settings = client_settings(&server, &key, &[&format!("{}:db:1", text(&path))]);
    let error: BindError = Client::bind(settings).await.err().unwrap();
    let expected =
        format!("cannot listen on unix {}: the file exists and is not a socket", text(&path));
    assert_eq!(error.to_string(), expected);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}
