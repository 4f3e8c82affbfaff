//! Tests that a chunk serves only its own pads, each once, and wipes its memory.

use std::sync::Arc;
use std::sync::mpsc;

use keypadd_keystream::{PacketNumber, Suite, SuiteKey};

use super::*;
use crate::arena;
use crate::filler_state::FillerState;

const KEY: KeyId = KeyId(7);

fn segment(value: u64) -> Segment {
    PacketNumber::new(value * SEGMENT_PACKETS as u64).segment()
}

/// A chunk of segment 2, and the receiver of its memory.
fn chunk(part: Part) -> (Chunk, mpsc::Receiver<Box<[Unit]>>) {
    let (sender, arrivals) = mpsc::channel();
    let home = MemoryReturn::new(sender, Arc::new(FillerState::default()));
    let units = arena::map(part.units()).expect("memory").into();
    let keystream =
        SuiteKey::derive(Suite::AES_128_GCM, &[1; 16], &[2; 12]).keystream.expect("no null cipher");
    let chunk = Chunk::fill(KEY, &keystream, segment(2), part, units, home);
    (chunk, arrivals)
}

/// A row's bytes, used or not.
fn bytes(chunk: &Chunk, slot: usize) -> &[u8] {
    let (unit, bytes) = chunk.part.place(slot);
    &chunk.units[unit][bytes]
}

fn is_wiped(units: &[Unit]) -> bool {
    units.iter().all(|unit| unit.iter().all(|&byte| byte == 0))
}

#[test]
fn a_chunk_holds_only_its_own_key_segment_and_part() {
    for (part, other) in [(Part::Head, Part::Body), (Part::Body, Part::Head)] {
        let (chunk, _arrivals) = chunk(part);
        for slot in 0..SEGMENT_PACKETS {
            assert!(chunk.peek(KEY, segment(2), part, slot).is_some());
            assert!(chunk.peek(KeyId(8), segment(2), part, slot).is_none());
            assert!(chunk.peek(KEY, segment(1), part, slot).is_none());
            assert!(chunk.peek(KEY, segment(3), part, slot).is_none());
            assert!(chunk.peek(KEY, segment(2), other, slot).is_none());
        }
    }
}

#[test]
fn a_row_of_zeros_counts_as_missing() {
    for part in Part::ALL {
        let (mut chunk, _arrivals) = chunk(part);
        for slot in [0, 5, 6, 63] {
            let (unit, bytes) = chunk.part.place(slot);
            chunk.units[unit][bytes.start..bytes.start + 16].fill(0);
            let row = chunk.peek(KEY, segment(2), part, slot).expect("unused");
            assert!(!is_keystream(row), "{part:?} {slot}");
            assert!(chunk.row(KEY, segment(2), part, slot).is_none(), "{part:?} {slot}");
            // Its neighbors are unchanged.
            assert!(chunk.row(KEY, segment(2), part, slot ^ 1).is_some());
        }
    }
}

#[test]
fn a_discarded_pad_is_wiped_and_gone_and_no_other() {
    for part in Part::ALL {
        let (mut chunk, arrivals) = chunk(part);
        let others = [8, 10].map(|slot| bytes(&chunk, slot).to_vec());
        chunk.discard(KeyId(8), segment(2), part, 9);
        assert!(bytes(&chunk, 9).iter().any(|&byte| byte != 0), "another key's");
        chunk.discard(KEY, segment(2), part, 9);
        assert!(bytes(&chunk, 9).iter().all(|&byte| byte == 0));
        assert!(chunk.row(KEY, segment(2), part, 9).is_none());
        assert_eq!([8, 10].map(|slot| bytes(&chunk, slot).to_vec()), others);
        assert_eq!(chunk.untaken(), SEGMENT_PACKETS as u32 - 1);
        drop(chunk);
        assert!(is_wiped(&arrivals.recv().expect("its memory")));
    }
}

#[test]
fn a_taken_pad_is_wiped_and_gone() {
    for part in Part::ALL {
        let (mut chunk, _arrivals) = chunk(part);
        let row = bytes(&chunk, 9).to_vec();
        let mut data = [0; 20];
        chunk.row(KEY, segment(2), part, 9).expect("unused").take(&mut [0; 4], &mut data);
        assert_eq!(data, row[4..24]);
        let wiped = if part == Part::Head { HEAD_BYTES } else { 24 };
        assert!(bytes(&chunk, 9)[..wiped].iter().all(|&byte| byte == 0));
        // The filler wipes the rest of a body.
        assert!(bytes(&chunk, 9)[wiped..] == row[wiped..]);
        assert!(chunk.peek(KEY, segment(2), part, 9).is_none());
        assert_eq!(chunk.untaken(), 63);
        assert!(
            chunk.peek(KEY, segment(2), part, 8).is_some()
                && chunk.peek(KEY, segment(2), part, 10).is_some()
        );
    }
}

#[test]
fn memory_leaves_a_chunk_wiped_in_every_way() {
    for part in Part::ALL {
        let (given_back, arrivals) = chunk(part);
        let units = given_back.into_units();
        assert!(units.len() == part.units() && is_wiped(&units));
        assert!(arrivals.try_recv().is_err(), "nothing came another way");

        // Whatever part of a pad was used.
        for used in [1, 16, HEAD_BYTES, BODY_BYTES - 129, BODY_BYTES - 128, BODY_BYTES] {
            let used = used.min(part.row_bytes());
            let (mut dropped, arrivals) = chunk(part);
            let row = dropped.row(KEY, segment(2), part, 1).expect("unused");
            row.take(&mut [], &mut vec![0; used]);
            drop(dropped);
            let units = arrivals.try_recv().expect("the memory came home");
            assert!(units.len() == part.units() && is_wiped(&units), "{part:?}, {used} bytes");
        }
    }
}

#[test]
fn rows_of_different_packets_never_share_bytes() {
    for part in Part::ALL {
        let (chunk, _arrivals) = chunk(part);
        let mut places: Vec<_> = (0..SEGMENT_PACKETS).map(|slot| chunk.part.place(slot)).collect();
        places.sort_by_key(|(unit, bytes)| (*unit, bytes.start));
        for pair in places.windows(2) {
            let [(unit, bytes), (next_unit, next_bytes)] = pair else {
                unreachable!("windows of two")
            };
            assert!(unit < next_unit || bytes.end <= next_bytes.start);
        }
        assert!(places.iter().all(|(_, bytes)| bytes.end <= UNIT_BYTES));
        assert!(places.last().is_some_and(|(unit, _)| *unit < part.units()));
    }
}
