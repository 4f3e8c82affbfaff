//! Unix sockets on either side of a local forward.

use std::{fs, path::Path};

use keypadd_tunnel::{BindError, Client};
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

    let mut near = UnixStream::connect(&here).await.unwrap();
    let question = noise(1, 300_000);
    let answer = noise(2, 200_000);
    let ask = async {
        near.write_all(&question).await.unwrap();
        near.shutdown().await.unwrap();
        let mut heard = Vec::new();
        near.read_to_end(&mut heard).await.unwrap();
        heard
    };
    let reply = async {
        let (mut far, _) = target.accept().await.unwrap();
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).await.unwrap();
        // The other direction is still open.
        far.write_all(&answer).await.unwrap();
        drop(far);
        heard
    };
    let (at_near, at_far) = within(async { tokio::join!(ask, reply) }).await;
    assert!(at_far == question && at_near == answer);
    until("all is over", || tunnel.open() == (0, 0)).await;
    tunnel.stop_client().await;
    tunnel.client_ended().await;
    assert!(!here.exists(), "the socket's file is left behind");
}

#[tokio::test]
async fn a_unix_socket_and_a_port_can_be_the_ends_of_one_forward() {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (directory.path().join("here"), directory.path().join("there"));
    let unix_target = UnixListener::bind(&there).unwrap();
    let tcp_target = listener().await;
    let port = tcp_target.local_addr().unwrap();
    let forwards = [format!("0:{}", text(&there)), format!("{}:{port}", text(&here))];
    let tunnel =
        Tunnel::start(&[text(&there), "*:*"], &[forwards[0].as_str(), forwards[1].as_str()]).await;

    let mut near = TcpStream::connect(tunnel.addresses[0][0]).await.unwrap();
    let (mut far, _) = within(unix_target.accept()).await.unwrap();
    near.write_all(b"to a socket").await.unwrap();
    near.shutdown().await.unwrap();
    let mut heard = String::new();
    within(far.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "to a socket");

    let mut near = UnixStream::connect(&here).await.unwrap();
    let mut far = accept(&tcp_target).await;
    near.write_all(b"to a port").await.unwrap();
    near.shutdown().await.unwrap();
    assert_eq!(read_all(&mut far).await.unwrap(), b"to a port");
}

#[tokio::test]
async fn a_tcp_reset_closes_the_unix_socket_and_unread_data_is_a_reset_the_other_way() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("there");
    let target = UnixListener::bind(&there).unwrap();
    let tunnel = Tunnel::start(&[text(&there)], &[&format!("0:{}", text(&there))]).await;

    let near = tunnel.enter().await;
    let (mut far, _) = within(target.accept()).await.unwrap();
    reset(near);
    // Nothing says reset on a unix socket: its reader sees an end, its writer an error.
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
async fn a_socket_that_is_not_permitted_or_not_there_resets() {
    let directory = tempfile::tempdir().unwrap();
    let (closed, gone) = (directory.path().join("closed"), directory.path().join("gone"));
    let _target = UnixListener::bind(&closed).unwrap();
    let forwards = [format!("0:{}", text(&closed)), format!("0:{}", text(&gone))];
    let tunnel =
        Tunnel::start(&[text(&gone), "*:*"], &[forwards[0].as_str(), forwards[1].as_str()]).await;
    for address in [tunnel.addresses[0][0], tunnel.addresses[1][0]] {
        assert_reset(&mut TcpStream::connect(address).await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_file_in_the_way_is_a_bind_error() {
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
