//! Between floats and storage formats.

use cyb_ir::{Attrs, Case, Fact, Fill, Jet, Signature};
use cyb_tensor::{DType, Dim};

use crate::sugar::{EXACT, arity};

/// `quantize{dtype}(x)`: floats stored in a block format.
pub static QUANTIZE: Jet = Jet {
    name: "quantize",
    summary: "floats into a storage format",
    define: |b, inputs, attrs| {
        arity("quantize", inputs, 1..=1)?;
        Ok(vec![b.encode(inputs[0], attrs.dtype("dtype")?)?])
    },
    signatures: || {
        let x = Fact::new(DType::F32, [Dim::symbol("d0"), 32.into()]);
        vec![Signature { inputs: vec![x], attrs: Attrs::new().with("dtype", DType::Q8_0) }]
    },
    cases: || {
        [DType::Q8_0, DType::Q4_0, DType::F16, DType::BF16]
            .map(|d| Case::new(d.name(), Attrs::new().with("dtype", d)).normal(&[3, 64]))
            .into()
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `dequantize(x)`: any storage format as `F32`.
pub static DEQUANTIZE: Jet = Jet {
    name: "dequantize",
    summary: "a storage format into floats",
    define: |b, inputs, _| {
        arity("dequantize", inputs, 1..=1)?;
        Ok(vec![b.cast(inputs[0], DType::F32)?])
    },
    signatures: || {
        let x = Fact::new(DType::Q8_0, [Dim::symbol("d0"), 32.into()]);
        vec![Signature { inputs: vec![x], attrs: Attrs::new() }]
    },
    cases: || {
        let stored = |d: &DType| d.is_quantized() || matches!(d, DType::F16 | DType::BF16);
        let case =
            |&d: &DType| Case::new(d.name(), Attrs::new()).input(d, &[2, 256], Fill::Normal(1.0));
        DType::ALL.iter().filter(|d| stored(d)).map(case).collect()
    },
    tolerance: EXACT,
    in_place: &[],
};
