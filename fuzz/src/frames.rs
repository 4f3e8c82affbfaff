//! Checks control frames, read by the function that reads a peer's: any bytes are frames, unknown frames
//! or errors, the reader never waits for bytes that are there, and encoded frames decode to the
//! same.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use keypadd_tunnel::wire::{FRAME_HEAD_BYTES, Frame};
use keypadd_tunnel::{ControlError, read_frame};

/// Reads the next frame; returns it and the rest of the bytes.
fn next(mut bytes: &[u8]) -> (Result<Frame, ControlError>, &[u8]) {
    let read = pin!(read_frame(&mut bytes)).poll(&mut Context::from_waker(Waker::noop()));
    match read {
        Poll::Ready(read) => (read, bytes),
        Poll::Pending => panic!("waits for bytes that are there"),
    }
}

/// Panics if the property does not hold.
pub fn holds(mut bytes: &[u8]) {
    while let (Ok(frame), rest) = next(bytes) {
        assert!(rest.len() + FRAME_HEAD_BYTES <= bytes.len(), "a frame without bytes");
        let written = frame.encode();
        assert!(written.len() <= FRAME_HEAD_BYTES + Frame::BODY_BYTES_MAX);
        assert_eq!(next(&written), (Ok(frame), &[][..]));
        bytes = rest;
    }
}
