//! What packet protection takes for granted of quinn and rustls, so that a release of theirs in which it no
//! longer holds fails here, by name, before anything else does. The locked releases are asked, not their
//! documentation; each claim says what rests on it.

mod pair;
mod record;
mod supply;

use std::collections::BTreeSet;
use std::sync::Arc;

use interposer::Origin;
use keypadd_keystream::Suite;

use pair::Pair;
use record::Act;

/// What quinn keeps free below the limit that it is told; limits.rs adds it.
const KEY_UPDATE_MARGIN: u64 = 10_000;
/// Packets of later phases in these tests.
const PHASE_PACKETS: u64 = 150;
/// The first 1-RTT keys: the second that `write_handshake` returns.
const FIRST_PHASE: Origin = Origin::Handshake(1);

/// A connection that has gone through some phases.
fn after_updates() -> Pair {
    let mut pair =
        Pair::new(Suite::AES_128_CTR_HMAC_SHA256, Some(KEY_UPDATE_MARGIN + PHASE_PACKETS));
    pair.run(4000, [true, true]);
    pair
}

#[test]
fn quinn_never_seals_a_number_twice_and_numbers_only_rise() {
    // Rests on it: a sealing key that refuses every number not above the last one refuses no packet.
    for end in after_updates().ends {
        let spaces: [fn(Origin) -> bool; 3] = [
            |origin| origin == Origin::Initial,
            |origin| origin == Origin::Handshake(0),
            |origin| origin == FIRST_PHASE || matches!(origin, Origin::Next(_)),
        ];
        for is_of_space in spaces {
            let numbers: Vec<u64> = (end.record.acts().into_iter())
                .filter_map(|act| match act {
                    Act::Sealed { by, number, .. } if is_of_space(by) => Some(number),
                    _ => None,
                })
                .collect();
            assert!(!numbers.is_empty() && numbers.is_sorted_by(|one, next| one < next));
        }
    }
}

#[test]
fn quinn_leaves_room_for_the_tag() {
    // Rests on it: a buffer without that room is sent as zeros, and closes the connection.
    for end in after_updates().ends {
        let has_room = |act: Act| !matches!(act, Act::Sealed { room_for_tag: false, .. });
        assert!(end.record.acts().into_iter().all(has_room));
    }
}

#[test]
fn keys_come_in_the_order_that_tells_phases_apart() {
    // Rests on it: the second keys of `write_handshake` are phase 0, the nth call of `next_1rtt_keys` makes
    // phase n + 1, and comes when phase n has just begun (session.rs counts calls).
    for end in after_updates().ends {
        let made: Vec<Origin> = (end.record.acts().into_iter())
            .filter_map(|act| match act {
                Act::Made(origin) if origin != Origin::Initial => Some(origin),
                _ => None,
            })
            .collect();
        let nexts = made.len() - 2;
        assert!(nexts > 5, "{made:?}");
        let expected = [Origin::Handshake(0), FIRST_PHASE].into_iter();
        assert!(made.iter().copied().eq(expected.chain((0..nexts).map(Origin::Next))), "{made:?}");
        // Nothing is sealed by the keys of a phase before those of the phase after it were made.
        let acts = end.record.acts();
        for nth in 0..nexts - 1 {
            let used = acts
                .iter()
                .position(|act| matches!(act, Act::Sealed { by, .. } if *by == Origin::Next(nth)));
            let next_made = acts.iter().position(|act| *act == Act::Made(Origin::Next(nth + 1)));
            assert!(next_made < used, "phase {}", nth + 1);
        }
    }
}

#[test]
fn a_sending_phase_is_over_when_the_next_one_begins() {
    // Rests on it: pads of a sending phase are wiped as soon as the next one is in use.
    for end in after_updates().ends {
        let phases = (end.record.acts().into_iter()).filter_map(|act| match act {
            Act::Sealed { by: by @ (FIRST_PHASE | Origin::Next(_)), .. } => Some(by),
            _ => None,
        });
        let phases: Vec<Origin> = phases.collect();
        assert!(phases.is_sorted(), "a former phase came back");
    }
}

#[test]
fn the_first_phase_has_10_to_999_packets_and_later_ones_end_10000_before_the_limit() {
    // Rests on it: how much is filled for a first phase, and the limits that quinn is told. One end's update
    // is both ends', so an end's phase may be shorter than its own count.
    let mut first = BTreeSet::new();
    for _ in 0..8 {
        for end in after_updates().ends {
            first.insert(end.record.sealed_by(FIRST_PHASE).len());
            let later = end.record.sealed_by(Origin::Next(2));
            let span = later[later.len() - 1] - later[0] + 1;
            assert!(span <= PHASE_PACKETS + 2, "{span}");
        }
    }
    // Numbers that quinn skips count as sent.
    assert!(first.iter().all(|packets| (8..1000).contains(packets)), "{first:?}");
    assert!(first.len() > 4, "they are drawn at random: {first:?}");
}

#[test]
fn quinn_goes_on_under_a_key_whose_limit_has_passed() {
    // What we do not rest on: an update needs an answer, and without one quinn seals beyond the limit that it
    // was told. That is why the sealing key counts by itself.
    let limit = KEY_UPDATE_MARGIN + PHASE_PACKETS;
    let mut pair = Pair::new(Suite::AES_128_CTR_HMAC_SHA256, Some(limit));
    pair.run(3000, [true, true]);
    let client = Arc::clone(&pair.ends[0].record);
    let newest = |origins: &mut dyn Iterator<Item = Origin>| origins.last();
    let in_use = || {
        newest(&mut client.acts().into_iter().filter_map(|act| match act {
            Act::Sealed { by, .. } => Some(by),
            _ => None,
        }))
    };
    // The client hears nothing any more and goes on talking until it gives up.
    pair.ends[0].is_deaf = true;
    let last = in_use();
    pair.run(20_000, [true, false]);
    let stuck = in_use().expect("it has sealed");
    let origins = [last.expect("it had sealed"), stuck];
    assert!(origins[1] >= origins[0]);
    let acts = client.acts();
    let after = acts.iter().filter(|act| matches!(act, Act::Sealed { by, .. } if *by == stuck));
    assert!(after.count() as u64 > PHASE_PACKETS, "it changed keys without an answer");
}

#[test]
fn dropped_connections_drop_their_keys() {
    // Rests on it: pads and keys are wiped when quinn drops the packet keys.
    let pair = after_updates();
    let records = pair.ends.each_ref().map(|end| Arc::clone(&end.record));
    drop(pair);
    for record in records {
        let count = |kind: fn(&Act) -> bool| record.acts().iter().filter(|act| kind(act)).count();
        let made = count(|act| matches!(act, Act::Made(_)));
        assert_eq!(made, count(|act| matches!(act, Act::Dropped(_))));
    }
}
