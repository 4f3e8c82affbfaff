//! Tests bulk streams on their own connection, and streams that are not read.

use std::{net::SocketAddr, time::Duration};

use keypadd_tunnel::{RateCap, TransportSettings};
use testbed::LineSettings;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{hold::holding, support::*};

/// Transfers data both ways at once and compares.
async fn transfer_both_ways(here: &mut TcpStream, there: &mut TcpStream, seed: u64, bytes: usize) {
    let (up, down) = (noise(seed, bytes), noise(seed + 1, bytes));
    let (mut up_received, mut down_received) = (vec![0; bytes], vec![0; bytes]);
    let (mut here_reads, mut here_writes) = here.split();
    let (mut there_reads, mut there_writes) = there.split();
    let (one, two, three, four) = within(async {
        tokio::join!(
            here_writes.write_all(&up),
            there_reads.read_exact(&mut up_received),
            there_writes.write_all(&down),
            here_reads.read_exact(&mut down_received),
        )
    })
    .await;
    one.and(two).and(three).and(four).unwrap();
    assert!(up == up_received && down == down_received, "seed {seed}");
}

/// The number of connections of the server's only session.
fn connections(tunnel: &Tunnel) -> usize {
    tunnel.server.sessions.live().first().map_or(0, |session| session.keys().count())
}

/// A tunnel that has carried a keystroke, and what `send` sends from there, on one connection. On a
/// starved machine the round trip may look like a long path's, where another is made: tries again.
async fn on_one_connection(
    send: impl AsyncFn(&mut TcpStream),
) -> (TcpListener, Tunnel, TcpStream, TcpStream) {
    for _ in 0..10 {
        let (target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
        send_bytes_both_ways(&mut here, &mut there).await;
        send(&mut there).await;
        if connections(&tunnel) == 1 {
            return (target, tunnel, here, there);
        }
    }
    panic!("it needs a second connection");
}

#[tokio::test]
async fn bulk_moves_to_a_connection_of_its_own_and_back_without_losing_a_byte() {
    let (_target, tunnel, mut here, mut there) = on_one_connection(async |_| ()).await;
    for round in 0..3 {
        transfer_both_ways(&mut here, &mut there, 2 * round, 8 << 20).await;
        until("there is a bulk connection", || connections(&tunnel) == 2).await;
        // Both directions return to the sparse connection meanwhile.
        sleep(Duration::from_millis(1500)).await;
        send_bytes_both_ways(&mut here, &mut there).await;
    }
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"");
    let late = noise(9, 3_000_001);
    let answering = async {
        there.write_all(&late).await.unwrap();
        there.shutdown().await.unwrap();
    };
    let (_, received) = tokio::join!(answering, read_all(&mut here));
    assert!(received.unwrap() == late);
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn both_connections_of_a_session_send_no_more_than_the_peers_cap_together() {
    const RATE: u64 = 400_000;
    const BYTES: usize = 1_200_000;
    let target = listener().await;
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let cap = RateCap::new(None);
    let transport = TransportSettings { rate_cap: Some(cap.clone()), ..<_>::default() };
    let tunnel = Tunnel::start_with(&["localhost:*"], &[forward], transport).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    transfer_both_ways(&mut here, &mut there, 1, 8 << 20).await;
    until("there is a bulk connection", || connections(&tunnel) == 2).await;
    let mut other_here = tunnel.enter().await;
    let mut other_there = accept(&target).await;
    cap.set(Some(RATE));
    let began = std::time::Instant::now();
    let (one, other) = (
        transfer_one_way(&mut here, &mut there, BYTES),
        transfer_one_way(&mut other_here, &mut other_there, BYTES),
    );
    tokio::join!(one, other);
    // What had left before is in sockets' buffers. However slow the machine is, this takes longer.
    let least = (2 * BYTES as u64 - (64 << 10)) as f64 / RATE as f64;
    assert!(began.elapsed().as_secs_f64() > least, "{:?}", began.elapsed());
}

/// Sends this many bytes from here to there.
async fn transfer_one_way(here: &mut TcpStream, there: &mut TcpStream, bytes: usize) {
    let (sent, mut received) = (noise(3, bytes), vec![0; bytes]);
    let (one, two) =
        within(async { tokio::join!(here.write_all(&sent), there.read_exact(&mut received)) })
            .await;
    one.unwrap();
    two.unwrap();
    assert!(sent == received);
}

#[tokio::test]
async fn a_bulk_stream_that_is_reset_at_either_end_is_reset_at_the_other() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    for cut_here in [true, false] {
        let mut here = tunnel.enter().await;
        let mut there = accept(&target).await;
        transfer_both_ways(&mut here, &mut there, 3, 4 << 20).await;
        let (cut, mut left) = if cut_here { (here, there) } else { (there, here) };
        reset(cut);
        assert_reset(&mut left).await;
    }
    until("both ends have closed them", || tunnel.open() == (0, 0)).await;
    // The session still works.
    let mut here = tunnel.enter().await;
    assert_reaches(&mut here, &target).await;
}

#[tokio::test]
async fn streams_that_are_not_read_do_not_affect_others() {
    const STALLED: usize = 80;
    const BYTES: usize = 4 << 20;
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut held = Vec::new();
    let mut writing = JoinSet::new();
    for number in 0..2 * STALLED {
        let mut here = tunnel.enter().await;
        let mut there = accept(&target).await;
        // A quarter of them have been read for a while and have become bulk.
        if number % 4 == 0 {
            transfer_both_ways(&mut here, &mut there, number as u64, 512 << 10).await;
        }
        let (mut writes, unread) = if number % 2 == 0 { (here, there) } else { (there, here) };
        held.push(unread);
        writing.spawn(async move {
            let _ = writes.write_all(&vec![0x5a; 2 * BYTES]).await;
            writes
        });
    }
    until("all streams are open", || tunnel.open().0 >= 2 * STALLED as u64).await;
    sleep(Duration::from_millis(500)).await;

    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    for _ in 0..20 {
        send_bytes_both_ways(&mut here, &mut there).await;
    }
    transfer_both_ways(&mut here, &mut there, 7, 16 << 20).await;
    drop((held, writing));
}

#[tokio::test]
async fn stopped_readers_that_hold_many_windows_leave_the_others_theirs() {
    const STALLED: usize = 150;
    let transport = TransportSettings {
        // Moves that the peer cannot follow use up to 4 MiB.
        receive_window_bytes: 5 << 20,
        stream_receive_window_bytes: 128 << 10,
        ..<_>::default()
    };
    let target = listener().await;
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let tunnel = Tunnel::start_with(&["localhost:*"], &[forward], transport).await;
    let mut held = Vec::new();
    let mut writing = JoinSet::new();
    for number in 0..2 * STALLED {
        let mut here = tunnel.enter().await;
        let mut there = accept(&target).await;
        // By now they are bulk, so each holds its window of the bulk connection.
        transfer_both_ways(&mut here, &mut there, number as u64, 256 << 10).await;
        let (mut writes, unread) = if number % 2 == 0 { (here, there) } else { (there, here) };
        held.push(unread);
        writing.spawn(async move {
            let _ = writes.write_all(&vec![0x5a; 8 << 20]).await;
            writes
        });
    }
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    transfer_both_ways(&mut here, &mut there, 7, 16 << 20).await;
    drop((held, writing));
}

#[tokio::test]
async fn local_and_remote_forwards_may_all_be_bulk_at_once() {
    const FORWARDS: u32 = 8;
    let transport = TransportSettings { forwards_max: FORWARDS, ..holding() };
    let [local, remote] = [listener().await, listener().await];
    let (key, to) = (new_key(), |target: &TcpListener| target.local_addr().unwrap());
    let server = RunningServer::start_with(
        key.public(),
        &["localhost:*", "listen localhost:*"],
        |settings| {
            settings.transport = transport.clone();
        },
    );
    let forwards = [format!("0:{}", to(&local)), format!("-R 0:{}", to(&remote))];
    let mut settings = client_settings(&server, &key, &forwards.each_ref().map(String::as_str));
    settings.transport = transport;
    let client = RunningClient::start(settings).await;

    let mut serving = JoinSet::new();
    let mut downloads = Vec::new();
    for seed in 0..FORWARDS {
        let mut download = TcpStream::connect(client.listeners[0]).await.unwrap();
        let mut serves = accept(&local).await;
        transfer_both_ways(&mut download, &mut serves, seed.into(), 4 << 20).await;
        downloads.push(download);
        serving.spawn(async move {
            // So that it stays bulk.
            while serves.write_all(b"z").await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        });
    }
    let mut stranger = TcpStream::connect(("127.0.0.1", client.remote_port())).await.unwrap();
    let mut answers = accept(&remote).await;
    transfer_both_ways(&mut stranger, &mut answers, 2, 8 << 20).await;
    drop(downloads);
    within(serving.join_all()).await;
}

/// A listener whose connections have little room for what is not read.
fn slow_listener() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(1024).unwrap()
}

#[tokio::test]
async fn nearly_all_connections_may_have_stopped_readers_that_leave_the_others_theirs() {
    // Local and remote ones whose bytes come to rest at the server. Less than makes a stream bulk.
    const BYTES: usize = 380_000;
    for (forwards_max, locals, remotes) in [(200, 196, 0), (64, 60, 60)] {
        let transport = TransportSettings { forwards_max, ..<_>::default() };
        let [target, stopped, remote] = [listener().await, slow_listener(), listener().await];
        let to = |target: &TcpListener| target.local_addr().unwrap();
        let forwards = [format!("0:{}", to(&target)), format!("0:{}", to(&stopped))];
        let forwards = [&*forwards[0], &*forwards[1], &format!("-R 0:{}", to(&remote))];
        let permits = ["localhost:*", "listen localhost:*"];
        let key = new_key();
        let server = RunningServer::start_with(key.public(), &permits, |settings| {
            settings.transport = transport.clone();
        });
        let mut settings = client_settings(&server, &key, &forwards);
        settings.transport = transport;
        let client = RunningClient::start(settings).await;
        let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
        let mut there = accept(&target).await;

        let (mut unread, mut writing) = (Vec::new(), JoinSet::new());
        let mut write = |mut to: TcpStream| {
            writing.spawn(async move {
                let _ = to.write_all(&vec![0x5a; BYTES]).await;
                to
            });
        };
        for _ in 0..locals {
            write(TcpStream::connect(client.listeners[1]).await.unwrap());
            unread.push(accept(&stopped).await);
        }
        for _ in 0..remotes {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4 << 10).unwrap();
            let port = SocketAddr::from(([127, 0, 0, 1], client.remote_port()));
            unread.push(within(socket.connect(port)).await.unwrap());
            write(accept(&remote).await);
        }
        sleep(Duration::from_millis(500)).await;
        for _ in 0..20 {
            send_bytes_both_ways(&mut here, &mut there).await;
        }
        for seed in 0..40 {
            transfer_both_ways(&mut here, &mut there, seed, 128 << 10).await;
        }
    }
}

#[tokio::test]
async fn a_distant_peer_has_its_bulk_connection_before_there_is_bulk() {
    let (target, key) = (listener().await, new_key());
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    let relay = relayed(&server, &mut settings).await;
    relay.set_both(LineSettings { delay: Duration::from_millis(40), ..<_>::default() });
    let client = RunningClient::start(settings).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    assert_reaches(&mut here, &target).await;
    let made = || server.sessions.live().iter().any(|session| session.keys().count() == 2);
    until("a keystroke makes the bulk connection", made).await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_needs_no_bulk_connection() {
    let (_target, tunnel, mut here, mut there) = on_one_connection(async |there| {
        // Until both kernels' buffers and the stream's window are full.
        while timeout(Duration::from_secs(1), there.write_all(&[0x5a; 64 << 10])).await.is_ok() {}
    })
    .await;
    // Once read, it becomes bulk.
    let reading = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            assert!(here.read(&mut buffer).await.unwrap() > 0);
        }
    };
    let writing = async {
        let block = vec![0x5a; 64 << 10];
        while connections(&tunnel) == 1 {
            there.write_all(&block).await.unwrap();
        }
    };
    within(async {
        tokio::select! { () = writing => {}, () = reading => {} }
    })
    .await;
}
