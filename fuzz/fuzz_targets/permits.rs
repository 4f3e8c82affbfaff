//! Feeds text to the parsers of permits.

#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| keypadd_fuzz::permits::holds(text));
