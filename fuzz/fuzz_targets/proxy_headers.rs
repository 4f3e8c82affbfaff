//! Feeds bytes to the reader of PROXY headers.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::proxy_headers::holds(bytes));
