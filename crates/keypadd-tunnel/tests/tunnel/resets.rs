//! Tests that a reset at one end is a reset at the other, even while no data flows.

use std::{future::pending, io};

use keypadd_keystream::Suite;
use keypadd_provider::client_config;
use keypadd_tunnel::wire::StreamCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixListener},
    task::JoinSet,
};

use crate::{hostile::*, support::*};

/// More than all buffers and windows hold.
const MORE_THAN_BUFFERS: usize = 1 << 30;

#[tokio::test]
async fn a_reset_client_resets_the_target() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    send_byte(&mut here, &mut there).await;
    reset(here);
    assert_reset(&mut there).await;
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_reset_target_resets_the_client() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    send_byte(&mut there, &mut here).await;
    reset(there);
    assert_reset(&mut here).await;
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_target_reset_after_the_client_finished_resets_the_client() {
    let (_target, _tunnel, mut here, mut there) = Tunnel::with_connection().await;
    here.write_all(b"all").await.unwrap();
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"all");
    reset(there);
    assert_reset(&mut here).await;
}

#[tokio::test]
async fn a_client_that_closes_before_the_target_answers_is_reset_not_shut_down() {
    let (server_key, key) = (new_key(), new_key());
    let settings = crypto(&server_key, Suite::AES_128_GCM);
    let (endpoint, address, server_key) = raw_server(&settings, key.public());
    let crypto = client_config(&crypto(&key, Suite::AES_128_GCM), server_key).unwrap();
    let settings = settings_for(address, crypto, vec![forward("0:localhost:22")]);
    let ((client, session), server) =
        tokio::join!(connect_client(settings), RawPeer::accept(endpoint));
    let here = addresses(&client)[0][0];
    let _running = tokio::spawn(async move { client.run(Some(session), pending()).await });
    let here = TcpStream::connect(here).await.unwrap();
    let (_send, mut recv) = within(server.connection.accept_bi()).await.unwrap();
    drop(here);
    let code = within(recv.received_reset()).await.unwrap().expect("a reset");
    assert_eq!(StreamCode::from_value(code.into_inner()), StreamCode::Reset);
}

#[tokio::test]
async fn a_reset_passes_while_the_target_does_not_read() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    assert!(write_until_stuck(&mut here, MORE_THAN_BUFFERS).await < MORE_THAN_BUFFERS);
    reset(here);
    // The target has not read, so only the reset can have closed it.
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
    assert_reset(&mut there).await;
}

#[tokio::test]
async fn a_reset_passes_while_the_client_does_not_read() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    assert!(write_until_stuck(&mut there, MORE_THAN_BUFFERS).await < MORE_THAN_BUFFERS);
    reset(there);
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
    assert_reset(&mut here).await;
}

#[tokio::test]
async fn a_reset_reaches_a_target_that_has_finished_when_it_reads() {
    let (_target, tunnel, mut here, mut there) = Tunnel::with_connection().await;
    there.shutdown().await.unwrap();
    assert_eq!(read_all(&mut here).await.unwrap(), b"");
    assert!(write_until_stuck(&mut here, MORE_THAN_BUFFERS).await < MORE_THAN_BUFFERS);
    reset(here);
    assert_reset(&mut there).await;
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_reset_by_the_reader_ends_a_blocked_writer() {
    let (_target, tunnel, mut here, there) = Tunnel::with_connection().await;
    assert!(write_until_stuck(&mut here, MORE_THAN_BUFFERS).await < MORE_THAN_BUFFERS);
    reset(there);
    assert_reset(&mut here).await;
    until("both ends have closed it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_client_that_closes_without_reading_the_answer_leaves_nothing_behind() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    for _ in 0..20 {
        let mut here = tunnel.enter().await;
        let mut there = accept(&target).await;
        here.write_all(b"all").await.unwrap();
        here.shutdown().await.unwrap();
        assert_eq!(read_all(&mut there).await.unwrap(), b"all");
        there.write_all(&[0x5a; 20_000]).await.unwrap();
        there.shutdown().await.unwrap();
        // Its kernel has the answer, and resets.
        here.readable().await.unwrap();
        drop(here);
    }
    until("both ends have closed them", || tunnel.open() == (0, 0)).await;
}

/// An answer shorter than a packet, and one of several packets.
const ANSWERS: [usize; 2] = [300, 20_000];

/// An answer that becomes bulk. A TCP target that closes loses the part its kernel has not sent.
const UNIX_ANSWER: usize = 3 << 20;

/// Answers after the first byte, and closes without reading the rest, which makes the kernel reset
/// the connection.
async fn answer_early(mut there: impl AsyncReadExt + AsyncWriteExt + Unpin, answer: &[u8]) {
    there.read_u8().await.unwrap();
    there.write_all(answer).await.unwrap();
}

/// Sends a request of many packets and reads until the reset; returns what arrived before it.
async fn ask(mut here: TcpStream) -> Vec<u8> {
    let _ = here.write_all(&[0x5a; 20_000]).await;
    let mut received = Vec::new();
    let error = here.read_to_end(&mut received).await.expect_err("ended in order");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    received
}

#[tokio::test]
async fn what_a_target_sends_before_its_reset_arrives() {
    let directory = tempfile::tempdir().unwrap();
    let unix = directory.path().join("target");
    let unix_target = UnixListener::bind(&unix).unwrap();
    let target = listener().await;
    let (unix, tcp) = (unix.to_str().unwrap(), target.local_addr().unwrap());
    let forwards = [format!("0:{unix}"), format!("0:{tcp}")];
    let forwards: Vec<_> = forwards.iter().map(String::as_str).collect();
    let tunnel = Tunnel::start(&[unix, "localhost:*"], &forwards).await;
    let mut asking = JoinSet::new();
    for nth in 0..30 {
        let short = ANSWERS[nth as usize % ANSWERS.len()];
        let bytes = if nth % 5 == 0 { UNIX_ANSWER } else { short };
        for (forward, is_unix, bytes) in [(0, true, bytes), (1, false, short)] {
            let here = TcpStream::connect(tunnel.addresses[forward][0]).await.unwrap();
            let answer = noise(nth, bytes);
            let there: Box<dyn Duplex> = match is_unix {
                true => Box::new(within(unix_target.accept()).await.unwrap().0),
                false => Box::new(accept(&target).await),
            };
            asking.spawn(async move {
                let (received, ()) = tokio::join!(ask(here), answer_early(there, &answer));
                assert!(received == answer, "{} of {} bytes", received.len(), answer.len());
            });
        }
    }
    within(asking.join_all()).await;
    until("both ends have closed them", || tunnel.open() == (0, 0)).await;
}

trait Duplex: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> Duplex for T {}

#[tokio::test]
async fn a_connection_reset_before_the_answer_is_forgotten() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    for _ in 0..20 {
        reset(tunnel.enter().await);
    }
    let mut here = tunnel.enter().await;
    here.write_all(b"still here").await.unwrap();
    here.shutdown().await.unwrap();
    let received = within(async {
        loop {
            if let Ok(bytes) = read_all(&mut accept(&target).await).await
                && !bytes.is_empty()
            {
                return bytes;
            }
        }
    });
    assert_eq!(received.await, b"still here");
}
