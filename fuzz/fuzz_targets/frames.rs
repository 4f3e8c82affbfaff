//! Feeds bytes to the decoder of control frames.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::frames::holds(bytes));
