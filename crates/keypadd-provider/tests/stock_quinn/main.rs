//! Tests our packet protection against a stock quinn endpoint with ring's suites: the standard
//! suites are plain QUIC on the wire, in both roles, pooled or not.

mod ends;
mod strangers;

use std::time::Duration;

use keypadd_keystream::Suite;
use keypadd_pool::{Coverage, Direction, Pool, PoolSettings};
use keypadd_provider::HandshakeData;
use quinn::Connection;
use tokio::io::AsyncWriteExt;

use ends::{Ends, Role};

const BULK_BYTES: usize = 64 << 20;

fn pool() -> Pool {
    Pool::new(PoolSettings { budget_bytes: 16 << 20 }).expect("a pool of 16 MiB")
}

async fn bulk_is_exact(suite: Suite, role: Role) {
    let pool = pool();
    let ends = Ends::connect(suite, role, Some(pool.clone())).await;
    until_full(&pool).await;
    let data = ends.ours.handshake_data().expect("complete");
    assert_eq!(data.downcast::<HandshakeData>().expect("ours").suite, suite.protection());
    tokio::join!(send_and_check(&ends.ours, &ends.stock), send_and_check(&ends.stock, &ends.ours));
    let pooled = ends.meters.keystream_pool_bytes();
    assert!(pooled > 0, "no packet of the burst found a pad");
    assert_eq!(ends.meters.pad_reuse(), 0);
    assert_eq!(ends.meters.open_failures(), 0);
}

/// Waits for a full pool: on busy CPUs a burst leaves the filler no time for its first pads. Or for
/// one that is half full and waits to get chunks back from a lane, which gives them at its next
/// packet: there may be none.
async fn until_full(pool: &Pool) {
    let fill = async {
        loop {
            let now = pool.snapshot();
            let is_half_full = now.filled_bytes >= now.budget_bytes / 2;
            if now.filled_bytes > 0 && now.is_settled || is_half_full {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), fill).await.expect("a full pool");
}

/// 64 MiB of a known sequence over one stream.
async fn send_and_check(from: &Connection, to: &Connection) {
    let send = async {
        let mut stream = from.open_uni().await.expect("stream");
        let mut sequence = Sequence(1);
        let mut block = vec![0; 1 << 16];
        for _ in 0..BULK_BYTES / block.len() {
            sequence.fill(&mut block);
            stream.write_all(&block).await.expect("write");
        }
        stream.shutdown().await.expect("finish");
    };
    let receive = async {
        let mut stream = to.accept_uni().await.expect("stream");
        let (mut sequence, mut received) = (Sequence(1), 0);
        let (mut block, mut expected) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        while received < BULK_BYTES {
            stream.read_exact(&mut block).await.expect("read");
            sequence.fill(&mut expected);
            assert!(block == expected, "bytes differ after {received}");
            received += block.len();
        }
        assert_eq!(stream.read(&mut block).await.expect("end"), None);
    };
    tokio::join!(send, receive);
}

/// xorshift64 (Marsaglia 2003): a sequence without a period of any block size.
struct Sequence(u64);

impl Sequence {
    fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_exact_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes());
        }
    }
}

/// A hundred packets a second each way; once the lane is filled, a window of 300 must be served by
/// the pool.
async fn quiet_traffic_hits(suite: Suite, role: Role) {
    let pool = pool();
    let ends = Ends::connect(suite, role, Some(pool.clone())).await;
    let receiver = ends.stock.clone();
    let echo = tokio::spawn(async move {
        while let Ok(datagram) = receiver.read_datagram().await {
            if receiver.send_datagram(datagram).is_err() {
                break;
            }
        }
    });
    let mut clock = tokio::time::interval(Duration::from_millis(10));
    let mut before = hits_and_packets(&ends);
    // A starved machine gets more windows; a pool that serves nothing never passes.
    for window in 1.. {
        for _ in 0..300 {
            clock.tick().await;
            ends.ours.send_datagram(vec![7; 64].into()).expect("datagram");
            while tokio::time::timeout(Duration::ZERO, ends.ours.read_datagram()).await.is_ok() {}
        }
        let counts = hits_and_packets(&ends);
        let grown: [u64; 4] = std::array::from_fn(|nth| counts[nth] - before[nth]);
        let shares = [grown[0] as f64 / grown[1] as f64, grown[2] as f64 / grown[3] as f64];
        if shares.iter().all(|share| *share >= 0.95) {
            break;
        }
        assert!(window < 20, "{suite}: {shares:?} of sealed and of opened packets found their pad");
        before = counts;
    }
    echo.abort();
    let filled = pool.snapshot();
    assert!(filled.filler_idle_class, "the filler is of class SCHED_IDLE");
    assert!(filled.fill_cpu > Duration::ZERO && filled.fill_bytes_total > 0);
}

fn hits_and_packets(ends: &Ends) -> [u64; 4] {
    let total = |direction| {
        [Coverage::Hit, Coverage::Partial, Coverage::Miss]
            .map(|pad| ends.meters.packets(direction, pad))
            .iter()
            .sum()
    };
    [
        ends.meters.packets(Direction::Send, Coverage::Hit),
        total(Direction::Send),
        ends.meters.packets(Direction::Receive, Coverage::Hit),
        total(Direction::Receive),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aes_128_gcm_client_of_ours_moves_64_mib_each_way() {
    bulk_is_exact(Suite::AES_128_GCM, Role::Client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aes_128_gcm_server_of_ours_moves_64_mib_each_way() {
    bulk_is_exact(Suite::AES_128_GCM, Role::Server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aes_256_gcm_client_of_ours_moves_64_mib_each_way() {
    bulk_is_exact(Suite::AES_256_GCM, Role::Client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aes_256_gcm_server_of_ours_moves_64_mib_each_way() {
    bulk_is_exact(Suite::AES_256_GCM, Role::Server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chacha20_poly1305_client_of_ours_moves_64_mib_each_way() {
    bulk_is_exact(Suite::CHACHA20_POLY1305, Role::Client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chacha20_poly1305_server_of_ours_moves_64_mib_each_way() {
    bulk_is_exact(Suite::CHACHA20_POLY1305, Role::Server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pool_serves_a_hundred_packets_per_second() {
    tokio::join!(
        quiet_traffic_hits(Suite::AES_128_GCM, Role::Client),
        quiet_traffic_hits(Suite::AES_256_GCM, Role::Server),
        quiet_traffic_hits(Suite::CHACHA20_POLY1305, Role::Client),
    );
}
