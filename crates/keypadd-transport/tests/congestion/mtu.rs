//! Tests path MTU discovery (RFC 8899) beside bulk.

use crate::{
    MS, SECOND, rate,
    world::{Traffic, World, line},
};

#[test]
fn senders_find_that_large_datagrams_pass_within_seconds_under_random_loss() {
    for (traffic, senders, rtt) in [
        (Traffic::Up, 0..1, 20 * MS),
        (Traffic::Down, 1..2, 20 * MS),
        (Traffic::Both, 0..2, 20 * MS),
        (Traffic::Both, 0..2, 150 * MS),
    ] {
        for seed in 1..=3 {
            let mut world = World::new(line(50.0, rtt), line(50.0, rtt), seed);
            world.change_both(|line| line.loss = 0.1);
            world.add(rate(), traffic);
            world.run(10 * SECOND);
            world.watch(SECOND, 10 * MS, |world| {
                let bytes = world.datagram_bytes(0);
                // The last few steps may be lost too often.
                let are_large = bytes[senders.clone()].iter().all(|bytes| *bytes >= 1_380);
                assert!(are_large, "{bytes:?}, {traffic:?}, {rtt:?}, seed {seed}");
            });
        }
    }
}
