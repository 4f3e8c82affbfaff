//! Tests memory use when readers stop. In its own process, so that no other test's memory counts.
#![allow(unreachable_pub, clippy::unwrap_used)]
#![cfg(target_os = "linux")]

#[path = "tunnel/support.rs"]
#[allow(dead_code)]
mod support;

use keypadd_tunnel::TransportSettings;
use support::{Tunnel, accept, listener, write_until_stuck};

const MIB: u64 = 1 << 20;

/// Anonymous resident memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[tokio::test]
async fn stopped_readers_cost_the_windows_and_little_more() {
    let transport = TransportSettings {
        receive_window_bytes: 6 << 20,
        send_window_bytes: 4 << 20,
        ..<_>::default()
    };
    let windows = u64::from(transport.receive_window_bytes + transport.send_window_bytes);
    let target = listener().await;
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let tunnel = Tunnel::start_with(&["localhost:*"], &[forward], transport).await;

    // Opened before the connection's window is full: a stream's header needs some of it.
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let writer = tunnel.enter().await;
        pairs.push((writer, accept(&target).await));
    }
    let before = resident_bytes();
    // Four streams could hold 8 MiB, but the connection's window is 6.
    for (writer, _stopped_reader) in &mut pairs {
        let written = write_until_stuck(writer, 1 << 30).await;
        assert!(written < 1 << 30, "the writer did not block");
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown <= windows + 8 * MIB, "grew by {} MiB", grown / MIB);
}
