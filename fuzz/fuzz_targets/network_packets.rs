//! Feeds packets from and to a peer to what decides about them.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::network_packets::holds(bytes));
