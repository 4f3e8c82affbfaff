//! Measures moving a chunk: one push and one pop per 64 packets, each way.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use criterion::Criterion;
use rtrb::RingBuffer;

use crate::brief;

/// The capacity of a lane's queue.
const SLOTS: usize = 512;

/// The size of a chunk's handle: key, numbers, a boxed slice, the return queue.
type Handle = [usize; 8];

pub(crate) fn queues(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    brief(&mut group);
    group.bench_function("push and pop, one thread", |bencher| {
        let (mut ready_in, mut ready_out) = RingBuffer::<Handle>::new(SLOTS);
        let chunk = Handle::default();
        bencher.iter(|| {
            let _ = ready_in.push(black_box(chunk));
            black_box(ready_out.pop())
        });
    });
    group.bench_function("pop of an empty queue", |bencher| {
        let (_ready_in, mut ready_out) = RingBuffer::<Handle>::new(SLOTS);
        bencher.iter(|| black_box(ready_out.pop()));
    });
    group.bench_function("to another thread and back", |bencher| {
        bencher.iter_custom(|count| {
            let (mut ready_in, mut ready_out) = RingBuffer::<Handle>::new(SLOTS);
            let (mut spent_in, mut spent_out) = RingBuffer::<Handle>::new(SLOTS);
            thread::scope(|scope| {
                scope.spawn(move || {
                    let mut returned = 0;
                    while returned < count {
                        if let Ok(chunk) = ready_out.pop() {
                            let _ = spent_in.push(chunk);
                            returned += 1;
                        }
                    }
                });
                let start = Instant::now();
                let (mut pushed, mut popped) = (0, 0);
                while popped < count {
                    if pushed < count && ready_in.push(Handle::default()).is_ok() {
                        pushed += 1;
                    }
                    popped += u64::from(spent_out.pop().is_ok());
                }
                start.elapsed()
            })
        });
    });
}
