//! Tests that every byte arrives once and in order.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, UdpSocket},
    os::unix::net::UnixStream,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use keypadd_transport::Receipt;
use tokio::time::timeout;

use crate::held::{HANG, Held};

/// A path to a server that drops one in fifty full packets; returns its address.
fn lossy_path(server: SocketAddr) -> SocketAddr {
    let [near, far] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let address = near.local_addr().unwrap();
    far.connect(server).unwrap();
    let ends = Arc::new((near, far, OnceLock::new()));
    let mut passed = 0;
    let mut passes = move |datagram: &[u8]| {
        // Short headers only (RFC 9000 17.3.1): handshakes would have to wait for timeouts.
        let is_full = datagram.len() > 1_000 && datagram[0] & 0x80 == 0;
        passed += usize::from(is_full);
        !is_full || passed % 50 != 0
    };
    let (there, back, mut passes_back) = (Arc::clone(&ends), ends, passes);
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok((bytes, client)) = there.0.recv_from(&mut buffer) {
            there.2.get_or_init(|| client);
            if passes(&buffer[..bytes]) {
                let _ = there.1.send(&buffer[..bytes]);
            }
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok(bytes) = back.1.recv(&mut buffer) {
            if let Some(client) = back.2.get()
                && passes_back(&buffer[..bytes])
            {
                let _ = back.0.send_to(&buffer[..bytes], client);
            }
        }
    });
    address
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(next).collect()
}

/// Sends these both ways, each ended by a half-close, and compares.
fn exchange(programs: &[UnixStream; 2], sent: [&[u8]; 2], mut meanwhile: impl FnMut()) {
    let done = AtomicBool::new(false);
    for program in programs {
        program.set_read_timeout(Some(HANG)).unwrap();
        program.set_write_timeout(Some(HANG)).unwrap();
    }
    thread::scope(|scope| {
        let transfers: Vec<_> = [(0, 1), (1, 0)]
            .map(|(from, to)| {
                let (mut writer, bytes) = (&programs[from], sent[from]);
                scope.spawn(move || {
                    for piece in bytes.chunks(10_007) {
                        writer.write_all(piece).unwrap();
                    }
                    writer.shutdown(Shutdown::Write).unwrap();
                });
                let mut reader = &programs[to];
                scope.spawn(move || {
                    let mut received = Vec::new();
                    reader.read_to_end(&mut received).unwrap();
                    assert!(received == sent[from], "end {from}: {} bytes", received.len());
                })
            })
            .into();
        scope.spawn(|| {
            let outcomes: Vec<_> = transfers.into_iter().map(|transfer| transfer.join()).collect();
            done.store(true, SeqCst);
            assert!(outcomes.iter().all(Result::is_ok), "a transfer failed");
        });
        while !done.load(SeqCst) {
            meanwhile();
        }
    });
}

/// Exchanges bytes while connections are lost one after another, in ways that `lose` chooses by
/// their number.
fn exchange_over_many(mut held: Held, bytes: usize, mut lose: impl FnMut(&mut Held, usize)) {
    let programs = held.splice();
    let (up, down) = (noise(1, bytes + 3), noise(2, bytes * 3 / 4 + 1));
    let mut losses = 0;
    exchange(&programs, [&up, &down], || {
        thread::sleep(Duration::from_millis(10));
        lose(&mut held, losses);
        held.reconnect();
        held.resume();
        losses += 1;
    });
    assert!(losses > 3, "{losses} connections were lost");
    held.until_over();
}

#[test]
fn a_stream_goes_on_over_other_connections_byte_for_byte() {
    exchange_over_many(Held::new(), 40_000_000, |held, losses| held.lose(losses % 2));
}

#[test]
fn a_stream_goes_on_in_other_processes_byte_for_byte() {
    exchange_over_many(Held::new(), 20_000_000, |held, losses| {
        held.lose(losses % 2);
        held.replace(losses % 2);
        if losses % 3 == 0 {
            held.replace(1 - losses % 2);
        }
    });
}

#[test]
fn a_preface_goes_on_as_the_bytes_of_its_socket_do() {
    let mut held = Held::new();
    let preface = noise(3, 1_000_000);
    let programs = held.splice_with_preface(preface.clone());
    let mut begin = vec![0; preface.len()];
    // Part of it has been sent when the first connection is lost, and all of it when the last one
    // is.
    for piece in begin.chunks_mut(300_000) {
        held.lose(0);
        held.reconnect();
        held.resume();
        programs[1].set_read_timeout(Some(HANG)).unwrap();
        (&programs[1]).read_exact(piece).unwrap();
    }
    assert!(begin == preface);
    held.lose(1);
    held.reconnect();
    held.resume();
    exchange(&programs, [b"its own", &noise(4, 100_000)], thread::yield_now);
    held.until_over();
}

#[test]
fn a_stream_with_gaps_goes_on_over_other_connections_byte_for_byte() {
    let held = Held::over(16 << 20, lossy_path);
    exchange_over_many(held, 20_000_000, |held, losses| held.lose(losses % 2));
}

#[test]
fn a_stream_that_is_not_resumed_stays_as_it_was_whatever_attempts_fail() {
    let mut held = Held::new();
    let [mut near, mut far] = held.splice();
    near.write_all(b"a").unwrap();
    far.read_exact(&mut [0]).unwrap();
    held.lose(0);
    near.write_all(b"bc").unwrap();
    let name = held.streams[0].names()[0];
    // The client accepts and gives up; then both accept, and their connection is lost before they
    // resume.
    held.pair.control.block_on(async {
        drop(timeout(HANG, held.streams[0].take(name)).await.unwrap());
    });
    for _ in 0..3 {
        held.reconnect();
        let streams = held.pair.open(&held.ends);
        held.lose(1);
        held.pair.control.block_on(async {
            for (stream, streams) in streams.into_iter().zip(&held.streams) {
                let one = timeout(HANG, streams.take(name)).await.unwrap().unwrap();
                let receipt = Receipt { bytes: 1, end: false };
                timeout(HANG, stream.resume(one, receipt)).await.unwrap();
            }
        });
    }
    held.reconnect();
    held.resume();
    let mut received = [0; 2];
    far.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"bc");
}

#[test]
fn an_unread_stream_fills_its_buffer_and_stops_nobody() {
    let mut held = Held::with_buffers(64 << 10);
    let (stalled, mut live) = (held.splice(), held.splice());
    stalled[0].set_nonblocking(true).unwrap();
    let mut written = 0;
    let block = noise(3, 64 << 10);
    // Until the socket has accepted nothing for a while.
    let mut quiet = 0;
    while quiet < 50 {
        match (&stalled[0]).write(&block[..1_000]) {
            Ok(bytes) => {
                assert_eq!(bytes, 1_000);
                (written, quiet) = (written + bytes, 0);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                quiet += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(held.streams[0].kept_bytes() <= 64 << 10, "{}", held.streams[0].kept_bytes());
    for _ in 0..2 {
        let [near, far] = &mut live;
        near.write_all(b"k").unwrap();
        far.read_exact(&mut [0]).unwrap();
        held.lose(0);
        held.reconnect();
        held.resume();
    }
    let mut received = vec![0; written];
    (&stalled[1]).read_exact(&mut received).unwrap();
    assert!(received.chunks(1_000).all(|piece| piece == &block[..1_000]));
}
