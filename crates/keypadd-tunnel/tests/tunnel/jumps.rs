//! Tests clock jumps and restored machines: every connection ends, and the next one does a new
//! handshake, whatever is still to be delivered.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use keypadd_tunnel::{Clocks, Hypervisor, Readings, SystemClocks};
use tempfile::TempDir;
use testbed::Direction;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UnixListener},
};

use crate::support::*;

/// The system's clocks with an offset.
#[derive(Debug, Default)]
struct OffsetClocks {
    slept_nanos: AtomicI64,
    set_nanos: AtomicI64,
}

impl Clocks for OffsetClocks {
    fn read(&self) -> Readings {
        let mut now = SystemClocks.read();
        let slept = i128::from(self.slept_nanos.load(Ordering::Relaxed));
        now.boottime_nanos += slept;
        now.realtime_nanos += slept + i128::from(self.set_nanos.load(Ordering::Relaxed));
        now
    }
}

const HOUR_NANOS: i64 = 3_600_000_000_000;

/// A file that stands in for a VM clock device (linux/vmclock-abi.h).
struct VmClock {
    _directory: TempDir,
    path: PathBuf,
}

impl VmClock {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vmclock0");
        let page = [&b"VCLK"[..], &4096u32.to_le_bytes(), &1u16.to_le_bytes(), &[0; 4086]].concat();
        fs::write(&path, page).unwrap();
        Self { _directory: directory, path }
    }

    fn clocks(&self) -> Arc<dyn Clocks> {
        Arc::new(Hypervisor::with_vm_clock(&self.path).clocks())
    }

    /// Does what a hypervisor does before a restored copy runs.
    fn disrupt(&self) {
        let device = File::options().write(true).open(&self.path).unwrap();
        device.write_all_at(&0x5eed_u64.to_le_bytes(), 16).unwrap();
    }
}

/// Makes a clock of the server or of the client jump under an open connection; checks that
/// everything is closed in time and that the client reconnects.
async fn closes_and_reconnects(at_server: bool, clocks: Arc<dyn Clocks>, jump: impl FnOnce()) {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &["localhost:*"], |settings| {
        if at_server {
            settings.transport.clocks = clocks.clone();
        }
    });
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    if !at_server {
        settings.transport.clocks = clocks.clone();
    }
    let client = RunningClient::start(settings).await;
    let mut before = TcpStream::connect(client.listeners[0]).await.unwrap();
    let mut there = assert_reaches(&mut before, &target).await;
    let first = client.sessions.live().pop().unwrap();
    let jumped = if at_server { server.sessions.live().pop().unwrap() } else { first.clone() };

    let began = Instant::now();
    jump();
    until("the end whose clock jumped closes all", || jumped.has_ended()).await;
    // The documented limit is a second; the rest is for a loaded machine.
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(3), "{taken:?}");
    // Nothing is sent to the other end. It notices at the next handshake, or by the reset that
    // answers its next packet, within three seconds.
    assert_reset(&mut before).await;
    assert_reset(&mut there).await;
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(12), "{taken:?}");
    assert!(first.has_ended());

    let reason = if at_server { "forgotten" } else { "clock" };
    until("the client reconnects", || client.reconnects() == [(reason, 1)]).await;
    let mut after = TcpStream::connect(client.listeners[0]).await.unwrap();
    assert_reaches(&mut after, &target).await;
    until("the old session has ended", || server.sessions.live().len() == 1).await;
}

/// Whether a packet belongs to a handshake: others have a short header (RFC 9000 17.3).
fn has_long_header(datagram: &[u8]) -> bool {
    datagram[0] & 0x80 != 0
}

/// A restored copy must send no packet with the keys of the original. The next packet after a jump
/// must be the first of a new handshake.
async fn nothing_is_sent_with_the_old_keys_after(clocks: Arc<dyn Clocks>, jump: impl FnOnce()) {
    let target = listener().await;
    let key = new_key();
    let server = RunningServer::start(key.public(), &["localhost:*"]);
    let forward: &str = &format!("0:{}", target.local_addr().unwrap());
    let mut settings = client_settings(&server, &key, &[forward]);
    let relay = relayed(&server, &mut settings).await;
    settings.transport.clocks = clocks.clone();
    let client = RunningClient::start(settings).await;
    let mut here = TcpStream::connect(client.listeners[0]).await.unwrap();
    assert_reaches(&mut here, &target).await;

    // Waits until nothing is in flight; an idle path is probed every three seconds.
    let mut last = None;
    until("the path is idle", || {
        let now = (relay.counts(Direction::ToServer).taken, Instant::now());
        let (count, since) = *last.get_or_insert(now);
        if count != now.0 {
            last = Some(now);
        }
        count == now.0 && since.elapsed() > Duration::from_millis(200)
    })
    .await;
    relay.record(Direction::ToServer, 1000);
    jump();
    // Read by the tunnel before the next check of the clocks.
    assert_eq!(here.try_write(b"the original sent something else").unwrap(), 32);
    until("the client reconnects", || client.reconnects() == [("clock", 1)]).await;
    let sent = relay.recorded(Direction::ToServer);
    let first = &sent[0].bytes;
    assert!(has_long_header(first), "{first:02x?}");
}

#[tokio::test]
async fn after_a_jump_nothing_is_sent_with_the_old_keys_not_even_a_close() {
    let clocks = Arc::new(OffsetClocks::default());
    let jump = || clocks.set_nanos.store(HOUR_NANOS, Ordering::Relaxed);
    nothing_is_sent_with_the_old_keys_after(clocks.clone(), jump).await;
}

#[tokio::test]
async fn in_a_copy_of_the_machine_nothing_is_sent_with_the_old_keys() {
    let vm_clock = VmClock::new();
    nothing_is_sent_with_the_old_keys_after(vm_clock.clocks(), || vm_clock.disrupt()).await;
}

#[tokio::test]
async fn a_target_that_does_not_read_delays_nobody_after_a_jump_and_gets_all() {
    // More than a unix socket takes, and less than a socket and the stream.
    let message = noise(5, 250_000);
    let clocks = Arc::new(OffsetClocks::default());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("target");
    let target = UnixListener::bind(&path).unwrap();
    let key = new_key();
    let server = RunningServer::start_with(key.public(), &[path.to_str().unwrap()], |settings| {
        settings.transport.clocks = clocks.clone();
    });
    let settings = client_settings(&server, &key, &[&format!("0:{}", path.display())]);
    let client = RunningClient::start(settings).await;
    let enter = || async {
        let here = TcpStream::connect(client.listeners[0]).await.unwrap();
        (here, within(target.accept()).await.unwrap().0)
    };
    let (mut here, mut slow) = enter().await;
    slow.shutdown().await.unwrap();
    assert_eq!(read_all(&mut here).await.unwrap(), b"");
    here.write_all(&message).await.unwrap();
    here.shutdown().await.unwrap();
    until("the server has received all", || open(&client.sessions) == 0).await;
    assert_eq!(open(&server.sessions), 1, "it is still being delivered");

    clocks.set_nanos.store(HOUR_NANOS, Ordering::Relaxed);
    until("the client reconnects", || client.reconnects() == [("forgotten", 1)]).await;
    let (mut here, mut there) = enter().await;
    send_byte(&mut here, &mut there).await;
    assert!(read_all(&mut slow).await.unwrap() == message);
}

#[tokio::test]
async fn a_client_on_a_restored_machine_reconnects() {
    let vm_clock = VmClock::new();
    closes_and_reconnects(false, vm_clock.clocks(), || vm_clock.disrupt()).await;
}

#[tokio::test]
async fn a_server_on_a_restored_machine_closes_all_connections_and_accepts_clients_again() {
    let vm_clock = VmClock::new();
    closes_and_reconnects(true, vm_clock.clocks(), || vm_clock.disrupt()).await;
}

#[tokio::test]
async fn a_client_that_slept_reconnects() {
    let clocks = Arc::new(OffsetClocks::default());
    let jump = || clocks.slept_nanos.store(HOUR_NANOS, Ordering::Relaxed);
    closes_and_reconnects(false, clocks.clone(), jump).await;
}

#[tokio::test]
async fn a_client_whose_clock_was_set_reconnects() {
    let clocks = Arc::new(OffsetClocks::default());
    let jump = || clocks.set_nanos.store(-HOUR_NANOS, Ordering::Relaxed);
    closes_and_reconnects(false, clocks.clone(), jump).await;
}

#[tokio::test]
async fn a_server_that_slept_closes_all_connections_and_accepts_clients_again() {
    let clocks = Arc::new(OffsetClocks::default());
    let jump = || clocks.slept_nanos.store(HOUR_NANOS, Ordering::Relaxed);
    closes_and_reconnects(true, clocks.clone(), jump).await;
}

#[tokio::test]
async fn a_server_whose_clock_was_set_closes_all_connections_and_accepts_clients_again() {
    let clocks = Arc::new(OffsetClocks::default());
    let jump = || clocks.set_nanos.store(HOUR_NANOS, Ordering::Relaxed);
    closes_and_reconnects(true, clocks.clone(), jump).await;
}
