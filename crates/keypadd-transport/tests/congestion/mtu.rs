//! Tests path MTU discovery (RFC 8899) beside bulk.

use crate::{
    MS, SECOND, rate,
    world::{MOST, Traffic, World, line},
};

#[test]
fn both_ends_soon_send_the_largest_datagrams_under_random_loss_and_no_smaller_ones_later() {
    for (traffic, rtt, soon) in [
        (Traffic::Up, 20 * MS, SECOND),
        (Traffic::Down, 20 * MS, SECOND),
        (Traffic::Both, 20 * MS, SECOND),
        (Traffic::Both, 150 * MS, 2 * SECOND),
    ] {
        for seed in 1..=10 {
            let mut world = World::new(line(50.0, rtt), line(50.0, rtt), seed);
            world.change_both(|line| line.loss = 0.1);
            world.add(rate(), traffic);
            world.run(soon);
            world.watch(3 * SECOND, 10 * MS, |world| {
                let bytes = world.datagram_bytes(0);
                assert_eq!(bytes, [MOST; 2], "{traffic:?}, {rtt:?}, seed {seed}");
            });
        }
    }
}
