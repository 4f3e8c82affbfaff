//! Feeds sequences of operations to the packet keys of both ends.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::packet_keys::holds(bytes));
