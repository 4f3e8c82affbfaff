//! Measures keystream of every backend that the CPU has: DES and triple DES against the `des`
//! crate, AES against the `aes` crate.
//!
//!     cargo bench -p keypadd-keystream --bench backends
//!     cargo bench -p keypadd-keystream --bench backends -- inline   # where bitslice beats one by one
//!     RUSTFLAGS='--cfg aes_backend="soft"' cargo bench -p keypadd-keystream --bench backends -- aes
//!
//! The last runs the `aes` crate as on a CPU without AES instructions.
//!
//! Requests are those of a filler: a new segment with every call, so deriving the subkey, building
//! counters and writing into the rows of a chunk all count. Time is this thread's CPU time. Arms
//! alternate within a round and are compared within it, because other load slows neighbors alike; a
//! result is the median of the rounds, with the spread of the middle 80 %.

use keypadd_keystream::{
    Cipher, CipherBackend, CipherEngine, InlineKeystream, KeystreamKey, PacketNumber,
    SEGMENT_PACKETS, Suite, SuiteKey, cpu_features,
};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

/// An arm runs at least this long, so that reading the clock is negligible.
const TURN_SECONDS: f64 = 0.005;

const AES: [Suite; 2] = [Suite::AES_128_CTR_HMAC_SHA1, Suite::AES_256_CTR_HMAC_SHA1];

const SUITES: [Suite; 2] = [Suite::DES_CTR_HMAC_SHA1, Suite::TRIPLE_DES_CTR_HMAC_SHA1];

/// Heads and bodies of chunks, and full packets in one piece: name, first byte, bytes.
const PARTS: [(&str, usize, usize); 3] =
    [("heads", 0, 128), ("bodies", 128, 1344), ("full packets", 0, 1400)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |word: &str| arguments.iter().any(|argument| argument == word);
    // `cargo bench -- --test` runs everything once.
    let rounds = if asked("--test") { 1 } else { 41 };
    print_machine();
    if asked("aes") || asked("--test") {
        chunks(AES, rounds);
    }
    if !(asked("inline") || asked("aes")) || asked("--test") {
        chunks(SUITES, rounds);
    }
    if asked("inline") || asked("--test") {
        inline(rounds);
    }
}

fn backends() -> Vec<CipherBackend> {
    let forced = CipherBackend::ALL.into_iter().filter(|backend| *backend != CipherBackend::Auto);
    forced.filter(|backend| backend.is_available()).collect()
}

fn keystream(suite: Suite, backend: CipherBackend) -> Arc<KeystreamKey> {
    let engine = backend.engine().expect("only available backends are listed");
    let keys = SuiteKey::derive_with(suite, &[7; 32], &[9; 12], engine);
    keys.keystream.expect("not a null cipher")
}

fn cipher(suite: Suite) -> &'static str {
    match suite.protection().cipher() {
        Cipher::Des => "DES",
        Cipher::TripleDes => "3DES",
        Cipher::Aes128 => "AES-128",
        Cipher::Aes256 => "AES-256",
        Cipher::ChaCha20 | Cipher::Measured(_) => {
            unreachable!("only bitsliced ciphers are listed")
        }
    }
}

/// Whole segments, as a filler requests them.
fn chunks(suites: [Suite; 2], rounds: usize) {
    for suite in suites {
        for (name, offset, bytes) in PARTS {
            let mut chunk = vec![0; bytes * SEGMENT_PACKETS];
            let mut arms: Vec<_> = backends()
                .into_iter()
                .map(|backend| {
                    let key = keystream(suite, backend);
                    let mut segment = PacketNumber::new(0).segment();
                    let arm = move |chunk: &mut Vec<u8>| {
                        key.write_rows(segment, offset, chunk.chunks_mut(bytes));
                        segment = segment.next();
                    };
                    (backend, arm)
                })
                .collect();
            println!("\n{} {name}: {SEGMENT_PACKETS} rows of {bytes} bytes", cipher(suite));
            report(suite, &compare(rounds, &mut arms, &mut chunk), bytes * SEGMENT_PACKETS);
        }
    }
}

/// Consecutive single packets, as with a dry pool: one subkey per 64 packets.
fn inline(rounds: usize) {
    for suite in SUITES {
        for blocks in [1, 2, 4, 5, 6, 8, 16, 64, 175] {
            let mut data = vec![0; blocks * 8];
            let mut arms: Vec<_> = backends()
                .into_iter()
                .map(|backend| {
                    let mut inline = InlineKeystream::new(keystream(suite, backend));
                    let mut number = 0;
                    let arm = move |data: &mut Vec<u8>| {
                        inline.write(PacketNumber::new(number), 0, data);
                        number += 1;
                    };
                    (backend, arm)
                })
                .collect();
            println!("\n{} inline, packets of {blocks} blocks", cipher(suite));
            report(suite, &compare(rounds, &mut arms, &mut data), blocks * 8);
        }
    }
}

/// Seconds per call of every arm, round by round.
struct Timed {
    backend: CipherBackend,
    seconds: Vec<f64>,
}

fn compare<T>(
    rounds: usize,
    arms: &mut [(CipherBackend, impl FnMut(&mut T))],
    on: &mut T,
) -> Vec<Timed> {
    let mut timed: Vec<Timed> =
        arms.iter().map(|(backend, _)| Timed { backend: *backend, seconds: Vec::new() }).collect();
    let mut turn = |arm: &mut dyn FnMut(&mut T)| {
        let start = cpu_seconds();
        let mut calls = 0;
        loop {
            for _ in 0..8 {
                arm(on);
            }
            calls += 8;
            let spent = cpu_seconds() - start;
            if spent >= TURN_SECONDS {
                return spent / f64::from(calls);
            }
        }
    };
    for (_, arm) in arms.iter_mut() {
        turn(arm); // warm
    }
    for _ in 0..rounds {
        for ((_, arm), timed) in arms.iter_mut().zip(&mut timed) {
            timed.seconds.push(turn(arm));
        }
    }
    timed
}

fn report(suite: Suite, timed: &[Timed], bytes: usize) {
    let conventional = &timed[0].seconds;
    for Timed { backend, seconds } in timed {
        let aes_crate = *backend == CipherBackend::DesCrate && AES.contains(&suite);
        let name = if aes_crate { "aes-crate" } else { backend.name() };
        let [_, time, _] = spread(seconds.iter().copied());
        let [low, ratio, high] = spread(
            conventional.iter().zip(seconds).map(|(conventional, time)| conventional / time),
        );
        println!(
            "  {name:<12} {:>9.2} us {:>8.1} MB/s {ratio:>7.2}x ({low:.2} to {high:.2})",
            time * 1e6,
            bytes as f64 / time / 1e6,
        );
    }
}

/// This thread's CPU time.
fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// The 10th, 50th and 90th percentiles.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [10, 50, 90].map(|percent| values[(values.len() - 1) * percent / 100])
}

fn print_machine() {
    println!("CPU features: {}", cpu_features().join(" "));
    println!("cipher backend {}", CipherEngine::default());
}
