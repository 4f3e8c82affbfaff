//! Tests PROXY headers: targets get the source addresses of connections, and listeners accept
//! headers from load balancers.

use std::{net::SocketAddr, time::Duration};

use keypadd_tunnel::{
    ClientSettings, ProxyHeaders, ServerSettings,
    proxy_protocol::{Endpoints, LOCAL_HEADER, decode, encode, wanted},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
};

use crate::support::*;

const SEND: ProxyHeaders = ProxyHeaders { send: true, accept: false };
const ACCEPT: ProxyHeaders = ProxyHeaders { send: false, accept: true };
const BOTH: ProxyHeaders = ProxyHeaders { send: true, accept: true };

/// Addresses of a client behind a load balancer.
fn told() -> Endpoints {
    Endpoints {
        source: "203.0.113.9:40000".parse().unwrap(),
        destination: "198.51.100.1:443".parse().unwrap(),
    }
}

/// A server that permits everything here, and a client with these forwards and headers.
async fn tunnel(headers: ProxyHeaders, forwards: &[&str]) -> (RunningServer, RunningClient) {
    let key = new_key();
    let server = RunningServer::start(key.public(), &["localhost:*", "listen localhost:*"]);
    let settings = client_settings(&server, &key, forwards);
    let client = RunningClient::start(ClientSettings { proxy_headers: headers, ..settings }).await;
    (server, client)
}

/// A tunnel with a forward of this kind to a target, and its listen addresses, on IPv4 and IPv6.
struct Site {
    target: TcpListener,
    entrances: [SocketAddr; 2],
    _tunnel: (RunningServer, RunningClient),
}

impl Site {
    async fn start(headers: ProxyHeaders, is_remote: bool) -> Self {
        let target = listener().await;
        let flag = if is_remote { "-R " } else { "" };
        let forward = format!("{flag}0:{}", target.local_addr().unwrap());
        let tunnel = tunnel(headers, &[&forward]).await;
        let port = if is_remote { tunnel.1.remote_port() } else { tunnel.1.listeners[0].port() };
        let entrances = [([127, 0, 0, 1], port).into(), format!("[::1]:{port}").parse().unwrap()];
        Self { target, entrances, _tunnel: tunnel }
    }

    async fn enter(&self) -> TcpStream {
        TcpStream::connect(self.entrances[0]).await.unwrap()
    }
}

/// Reads the header at the start of a connection.
async fn header(stream: &mut (impl AsyncRead + Unpin)) -> Option<Endpoints> {
    let mut header = Vec::new();
    loop {
        let read = header.len();
        match wanted(&header).expect("a header") {
            0 => return decode(&header).expect("a header"),
            wanted => header.resize(read + wanted, 0),
        }
        within(stream.read_exact(&mut header[read..])).await.unwrap();
    }
}

#[tokio::test]
async fn a_target_is_told_the_client_through_local_and_remote_forwards_of_both_families() {
    for is_remote in [false, true] {
        let site = Site::start(SEND, is_remote).await;
        for entrance in site.entrances {
            let near = TcpStream::connect(entrance).await.unwrap();
            let client = near.local_addr().unwrap();
            let mut far = accept(&site.target).await;
            let told = Endpoints { source: client, destination: entrance };
            assert_eq!(header(&mut far).await, Some(told), "remote: {is_remote}");
            // Nothing else is added to the bytes.
            exchange(near, far).await;
        }
    }
}

#[tokio::test]
async fn connections_without_an_address_begin_with_a_local_header_and_those_of_d_with_none() {
    let (directory, target) = (tempfile::tempdir().unwrap(), listener().await);
    let (at, path) = (target.local_addr().unwrap(), directory.path().join("x.sock"));
    let forwards = [format!("{}:{at}", path.display()), "-D 0".into()];
    let (_server, client) = tunnel(SEND, &[&forwards[0], &forwards[1]]).await;
    let mut near = UnixStream::connect(&path).await.unwrap();
    let mut far = accept(&target).await;
    let mut begin = [0; LOCAL_HEADER.len()];
    within(far.read_exact(&mut begin)).await.unwrap();
    assert_eq!(begin, LOCAL_HEADER);
    send_bytes_both_ways(&mut near, &mut far).await;

    let mut near = TcpStream::connect(client.listeners[0]).await.unwrap();
    let request = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &at.port().to_be_bytes()].concat();
    near.write_all(&request).await.unwrap();
    let mut far = accept(&target).await;
    within(near.read_exact(&mut [0; 12])).await.unwrap();
    send_bytes_both_ways(&mut near, &mut far).await;
}

#[tokio::test]
async fn a_header_that_is_accepted_is_sent_on_whoever_listens() {
    let version_1 = b"PROXY TCP4 203.0.113.9 198.51.100.1 40000 443\r\n".to_vec();
    for is_remote in [false, true] {
        let site = Site::start(BOTH, is_remote).await;
        for begin in [encode(Some(told())), version_1.clone()] {
            let mut near = site.enter().await;
            // Together with the first bytes in one packet.
            near.write_all(&[&begin[..], b"early"].concat()).await.unwrap();
            let mut far = accept(&site.target).await;
            assert_eq!(header(&mut far).await, Some(told()), "remote: {is_remote}");
            let mut early = [0; 5];
            within(far.read_exact(&mut early)).await.unwrap();
            assert_eq!(&early, b"early");
            exchange(near, far).await;
        }
        // A load balancer's health check: the connection's own addresses count.
        let mut near = site.enter().await;
        near.write_all(&LOCAL_HEADER).await.unwrap();
        let mut far = accept(&site.target).await;
        let source = near.local_addr().unwrap();
        assert_eq!(header(&mut far).await.map(|told| told.source), Some(source));
    }
}

#[tokio::test]
async fn a_header_may_come_byte_by_byte_and_is_taken_off() {
    let site = Site::start(ACCEPT, false).await;
    let mut near = site.enter().await;
    near.set_nodelay(true).unwrap();
    for byte in encode(Some(told())) {
        near.write_u8(byte).await.unwrap();
        tokio::task::yield_now().await;
    }
    exchange(near, accept(&site.target).await).await;
}

#[tokio::test]
async fn who_sends_no_header_is_closed_and_keeps_nobody_waiting() {
    for is_remote in [false, true] {
        let site = Site::start(ACCEPT, is_remote).await;
        // One sends nothing, one starts and stops, one speaks another protocol, one hangs up.
        let (mut silent, mut slow) = (site.enter().await, site.enter().await);
        slow.write_all(&encode(Some(told()))[..20]).await.unwrap();
        let mut other = site.enter().await;
        other.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        drop(site.enter().await);
        let mut good = site.enter().await;
        good.write_all(&LOCAL_HEADER).await.unwrap();
        let mut far = accept(&site.target).await;
        send_bytes_both_ways(&mut good, &mut far).await;
        for refused in [&mut other, &mut silent, &mut slow] {
            assert_eq!(read_all(refused).await.unwrap_or_default(), b"", "remote: {is_remote}");
        }
        // None of them reached the target.
        let mut next = site.enter().await;
        next.write_all(&LOCAL_HEADER).await.unwrap();
        send_bytes_both_ways(&mut next, &mut accept(&site.target).await).await;
    }
}

#[tokio::test]
async fn a_connection_without_a_header_gives_its_place_to_a_newer_one() {
    for is_remote in [false, true] {
        let (key, target) = (new_key(), listener().await);
        let permits = ["localhost:*", "listen localhost:*"];
        let adjust = |settings: &mut ServerSettings| settings.transport.forwards_max = 2;
        let server = RunningServer::start_with(key.public(), &permits, adjust);
        let flag = if is_remote { "-R " } else { "" };
        let forward = format!("{flag}0:{}", target.local_addr().unwrap());
        let mut settings = client_settings(&server, &key, &[&forward]);
        settings.transport.forwards_max = 2;
        let settings = ClientSettings { proxy_headers: ACCEPT, ..settings };
        let client = RunningClient::start(settings).await;
        let port = if is_remote { client.remote_port() } else { client.listeners[0].port() };
        let enter = || TcpStream::connect(("127.0.0.1", port));

        let (mut oldest, mut later) = (enter().await.unwrap(), enter().await.unwrap());
        let mut near = enter().await.unwrap();
        near.write_all(&LOCAL_HEADER).await.unwrap();
        send_bytes_both_ways(&mut near, &mut accept(&target).await).await;
        assert_eq!(read_all(&mut oldest).await.unwrap_or_default(), b"", "remote: {is_remote}");

        // The other connection keeps its slot.
        later.write_all(&LOCAL_HEADER).await.unwrap();
        exchange(later, accept(&target).await).await;
    }
}

#[tokio::test]
async fn headers_change_while_connections_stay() {
    let target = listener().await;
    let at = target.local_addr().unwrap();
    let port = listener().await.local_addr().unwrap().port();
    let forwards = [format!("0:{at}"), format!("-R {port}:{at}")];
    let forwards = [&*forwards[0], &*forwards[1]];
    let (_server, client) = tunnel(ProxyHeaders::default(), &forwards).await;
    let entrances = [client.listeners[0], ([127, 0, 0, 1], port).into()];
    let mut before = Vec::new();
    for entrance in entrances {
        let near = TcpStream::connect(entrance).await.unwrap();
        before.push((near, accept(&target).await));
    }
    client.set_proxy_headers(SEND);
    client.set_forwards(&forwards).await;
    for entrance in entrances {
        // The server closes its listener before it opens another.
        let told = loop {
            let Ok(mut near) = TcpStream::connect(entrance).await else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let mut far = accept(&target).await;
            near.write_all(b"no PROXY hd").await.unwrap();
            near.shutdown().await.unwrap();
            let received = read_all(&mut far).await.unwrap();
            match decode(&received[..received.len() - 11]) {
                Ok(told) => break told,
                Err(_) => assert_eq!(received, b"no PROXY hd"),
            }
        };
        assert_eq!(told.map(|told| told.destination), Some(entrance));
    }
    for (near, far) in before {
        exchange(near, far).await;
    }
}
