//! Tests that a pace applies to all keystream, including ring's, and changes none of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use keypadd_keystream::{CipherEngine, Pace};

use super::support::{Receiver, Sender, mask_bytes, material, open, payload, seal, with_pads};
use crate::protection::KeyProtection;
use crate::seal::SealKey;

const HEADER: &[u8] = b"header";
const PAYLOAD_BYTES: [usize; 4] = [1, 40, 1_400, 5_000];

/// Counts the bytes generated.
#[derive(Clone, Default)]
struct Counts(Arc<AtomicUsize>);

impl Pace for Counts {
    fn paced(&self, bytes: usize, make: &mut dyn FnMut()) {
        self.0.fetch_add(bytes, Relaxed);
        make();
    }

    fn longest(&self, _: usize) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn a_pace_sees_every_byte_of_keystream_and_changes_none() {
    for suite in with_pads() {
        let counts = Counts::default();
        let engine = CipherEngine::default().at_pace(counts.clone());
        let material = material(suite, 21);
        let (sender, plain) = (Sender::new(suite), Sender::new(suite));
        let paced: SealKey = sender.key_with(0, &material, engine);
        let plain = plain.key(0, &material);
        let receiver = Receiver::new(suite);
        let opens = receiver.key_with(0, &material, engine);
        for (number, bytes) in (0..).zip(PAYLOAD_BYTES) {
            let pad_bytes = mask_bytes(suite) + bytes;
            let before = counts.0.load(Relaxed);
            let sealed = seal(&paced, number, HEADER, &payload(bytes));
            assert_eq!(counts.0.load(Relaxed) - before, pad_bytes, "{suite}: sealing {bytes}");
            assert!(sealed == seal(&plain, number, HEADER, &payload(bytes)), "{suite}");
            let before = counts.0.load(Relaxed);
            assert!(open(&opens, number, HEADER, &sealed) == Some(payload(bytes)), "{suite}");
            assert_eq!(counts.0.load(Relaxed) - before, pad_bytes, "{suite}: opening {bytes}");
        }
        // The filler's chunks too.
        let (_, keystream) = KeyProtection::derive(suite, &material, engine);
        let before = counts.0.load(Relaxed);
        let mut chunk = vec![0; 64 * 128];
        let segment = keypadd_keystream::PacketNumber::new(0).segment();
        Arc::clone(&keystream.expect("pads")).write_rows(segment, 0, chunk.chunks_mut(128));
        assert_eq!(counts.0.load(Relaxed) - before, chunk.len(), "{suite}: a chunk");
    }
}
