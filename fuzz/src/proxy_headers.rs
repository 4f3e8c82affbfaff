//! Checks PROXY headers: a reader that takes the wanted bytes takes few, none after the header, and what it is
//! told can be told again.

use keypadd_tunnel::proxy_protocol::{decode, encode, wanted};

/// The head of version 2, and the longest addresses and extensions accepted.
const BYTES_MAX: usize = 16 + (4 << 10);

/// Panics if the property does not hold.
pub fn holds(bytes: &[u8]) {
    let mut read = 0;
    let told = loop {
        match wanted(&bytes[..read]) {
            Ok(0) => break decode(&bytes[..read]),
            Ok(more) if read + more <= bytes.len() => read += more,
            // It ends too early, or is no header.
            Ok(more) => return assert!(read + more <= BYTES_MAX),
            Err(_) => return assert!(read <= BYTES_MAX),
        }
    };
    assert!(read <= BYTES_MAX);
    if let Ok(Some(told)) = told {
        let header = encode(Some(told));
        assert_eq!(wanted(&header), Ok(0));
        assert_eq!(decode(&header), Ok(Some(told)));
    }
}
