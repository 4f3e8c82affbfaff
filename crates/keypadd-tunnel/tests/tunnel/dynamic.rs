//! Tests dynamic forwards over SOCKS5.

use std::net::SocketAddr;

use keypadd_tunnel::{ClientSettings, TransportSettings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::*;

/// A CONNECT request for an encoded address.
fn connect(address: &[u8], port: u16) -> Vec<u8> {
    [b"\x05\x01\x00", address, &port.to_be_bytes()[..]].concat()
}

fn v4(port: u16) -> Vec<u8> {
    connect(b"\x01\x7f\x00\x00\x01", port)
}

fn name(name: &str, port: u16) -> Vec<u8> {
    connect(&[&[3, name.len() as u8], name.as_bytes()].concat(), port)
}

/// Sends a request; returns the connection and the first two bytes of the reply.
async fn request(proxy: SocketAddr, bytes: &[u8]) -> (TcpStream, [u8; 2]) {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    stream.write_all(b"\x05\x01\x00").await.unwrap();
    let mut method = [0; 2];
    within(stream.read_exact(&mut method)).await.unwrap();
    assert_eq!(method, [5, 0]);
    stream.write_all(bytes).await.unwrap();
    let mut reply = [0; 10];
    within(stream.read_exact(&mut reply)).await.unwrap();
    assert_eq!(reply[2..], [0, 1, 0, 0, 0, 0, 0, 0]);
    (stream, [reply[0], reply[1]])
}

/// Sends a request that is refused; checks that the connection closes cleanly and returns the code.
async fn refused(proxy: SocketAddr, bytes: &[u8]) -> u8 {
    let (mut stream, [5, code]) = request(proxy, bytes).await else { panic!("not SOCKS5") };
    assert_eq!(read_all(&mut stream).await.unwrap(), b"");
    code
}

#[tokio::test]
async fn targets_are_reached_by_ipv4_ipv6_and_name() {
    let target = listener().await;
    let port = target.local_addr().unwrap().port();
    let target6 = TcpListener::bind("[::1]:0").await.unwrap();
    let port6 = target6.local_addr().unwrap().port();
    let tunnel = Tunnel::start(&["localhost:*"], &["-D 0"]).await;
    for proxy in tunnel.addresses[0].clone() {
        let (near, reply) = request(proxy, &v4(port)).await;
        assert_eq!(reply, [5, 0]);
        exchange(near, accept(&target).await).await;
        let (near, reply) = request(proxy, &name("localhost", port)).await;
        assert_eq!(reply, [5, 0]);
        exchange(near, accept(&target).await).await;
        let six = connect(b"\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01", port6);
        let (near, reply) = request(proxy, &six).await;
        assert_eq!(reply, [5, 0]);
        exchange(near, accept(&target6).await).await;
    }
    until("all connections are closed", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn refusals_have_the_codes_of_the_rfc() {
    let closed = listener().await.local_addr().unwrap().port();
    let unpermitted = listener().await.local_addr().unwrap().port();
    let permits = [format!("localhost:{closed}"), "no-such-name.invalid:1".into()];
    let tunnel = Tunnel::start(&[&permits[0], &permits[1]], &["-D 0"]).await;
    let proxy = tunnel.addresses[0][0];
    assert_eq!(refused(proxy, &v4(unpermitted)).await, 2);
    assert_eq!(refused(proxy, &name("no-such-name.invalid", 1)).await, 4);
    assert_eq!(refused(proxy, &name("not a name", closed)).await, 4);
    assert_eq!(refused(proxy, &v4(closed)).await, 5);
    // BIND and UDP ASSOCIATE.
    assert_eq!(refused(proxy, b"\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50").await, 7);
    assert_eq!(refused(proxy, b"\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50").await, 7);
    assert_eq!(refused(proxy, b"\x05\x01\x00\x09").await, 8);
    assert_eq!(refused(proxy, &v4(0)).await, 1);
}

#[tokio::test]
async fn unsupported_methods_are_refused_and_other_protocols_get_no_reply() {
    let tunnel = Tunnel::start(&["localhost:*"], &["-D 0"]).await;
    for (sent, answer) in [
        (&b"\x05\x01\x02"[..], &b"\x05\xff"[..]),
        (b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", b""),
        (b"GET http://example/ HTTP/1.1\r\n\r\n", b""),
    ] {
        let mut stream = TcpStream::connect(tunnel.addresses[0][0]).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut received = Vec::new();
        // Unread data may reset the connection.
        let _ = within(stream.read_to_end(&mut received)).await;
        assert_eq!(received, answer);
    }
}

#[tokio::test]
async fn resets_pass_both_ways_through_the_proxy() {
    let target = listener().await;
    let port = target.local_addr().unwrap().port();
    let tunnel = Tunnel::start(&["localhost:*"], &["-D 0"]).await;
    let (mut near, _) = request(tunnel.addresses[0][0], &v4(port)).await;
    reset(accept(&target).await);
    assert_reset(&mut near).await;
    let (near, _) = request(tunnel.addresses[0][0], &v4(port)).await;
    let mut far = accept(&target).await;
    reset(near);
    assert_reset(&mut far).await;
}

#[tokio::test]
async fn a_connection_without_a_request_gives_its_place_to_a_newer_one_of_any_listener() {
    let (key, target) = (new_key(), listener().await);
    let at = target.local_addr().unwrap();
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let transport = TransportSettings { forwards_max: 2, ..<_>::default() };
    let local = format!("0:{at}");
    let settings = client_settings(&server, &key, &["-D 0", &local]);
    let client = RunningClient::start(ClientSettings { transport, ..settings }).await;
    let (proxy, entrance) = (client.listeners[0], *client.listeners.last().unwrap());

    let mut oldest = TcpStream::connect(proxy).await.unwrap();
    let mut later = TcpStream::connect(proxy).await.unwrap();
    for silent in [&mut oldest, &mut later] {
        silent.write_all(b"\x05\x01\x00").await.unwrap();
        within(silent.read_exact(&mut [0; 2])).await.unwrap();
    }
    let mut near = TcpStream::connect(entrance).await.unwrap();
    let mut far = accept(&target).await;
    send_bytes_both_ways(&mut near, &mut far).await;
    assert_eq!(read_all(&mut oldest).await.unwrap_or_default(), b"");

    // The other connection keeps its slot.
    later.write_all(&v4(at.port())).await.unwrap();
    within(later.read_exact(&mut [0; 10])).await.unwrap();
    exchange(later, accept(&target).await).await;
}
