//! Normalisation over the last axis.

use cyb_ir::{
    Attr, Attrs, Builder, Case, Exp, Fact, Fill, IrError, Jet, Reduce, Signature, ValueId,
};
use cyb_tensor::DType;

use crate::sugar::{Defined, SUMMED, arity, f32_of_rank};

/// `rmsnorm{eps}(x[..., D], weight[D]?)`: `x / sqrt(mean(x²) + eps) * weight`. Weights may have any
/// float dtype.
pub static RMSNORM: Jet = Jet {
    name: "rmsnorm",
    summary: "x over its root mean square",
    define: define_rmsnorm,
    signatures: || signatures(1),
    cases: || {
        let eps = |eps: f64| Attrs::new().with("eps", eps);
        vec![
            Case::new("row", eps(1e-5)).normal(&[1, 576]).normal(&[576]),
            Case::new("rows", eps(1e-6)).normal(&[5, 67]).normal(&[67]),
            Case::new("heads", eps(1e-6)).normal(&[3, 4, 64]).normal(&[64]),
            Case::new("bare", eps(1e-5)).normal(&[3, 40]),
            Case::new("large", eps(1e-5))
                .input(DType::F32, &[2, 96], Fill::Normal(1e4))
                .normal(&[96]),
            Case::new("zeros", eps(1e-5))
                .input(DType::F32, &[2, 96], Fill::Floats(vec![0.0]))
                .normal(&[96]),
        ]
    },
    tolerance: SUMMED,
    in_place: &[],
};

fn define_rmsnorm(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("rmsnorm", inputs, 1..=2)?;
    let x = inputs[0];
    let scale = inverse_deviation(b, x, attrs)?;
    let normed = b.mul(x, scale)?;
    match inputs.get(1) {
        Some(&weight) => {
            let weight = b.cast(weight, DType::F32)?;
            Ok(vec![b.mul(normed, weight)?])
        }
        None => Ok(vec![normed]),
    }
}

/// `layernorm{eps}(x[..., D], weight[D], bias[D]?)`:
/// `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, with the biased variance.
pub static LAYERNORM: Jet = Jet {
    name: "layernorm",
    summary: "x less its mean, over its deviation",
    define: define_layernorm,
    signatures: || {
        let mut all = signatures(2);
        all.extend(signatures(1));
        all
    },
    cases: || {
        let eps = |eps: f64| Attrs::new().with("eps", eps);
        vec![
            Case::new("row", eps(1e-5)).normal(&[1, 384]).normal(&[384]).normal(&[384]),
            Case::new("rows", eps(1e-12)).normal(&[5, 67]).normal(&[67]).normal(&[67]),
            Case::new("no bias", eps(1e-5)).normal(&[2, 3, 33]).normal(&[33]),
        ]
    },
    tolerance: SUMMED,
    in_place: &[],
};

fn define_layernorm(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("layernorm", inputs, 2..=3)?;
    let x = inputs[0];
    let mean = mean_last(b, x)?;
    let centered = b.sub(x, mean)?;
    let scale = inverse_deviation(b, centered, attrs)?;
    let normed = b.mul(centered, scale)?;
    let weight = b.cast(inputs[1], DType::F32)?;
    let weighted = b.mul(normed, weight)?;
    match inputs.get(2) {
        Some(&bias) => {
            let bias = b.cast(bias, DType::F32)?;
            Ok(vec![b.add(weighted, bias)?])
        }
        None => Ok(vec![weighted]),
    }
}

/// `1 / sqrt(mean(x²) + eps)`.
fn inverse_deviation(b: &mut Builder, x: ValueId, attrs: &Attrs) -> Result<ValueId, IrError> {
    let square = b.mul(x, x)?;
    let mean = mean_last(b, square)?;
    let eps = b.attr_scalar(attrs, "eps", b.fact(x).dtype)?;
    let below = b.add(mean, eps)?;
    b.exp(Exp::Rsqrt, below)
}

/// The mean over the last axis, which stays with length 1. The axis must have a known length.
fn mean_last(b: &mut Builder, x: ValueId) -> Result<ValueId, IrError> {
    let axis = b.last_axis(x)?;
    let sum = b.reduce_last(Reduce::Sum, x)?;
    let Some(n) = b.dim(x, axis)?.known() else {
        return Err(IrError::Operand {
            op: "mean".into(),
            facts: b.fact(x).to_string(),
            why: "the length of the last axis must be known".into(),
        });
    };
    b.scale(sum, 1.0 / n as f64)
}

/// Patterns need a width; recognition instantiates them with the width it finds.
fn signatures(vectors: usize) -> Vec<Signature> {
    [2, 3]
        .map(|rank| {
            let mut x: Fact = f32_of_rank(rank);
            x.shape[rank - 1] = 64.into();
            let mut inputs = vec![x];
            inputs.extend(std::iter::repeat_n(Fact::new(DType::F32, [64.into()]), vectors));
            Signature { inputs, attrs: Attrs::new().with("eps", Attr::Hole) }
        })
        .into()
}
