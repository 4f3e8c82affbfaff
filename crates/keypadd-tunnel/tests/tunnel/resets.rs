//! Tests that a reset at one end is a reset at the other, even while no data flows.

use tokio::io::AsyncWriteExt;

use crate::support::*;

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
