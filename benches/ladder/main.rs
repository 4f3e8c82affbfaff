//! What a packet costs, rung by rung: keystream, MAC, then sealing with and without a pool.
//!
//! `cargo bench` prints the machine's CPU features first; figures of different machines do not
//! compare. A packet sealed on a hit uses a pad that a filler made on another core, in order,
//! from a pool of 64 MiB, and no pad twice; waiting for the filler is not counted.

mod handshake;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use keypadd_keystream::{InlineKeystream, PacketNumber, Suite, SuiteKey, TAG_BYTES};
use keypadd_pool::{Pool, PoolSettings};

use handshake::Sealing;

/// A keystroke's packet and a full one, in bytes of payload.
const SIZES: [usize; 2] = [128, 1400];
const SUITES: [Suite; 4] = [
    Suite::AES_256_GCM,
    Suite::AES_256_CTR_HMAC_SHA1,
    Suite::TRIPLE_DES_CTR_HMAC_SHA1,
    Suite::DES_CTR_HMAC_SHA1,
];
/// A short header: flags, connection id, packet number.
const HEADER_BYTES: usize = 12;

fn key(suite: Suite) -> SuiteKey {
    SuiteKey::derive(suite, &[7; 32][..suite.protection().key_bytes()], &[9; 12])
}

fn keystream(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("keystream");
    for suite in SUITES {
        let key = key(suite);
        let keystream = key.keystream.expect("no cipher here is null");
        let mut inline = InlineKeystream::new(keystream);
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            let mut packet_number = 0;
            group.bench_function(BenchmarkId::new(suite.name(), size), |bencher| {
                let mut data = vec![0; size];
                bencher.iter(|| {
                    inline.apply(PacketNumber::new(packet_number), 0, &mut data);
                    packet_number += 1;
                });
            });
        }
    }
}

fn mac(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mac");
    for suite in SUITES {
        let key = key(suite);
        for size in SIZES {
            let data = vec![0; size];
            group.bench_function(BenchmarkId::new(suite.name(), size), |bencher| {
                let number = PacketNumber::new(1);
                bencher.iter(|| key.mac.tag(number, &[0; HEADER_BYTES], &data, &[0; 16]));
            });
        }
    }
}

fn seal(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("seal");
    group.sample_size(10).warm_up_time(Duration::from_millis(300));
    for suite in SUITES {
        for size in SIZES {
            let packet = HEADER_BYTES + size + TAG_BYTES;
            for (name, pool) in [("off", None), ("hit", Some(64 << 20))] {
                let pool = pool.map(|budget_bytes| {
                    Pool::new(PoolSettings { budget_bytes }).expect("memory for the pool")
                });
                let mut sealing = Sealing::new(suite, pool);
                let id = BenchmarkId::new(format!("{suite} {name}"), size);
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|count| bursts(&mut sealing, packet, count));
                });
            }
        }
    }
}

/// Time for `count` packets, in bursts that end before a key's limit or the pool's pads do; what
/// happens between bursts is not counted.
fn bursts(sealing: &mut Sealing, packet: usize, count: u64) -> Duration {
    let mut buffer = vec![0; packet];
    let (mut left, mut spent) = (count, Duration::ZERO);
    while left > 0 {
        let burst = left.min(sealing.prepare(packet - HEADER_BYTES));
        let hits = sealing.hits();
        let start = Instant::now();
        for _ in 0..burst {
            sealing.seal(&mut buffer, HEADER_BYTES);
        }
        spent += start.elapsed();
        if let Some((before, after)) = hits.zip(sealing.hits()) {
            assert!((after - before) * 100 >= burst * 99, "{} of {burst} hit", after - before);
        }
        left -= burst;
    }
    spent
}

fn print_machine() {
    println!("CPU features used: {}", cpu_features().join(" "));
}

#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    let known = [
        ("aes", is_x86_feature_detected!("aes")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("sha", is_x86_feature_detected!("sha")),
        ("vaes", is_x86_feature_detected!("vaes")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    known.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_features() -> Vec<&'static str> {
    vec![std::env::consts::ARCH]
}

criterion_group!(ladder, keystream, mac, seal);

fn main() {
    print_machine();
    ladder();
    Criterion::default().configure_from_args().final_summary();
}
