//! Tests a peer that jumps: genuine packets, each 2^30 numbers above the previous one. Counts the
//! work that each causes, rather than timing it.

use std::time::Duration;

use bytes::BytesMut;
use keypadd_pool::{Filler, Pool, PoolSettings, Step};
use quinn_proto::crypto::PacketKey;

use super::allocations::INLINE_ALLOCATIONS;
use super::support::{Receiver, Sender, material, payload, seal, with_pads};

const HEADER: &[u8] = b"header";
const JUMP: u64 = 1 << 30;
const JUMPS: u64 = 16;
const PAYLOAD_BYTES: usize = 300;
/// Pads of chunks in use and of those kept for late packets, three of each part; and as many in the
/// next phase's lane, which follows.
const HELD_PADS: u64 = 2 * 2 * 3 * 64;

fn fill(filler: &mut Filler) {
    while filler.step(Duration::ZERO) == Step::Worked {}
}

#[test]
fn a_jump_costs_the_packet_path_nothing_new_and_the_filler_one_budget() {
    for suite in with_pads() {
        // The filler fills everything between two packets, or never runs.
        for is_filled in [true, false] {
            let (sender, receiver) = (Sender::new(suite), Receiver::new(suite));
            let seals = sender.key(0, &material(suite, 12));
            let opens = receiver.key(0, &material(suite, 12));
            let next = receiver.key(1, &material(suite, 13));
            let settings = PoolSettings { budget_bytes: 1 << 20 };
            let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
            receiver.receiving().phases.use_pool(Some(pool.clone()));
            fill(&mut filler);
            let mut allocated = 0;
            for jump in 0..JUMPS {
                let sealed = seal(&seals, jump * JUMP, HEADER, &payload(PAYLOAD_BYTES));
                let mut sealed = BytesMut::from(&sealed[..]);
                let at_hand: u64 = receiver.levels().iter().map(|level| level.packets).sum();
                let before = pool.snapshot();
                let opening = allocation_counter::measure(|| {
                    opens.decrypt(jump * JUMP, HEADER, &mut sealed).expect("it is genuine");
                });
                assert_eq!(sealed, payload(PAYLOAD_BYTES));
                let what = format!("{suite}, filled: {is_filled}, jump {jump}");
                // Like any other packet: allocates nothing but what its key does with the first pads
                // that are generated inline, generates no pad and wipes no queued one.
                allocated += opening.count_total;
                assert!(allocated <= INLINE_ALLOCATIONS, "{what}: {allocated}");
                let opened = pool.snapshot();
                assert_eq!(opened.fill_bytes_total, before.fill_bytes_total, "{what}");
                assert_eq!(opened.pads_wasted_total, before.pads_wasted_total, "{what}");
                if is_filled {
                    fill(&mut filler);
                }
                let after = pool.snapshot();
                let made = after.fill_bytes_total - opened.fill_bytes_total;
                assert!(made <= after.budget_bytes, "{what}: {made} bytes");
                let given_up = after.pads_wasted_total - before.pads_wasted_total;
                assert!(given_up <= at_hand + HELD_PADS, "{what}: {given_up} of {at_hand}");
                assert!(after.filled_bytes <= after.budget_bytes, "{what}");
                assert_eq!(after.budget_bytes, before.budget_bytes);
            }
            drop((opens, next));
            fill(&mut filler);
            assert_eq!(pool.snapshot().filled_bytes, 0, "{suite}: all memory is home");
        }
    }
}
