//! Tests many concurrent connections, and readers that stop.

use std::{iter, net::SocketAddr};

use keypadd_tunnel::TransportSettings;
use socket2::{Domain, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connections_at_once_carry_their_own_bytes() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = target.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            });
        }
    });
    let listener_address = tunnel.addresses[0][0];
    let mut transfers = JoinSet::new();
    for seed in 0..200 {
        transfers.spawn(async move {
            let sent = noise(seed, 60_000 + seed as usize);
            let mut stream = TcpStream::connect(listener_address).await.unwrap();
            let (mut reader, mut writer) = stream.split();
            let mut received = Vec::new();
            let send = async {
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            };
            let (_, read) = tokio::join!(send, reader.read_to_end(&mut received));
            read.unwrap();
            assert!(received == sent, "connection {seed}");
        });
    }
    within(transfers.join_all()).await;
    until("both ends have closed them", || tunnel.open() == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_blocks_only_its_writer() {
    // Upper bound for four socket buffers.
    const KERNEL_BYTES: usize = 40 << 20;
    const OFFERED: usize = 1 << 30;
    let windows = TransportSettings { stream_receive_window_bytes: 256 << 10, ..<_>::default() };
    let target = listener().await;
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let tunnel = Tunnel::start_with(&["localhost:*"], &[forward], windows).await;

    let mut held = tunnel.enter().await;
    let mut slow = accept(&target).await;
    let written = write_until_stuck(&mut held, OFFERED).await;
    assert!(written < KERNEL_BYTES, "{written} bytes written without a reader");

    // Another connection is not affected.
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    here.write_all(&noise(1, 1 << 20)).await.unwrap();
    here.shutdown().await.unwrap();
    assert!(read_all(&mut there).await.unwrap() == noise(1, 1 << 20));

    // Nothing that was written is lost.
    held.shutdown().await.unwrap();
    let mut arrived = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let bytes = within(slow.read(&mut buffer)).await.unwrap();
        if bytes == 0 {
            break;
        }
        assert!(buffer[..bytes].iter().all(|&byte| byte == 0x5a));
        arrived += bytes;
    }
    assert_eq!(arrived, written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_listeners_hold_no_slots() {
    let transport = TransportSettings { forwards_max: 1, ..<_>::default() };
    let target = listener().await;
    let used: &str = &format!("0:{}", target.local_addr().unwrap());
    let forwards = ["0:idle.example:1", "0:idle.example:2", used];
    let tunnel = Tunnel::start_with(&["localhost:*"], &forwards, transport).await;
    let mut here = TcpStream::connect(tunnel.addresses[2][0]).await.unwrap();
    let mut there = accept(&target).await;
    send_byte(&mut here, &mut there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_slots_wait() {
    let transport = TransportSettings { forwards_max: 4, ..<_>::default() };
    let target = listener().await;
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let tunnel = Tunnel::start_with(&["localhost:*"], &[forward], transport).await;
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = target.accept().await.unwrap();
            tokio::spawn(async move {
                stream.write_u8(3).await.unwrap();
                // Holds its slot until the client closes.
                read_all(&mut stream).await
            });
        }
    });
    let mut here = Vec::new();
    for _ in 0..12 {
        here.push(tunnel.enter().await);
    }
    // The listener's queue is served in order, four at a time.
    for mut here in here {
        assert_eq!(within(here.read_u8()).await.unwrap(), 3);
        assert!(open(&tunnel.client_sessions) <= 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_at_the_limit_makes_room_for_the_next_at_once() {
    const LIMIT: u32 = 64;
    let transport = TransportSettings { forwards_max: LIMIT, ..<_>::default() };
    let target = listener().await;
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let tunnel = Tunnel::start_with(&["localhost:*"], &[forward], transport).await;
    let mut open = Vec::new();
    for _ in 0..LIMIT {
        open.push((tunnel.enter().await, accept(&target).await));
    }
    // Fewer connections than the streams that QUIC grants without request.
    for _ in 0..3 {
        drop(open.pop());
        until("the connection has ended", || {
            tunnel.open() == (u64::from(LIMIT) - 1, u64::from(LIMIT) - 1)
        })
        .await;
        open.push((tunnel.enter().await, accept(&target).await));
    }
}

#[tokio::test]
async fn connections_of_other_processes_that_wait_leave_places_to_forwards() {
    let (key, target) = (new_key(), listener().await);
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward = format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[&forward]);
    settings.transport.forwards_max = 8;
    let (client, session) = connect_client(settings).await;
    let (carrier, entrance) = (client.carrier(), addresses(&client)[0][0]);
    let running = client.run(Some(session), std::future::pending());
    let carried = async {
        until("it has a session", || carrier.slot(|_| true).is_some()).await;
        let waiting: Vec<_> = iter::from_fn(|| carrier.slot(|_| true)).collect();
        assert_eq!(waiting.len(), 5);
        let _here = TcpStream::connect(entrance).await.unwrap();
        accept(&target).await;
    };
    tokio::select! {
        () = carried => {}
        () = running => {}
    }
}

#[tokio::test]
async fn a_forward_whose_target_does_not_answer_leaves_places_to_the_others() {
    // Its queue is full: the system drops what else comes.
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    silent.listen(0).unwrap();
    let silent_at = silent.local_addr().unwrap().as_socket().unwrap();
    let _queued = TcpStream::connect(silent_at).await.unwrap();
    let target = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    target.set_nonblocking(true).unwrap();

    // The other end may allow fewer.
    for (is_remote, maxima) in [(false, [8, 8]), (true, [8, 8]), (false, [64, 8]), (true, [8, 64])]
    {
        let transports =
            maxima.map(|forwards_max| TransportSettings { forwards_max, ..<_>::default() });
        let mut forwards = Vec::new();
        for at in [silent_at, target.local_addr().unwrap()] {
            let port = listener().await.local_addr().unwrap().port();
            forwards.push(format!("{}{port}:{at}", if is_remote { "-R " } else { "" }));
        }
        let entrances = forwards.iter().map(|forward| {
            let port = forward.trim_start_matches("-R ").split(':').next().unwrap();
            SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()))
        });
        let entrances: Vec<_> = entrances.collect();
        let forwards: Vec<_> = forwards.iter().map(String::as_str).collect();
        let permits = ["localhost:*", "listen localhost:*"];
        let tunnel = Tunnel::start_between(transports, &permits, &forwards).await;
        let mut waiting = Vec::new();
        for at in &entrances {
            until("it listens", || {
                std::net::TcpStream::connect(at).map(|it| waiting.push(it)).is_ok()
            })
            .await;
        }
        until("the target is reached", || target.accept().is_ok()).await;
        for _ in 0..20 {
            waiting.push(std::net::TcpStream::connect(entrances[0]).unwrap());
        }
        until("they wait for the target", || tunnel.open().0.max(tunnel.open().1) >= 5).await;
        for _ in 0..20 {
            let _here = TcpStream::connect(entrances[1]).await.unwrap();
            until_without_timeouts("the other target is reached", || target.accept().is_ok()).await;
        }
    }
}
