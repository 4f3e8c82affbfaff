//! Checks the frames of UDP flows: any bytes decode to what encodes to the same flow, or are refused, and any
//! fragments hold memory within the bound and make datagrams of the length that they say.

use std::time::Instant;

use bytes::Bytes;
use keypadd_transport::{DATAGRAM_BYTES_MAX, FlowFrame, Fragments, PARTIAL_BYTES_MAX};

/// Panics if the property does not hold.
pub fn holds(input: &[u8]) {
    let (mut fragments, now) = (Fragments::default(), Instant::now());
    // Each frame with its length, in two bytes, before it.
    let mut rest = input;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let (frame, next) = after.split_at(after.len().min(u16::from_be_bytes(*length).into()));
        rest = next;
        let Some(frame) = FlowFrame::decode(Bytes::copy_from_slice(frame)) else { continue };
        assert!(frame.bytes.len() <= DATAGRAM_BYTES_MAX);
        assert_eq!(FlowFrame::decode(frame.encode()).as_ref(), Some(&frame));
        let Some(fragment) = frame.fragment else { continue };
        if let Some(whole) = fragments.add(frame.stream, fragment, &frame.bytes, now) {
            assert_eq!(whole.len(), usize::from(fragment.total));
        }
        assert!(fragments.held_bytes() <= PARTIAL_BYTES_MAX);
    }
}
