//! Weights of every kind of file run on any CPU.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use cyb_llm::{BackendKind, Config, DType, IndexMap, Runtime, Tensor};

/// L17: weights in half the width run without an instruction for them, and sums are in f32.
#[test]
fn half_width_weights_run_and_add_in_f32() {
    let dir = tempfile::tempdir().unwrap();
    let golden = cyb_formats::open(&cyb_testkit::golden("families/llama3.gguf")).unwrap();
    for dtype in [DType::BF16, DType::F16] {
        let narrowed = |tensor: &Tensor| {
            let values = tensor.to_f32_vec().unwrap();
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|&value| match dtype {
                    DType::BF16 => half::bf16::from_f32(value).to_bits().to_le_bytes(),
                    _ => half::f16::from_f32(value).to_bits().to_le_bytes(),
                })
                .collect();
            let bytes = cyb_tensor::AlignedBytes::from_slice(&bytes);
            let bytes = cyb_tensor::Bytes::owned(bytes);
            Tensor::new(dtype, tensor.shape().to_vec(), bytes).unwrap()
        };
        let tensors: Vec<(&str, Tensor)> = golden
            .tensors
            .iter()
            .map(|(name, tensor)| match tensor.shape().len() {
                2 => (name.as_str(), narrowed(tensor)),
                _ => (name.as_str(), tensor.clone()),
            })
            .collect();
        let path = dir.path().join(format!("{dtype}.gguf"));
        let pairs = tensors.iter().map(|(name, tensor)| (*name, tensor));
        cyb_formats::gguf::write(&path, &golden.metadata, pairs).unwrap();
        let ids: Vec<i64> = (0..40).map(|i| i * 7 % 110 + 3).collect();
        let ids = Tensor::from_elems(DType::I64, vec![1, 40], &ids).unwrap();
        let inputs = IndexMap::from([("input_ids".to_owned(), ids)]);
        let logits = |backend| {
            let config = Config { backend, kv_type: DType::F32, ..Config::auto() };
            let model = Runtime::new(config).unwrap().load(path.to_str().unwrap()).unwrap();
            assert!(model.info().quantization.iter().any(|(found, ..)| *found == dtype));
            model.forward(&inputs).unwrap()["logits"].to_f32_vec().unwrap()
        };
        let (got, want) = (logits(BackendKind::Cpu), logits(BackendKind::Atoms));
        let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        let apart = got.iter().zip(&want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        // What rounding to half the width anywhere on the way would exceed.
        assert!(apart < 1e-4 * largest, "{dtype}: {apart} of {largest}");
    }
}
