//! Checks replay buffers: whatever is sent and whatever receipts a peer invents, what is sent again is what was sent
//! after its receipt, impossible receipts are refused and change nothing, and memory stays within bounds.

use std::sync::Arc;

use bytes::Bytes;
use keypadd_transport::{Receipt, Replay, ReplayBudget};

use super::input::Input;

const STREAM_BYTES: usize = 6_000;
const PEER_BYTES: usize = 8_000;

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let budget = Arc::new(ReplayBudget::new(STREAM_BYTES, PEER_BYTES, Arc::default()));
    let mut streams = [(); 2].map(|()| (Replay::new(Arc::clone(&budget)), Vec::new(), 0_u64));
    while let Some(operation) = input.byte() {
        let (replay, sent, freed) = &mut streams[usize::from(operation & 1)];
        match operation >> 1 & 3 {
            0 if !replay.has_ended() => {
                let count = input.short().unwrap_or(0).min(replay.room());
                let piece: Vec<_> = (0..count).map(|at| (sent.len() + at) as u8).collect();
                replay.push(&Bytes::from(piece.clone()));
                sent.extend(piece);
            }
            1 => replay.finish(),
            kind => {
                let low = input.short().unwrap_or(0) as u64;
                // Plausible ones mostly.
                let number = if operation > 240 { u64::MAX - low } else { low };
                let receipt = Receipt::decode(number);
                assert_eq!(receipt.encode(), number);
                let all = sent.len() as u64;
                let possible = receipt.bytes <= all
                    && (!receipt.end || (replay.has_ended() && receipt.bytes == all));
                if kind == 2 {
                    let released = replay.release(receipt);
                    assert_eq!(released.is_ok(), possible);
                    assert_eq!(released.unwrap_or(false), possible && receipt.end);
                } else {
                    let resumed = replay.resume(receipt);
                    assert_eq!(resumed.is_ok(), possible && receipt.bytes >= *freed);
                    if let Ok(again) = resumed {
                        let again: Vec<_> = again.into_iter().flatten().collect();
                        assert_eq!(again, sent[receipt.bytes as usize..]);
                    }
                }
                if possible {
                    *freed = receipt.bytes.max(*freed);
                }
            }
        }
        let kept = streams.iter().map(|(_, sent, freed)| sent.len() - *freed as usize);
        assert_eq!(kept.sum::<usize>(), budget.used());
        assert!(budget.used() <= PEER_BYTES);
    }
    drop(streams);
    assert_eq!(budget.used(), 0);
}
