//! Feeds text to the reader of configuration files.

#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| keypadd_fuzz::config::holds(text));
