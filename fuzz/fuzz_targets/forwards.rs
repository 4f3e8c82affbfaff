//! Feeds text to the parsers of forwards.

#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| keypadd_fuzz::forwards::holds(text));
