//! Feeds text and bytes to the readers of invitations.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::invitations::holds(bytes));
