//! Stream headers: any bytes are one or are refused, and one that was understood is written as one that is
//! understood the same.
#![no_main]

use keypadd_tunnel::wire::{STREAM_HEAD_BYTES, StreamHead, StreamHeader};
use libfuzzer_sys::fuzz_target;

fn read(bytes: &[u8]) -> Option<StreamHeader> {
    let (&head, rest) = bytes.split_first_chunk::<STREAM_HEAD_BYTES>()?;
    let head = StreamHead::decode(head).ok()?;
    assert!(head.text_bytes() <= 255);
    head.header(rest.get(..head.text_bytes())?).ok()
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(header) = read(bytes) {
        assert_eq!(read(&header.encode()), Some(header));
    }
});
