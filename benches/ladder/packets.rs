//! Measures sealing and opening by source of pads.

use std::time::Duration;

use bytes::BytesMut;
use criterion::{BenchmarkId, Criterion, Throughput};
use keypadd_keystream::{Protection, TAG_BYTES};
use rustix::time::{ClockId, clock_gettime};

use crate::SIZES;
use crate::ends::{Ends, HEADER_BYTES, Measured};
use crate::sources::{Connections, Source, is_trial};

/// Maximum packets sealed in advance, for opening.
const SEALED_MAX: u64 = 2048;

pub(crate) fn seal(criterion: &mut Criterion) {
    packets(criterion, "seal", Measured::Sealing, seal_burst);
}

pub(crate) fn open(criterion: &mut Criterion) {
    packets(criterion, "open", Measured::Opening, open_burst);
}

type Burst = fn(&mut Ends, usize, u64) -> (Duration, u64);

fn packets(criterion: &mut Criterion, name: &str, measured: Measured, burst: Burst) {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
    for suite in Protection::all() {
        for source in Source::ALL {
            let mut connections = None;
            // Each size waits for a filler on another core.
            let waits = matches!(source, Source::Near | Source::Cold);
            let sizes = if is_trial() && waits { &SIZES[..1] } else { &SIZES[..] };
            for &size in sizes {
                let Some(coverage) = source.coverage(suite, size) else { continue };
                group.throughput(Throughput::Bytes(size as u64));
                let id = BenchmarkId::new(format!("{suite}, {}", source.name()), size);
                group.bench_function(id, |bencher| {
                    // Created only if this benchmark is not filtered out.
                    let connections = connections
                        .get_or_insert_with(|| Connections::new(source, suite, measured));
                    bencher.iter_custom(|count| {
                        let (mut left, mut spent) = (count, Duration::ZERO);
                        while left > 0 {
                            let (ends, available) = connections.next(size);
                            let before = ends.found(coverage);
                            let (time, done) = burst(ends, size, left.min(available));
                            let found = ends.found(coverage) - before;
                            assert!(found * 100 >= done * 95, "{found} of {done} are {coverage:?}");
                            spent += time;
                            left -= done.min(left);
                        }
                        spent
                    });
                });
            }
        }
    }
    group.finish();
}

pub(crate) fn seal_burst(ends: &mut Ends, size: usize, count: u64) -> (Duration, u64) {
    let mut packet = vec![0; HEADER_BYTES + size + TAG_BYTES];
    let start = cpu_time();
    for _ in 0..count {
        ends.seal(&mut packet, HEADER_BYTES);
    }
    (cpu_time() - start, count)
}

pub(crate) fn open_burst(ends: &mut Ends, size: usize, count: u64) -> (Duration, u64) {
    let count = count.min(SEALED_MAX);
    let first = ends.next();
    let mut sealed: Vec<BytesMut> = (0..count)
        .map(|_| {
            let mut packet = vec![0; HEADER_BYTES + size + TAG_BYTES];
            ends.seal(&mut packet, HEADER_BYTES);
            BytesMut::from(&packet[HEADER_BYTES..])
        })
        .collect();
    let header = [0; HEADER_BYTES];
    let start = cpu_time();
    for (number, payload) in (first..).zip(&mut sealed) {
        ends.open(number, &header, payload);
    }
    (cpu_time() - start, count)
}

/// CPU time of this thread, which excludes other programs on the core.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
