//! Feeds sequences of operations to a pool, its lanes and its filler.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::pool_operations::holds(bytes));
