//! Control frames, one after the other as they come in: any bytes are frames, unknown or refused, and
//! what was understood is written as something that is understood the same.
#![no_main]

use keypadd_tunnel::wire::{FRAME_HEAD_BYTES, Frame, FrameHead};
use libfuzzer_sys::fuzz_target;

fn next(bytes: &[u8]) -> Option<(Option<Frame>, &[u8])> {
    let (&head, rest) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>()?;
    let head = FrameHead::decode(head);
    let (body, rest) = rest.split_at_checked(head.body_bytes.into())?;
    // As the control stream reads it: what is longer than every known frame is skipped unread.
    let known = &body[..body.len().min(Frame::BODY_BYTES_MAX)];
    Some((Frame::decode(head.kind, known).ok()?, rest))
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes;
    while let Some((frame, rest)) = next(bytes) {
        if let Some(frame) = frame {
            let written = frame.encode();
            assert!(written.len() <= FRAME_HEAD_BYTES + Frame::BODY_BYTES_MAX);
            assert_eq!(next(&written), Some((Some(frame), &[][..])));
        }
        bytes = rest;
    }
});
