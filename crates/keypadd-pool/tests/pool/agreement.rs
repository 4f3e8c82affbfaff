//! Checks that pooled, inline and independently computed keystream are the same bytes, whatever is
//! requested in whatever order. Runs without a filler thread, so that cases are reproducible.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use keypadd_keystream::{InlineKeystream, PacketNumber, SEGMENT_PACKETS, SuiteKey};
use keypadd_pool::{Direction, PAD_BYTES, Part, Pool, PoolSettings, Stage, Traffic};
use proptest::prelude::*;

use crate::independent::{LONGEST, keyed, numbers, pad};

const SEGMENT: u64 = SEGMENT_PACKETS as u64;
/// Room for what a first-phase lane holds, 16 heads and 4 bodies, and for chunks in use: a case
/// fills little and runs dry.
const BUDGET_BYTES: usize = 96 * 8192;
/// Cases unless PROPTEST_CASES is set; each has up to [`PACKETS`] packets.
const CASES: u32 = 64;
const PACKETS: usize = 40;

/// The next packet, relative to the newest one.
#[derive(Clone, Copy, Debug)]
enum Place {
    Ahead(u64),
    Behind(u64),
    /// At a segment boundary: its distance in segments, and the side.
    Border(u64, u64),
    /// A number requested before.
    Again(prop::sample::Index),
    Anywhere(u64),
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        12 => Just(Place::Ahead(1)),
        3 => (0u64..200).prop_map(Place::Ahead),
        3 => (0u64..200).prop_map(Place::Behind),
        6 => (0u64..3, 0u64..3).prop_map(|(border, side)| Place::Border(border, side)),
        4 => any::<prop::sample::Index>().prop_map(Place::Again),
        1 => numbers().prop_map(Place::Anywhere),
    ]
}

fn lengths() -> impl Strategy<Value = usize> {
    let near = [0, 1, 16, 127, 128, 129, PAD_BYTES - 1, PAD_BYTES, PAD_BYTES + 1, LONGEST];
    prop_oneof![
        20 => 0..=200usize,
        20 => 0..=PAD_BYTES + 40,
        8 => prop::sample::select(near[..near.len() - 1].to_vec()),
        1 => 0..=LONGEST,
        1 => Just(near[near.len() - 1]),
    ]
}

/// Chunks that the filler may generate before a packet: none, a few, or all that fit.
fn steps() -> impl Strategy<Value = usize> {
    prop_oneof![12 => Just(0), 4 => 0..6usize, 1 => Just(24)]
}

fn config() -> ProptestConfig {
    match env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(CASES),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pooled_inline_and_independent_pads_are_the_same(
        (suite, key, iv) in keyed(),
        receives in any::<bool>(),
        first in numbers(),
        packets in prop::collection::vec((places(), lengths(), steps()), 1..=PACKETS),
    ) {
        let settings = PoolSettings { budget_bytes: BUDGET_BYTES };
        let (pool, mut filler) = Pool::with_filler(settings).expect("a pool");
        let keys = SuiteKey::derive(suite, &key, &iv);
        let keystream = keys.keystream.expect("not a null cipher");
        let mut inline = InlineKeystream::new(Arc::clone(&keystream));
        let traffic = Traffic::new(if receives { Direction::Receive } else { Direction::Send });
        let mut lane = pool.open_lane(keystream, &traffic, PacketNumber::new(first), Stage::Brief);
        let (mut newest, mut asked, mut given) = (first, vec![first], Vec::new());
        for (place, bytes, steps) in packets {
            for _ in 0..steps {
                filler.step(Duration::ZERO);
            }
            let number = match place {
                Place::Ahead(by) => newest + by,
                Place::Behind(by) => newest.saturating_sub(by),
                Place::Border(border, side) => {
                    ((newest / SEGMENT + border) * SEGMENT + side).saturating_sub(1)
                }
                Place::Again(index) => *index.get(&asked),
                Place::Anywhere(number) => number,
            };
            newest = newest.max(number);
            asked.push(number);
            let expected = pad(suite, &key, &iv, number, bytes);
            let number = PacketNumber::new(number);
            let mut single = vec![0; bytes];
            inline.write(number, 0, &mut single);
            prop_assert!(single == expected, "{number:?} inline");

            let mask_bytes = keys.mac.mask_bytes().min(bytes);
            let mut pooled = vec![0; bytes];
            let (mask, data) = pooled.split_at_mut(mask_bytes);
            let taken = lane.take(number, mask, data, 0, || ());
            let served = [taken.head, taken.body];
            for part in Part::ALL {
                let range = part.range().start.min(bytes)..part.range().end.min(bytes);
                if served[part as usize] {
                    prop_assert!(pooled[range.clone()] == expected[range], "{number:?} {part:?}");
                    prop_assert!(!given.contains(&(number, part)), "{number:?} {part:?} twice");
                    given.push((number, part));
                } else {
                    prop_assert!(pooled[range].iter().all(|byte| *byte == 0));
                }
            }
            prop_assert!(pooled[bytes.min(PAD_BYTES)..].iter().all(|byte| *byte == 0));
        }
    }
}
