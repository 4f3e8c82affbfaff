//! Checks that a forked child cannot read the pool: touching a pad kills it, so it never reads
//! zeros, which would put plaintext on the wire. Runs in a process of its own, because it forks.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fork::{Fork, fork};
use keypadd_keystream::{PacketNumber, Suite, SuiteKey};
use keypadd_pool::{Coverage, Direction, PAD_BYTES, Pool, PoolSettings, Stage, Traffic};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, setrlimit, waitpid};

#[test]
fn a_forked_child_that_touches_a_pad_dies_and_the_parent_keeps_the_pad() {
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
    let child = match fork().expect("a child") {
        Fork::Child => {
            let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
            lane.take(number, &mut [], &mut data, 0, || ());
            // Reached only if the child could read the pad; it then dies of another signal.
            std::process::abort();
        }
        Fork::Parent(child) => Pid::from_raw(child).expect("a process"),
    };
    let ended = waitpid(Some(child), WaitOptions::empty()).expect("a child of ours");
    let (_, status) = ended.expect("it was waited for");
    assert_eq!(status.terminating_signal(), Some(Signal::SEGV.as_raw()), "{status:?}");
    assert_eq!(lane.take(number, &mut [], &mut data, 0, || ()).bytes, PAD_BYTES);
    assert_ne!(data, [0; PAD_BYTES]);
}
