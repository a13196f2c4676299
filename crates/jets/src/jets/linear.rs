//! Matrix products: `linear` with a weight laid out by output rows, `matmul` of two activations.

use cyb_ir::{Attrs, Builder, Case, Fact, Fill, IrError, Jet, Signature, Tolerance, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, SUMMED, arity, f32_of_rank};

/// `linear{turned?}(x[..., K], w[N, K], bias[N]?) -> [..., N]`: `x · wᵀ + bias`. The weight may have
/// any dtype; it is decoded as it is read. A weight that is `turned` lies as [K, N].
pub static LINEAR: Jet = Jet {
    name: "linear",
    summary: "product with a weight matrix of any dtype, and bias",
    define: define_linear,
    signatures: || {
        let x = Fact::new(DType::F32, [Dim::symbol("d0"), Dim::symbol("k")]);
        let w = Fact::new(DType::F32, [Dim::symbol("n"), Dim::symbol("k")]);
        vec![Signature { inputs: vec![x, w], attrs: Attrs::new() }]
    },
    cases: linear_cases,
    // Kernels may round activations to 8 bits per block of 32 where the weight is quantised: a
    // relative error of 2^-8 a term, which averages out to well under this over a row.
    tolerance: Tolerance { absolute: 1e-4, relative: 2e-2 },
    in_place: &[],
};

/// Whether the weights of a product lie as [K, N].
pub(super) fn is_turned(attrs: &Attrs) -> Result<bool, IrError> {
    match attrs.get("turned") {
        None => Ok(false),
        Some(_) => attrs.flag("turned"),
    }
}

fn define_linear(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("linear", inputs, 2..=3)?;
    let mut w = b.cast(inputs[1], DType::F32)?;
    if is_turned(attrs)? {
        w = b.permute(w, &[1, 0])?;
    }
    let axis = b.last_axis(inputs[0])?;
    let x = b.unsqueeze(inputs[0], axis)?; // [..., 1, K]
    let products = b.mul(x, w)?; // [..., N, K]
    let y = b.sum(products, &[axis + 1])?;
    match inputs.get(2) {
        Some(&bias) => {
            let bias = b.cast(bias, DType::F32)?;
            Ok(vec![b.add(y, bias)?])
        }
        None => Ok(vec![y]),
    }
}

fn linear_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &dtype in DType::ALL {
        let floats = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        if !floats && !dtype.is_quantized() {
            continue;
        }
        let block = dtype.layout().block;
        // An odd number of rows; three blocks where that is no multiple of a wider tile.
        let (n, k) = if floats { (37, 83) } else { (37, 3 * block) };
        for m in [1, 2, 7, 33] {
            let case = Case::new(format!("{dtype} {m}x{k}x{n}"), Attrs::new())
                .normal(&[m, k])
                .input(dtype, &[n, k], Fill::Normal(0.5));
            cases.push(case.clone());
            if m == 2 {
                let mut case = case.input(DType::F32, &[n], Fill::Normal(1.0));
                case.name.push_str(" bias");
                cases.push(case);
            }
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for m in [1, 7, 33] {
            let attrs = Attrs::new().with("turned", true);
            let case = Case::new(format!("{dtype} turned {m}"), attrs).normal(&[m, 83]);
            let case = case.input(dtype, &[83, 37], Fill::Normal(0.5));
            cases.push(if m == 7 { case.normal(&[37]) } else { case });
        }
    }
    // Rows of 896: whole blocks of 32 but not of 256.
    for dtype in [DType::Q4_0, DType::Q5_0, DType::Q8_0] {
        let case = Case::new(format!("{dtype} rows of 896"), Attrs::new());
        cases.push(case.normal(&[3, 896]).input(dtype, &[65, 896], Fill::Normal(0.5)));
    }
    cases
}

/// `matmul(a[..., M, K], b[..., K, N]) -> [..., M, N]`, leading axes broadcast.
pub static MATMUL: Jet = Jet {
    name: "matmul",
    summary: "batched product of two activations",
    define: define_matmul,
    signatures: || {
        [2, 3, 4]
            .map(|rank| {
                let (mut a, mut b) = (f32_of_rank(rank), f32_of_rank(rank));
                a.shape[rank - 1] = Dim::symbol("k");
                b.shape[rank - 2] = Dim::symbol("k");
                b.shape[rank - 1] = Dim::symbol("n");
                Signature { inputs: vec![a, b], attrs: Attrs::new() }
            })
            .into()
    },
    cases: || {
        vec![
            Case::new("square", Attrs::new()).normal(&[16, 16]).normal(&[16, 16]),
            Case::new("odd", Attrs::new()).normal(&[7, 29]).normal(&[29, 3]),
            Case::new("batched", Attrs::new()).normal(&[2, 3, 5, 11]).normal(&[2, 3, 11, 6]),
            Case::new("broadcast", Attrs::new()).normal(&[4, 5, 11]).normal(&[11, 6]),
            Case::new("empty inner", Attrs::new()).normal(&[3, 0]).normal(&[0, 4]),
        ]
    },
    tolerance: SUMMED,
    in_place: &[],
};

fn define_matmul(b: &mut Builder, inputs: &[ValueId], _: &Attrs) -> Defined {
    arity("matmul", inputs, 2..=2)?;
    let inner = b.last_axis(inputs[0])?;
    let left = b.unsqueeze(inputs[0], inner)?; // [..., M, 1, K]
    let mut perm: Vec<usize> = (0..b.fact(inputs[1]).rank()).collect();
    if let [.., k, n] = perm.as_mut_slice() {
        std::mem::swap(k, n);
    }
    let turned = b.permute(inputs[1], &perm)?; // [..., N, K]
    let right = b.unsqueeze(turned, perm.len().saturating_sub(2))?; // [..., 1, N, K]
    let products = b.mul(left, right)?; // [..., M, N, K]
    let last = b.last_axis(products)?;
    Ok(vec![b.sum(products, &[last])?])
}
