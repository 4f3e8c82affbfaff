#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| keypadd_fuzz::invitations::holds(text));
