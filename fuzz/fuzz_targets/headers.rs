//! Feeds bytes to the decoder of stream headers.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::headers::holds(bytes));
