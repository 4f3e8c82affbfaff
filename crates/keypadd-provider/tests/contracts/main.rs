//! Tests what packet protection assumes of quinn and rustls, so that a release that breaks an
//! assumption fails here first, by name. Tests the locked releases, not their documentation; each
//! test says what depends on its claim.

mod pair;
mod pool_switch;
mod record;
mod tls;

use std::collections::BTreeSet;
use std::sync::Arc;

use interposer::Origin;
use keypadd_keystream::Suite;
use keypadd_pool::{Coverage, Direction};
use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Version;

use pair::Pair;
use record::{Act, Form};

/// The margin that quinn keeps below the reported limit; limits.rs adds it.
const KEY_UPDATE_MARGIN: u64 = 10_000;
/// Packets of later phases in these tests.
const PHASE_PACKETS: u64 = 150;
/// The first 1-RTT keys: the second that `write_handshake` returns.
const FIRST_PHASE: Origin = Origin::Handshake(1);

/// Not a suite of ring's: ring cannot have sealed these packets.
const SUITE: Suite = Suite::AES_128_CTR_HMAC_SHA256;

/// A connection that has gone through some phases.
fn after_updates() -> Pair {
    let limit = Some(KEY_UPDATE_MARGIN + PHASE_PACKETS);
    let mut pair = Pair::new(SUITE, [limit, limit]);
    pair.run(4000, [true, true]);
    pair
}

#[test]
fn quinn_never_seals_a_number_twice_and_numbers_only_rise() {
    // What depends on this: a sealing key that refuses every number not above the last one refuses
    // no packet.
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
    // What depends on this: a buffer without that room is sent as zeros, and closes the connection.
    for end in after_updates().ends {
        let has_room = |act: Act| !matches!(act, Act::Sealed { room_for_tag: false, .. });
        assert!(end.record.acts().into_iter().all(has_room));
    }
}

#[test]
fn keys_come_in_the_order_of_their_phases() {
    // What depends on this: the second keys of `write_handshake` are phase 0, the nth call of
    // `next_1rtt_keys` makes phase n + 1, and comes when phase n has just begun (session.rs counts
    // calls).
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
        // The keys of a phase seal nothing before those of the next phase are derived.
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
    // What depends on this: pads of a sending phase are wiped as soon as the next one is in use.
    for end in after_updates().ends {
        let phases = (end.record.acts().into_iter()).filter_map(|act| match act {
            Act::Sealed { by: by @ (FIRST_PHASE | Origin::Next(_)), .. } => Some(by),
            _ => None,
        });
        let phases: Vec<Origin> = phases.collect();
        assert!(phases.is_sorted(), "an earlier phase was used again");
    }
}

#[test]
fn the_first_phase_has_10_to_999_packets() {
    // What depends on this: how much is filled for a first phase. An update by one end updates
    // both, so an end's phase may be shorter than its own count.
    let mut first = BTreeSet::new();
    for _ in 0..8 {
        for end in after_updates().ends {
            first.insert(end.record.sealed_by(FIRST_PHASE).len());
        }
    }
    // Numbers that quinn skips count as sent.
    assert!(first.iter().all(|packets| (8..1000).contains(packets)), "{first:?}");
    assert!(first.len() > 4, "they should be random: {first:?}");
}

#[test]
fn later_phases_end_10000_packets_before_the_limit() {
    // What depends on this: the reported limits, which are phases plus 10,000 (limits.rs). The
    // client alone has such a limit, so that all updates but the first are its own.
    let mut pair = Pair::new(SUITE, [Some(KEY_UPDATE_MARGIN + PHASE_PACKETS), None]);
    pair.run(4000, [true, true]);
    let phases = (1..).map(|nth| pair.ends[0].record.sealed_by(Origin::Next(nth)));
    let begins: Vec<u64> = phases.map_while(|numbers| numbers.first().copied()).collect();
    let spans: Vec<u64> = begins.windows(2).map(|begins| begins[1] - begins[0]).collect();
    // A number that quinn skips at a phase boundary may count for either phase.
    assert!(spans.iter().all(|span| span.abs_diff(PHASE_PACKETS) <= 2), "{spans:?}");
    let exact = spans.iter().filter(|span| **span == PHASE_PACKETS).count();
    assert!(spans.len() > 15 && exact > spans.len() / 2, "{spans:?}");
}

#[test]
fn quinn_keeps_using_a_key_past_its_limit() {
    // The sealing key counts packets itself for this reason: an update needs an answer, and without
    // one quinn seals beyond the reported limit.
    let limit = KEY_UPDATE_MARGIN + PHASE_PACKETS;
    let mut pair = Pair::with_a_stubborn_server(SUITE, limit);
    pair.run(limit as usize + 3000, [true, false]);
    let record = &pair.ends[0].record;
    let sealed = record.sealed_by(Origin::Next(0)).len() as u64;
    assert!(sealed > limit, "{sealed}");
    assert!(record.sealed_by(Origin::Next(1)).is_empty(), "it changed keys without an answer");
}

#[test]
fn each_type_of_packet_has_keys_of_its_own_and_there_is_no_0_rtt() {
    // What depends on this: Initial packets never touch our ciphers, and nothing goes out under
    // keys that could be replayed.
    for end in after_updates().ends {
        for act in end.record.acts() {
            let Act::Sealed { by, form, .. } = act else { continue };
            let expected = match by {
                Origin::Initial => Form::Initial,
                Origin::Handshake(0) => Form::Handshake,
                Origin::Handshake(_) | Origin::Next(_) => Form::Short,
            };
            assert_eq!(form, expected, "{act:?}");
        }
    }
}

#[test]
fn initial_packets_are_sealed_under_public_keys_and_by_none_of_our_suites() {
    // What depends on this: no pad is spent before a peer is known. The keys are RFC 9001's (5.2),
    // made here from the client's random connection ID, by ring; the connection's own suite would
    // give other bytes.
    let mut pair = Pair::new(SUITE, [None, None]);
    pair.run(100, [true, true]);
    let packets = pair.ends.each_ref().map(|end| end.record.initials());
    let header = &packets[0][0].header;
    let connection_id = &header[6..6 + usize::from(header[5])];
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
    let suite = suite.expect("ring's AES-128-GCM does QUIC");
    for (packets, other_side) in packets.iter().zip([Side::Server, Side::Client]) {
        let keys = suite.keys(connection_id, other_side, Version::V1);
        assert!(!packets.is_empty());
        for packet in packets {
            let (header, mut sealed) = (&packet.header, packet.sealed.clone());
            let opened = keys.remote.packet.decrypt_in_place(packet.number, header, &mut sealed);
            assert!(opened.is_ok(), "{packet:?}");
        }
    }
    // Our meters count only packets of the 1-RTT space.
    for end in pair.ends {
        let is_short = |act: &Act| matches!(act, Act::Sealed { form: Form::Short, .. });
        let sealed = end.record.acts().into_iter().filter(is_short).count() as u64;
        let coverages = [Coverage::Hit, Coverage::Partial, Coverage::Miss];
        let counted = coverages.map(|pad| end.meters.packets(Direction::Send, pad));
        assert_eq!(counted.iter().sum::<u64>(), sealed);
    }
}

#[test]
fn dropped_connections_drop_their_keys() {
    // What depends on this: pads and keys are wiped when quinn drops the packet keys.
    let pair = after_updates();
    let records = pair.ends.each_ref().map(|end| Arc::clone(&end.record));
    drop(pair);
    for record in records {
        let count = |kind: fn(&Act) -> bool| record.acts().iter().filter(|act| kind(act)).count();
        let made = count(|act| matches!(act, Act::Made(_)));
        assert_eq!(made, count(|act| matches!(act, Act::Dropped(_))));
    }
}
