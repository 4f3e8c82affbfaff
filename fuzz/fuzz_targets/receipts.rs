//! Feeds sends and a peer's receipts to a replay buffer.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::receipts::holds(bytes));
