use cyb_tensor::{DType, byte_len, quant};

use super::{SHAPES, Shape, synthetic};
use crate::{GraphOptions, build};

fn bytes(name: &str, dtype: DType) -> usize {
    let shape = SHAPES.iter().find(|s| s.name == name).unwrap();
    let tensors = shape.tensors(dtype);
    tensors.iter().map(|(_, dtype, shape)| byte_len(*dtype, shape).unwrap()).sum()
}

#[test]
fn sizes_are_those_of_the_published_models() {
    let gb = |n: usize| (n as f64 / 1e7).round() / 100.0;
    assert_eq!(gb(bytes("llama-8b", DType::Q4_K)), 4.65);
    assert_eq!(gb(bytes("llama-8b", DType::Q8_0)), 8.53);
    assert_eq!(gb(bytes("qwen2-1.5b", DType::Q4_K)), 1.06);
    assert_eq!(gb(bytes("qwen3-0.6b", DType::BF16)), 1.19);
    assert_eq!(gb(bytes("llama-70b", DType::F16)), 141.11);
}

fn tiny(architecture: &'static str, tied: bool) -> Shape {
    Shape {
        name: "tiny",
        architecture,
        layers: 2,
        hidden: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        feed_forward: 512,
        vocabulary: 100,
        context: 64,
        theta: 10_000.0,
        tied,
    }
}

#[test]
fn every_architecture_and_format_builds() {
    for (architecture, tied) in [("llama", false), ("qwen2", false), ("qwen3", true)] {
        for dtype in super::DTYPES {
            let file = tiny(architecture, tied).model("tiny", dtype).unwrap();
            let model = build(&file, &GraphOptions::default()).unwrap();
            assert!(model.warnings.is_empty(), "{:?}", model.warnings);
            assert_eq!(model.summary.vocab_size, 100);
        }
    }
}

#[test]
fn weights_are_finite_small_and_differ_by_row() {
    for dtype in super::DTYPES {
        let file = tiny("llama", false).model("tiny", dtype).unwrap();
        let q = file.tensor("blk.0.attn_q.weight").unwrap();
        let mut values = vec![0.0; q.elems()];
        quant::decode(dtype, q.bytes().as_slice(), &mut values).unwrap();
        let mean_square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!((0.018..0.022).contains(&mean_square.sqrt()), "{dtype}: {mean_square}");
        assert!(values.iter().all(|v| v.abs() < 0.1));
        let rows: Vec<&[f32]> = values.chunks(256).collect();
        assert!(rows.windows(2).all(|pair| pair[0] != pair[1]));
        let k = file.tensor("blk.0.attn_k.weight").unwrap();
        assert_ne!(k.bytes().as_slice()[..64], q.bytes().as_slice()[..64]);
        let again = tiny("llama", false).model("tiny", dtype).unwrap();
        let q_again = again.tensor("blk.0.attn_q.weight").unwrap();
        assert_eq!(q.bytes().as_slice(), q_again.bytes().as_slice());
    }
}

#[test]
fn a_wrong_spec_says_what_there_is() {
    for spec in ["llama-8b", "llama-9b:q4_k", "llama-8b:q4", "llama-8b:i8", ""] {
        let text = synthetic(spec).unwrap_err().to_string();
        assert!(
            text.contains("llama-8b llama-70b") && text.contains("q4_k q8_0 f16 bf16"),
            "{text}"
        );
    }
}
