//! Feeds bytes to both ends of a TLS handshake.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::handshakes::holds(bytes));
