//! Counts allocations per packet, on hits and misses, across chunk boundaries: none, but for what a
//! key allocates before the first pad that it generates inline.

use std::time::Duration;

use bytes::BytesMut;
use keypadd_keystream::{Protection, Suite, TAG_BYTES};
use keypadd_pool::{Pool, PoolSettings, Step};
use quinn_proto::crypto::PacketKey;

use super::support::{Receiver, Sender, material, payload, with_pads};
use crate::open::OpenKey;
use crate::seal::SealKey;

const HEADER: &[u8] = b"header";

/// What a key allocates once: where pads are generated inline, and a subkey.
pub(super) const INLINE_ALLOCATIONS: u64 = 2;

/// More than two segments of 64 packets, in short and full sizes.
const PACKETS: u64 = 150;
const PAYLOAD_BYTES: [usize; 4] = [40, 200, 1_200, 1_430];

/// The state of the lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lanes {
    None,
    Filled,
    Empty,
}

#[test]
fn sealing_and_opening_allocate_nothing_but_once_per_key() {
    for suite in Protection::all() {
        for lanes in [Lanes::None, Lanes::Filled, Lanes::Empty] {
            let material = material(suite, 11);
            let (sender, receiver) = (Sender::new(suite), Receiver::new(suite));
            let (seals, opens) = (sender.key(0, &material), receiver.key(0, &material));
            // A filler without a thread, so that nothing is recalled while counting.
            let settings = PoolSettings { budget_bytes: 16 << 20 };
            let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
            if lanes != Lanes::None {
                sender.sending().phases.use_pool(Some(pool.clone()));
                receiver.receiving().phases.use_pool(Some(pool.clone()));
            }
            while lanes == Lanes::Filled && filler.step(Duration::ZERO) == Step::Worked {}
            let mut allocated = [0; 2];
            for number in 0..PACKETS {
                let bytes = PAYLOAD_BYTES[number as usize % PAYLOAD_BYTES.len()];
                let mut packet = [HEADER, &payload(bytes), &[0; TAG_BYTES]].concat();
                let sealing = allocation_counter::measure(|| {
                    seals.encrypt(number, &mut packet, HEADER.len());
                });
                let mut sealed = BytesMut::from(&packet[HEADER.len()..]);
                let opening = allocation_counter::measure(|| {
                    opens.decrypt(number, HEADER, &mut sealed).expect("it was sealed");
                });
                assert_eq!(sealed, payload(bytes));
                let packet = format!("{suite} {lanes:?}: packet {number} of {bytes} bytes");
                for (allocated, made) in allocated.iter_mut().zip([sealing, opening]) {
                    *allocated += made.count_total;
                    assert!(*allocated <= INLINE_ALLOCATIONS, "{packet}: {allocated}");
                }
            }
            for meters in [&sender.meters, &receiver.meters] {
                let served = meters.keystream_pool_bytes() > 0;
                let serves = lanes == Lanes::Filled && !suite.cipher().is_null();
                assert_eq!(served, serves, "{suite} {lanes:?}");
            }
        }
    }
}

/// Most bytes of a key that has protected nothing yet: a connection has four, and a gateway thousands
/// of idle connections.
const KEY_BYTES_MAX: u64 = 2_400;

#[test]
fn a_key_that_has_protected_nothing_takes_little_memory() {
    for suite in with_pads() {
        let material = material(suite, 11);
        let (sender, receiver) = (Sender::new(suite), Receiver::new(suite));
        let made = allocation_counter::measure(|| {
            std::mem::forget((sender.key(0, &material), receiver.key(0, &material)));
        });
        let each = made.bytes_current / 2 + size_of::<SealKey>().max(size_of::<OpenKey>()) as i64;
        assert!(each <= KEY_BYTES_MAX as i64, "{suite}: {each} bytes");
    }
}

/// Most bytes of what a first phase's lane has before any chunk. One for long use has 15 KiB of
/// queues.
const BRIEF_LANE_BYTES_MAX: i64 = 4 << 10;

#[test]
fn the_lane_of_a_first_phase_takes_little_memory() {
    let suite = Protection::from(Suite::default());
    let (sender, settings) = (Sender::new(suite), PoolSettings { budget_bytes: 1 << 20 });
    let _seals = sender.key(0, &material(suite, 11));
    let (pool, _filler) = Pool::with_filler(settings).expect("a pool");
    let made = allocation_counter::measure(|| sender.sending().phases.use_pool(Some(pool)));
    assert!(made.bytes_current <= BRIEF_LANE_BYTES_MAX, "{} bytes", made.bytes_current);
}
