//! Exact products of 8-bit codes with zero points.

use cyb_ir::{Attrs, Builder, Case, Fact, Fill, IrError, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use super::conv::{conv_of, plain_shapes, window};
use super::linear::is_turned;
use super::quantize::{affine, looked_up, table_fact, table_fill};
use crate::sugar::{Defined, EXACT, arity};

/// `matmul_integer{turned}(a[..., M, K], w[K, N], a_zero[], w_zero[] or [N]) -> I32 [..., M, N]`: the
/// product of `a - a_zero` and `w - w_zero`, modulo 2^32. Codes are `U8` or `I8`, a zero point has the
/// type of its codes. A `w` that is not `turned` lies as [N, K], as the weight of `linear` does.
pub static MATMUL_INTEGER: Jet = Jet {
    name: "matmul_integer",
    summary: "exact product of 8-bit codes with zero points",
    define: |b, inputs, attrs| {
        arity("matmul_integer", inputs, 4..=4)?;
        let a = centered(b, inputs[0], inputs[2])?;
        let w = match is_turned(attrs)? {
            true => b.permute(inputs[1], &[1, 0])?,
            false => inputs[1],
        };
        let mut zero = inputs[3];
        if b.fact(zero).rank() == 1 {
            zero = b.unsqueeze(zero, 1)?;
        }
        let w = centered(b, w, zero)?; // [N, K]
        let inner = b.last_axis(a)?;
        let a = b.unsqueeze(a, inner)?; // [..., M, 1, K]
        let products = b.mul(a, w)?; // [..., M, N, K]
        Ok(vec![b.sum(products, &[inner + 1])?])
    },
    signatures: || {
        let a = Fact::new(DType::U8, [Dim::symbol("d0"), Dim::symbol("k")]);
        let w = Fact::new(DType::I8, [Dim::symbol("k"), Dim::symbol("n")]);
        let inputs = vec![a, w, Fact::new(DType::U8, []), Fact::new(DType::I8, [])];
        vec![Signature { inputs, attrs: turned(true) }]
    },
    cases: || {
        let mut cases = Vec::new();
        for (m, k, n) in [(1, 5, 3), (2, 64, 16), (7, 83, 37), (33, 130, 65), (50, 40, 100)] {
            for (number, (a, w)) in TYPES.into_iter().enumerate() {
                let each = if number % 2 == 0 { vec![] } else { vec![n] };
                let back = number != 1;
                let case = Case::new(format!("{a} {w} {m}x{k}x{n}"), turned(back));
                let shape = if back { [k, n] } else { [n, k] };
                cases.push(
                    codes(codes(case, a, &[m, k]), w, &shape)
                        .input(a, &[], Fill::Ints(vec![if number < 2 { 3 } else { 100 }]))
                        .input(w, &each, Fill::Ints(vec![0, 7, 1])),
                );
            }
        }
        let extremes = Case::new("extremes", turned(true))
            .input(DType::U8, &[3, 700], Fill::Ints(vec![255]))
            .input(DType::I8, &[700, 20], Fill::Ints(vec![-128, 127, -128]))
            .input(DType::U8, &[], Fill::Ints(vec![0]))
            .input(DType::I8, &[], Fill::Ints(vec![127]));
        let batch = Case::new("a batch, no rows", turned(true));
        cases.extend([
            extremes,
            codes(codes(batch.clone(), DType::U8, &[2, 3, 9]), DType::I8, &[9, 20])
                .input(DType::U8, &[], Fill::Ints(vec![11]))
                .input(DType::I8, &[], Fill::Ints(vec![0])),
            codes(codes(batch, DType::U8, &[0, 9]), DType::I8, &[9, 20])
                .input(DType::U8, &[], Fill::Ints(vec![11]))
                .input(DType::I8, &[], Fill::Ints(vec![0])),
        ]);
        cases
    },
    tolerance: EXACT,
    in_place: &[],
};

fn turned(flag: bool) -> Attrs {
    Attrs::new().with("turned", flag)
}

const TYPES: [(DType, DType); 4] = [
    (DType::U8, DType::I8),
    (DType::I8, DType::I8),
    (DType::U8, DType::U8),
    (DType::I8, DType::U8),
];

/// Adds an input of codes over the whole range of their type.
fn codes(case: Case, dtype: DType, shape: &[usize]) -> Case {
    // 251 is a prime, so that no pattern lines up with a shape.
    let low = if dtype == DType::U8 { 0 } else { -128 };
    let all = (0..251).map(|i| low + (i * 89 + 255) % 256).collect();
    case.input(dtype, shape, Fill::Ints(all))
}

/// Codes less their zero point, as `I32`.
fn centered(b: &mut Builder, x: ValueId, zero: ValueId) -> Result<ValueId, IrError> {
    let (x, zero) = (b.cast(x, DType::I32)?, b.cast(zero, DType::I32)?);
    b.sub(x, zero)
}

/// `conv_integer{strides, pads, dilations, groups}(x[N, C, S...], w[M, C/groups, K...], x_zero[],
/// w_zero[] or [M]) -> I32 [N, M, O...]`: the convolution of `x - x_zero` with `w - w_zero`, modulo
/// 2^32. What is padded is 0 after the zero point is taken off.
pub static CONV_INTEGER: Jet = Jet {
    name: "conv_integer",
    summary: "exact convolution of 8-bit codes with zero points",
    define: define_conv,
    signatures: || {
        let x = Fact::new(DType::U8, (0..4).map(|i| Dim::symbol(&format!("d{i}"))));
        let w = [Dim::symbol("m"), Dim::symbol("d1"), 3.into(), 3.into()];
        let w = Fact::new(DType::I8, w);
        let inputs = vec![x, w, Fact::new(DType::U8, []), Fact::new(DType::I8, [])];
        vec![Signature { inputs, attrs: window(&[1, 1]) }]
    },
    cases: || {
        let mut cases = Vec::new();
        for (number, (attrs, x, w)) in plain_shapes().into_iter().enumerate() {
            let (a, b) = TYPES[number % 4];
            let each = if number % 3 == 0 { vec![w[0]] } else { vec![] };
            cases.push(
                codes(codes(Case::new(format!("{number} {a} {b}"), attrs), a, &x), b, &w)
                    .input(a, &[], Fill::Ints(vec![100]))
                    .input(b, &each, Fill::Ints(vec![0, 5, 1])),
            );
        }
        cases
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `conv_quantized{..., dtype}(x, w, x_zero, w_zero, offsets[M], factors[M], bias[M], scale[], zero[],
/// table[256]?) -> codes [N, M, O...]`: the sums of [`CONV_INTEGER`] and `offsets` (`I32`), as floats
/// times `factors` plus `bias`, as codes of `dtype` by `scale` and `zero`, and these through `table`.
/// Factors, biases and the scale are finite, and the scale is above 0.
pub static CONV_QUANTIZED: Jet = Jet {
    name: "conv_quantized",
    summary: "convolution of 8-bit codes that gives 8-bit codes",
    define: |b, inputs, attrs| {
        arity("conv_quantized", inputs, 9..=10)?;
        let sums = define_conv(b, &inputs[..4], attrs)?[0];
        let rank = b.fact(sums).rank();
        let mut each = [inputs[4], inputs[5], inputs[6]];
        for v in &mut each {
            let mut shape = b.shape(*v).to_vec();
            shape.resize(rank - 1, Dim::from(1));
            *v = b.reshape(*v, shape)?;
        }
        let [offsets, factors, bias] = each;
        let sums = b.add(sums, offsets)?;
        let y = b.cast(sums, DType::F32)?;
        let y = b.mul(y, factors)?;
        let y = b.add(y, bias)?;
        let y = affine(b, y, inputs[7], inputs[8], attrs.dtype("dtype")?)?;
        Ok(vec![match inputs.get(9) {
            Some(&table) => looked_up(b, y, table)?,
            None => y,
        }])
    },
    signatures: || {
        let x = Fact::new(DType::U8, (0..4).map(|i| Dim::symbol(&format!("d{i}"))));
        let w = [Dim::symbol("m"), Dim::symbol("d1"), 3.into(), 3.into()];
        let w = Fact::new(DType::I8, w);
        let row = |dtype| Fact::new(dtype, [Dim::symbol("m")]);
        let one = |dtype| Fact::new(dtype, []);
        let mut inputs = vec![x, w, one(DType::U8), one(DType::I8)];
        inputs.extend([row(DType::I32), row(DType::F32), row(DType::F32)]);
        inputs.extend([one(DType::F32), one(DType::U8), table_fact(DType::U8)]);
        vec![Signature { inputs, attrs: window(&[1, 1]).with("dtype", DType::U8) }]
    },
    cases: || {
        let mut cases = Vec::new();
        for (number, (attrs, x, w)) in plain_shapes().into_iter().enumerate() {
            let (a, b) = TYPES[(number + 1) % 4];
            let each = if number % 3 == 1 { vec![w[0]] } else { vec![] };
            let to = if number % 2 == 0 { DType::U8 } else { DType::I8 };
            let case = Case::new(format!("{number} {a} {b} {to}"), attrs.with("dtype", to));
            let exact = number % 4 == 3;
            // Sums of some hundred products of codes, as codes that are seldom saturated.
            let factors = vec![2e-3, 0.7e-3, 1.3e-3];
            let case = codes(codes(case, a, &x), b, &w)
                .input(a, &[], Fill::Ints(vec![100]))
                .input(b, &each, Fill::Ints(vec![0, 5, 1]))
                .input(DType::I32, &[w[0]], Fill::Ints(vec![-700, 0, 12_345]))
                .input(DType::F32, &[w[0]], Fill::Floats(factors))
                .input(
                    DType::F32,
                    &[w[0]],
                    Fill::Floats(if exact { vec![0.0] } else { vec![0.5, -3.0] }),
                )
                .input(DType::F32, &[], Fill::Floats(vec![if exact { 1.0 } else { 0.3 }]))
                .input(to, &[], Fill::Ints(vec![7]));
            cases.push(match number % 3 {
                0 => case,
                _ => case.input(DType::U8, &[256], table_fill(DType::U8)),
            });
        }
        cases
    },
    tolerance: EXACT,
    in_place: &[],
};

fn define_conv(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("conv_integer", inputs, 4..=4)?;
    let x = centered(b, inputs[0], inputs[2])?;
    let mut zero = inputs[3];
    if b.fact(zero).rank() == 1 {
        let rank = b.fact(inputs[1]).rank();
        let mut shape = b.shape(zero).to_vec();
        shape.resize(rank, Dim::from(1));
        zero = b.reshape(zero, shape)?;
    }
    let w = centered(b, inputs[1], zero)?;
    Ok(vec![conv_of(b, x, w, None, attrs)?])
}
