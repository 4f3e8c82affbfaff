//! Checks control frames, read by the function that reads a peer's: any bytes are frames, unknown frames
//! or errors, the reader never waits for bytes that are there, and encoded frames decode to the
//! same. So do announcements of networks.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use keypadd_tunnel::wire::{FRAME_HEAD_BYTES, Frame, NetworkAnnouncement};
use keypadd_tunnel::{ControlError, read_frame};

/// Reads the next frame; returns it and the rest of the bytes.
fn next(mut bytes: &[u8]) -> (Result<Frame, ControlError>, &[u8]) {
    let read = pin!(read_frame(&mut bytes)).poll(&mut Context::from_waker(Waker::noop()));
    match read {
        Poll::Ready(read) => (read, bytes),
        Poll::Pending => panic!("waits for bytes that are there"),
    }
}

/// Panics if an announcement does not decode to the same.
fn announcement_holds(bytes: &[u8]) {
    let Some((&kind, body)) = bytes.split_first() else { return };
    if let Ok(Some(announcement)) = NetworkAnnouncement::decode(kind, body) {
        let written = announcement.encode();
        let again = NetworkAnnouncement::decode(kind, &written[FRAME_HEAD_BYTES..]);
        assert_eq!(again, Ok(Some(announcement)));
    }
}

/// Panics if the property does not hold.
pub fn holds(mut bytes: &[u8]) {
    announcement_holds(bytes);
    while let (Ok(frame), rest) = next(bytes) {
        assert!(rest.len() + FRAME_HEAD_BYTES <= bytes.len(), "a frame without bytes");
        let written = frame.encode();
        assert!(written.len() <= FRAME_HEAD_BYTES + Frame::BODY_BYTES_MAX);
        assert_eq!(next(&written), (Ok(frame), &[][..]));
        bytes = rest;
    }
}
