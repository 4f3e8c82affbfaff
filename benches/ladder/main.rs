//! What a packet costs, rung by rung: keystream, XOR, MAC, queues, then sealing and opening by where pads
//! come from.
//!
//! `cargo bench` prints the machine's CPU features first; figures of different machines do not
//! compare. No pad is used twice, and waiting for fillers is not counted. Pads are hot (the measuring
//! core has just made them), or made by a filler on another core and taken in order: from a pool of
//! 64 MiB, and from one that is larger than the last-level cache.

mod ends;
mod floor;
mod packets;
mod paired;
mod queues;
mod sources;
mod tags;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use keypadd_keystream::{
    CipherBackend, InlineKeystream, Mac, PacketNumber, Protection, SuiteKey, cpu_features,
};
use std::collections::HashSet;
use std::hint::black_box;
use std::time::Duration;

use ends::HEADER_BYTES;

/// Bytes of payload, from a keystroke to more than any datagram on an ordinary path.
const SIZES: [usize; 5] = [64, 128, 512, 1400, 16_384];

fn key(suite: Protection) -> SuiteKey {
    SuiteKey::derive(suite, &[7; 32][..suite.key_bytes()], &[9; 12])
}

/// Suites that differ in what `by` says of them; the first of each.
fn distinct<T: std::hash::Hash + Eq>(by: impl Fn(Protection) -> T) -> Vec<Protection> {
    let mut seen = HashSet::new();
    Protection::all().filter(|suite| seen.insert(by(*suite))).collect()
}

fn keystream(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("keystream");
    brief(&mut group);
    for suite in distinct(Protection::cipher) {
        let Some(keystream) = key(suite).keystream else { continue };
        let mut inline = InlineKeystream::new(keystream);
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            let mut packet_number = 0;
            let id = BenchmarkId::new(format!("{:?}, one packet", suite.cipher()), size);
            group.bench_function(id, |bencher| {
                let mut pad = vec![0; size];
                bencher.iter(|| {
                    inline.write(PacketNumber::new(packet_number), 0, &mut pad);
                    packet_number += 1;
                });
            });
        }
    }
}

fn xor(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("xor");
    brief(&mut group);
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("hot", size), |bencher| {
            let (mut data, pad) = (vec![0_u8; size], vec![5_u8; size]);
            bencher.iter(|| xor_over(black_box(&mut data), black_box(&pad)));
        });
        // Larger than the last-level cache: each pad has left it when it is wanted again.
        let mut pads = Vec::new();
        group.bench_function(BenchmarkId::new("beyond the cache", size), |bencher| {
            if pads.is_empty() {
                pads = vec![5_u8; sources::last_level_cache_bytes() * 5 / 4];
            }
            let mut data = vec![0_u8; size];
            let mut in_order = pads.chunks_exact(size).cycle();
            bencher.iter(|| {
                let pad = in_order.next().expect("it begins anew");
                xor_over(black_box(&mut data), black_box(pad));
            });
        });
    }
}

fn xor_over(data: &mut [u8], pad: &[u8]) {
    for (byte, pad) in data.iter_mut().zip(pad) {
        *byte ^= pad;
    }
}

fn mac(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mac");
    brief(&mut group);
    for suite in distinct(Protection::mac).into_iter().filter(|suite| suite.mac() != Mac::Null) {
        let key = key(suite);
        for size in SIZES {
            let data = vec![0; size];
            group.throughput(Throughput::Bytes(size as u64));
            let id = BenchmarkId::new(format!("{:?}", suite.mac()), size);
            group.bench_function(id, |bencher| {
                let number = PacketNumber::new(1);
                bencher.iter(|| key.mac.tag(number, &[0; HEADER_BYTES], &data, &[0; 16]));
            });
        }
    }
}

/// Short runs: there are many rungs, and a person waits.
pub(crate) fn brief(group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>) {
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(700));
}

/// Whether the command line asks for a comparison, or for a trial of everything.
fn is_asked_for(name: &str) -> bool {
    std::env::args().any(|argument| argument == name) || sources::is_trial()
}

fn print_machine() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("CPU features: {}; {cores} cores", cpu_features().join(" "));
    println!("last-level cache: {} MiB", sources::last_level_cache_bytes() >> 20);
    println!("cipher backend: {}", CipherBackend::Auto.engine().expect("there always is one"));
}

criterion_group!(ladder, keystream, xor, mac, queues::queues, packets::seal, packets::open);

fn main() {
    print_machine();
    let comparisons: [(&str, fn()); 3] =
        [("paired", paired::paired), ("floor", floor::floor), ("tags", tags::tags)];
    for (name, compare) in comparisons {
        if is_asked_for(name) {
            compare();
        }
    }
    ladder();
    Criterion::default().configure_from_args().final_summary();
}
