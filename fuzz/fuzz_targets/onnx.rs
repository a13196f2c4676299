#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cyb_onnx::fuzz_onnx(data));
