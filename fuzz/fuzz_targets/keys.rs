//! Feeds text and bytes to the parsers of keys.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::keys::holds(bytes));
