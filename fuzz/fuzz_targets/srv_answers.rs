//! Feeds bytes to the reader of DNS answers.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::srv_answers::holds(bytes));
