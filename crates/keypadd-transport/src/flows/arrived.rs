//! Keeps DATAGRAM frames from the peer until a connection's flows take them.

use std::collections::VecDeque;

use bytes::Bytes;

/// Frames, and their bytes, that may wait.
pub(super) const FRAMES_WAITING_MAX: usize = 4096;
pub(super) const FRAME_BYTES_WAITING_MAX: usize = 2 << 20;

/// Frames from the peer, oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl Arrived {
    /// Keeps a frame; returns it if too many wait.
    pub(super) fn push(&mut self, frame: Bytes) -> Result<(), Bytes> {
        let bytes = self.bytes + frame.len();
        if self.frames.len() == FRAMES_WAITING_MAX || bytes > FRAME_BYTES_WAITING_MAX {
            return Err(frame);
        }
        self.bytes = bytes;
        self.frames.push_back(frame);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_frames_wait_as_there_is_room_for_by_number_and_by_bytes() {
        for (length, room) in [(0, FRAMES_WAITING_MAX), (FRAME_BYTES_WAITING_MAX / 4, 4)] {
            let mut arrived = Arrived::default();
            let frame = Bytes::from(vec![7; length]);
            for _ in 0..2 {
                let kept = (0..2 * room).take_while(|_| arrived.push(frame.clone()).is_ok());
                assert_eq!(kept.count(), room);
                let taken = std::iter::from_fn(|| arrived.pop());
                assert_eq!(taken.count(), room);
                assert!(arrived.is_empty());
            }
        }
    }
}
