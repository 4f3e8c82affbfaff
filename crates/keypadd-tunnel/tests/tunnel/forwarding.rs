//! Tests exact bytes and half-closes, both ways and in both address families.

use std::time::Duration;

use keypadd_tunnel::ClientError;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex, split},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::support::*;

#[tokio::test]
async fn a_client_that_finishes_first_still_receives_everything() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    let (question, answer) = (noise(1, 3_000_001), noise(2, 5_000_003));

    let asking = async {
        here.write_all(&question).await.unwrap();
        here.shutdown().await.unwrap();
    };
    let (_, received) = tokio::join!(asking, read_all(&mut there));
    assert!(received.unwrap() == question);

    // The other direction is still open.
    let answering = async {
        there.write_all(&answer).await.unwrap();
        there.shutdown().await.unwrap();
    };
    let (_, received) = tokio::join!(answering, read_all(&mut here));
    assert!(received.unwrap() == answer);
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn urgent_data_is_forwarded_in_its_place_and_holds_nothing_up() {
    let target = listener().await;
    let forward = format!("0:{}", target.local_addr().unwrap());
    let tunnel = Tunnel::start(&["localhost:*"], &[&forward]).await;
    for _ in 0..20 {
        let mut here = TcpStream::connect(tunnel.addresses[0][0]).await.unwrap();
        here.set_nodelay(true).unwrap();
        let mut there = accept(&target).await;
        here.write_all(b"a").await.unwrap();
        within(there.read_exact(&mut [0])).await.unwrap();
        // Both are there when the loop reads.
        let socket = SockRef::from(&here);
        socket.send_out_of_band(b"before!").unwrap();
        socket.send(b"after").unwrap();
        let mut received = [0; 12];
        within(there.read_exact(&mut received)).await.unwrap();
        assert_eq!(&received, b"before!after");
    }
}

#[tokio::test]
async fn urgent_data_that_comes_at_once_or_by_a_unix_socket_is_not_lost() {
    let (target, directory) = (listener().await, tempfile::tempdir().unwrap());
    let (path, at) = (directory.path().join("s"), target.local_addr().unwrap());
    let forwards = [format!("0:{at}"), format!("{}:{at}", path.display())];
    let tunnel = Tunnel::start(&["localhost:*"], &forwards.each_ref().map(String::as_str)).await;
    // Both are there before the other end has answered: the second one displaces the first of a
    // socket that does not keep them in place.
    let send = |socket: SockRef<'_>| {
        for urgent in [b"x", b"y"] {
            socket.send_out_of_band(urgent).unwrap();
        }
        socket.send(b"after").unwrap();
    };
    let by_tcp = std::net::TcpStream::connect(tunnel.addresses[0][0]).unwrap();
    by_tcp.set_nodelay(true).unwrap();
    send(SockRef::from(&by_tcp));
    let mut there = accept(&target).await;
    let mut received = [0; 7];
    within(there.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, b"xyafter");

    let by_unix = std::os::unix::net::UnixStream::connect(&path).unwrap();
    send(SockRef::from(&by_unix));
    let mut there = accept(&target).await;
    within(there.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, b"xyafter");
}

#[tokio::test]
async fn a_target_that_finishes_first_still_receives_everything() {
    let (_target, _tunnel, mut here, mut there) = Tunnel::with_connection().await;

    there.write_all(b"banner").await.unwrap();
    there.shutdown().await.unwrap();
    assert_eq!(read_all(&mut here).await.unwrap(), b"banner");

    let late = noise(3, 2_000_003);
    let sending = async {
        here.write_all(&late).await.unwrap();
        here.shutdown().await.unwrap();
    };
    let (_, received) = tokio::join!(sending, read_all(&mut there));
    assert!(received.unwrap() == late);
}

#[tokio::test]
async fn closing_at_once_loses_nothing() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let message = noise(4, 1_000_003);
    let mut here = tunnel.enter().await;
    here.write_all(&message).await.unwrap();
    drop(here);
    assert!(read_all(&mut accept(&target).await).await.unwrap() == message);
}

#[tokio::test]
async fn single_bytes_arrive_immediately() {
    let (_target, _tunnel, mut here, mut there) = Tunnel::with_connection().await;
    for byte in 0..200 {
        here.write_u8(byte).await.unwrap();
        assert_eq!(within(there.read_u8()).await.unwrap(), byte);
        there.write_u8(!byte).await.unwrap();
        assert_eq!(within(here.read_u8()).await.unwrap(), !byte);
    }
}

#[tokio::test]
async fn ipv6_listeners_and_targets_work() {
    let target = TcpListener::bind("[::1]:0").await.unwrap();
    let port = target.local_addr().unwrap().port();
    let permit: &str = &format!("[::1]:{port}");
    let tunnel = Tunnel::start(&[permit], &[&format!("[::1]:0:[::1]:{port}")]).await;
    assert!(tunnel.addresses[0][0].is_ipv6());
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    here.write_all(b"over six").await.unwrap();
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"over six");
}

#[tokio::test]
async fn a_forward_listens_on_both_loopback_addresses_with_one_port() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let addresses = &tunnel.addresses[0];
    assert_eq!(addresses.len(), 2);
    assert_eq!(addresses[0].port(), addresses[1].port());
    for address in addresses {
        let mut here = TcpStream::connect(address).await.unwrap();
        let mut there = accept(&target).await;
        send_byte(&mut here, &mut there).await;
    }
}

#[tokio::test]
async fn standard_streams_are_forwarded_to_their_ends() {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["127.0.0.1:*"]);
    let (client, session) = connect_client(client_settings(&server, &key, &[])).await;
    let target_address = target.local_addr().unwrap().to_string().parse().unwrap();

    let (mut near, far) = duplex(4096);
    let (reader, writer) = split(far);
    let forwarding = client.forward_stdio(session, &target_address, reader, writer);
    let message = noise(5, 300_001);
    let talking = async {
        let mut there = accept(&target).await;
        there.write_all(b"banner").await.unwrap();
        there.shutdown().await.unwrap();
        let mut banner = Vec::new();
        near.read_to_end(&mut banner).await.unwrap();
        assert_eq!(banner, b"banner");
        let sending = async {
            near.write_all(&message).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let (_, received) = tokio::join!(sending, read_all(&mut there));
        assert!(received.unwrap() == message);
    };
    let (forwarded, ()) = within(async { tokio::join!(forwarding, talking) }).await;
    forwarded.unwrap();
}

#[tokio::test]
async fn a_client_that_ends_right_after_its_last_byte_loses_nothing() {
    for round in 0..20 {
        let target = listener().await;
        let key = new_key();
        let server = RunningServer::start(key.public(), &["127.0.0.1:*"]);
        let (client, session) = connect_client(client_settings(&server, &key, &[])).await;
        let target_address = target.local_addr().unwrap().to_string().parse().unwrap();
        // As much as the stream's window and both kernels' buffers hold without a reader.
        let message = noise(round, 150_001);
        let (output, _) = duplex(64);
        let forwarding = client.forward_stdio(session, &target_address, &message[..], output);
        let finishing = async {
            let mut there = accept(&target).await;
            there.shutdown().await.unwrap();
            there
        };
        let (forwarded, mut there) = within(async { tokio::join!(forwarding, finishing) }).await;
        forwarded.unwrap();
        // The target has read nothing yet: the server holds the bytes.
        within(client.close()).await;
        assert!(read_all(&mut there).await.unwrap() == message, "round {round}");
    }
}

#[tokio::test]
async fn a_reset_target_ends_standard_streams_with_an_error() {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["127.0.0.1:*"]);
    let (client, session) = connect_client(client_settings(&server, &key, &[])).await;
    let target_address = target.local_addr().unwrap().to_string().parse().unwrap();
    let (_near, far) = duplex(4096);
    let (reader, writer) = split(far);
    let resetting = async { reset(accept(&target).await) };
    let forwarding = client.forward_stdio(session, &target_address, reader, writer);
    let (forwarded, ()) = within(async { tokio::join!(forwarding, resetting) }).await;
    let error = forwarded.unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    assert_eq!(error.to_string(), format!("{target_address}: connection reset"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_data_reaches_a_slow_target_after_the_client_has_closed() {
    let target = listener().await;
    // A small receive buffer at the target, so that the server holds the rest.
    SockRef::from(&target).set_recv_buffer_size(64 << 10).unwrap();
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &["127.0.0.1:*"], |settings| {
        settings.transport.stream_receive_window_bytes = 16 << 20;
        settings.transport.receive_window_bytes = 16 << 20;
    });
    let (client, session) = connect_client(client_settings(&server, &key, &[])).await;
    let target_address = target.local_addr().unwrap().to_string().parse().unwrap();

    let sessions = client.sessions();
    let message = noise(6, 7_000_003);
    let mut written = Vec::new();
    let forwarding = client.forward_stdio(session, &target_address, &message[..], &mut written);
    let finishing = async {
        let mut there = accept(&target).await;
        there.shutdown().await.unwrap();
        // Once read for a while it is bulk, with a window that holds the rest.
        let mut received = Vec::new();
        let mut part = vec![0; 16 << 10];
        let mut more = 64;
        while more > 0 {
            there.read_exact(&mut part).await.unwrap();
            received.extend_from_slice(&part);
            sleep(Duration::from_millis(1)).await;
            // The session may have ended already.
            let sessions = sessions.live();
            more -= usize::from(sessions.iter().all(|live| live.keys().count() == 2));
        }
        (there, received)
    };
    let (forwarded, (mut there, mut received)) =
        within(async { tokio::join!(forwarding, finishing) }).await;
    forwarded.unwrap();
    within(client.close()).await;

    let mut rest = vec![0; message.len() - received.len()];
    for part in rest.chunks_mut(1 << 20) {
        sleep(Duration::from_millis(500)).await;
        within(there.read_exact(part)).await.unwrap();
    }
    received.extend(rest);
    assert!(received == message);
    assert_eq!(read_all(&mut there).await.unwrap(), b"");
    until("the server has closed the session", || server.sessions.live().is_empty()).await;
}
