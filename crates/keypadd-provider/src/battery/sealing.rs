//! Tests what a sealing key refuses (I3): numbers that do not rise, too many packets, too long
//! ones. It never panics and never emits plaintext; it writes zeros and requests the connection to
//! be closed.

use keypadd_keystream::{PAYLOAD_BYTES_MAX, Protection, Suite, TAG_BYTES};

use super::support::{Pads, Receiver, Sender, material, open, payload, seal};
use crate::fault::KeyFault;
use crate::limits::{CLOSING_PACKETS, KeyLimits};

const HEADER: &[u8] = b"header";

fn is_zeros(sealed: &[u8], payload_bytes: usize) -> bool {
    sealed.len() == payload_bytes + TAG_BYTES && sealed.iter().all(|&byte| byte == 0)
}

#[test]
fn a_number_not_above_the_last_yields_zeros_and_ends_the_key() {
    for suite in Protection::all() {
        for pads in [Pads::Off, Pads::Warm, Pads::Dry] {
            for repeated in [5, 4, 0] {
                let sender = Sender::new(suite);
                let key = sender.key(0, &material(suite, 1));
                pads.provide(&mut sender.sending().phases, 0);
                assert!(!is_zeros(&seal(&key, 5, HEADER, &payload(100)), 100));
                assert_eq!(sender.fault(), None);

                assert!(is_zeros(&seal(&key, repeated, HEADER, &payload(90)), 90));
                assert_eq!(sender.fault(), Some(KeyFault::NumberRepeated));
                assert_eq!(sender.meters.pad_reuse(), 1);

                let next = seal(&key, 6, HEADER, &payload(80));
                assert!(is_zeros(&next, 80), "{suite} {pads:?}: sealed after {repeated}");
                assert_eq!(sender.fault(), Some(KeyFault::NumberRepeated));
                assert_eq!(sender.meters.pad_reuse(), 1);
            }
        }
    }
}

#[test]
fn the_last_64_bit_number_is_refused_and_does_not_restart_the_count() {
    for suite in Protection::all() {
        let sender = Sender::new(suite);
        let key = sender.key(0, &material(suite, 1));
        assert!(!is_zeros(&seal(&key, u64::MAX - 1, HEADER, &payload(40)), 40));
        assert!(is_zeros(&seal(&key, u64::MAX, HEADER, &payload(40)), 40));
        assert_eq!(sender.fault(), Some(KeyFault::Internal));
        let next = sender.key(1, &material(suite, 2));
        assert!(is_zeros(&seal(&next, 0, HEADER, &payload(40)), 40));
    }
}

#[test]
fn a_number_used_in_one_phase_is_refused_in_the_next() {
    for suite in Protection::all() {
        let sender = Sender::new(suite);
        let old = sender.key(0, &material(suite, 1));
        let new = sender.key(1, &material(suite, 2));
        assert!(!is_zeros(&seal(&old, 9, HEADER, &payload(40)), 40));
        assert!(is_zeros(&seal(&new, 9, HEADER, &payload(40)), 40));
        assert_eq!(sender.fault(), Some(KeyFault::NumberRepeated));
        assert_eq!(sender.meters.pad_reuse(), 1);
    }
}

#[test]
fn a_retired_key_seals_only_zeros() {
    let suite = Suite::AES_256_GCM.into();
    let sender = Sender::new(suite);
    let key = sender.key(0, &material(suite, 1));
    sender.sending().phases.retire_before(1);
    assert!(is_zeros(&seal(&key, 0, HEADER, &payload(40)), 40));
    assert_eq!(sender.fault(), Some(KeyFault::KeyRetired));
}

#[test]
fn a_key_requests_closing_64_packets_early_and_then_stops() {
    const HARD_STOP: u64 = 200;
    for suite in Protection::all() {
        let limits = KeyLimits { hard_stop: HARD_STOP, ..KeyLimits::of(suite) };
        let material = material(suite, 3);
        let (sender, receiver) = (Sender::limited(suite, limits), Receiver::new(suite));
        let (seals, opens) = (sender.key(0, &material), receiver.key(0, &material));
        for sealed in 0..HARD_STOP {
            let expected =
                (sealed + CLOSING_PACKETS >= HARD_STOP).then_some(KeyFault::LimitReached);
            let packet = seal(&seals, sealed, HEADER, &payload(50));
            assert_eq!(sender.fault(), expected, "{suite} after {sealed}");
            assert_eq!(open(&opens, sealed, HEADER, &packet), Some(payload(50)), "{suite}");
        }
        for number in HARD_STOP..HARD_STOP + 3 {
            assert!(is_zeros(&seal(&seals, number, HEADER, &payload(50)), 50), "{suite}");
        }
        assert_eq!(sender.meters.pad_reuse(), 0);
    }
}

#[test]
fn a_key_requests_an_update_by_bytes_then_closing_and_stops_at_twice_as_many() {
    const PHASE_BYTES: u64 = 8 << 20;
    let longest = PAYLOAD_BYTES_MAX as u64;
    for suite in [Suite::AES_256_GCM, Suite::CHACHA20_POLY1305, Suite::TRIPLE_DES_CTR_HMAC_SHA1]
        .map(Protection::from)
    {
        let limits = KeyLimits { phase_bytes: PHASE_BYTES, ..KeyLimits::of(suite) };
        let (sender, key) = (Sender::limited(suite, limits), material(suite, 3));
        let seals = sender.key(0, &key);
        for sealed in 1..=2 * PHASE_BYTES / longest {
            assert!(!is_zeros(
                &seal(&seals, sealed, HEADER, &payload(PAYLOAD_BYTES_MAX)),
                PAYLOAD_BYTES_MAX
            ));
            assert_eq!(
                sender.usage_limit_reached(0),
                sealed * longest >= PHASE_BYTES,
                "{suite} after {sealed}"
            );
            let is_closing = (sealed + CLOSING_PACKETS) * longest > 2 * PHASE_BYTES;
            let expected = is_closing.then_some(KeyFault::LimitReached);
            assert_eq!(sender.fault(), expected, "{suite} after {sealed}");
        }
        assert!(is_zeros(&seal(&seals, 1 << 20, HEADER, &payload(1)), 1), "{suite}");
        assert!(!sender.usage_limit_reached(1), "{suite}: the next phase");
    }
}

#[test]
fn the_limits_that_are_reported_are_those_of_rfc_9001() {
    use quinn_proto::crypto::PacketKey;

    for suite in Protection::all() {
        let key = Sender::new(suite).key(0, &material(suite, 1));
        let opens = Receiver::new(suite).key(0, &material(suite, 1));
        let forgeries = if suite == Suite::CHACHA20_POLY1305.into() { 1 << 36 } else { 1 << 52 };
        assert_eq!((key.integrity_limit(), opens.integrity_limit()), (forgeries, forgeries));
        assert!(key.confidentiality_limit() <= 1 << 23, "{suite}");
    }
}

#[test]
fn the_longest_payload_passes_and_a_longer_one_is_zeros() {
    for suite in Protection::all() {
        for pads in [Pads::Off, Pads::Warm] {
            let material = material(suite, 4);
            let (sender, receiver) = (Sender::new(suite), Receiver::new(suite));
            let (seals, opens) = (sender.key(0, &material), receiver.key(0, &material));
            pads.provide(&mut sender.sending().phases, 0);
            let longest = payload(PAYLOAD_BYTES_MAX);
            let sealed = seal(&seals, 0, HEADER, &longest);
            assert!(open(&opens, 0, HEADER, &sealed) == Some(longest), "{suite} {pads:?}");

            let too_long = PAYLOAD_BYTES_MAX + 1;
            assert!(is_zeros(&seal(&seals, 1, HEADER, &payload(too_long)), too_long));
            assert_eq!(sender.fault(), Some(KeyFault::PayloadTooLong));
            assert_eq!(open(&opens, 1, HEADER, &vec![0; too_long + TAG_BYTES]), None);
        }
    }
}

#[test]
fn a_buffer_without_room_for_the_tag_carries_no_plaintext() {
    use quinn_proto::crypto::PacketKey;

    for suite in Protection::all() {
        let sender = Sender::new(suite);
        let key = sender.key(0, &material(suite, 5));
        let mut packet = [HEADER, &[0x55; 7]].concat();
        key.encrypt(0, &mut packet, HEADER.len());
        assert_eq!(packet, [HEADER, &[0; 7]].concat());
        assert!(sender.fault().is_some());
    }
}
