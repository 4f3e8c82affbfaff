//! Feeds keys, headers and ciphertexts to all implementations of GHASH.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::tags::holds(bytes));
