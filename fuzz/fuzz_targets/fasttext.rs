#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cyb_fasttext::fuzz::fuzz_fasttext(data));
