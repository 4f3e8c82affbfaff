//! Tests that replayed packets (I5) are refused and cost no keystream, and that forgeries move no
//! window.

use keypadd_keystream::Protection;
use keypadd_pool::{Coverage, Direction};

use super::support::{Pads, Receiver, Sender, material, open, payload, seal, with_tags};
use crate::meters::Meters;
use crate::window::WINDOW_PACKETS;

const HEADER: &[u8] = b"header";

/// Every counter that opening a packet increases.
fn spent(meters: &Meters) -> [u64; 5] {
    let packets = [Coverage::Hit, Coverage::Partial, Coverage::Miss]
        .map(|coverage| meters.packets(Direction::Receive, coverage));
    let [hits, partials, misses] = packets;
    let (pool, inline) = (meters.keystream_pool_bytes(), meters.keystream_inline_bytes());
    [hits, partials, misses, pool, inline]
}

/// Runs `check` for every suite and source with two phases of sealing and opening keys.
fn each_source(check: impl Fn(Protection, Pads, &Receiver, &dyn Fn(u64, u64) -> bool)) {
    for suite in Protection::all() {
        for pads in [Pads::Off, Pads::Warm, Pads::Dry] {
            let receiver = Receiver::new(suite);
            let opens = [0, 1].map(|phase| receiver.key(phase, &material(suite, 8 + phase as u8)));
            pads.provide(&mut receiver.receiving().phases, 0);
            // Each packet from a sender of its own, so that any number may be sealed again.
            let deliver = |phase: u64, number: u64| {
                let seals = Sender::new(suite).key(phase, &material(suite, 8 + phase as u8));
                let sealed = seal(&seals, number, HEADER, &payload(300));
                let opened = open(&opens[phase as usize], number, HEADER, &sealed);
                opened.inspect(|opened| assert_eq!(opened, &payload(300))).is_some()
            };
            check(suite, pads, &receiver, &deliver);
        }
    }
}

#[test]
fn a_packet_opens_once() {
    each_source(|suite, pads, receiver, deliver| {
        assert!(deliver(0, 7), "{suite} {pads:?}");
        let (before, levels) = (spent(&receiver.meters), receiver.levels());
        assert!(!deliver(0, 7), "{suite} {pads:?}");
        assert_eq!(receiver.meters.replays(), 1);
        assert_eq!(receiver.meters.open_failures(), 0);
        assert_eq!(spent(&receiver.meters), before, "{suite} {pads:?}");
        for (before, after) in levels.iter().zip(receiver.levels()) {
            assert!(after.packets >= before.packets, "{suite} {pads:?}");
        }
        assert!(deliver(0, 8) && deliver(0, 6), "{suite} {pads:?}");
    });
}

#[test]
fn a_packet_older_than_the_window_is_refused() {
    each_source(|suite, pads, receiver, deliver| {
        let newest = WINDOW_PACKETS + 100;
        assert!(deliver(0, newest));
        let before = spent(&receiver.meters);
        assert!(!deliver(0, 100), "{suite} {pads:?}");
        assert_eq!(receiver.meters.replays(), 1);
        assert_eq!(spent(&receiver.meters), before, "{suite} {pads:?}");
        assert!(deliver(0, 101), "{suite} {pads:?}: the window's last number");
    });
}

#[test]
fn a_number_opened_in_one_phase_is_refused_in_the_next() {
    each_source(|suite, pads, receiver, deliver| {
        assert!(deliver(0, 7) && deliver(1, 8));
        let before = spent(&receiver.meters);
        assert!(!deliver(1, 7) && !deliver(0, 8), "{suite} {pads:?}");
        assert_eq!(receiver.meters.replays(), 2);
        assert_eq!(spent(&receiver.meters), before, "{suite} {pads:?}");
    });
}

#[test]
fn a_forgery_neither_uses_a_number_up_nor_moves_the_window() {
    for suite in with_tags() {
        let receiver = Receiver::new(suite);
        let material = material(suite, 8);
        let opens = receiver.key(0, &material);
        let seals = Sender::new(suite).key(0, &material);
        let sealed = seal(&seals, 7, HEADER, &payload(300));
        assert_eq!(open(&opens, 7, HEADER, &[0x17; 316]), None);
        assert_eq!(open(&opens, (1 << 62) - 1, HEADER, &sealed), None);
        assert_eq!(open(&opens, 7, HEADER, &sealed), Some(payload(300)), "{suite}");
        // A forged replay is a forgery: without the key, one learns nothing about the window.
        assert_eq!(open(&opens, 7, HEADER, &[0x17; 316]), None);
        assert_eq!((receiver.meters.open_failures(), receiver.meters.replays()), (3, 0));
    }
}

#[test]
fn a_phase_without_pads_verifies_no_packet() {
    for suite in with_tags() {
        let receiver = Receiver::new(suite);
        let material = material(suite, 8);
        let opens = receiver.key(0, &material);
        let sealed = seal(&Sender::new(suite).key(0, &material), 7, HEADER, &payload(300));
        assert_eq!(open(&opens, 7, HEADER, &sealed), Some(payload(300)), "{suite}");
        receiver.receiving().phases.retire(0);
        // Under a mask of zeros this is Poly1305's tag of everything; it would count as a replay.
        assert_eq!(open(&opens, 7, HEADER, &[0; 316]), None);
        assert_eq!(receiver.meters.replays(), 0, "{suite}");
    }
}
