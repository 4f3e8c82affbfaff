//! Tests memory use when readers stop. In its own process, so that no other test's memory counts.
#![allow(unreachable_pub, clippy::unwrap_used)]
#![cfg(target_os = "linux")]

#[path = "tunnel/support.rs"]
#[allow(dead_code)]
mod support;

use keypadd_tunnel::{ClientSettings, MemoryShares, TransportSettings, wire::Instance};
use support::{
    RunningClient, RunningServer, Tunnel, accept, client_settings, exchange, listener, new_key,
    until, within, write_until_stuck,
};
use tokio::{net::TcpStream, sync::Mutex, task::JoinSet};

const MIB: u64 = 1 << 20;

/// One test at a time: each counts what the process has.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Anonymous resident memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[tokio::test]
async fn stopped_readers_cost_the_windows_and_little_more() {
    let _alone = ALONE.lock().await;
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

#[tokio::test]
async fn stopped_readers_take_their_share_of_a_small_memory_and_another_client_goes_on() {
    let _alone = ALONE.lock().await;
    const STALLED: usize = 150;
    let memory = MemoryShares::of(64 * MIB, true);
    let budgets = memory.budgets.clone();
    let target = listener().await;
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        settings.transport = TransportSettings::within(memory);
    });
    let start = |instance| {
        let settings = client_settings(&server, &key, &[forward]);
        RunningClient::start(ClientSettings { instance: Instance([instance; 16]), ..settings })
    };
    let (greedy, other) = (start(1).await, start(2).await);
    let mut pairs = Vec::new();
    for number in 0..STALLED {
        let mut writer = TcpStream::connect(greedy.listeners[0]).await.unwrap();
        let mut reader = accept(&target).await;
        // Half of them send to the server's end, half to the client's.
        if number % 2 == 0 {
            std::mem::swap(&mut writer, &mut reader);
        }
        pairs.push((writer, reader));
    }
    let mut writing = JoinSet::new();
    for (mut writer, stopped_reader) in pairs {
        writing.spawn(async move {
            write_until_stuck(&mut writer, 64 << 20).await;
            (writer, stopped_reader)
        });
    }
    let pairs = writing.join_all().await;
    for budget in [&budgets.received, &budgets.sent] {
        assert!(budget.taken() > 0 && budget.taken() <= budget.total(), "{budget:?}");
    }
    let here = TcpStream::connect(other.listeners[0]).await.unwrap();
    exchange(here, accept(&target).await).await;
    drop((pairs, greedy, other));
    within(server.stop()).await;
    // What has ended gives all of it back.
    until("the budgets are free", || budgets.received.taken() + budgets.sent.taken() == 0).await;
}
