//! Feeds bytes to the SOCKS5 server handshake.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::socks::holds(bytes));
