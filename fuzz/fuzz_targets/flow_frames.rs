//! Feeds bytes to the decoder of frames of UDP flows.

#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keypadd_fuzz::flow_frames::holds(bytes));
