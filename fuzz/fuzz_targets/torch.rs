#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cyb_formats::fuzz::fuzz_torch(data));
