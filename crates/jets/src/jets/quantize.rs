//! Between floats and storage formats.

use cyb_ir::{Attrs, Builder, Case, Cmp, Exp, Fact, Fill, IrError, Jet, Signature, ValueId};
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

/// `affine_quantize{dtype}(x, scale, zero)`: `round(x / scale) + zero` as `U8` or `I8`, halves to the
/// even number, saturated; NaN is the lowest code. The quotient is the one nearest to the exact one. `scale` and
/// `zero` (of `dtype`) broadcast to `x`.
pub static AFFINE_QUANTIZE: Jet = Jet {
    name: "affine_quantize",
    summary: "floats as 8-bit codes by a scale and a zero point",
    define: |b, inputs, attrs| {
        arity("affine_quantize", inputs, 3..=3)?;
        let &[x, scale, zero] = inputs else { return Ok(Vec::new()) };
        Ok(vec![affine(b, x, scale, zero, attrs.dtype("dtype")?)?])
    },
    signatures: || {
        let x = Fact::new(DType::F32, [Dim::symbol("d0"), Dim::symbol("d1")]);
        let inputs = vec![x, Fact::new(DType::F32, []), Fact::new(DType::U8, [])];
        vec![Signature { inputs, attrs: Attrs::new().with("dtype", DType::U8) }]
    },
    cases: || {
        let mut cases = Vec::new();
        let special = [0.5, 1.5, 2.5, -0.5, 1e30, -1e30, f32::INFINITY, f32::NAN, 300.0, -0.0];
        for dtype in [DType::U8, DType::I8] {
            for (name, x, each) in [
                ("one scale", &[3usize, 67][..], &[][..]),
                ("a scale a column", &[5, 33], &[33]),
                ("a scale a row", &[5, 33], &[5, 1]),
                ("a scale a channel", &[2, 3, 4, 5], &[3, 1, 1]),
                ("nothing", &[0, 4], &[]),
            ] {
                let attrs = Attrs::new().with("dtype", dtype);
                let case = Case::new(format!("{dtype} {name}"), attrs);
                let scales = Fill::Floats(vec![0.037, 0.5, 1.0 / 3.0]);
                cases.push(case.normal(x).input(DType::F32, each, scales).input(
                    dtype,
                    each,
                    Fill::Ints(vec![5, 100, 0]),
                ));
            }
            let case = Case::new(format!("{dtype} special"), Attrs::new().with("dtype", dtype));
            cases.push(
                case.input(DType::F32, &[40], Fill::Floats(special.to_vec()))
                    .input(DType::F32, &[], Fill::Floats(vec![1.0]))
                    .input(dtype, &[], Fill::Ints(vec![0])),
            );
        }
        cases
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `lookup(x, table[256])`: `table[x]` for every code of `x` (`U8` or `I8`), whose 8 bits are the place
/// in the table. Any function of one code is such a table.
pub static LOOKUP: Jet = Jet {
    name: "lookup",
    summary: "8-bit codes through a table of 256",
    define: |b, inputs, _| {
        arity("lookup", inputs, 2..=2)?;
        Ok(vec![looked_up(b, inputs[0], inputs[1])?])
    },
    signatures: || {
        let x = Fact::new(DType::U8, [Dim::symbol("d0"), Dim::symbol("d1")]);
        vec![Signature { inputs: vec![x, table_fact(DType::U8)], attrs: Attrs::new() }]
    },
    cases: || {
        let mut cases = Vec::new();
        for (from, to) in [(DType::U8, DType::U8), (DType::I8, DType::U8), (DType::U8, DType::I8)] {
            for shape in [&[3usize, 5, 131][..], &[], &[0, 4], &[70_001]] {
                let case = Case::new(format!("{from} {to} {shape:?}"), Attrs::new());
                let low = if from == DType::I8 { -128 } else { 0 };
                let codes = (0..251).map(|i| low + (i * 89 + 255) % 256).collect();
                cases.push(case.input(from, shape, Fill::Ints(codes)).input(
                    to,
                    &[256],
                    table_fill(to),
                ));
            }
        }
        cases
    },
    tolerance: EXACT,
    in_place: &[],
};

pub(super) fn table_fact(dtype: DType) -> Fact {
    Fact::new(dtype, [256.into()])
}

/// A table of the tests: no two neighbors are alike.
pub(super) fn table_fill(dtype: DType) -> Fill {
    let low = if dtype == DType::I8 { -128 } else { 0 };
    Fill::Ints((0..256).map(|i| low + (i * 57 + 11) % 256).collect())
}

/// The elements of a table of 256 at the 8 bits of each code.
pub(super) fn looked_up(b: &mut Builder, x: ValueId, table: ValueId) -> Result<ValueId, IrError> {
    let code = b.cast(x, DType::I32)?;
    let zero = b.scalar(DType::I32, 0.0)?;
    let negative = b.lt(code, zero)?;
    let wrapped = b.offset(code, 256.0)?;
    let place = b.select(negative, wrapped, code)?;
    b.gather(table, 0, place)
}

/// `round(x / scale) + zero`, saturated.
pub(super) fn affine(
    b: &mut Builder,
    x: ValueId,
    scale: ValueId,
    zero: ValueId,
    dtype: DType,
) -> Result<ValueId, IrError> {
    let (low, high) = match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        _ => {
            return Err(IrError::Attr {
                name: "dtype".into(),
                want: "u8 or i8",
                got: dtype.to_string(),
            });
        }
    };
    // The reciprocal in twice the width makes the rounded quotient the exact one's.
    let (x, scale) = (b.cast(x, DType::F64)?, b.cast(scale, DType::F64)?);
    let quotient = b.div(x, scale)?;
    let quotient = b.cast(quotient, DType::F32)?;
    let whole = round(b, quotient)?;
    let zero = b.cast(zero, DType::F32)?;
    let y = b.add(whole, zero)?;
    let (low, high) = (b.scalar(DType::F32, low)?, b.scalar(DType::F32, high)?);
    // NaN is the lowest code, as in ONNX Runtime.
    let above = b.lt(low, y)?;
    let y = b.select(above, y, low)?;
    let y = b.min(y, high)?;
    b.cast(y, dtype)
}

/// To the nearest integer, halves to the even one.
fn round(b: &mut Builder, x: ValueId) -> Result<ValueId, IrError> {
    let floor = b.exp(Exp::Floor, x)?;
    let part = b.sub(x, floor)?;
    let half = b.scalar(DType::F32, 0.5)?;
    let above = b.lt(half, part)?;
    let tie = b.cmp(Cmp::Eq, part, half)?;
    let halved = b.scale(floor, 0.5)?;
    let whole = b.exp(Exp::Floor, halved)?;
    let odd = b.lt(whole, halved)?;
    let up_at_tie = b.mul(tie, odd)?;
    let up = b.add(above, up_at_tie)?;
    let next = b.offset(floor, 1.0)?;
    b.select(up, next, floor)
}
