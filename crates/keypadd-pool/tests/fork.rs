//! Checks that a forked child cannot read the pool: touching a pad kills it, so it never reads
//! zeros, which would put plaintext on the wire. Runs in a process of its own, because it forks.
//! Skipped where children inherit what they must not, as under qemu's user mode.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fork::{Fork, fork};
use keypadd_keystream::{PacketNumber, Suite, SuiteKey};
use keypadd_pool::{Coverage, Direction, PAD_BYTES, Pool, PoolSettings, Stage, Traffic};
use memmap2::{Advice, MmapMut};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, setrlimit, waitpid};

/// How a forked child ends that touches some memory, and then aborts.
fn child_that(touches: impl FnOnce()) -> WaitStatus {
    let child = match fork().expect("a child") {
        Fork::Child => {
            let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
            touches();
            std::process::abort();
        }
        Fork::Parent(child) => Pid::from_raw(child).expect("a process"),
    };
    let ended = waitpid(Some(child), WaitOptions::empty()).expect("a child of ours");
    ended.expect("it was waited for").1
}

const SEGV: Option<i32> = Some(Signal::SEGV.as_raw());

#[test]
fn a_forked_child_that_touches_a_pad_dies_and_the_parent_keeps_the_pad() {
    let page = MmapMut::map_anon(4096).expect("memory");
    page.advise(Advice::DontFork).expect("advice");
    if child_that(|| _ = std::hint::black_box(page[0])).terminating_signal() != SEGV {
        eprintln!("skipped: a child inherits memory whatever madvise(2) was told");
        return;
    }
    let pool = Pool::new(PoolSettings { budget_bytes: 1 << 20 }).expect("a pool");
    let key = SuiteKey::derive(Suite::AES_128_GCM, &[1; 16], &[2; 12]).keystream.expect("pads");
    let (traffic, number) = (Traffic::new(Direction::Send), PacketNumber::new(3));
    let mut lane = pool.open_lane(Arc::clone(&key), &traffic, PacketNumber::new(0), Stage::Active);
    let deadline = Instant::now() + Duration::from_secs(120);
    while lane.peek(number, PAD_BYTES).coverage() != Coverage::Hit {
        assert!(Instant::now() < deadline, "no pad");
        thread::sleep(Duration::from_millis(1));
    }
    let mut data = [0; PAD_BYTES];
    let status = child_that(|| _ = lane.take(number, &mut [], &mut data, 0, || ()));
    assert_eq!(status.terminating_signal(), SEGV, "{status:?}");
    assert_eq!(lane.take(number, &mut [], &mut data, 0, || ()).bytes, PAD_BYTES);
    assert_ne!(data, [0; PAD_BYTES]);
}
