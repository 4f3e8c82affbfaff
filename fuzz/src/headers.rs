//! Checks stream headers: any bytes decode or are refused, and encoded headers decode to the same.

use keypadd_tunnel::wire::{STREAM_HEAD_BYTES, StreamHead, StreamHeader};

fn read(bytes: &[u8]) -> Option<StreamHeader> {
    let (&head, rest) = bytes.split_first_chunk::<STREAM_HEAD_BYTES>()?;
    let head = StreamHead::decode(head).ok()?;
    assert!(head.text_bytes() <= 255);
    head.header(rest.get(..head.text_bytes())?).ok()
}

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    if let Some(header) = read(bytes) {
        assert_eq!(read(&header.encode()), Some(header));
    }
}
