//! A reset stays a reset: never an orderly end, and seen even while nothing moves.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

/// More than every buffer and window on the way together.
const ENDLESS: usize = 1 << 30;

#[tokio::test]
async fn a_reset_client_resets_the_target() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    here.write_u8(1).await.unwrap();
    assert_eq!(within(there.read_u8()).await.unwrap(), 1);
    reset(here);
    assert_reset(&mut there).await;
    until("both ends forget it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_reset_target_resets_the_client() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    there.write_u8(1).await.unwrap();
    assert_eq!(within(here.read_u8()).await.unwrap(), 1);
    reset(there);
    assert_reset(&mut here).await;
    until("both ends forget it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_target_reset_after_the_client_finished_resets_the_client() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    here.write_all(b"all").await.unwrap();
    here.shutdown().await.unwrap();
    assert_eq!(read_all(&mut there).await.unwrap(), b"all");
    reset(there);
    assert_reset(&mut here).await;
}

#[tokio::test]
async fn a_reset_passes_while_the_target_does_not_read() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    assert!(write_until_stuck(&mut here, ENDLESS).await < ENDLESS);
    reset(here);
    // The target has read nothing, so only the reset can have ended this.
    until("both ends forget it", || tunnel.open() == (0, 0)).await;
    assert_reset(&mut there).await;
}

#[tokio::test]
async fn a_reset_passes_while_the_client_does_not_read() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    assert!(write_until_stuck(&mut there, ENDLESS).await < ENDLESS);
    reset(there);
    until("both ends forget it", || tunnel.open() == (0, 0)).await;
    assert_reset(&mut here).await;
}

#[tokio::test]
async fn a_reset_passes_to_a_target_that_has_finished_once_it_reads() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let mut there = accept(&target).await;
    there.shutdown().await.unwrap();
    assert_eq!(read_all(&mut here).await.unwrap(), b"");
    assert!(write_until_stuck(&mut here, ENDLESS).await < ENDLESS);
    reset(here);
    assert_reset(&mut there).await;
    until("both ends forget it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_reader_that_resets_stops_a_writer_that_is_held() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    let mut here = tunnel.enter().await;
    let there = accept(&target).await;
    assert!(write_until_stuck(&mut here, ENDLESS).await < ENDLESS);
    reset(there);
    assert_reset(&mut here).await;
    until("both ends forget it", || tunnel.open() == (0, 0)).await;
}

#[tokio::test]
async fn a_client_that_left_before_the_answer_is_forgotten() {
    let target = listener().await;
    let tunnel = Tunnel::to(&target).await;
    for _ in 0..20 {
        reset(tunnel.enter().await);
    }
    let mut here = tunnel.enter().await;
    here.write_all(b"still here").await.unwrap();
    here.shutdown().await.unwrap();
    let heard = within(async {
        loop {
            if let Ok(bytes) = read_all(&mut accept(&target).await).await
                && !bytes.is_empty()
            {
                return bytes;
            }
        }
    });
    assert_eq!(heard.await, b"still here");
}
