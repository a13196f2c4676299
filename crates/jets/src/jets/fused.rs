//! Products fused with what surrounds them. Models do not say these: the fusion pass makes them for
//! backends that have kernels.

use cyb_ir::{Attrs, Builder, Case, Fact, Fill, IrError, Jet, Signature, Tolerance, ValueId};
use cyb_tensor::{DType, Dim};

use super::activation::{ACTIVATIONS, activate};
use super::linear::is_turned;
use super::{GEGLU, LINEAR, SWIGLU};
use crate::sugar::{Defined, arity};

/// The tolerance of [`LINEAR`].
const PRODUCT: Tolerance = Tolerance { absolute: 1e-4, relative: 2e-2 };

fn linear(b: &mut Builder, inputs: &[ValueId], turned: bool) -> Result<ValueId, IrError> {
    Ok((LINEAR.define)(b, inputs, &Attrs::new().with("turned", turned))?[0])
}

fn matrix(a: &str, b: &str) -> Fact {
    Fact::new(DType::F32, [Dim::symbol(a), Dim::symbol(b)])
}

/// `linear_add{turned?}(x[..., K], w[N, K], residual[..., N]) = residual + x · wᵀ`.
pub static LINEAR_ADD: Jet = Jet {
    name: "linear_add",
    summary: "product added to a residual",
    define: |b, inputs, attrs| {
        arity("linear_add", inputs, 3..=3)?;
        let y = linear(b, &inputs[..2], is_turned(attrs)?)?;
        Ok(vec![b.add(inputs[2], y)?])
    },
    signatures: || {
        let inputs = vec![matrix("d0", "k"), matrix("n", "k"), matrix("d0", "n")];
        vec![Signature { inputs, attrs: Attrs::new() }]
    },
    cases: || {
        let mut cases: Vec<Case> = [(DType::Q4_K, 1), (DType::Q8_0, 5), (DType::F32, 3)]
            .map(|(dtype, m)| {
                Case::new(format!("{dtype} {m}"), Attrs::new())
                    .normal(&[m, 256])
                    .input(dtype, &[37, 256], Fill::Normal(0.5))
                    .normal(&[m, 37])
            })
            .into();
        let turned = Case::new("turned", Attrs::new().with("turned", true));
        cases.push(turned.normal(&[4, 29]).normal(&[29, 18]).normal(&[4, 18]));
        cases
    },
    tolerance: PRODUCT,
    in_place: &[],
};

/// `linear_activation{activation, slope?, turned?}(x[..., K], w[N, K], bias[N]?)`: an activation of the
/// product, by the names of `conv_activation`.
pub static LINEAR_ACTIVATION: Jet = Jet {
    name: "linear_activation",
    summary: "product and activation",
    define: |b, inputs, attrs| {
        arity("linear_activation", inputs, 2..=3)?;
        let y = linear(b, inputs, is_turned(attrs)?)?;
        Ok(vec![activate(b, y, attrs)?])
    },
    signatures: || {
        let inputs = vec![matrix("d0", "k"), matrix("n", "k")];
        vec![Signature { inputs, attrs: Attrs::new().with("activation", "gelu") }]
    },
    cases: || {
        let dtypes = [(DType::F32, 7), (DType::Q4_K, 1), (DType::Q8_0, 5), (DType::F16, 3)];
        let each = ACTIVATIONS.into_iter().zip(dtypes.into_iter().cycle()).enumerate();
        each.map(|(number, (activation, (dtype, m)))| {
            let attrs = Attrs::new().with("activation", activation).with("slope", 0.2);
            let turned = dtype == DType::F32 && number % 2 == 0;
            let (attrs, shape) = match turned {
                true => (attrs.with("turned", true), [256, 37]),
                false => (attrs, [37, 256]),
            };
            let case = Case::new(format!("{activation} {dtype} {m}"), attrs)
                .normal(&[m, 256])
                .input(dtype, &shape, Fill::Normal(0.1));
            if number % 3 == 0 { case } else { case.normal(&[37]) }
        })
        .chain([
            // More than one unit of rows and of columns.
            Case::new("units", Attrs::new().with("activation", "gelu"))
                .normal(&[101, 33])
                .input(DType::F32, &[150, 33], Fill::Normal(0.2))
                .normal(&[150]),
        ])
        .collect()
    },
    tolerance: PRODUCT,
    in_place: &[],
};

/// `linear_many{bias, turned?}(x[..., K], w1[N1, K], ..., wn, b1[N1]?, ..., bn?) -> n outputs`:
/// products that share their input, with biases for all or for none, and all weights turned or none.
pub static LINEAR_MANY: Jet = Jet {
    name: "linear_many",
    summary: "several products of one input",
    define: define_many,
    signatures: || {
        let inputs = vec![matrix("d0", "k"), matrix("n", "k"), matrix("m", "k")];
        vec![Signature { inputs, attrs: Attrs::new().with("bias", false) }]
    },
    cases: || {
        let mut cases = Vec::new();
        for (m, dtypes) in [(1, [DType::Q4_K, DType::Q6_K]), (6, [DType::Q5_0, DType::Q5_0])] {
            for bias in [false, true] {
                let mut case = Case::new(format!("{m} {bias}"), Attrs::new().with("bias", bias));
                case = case.normal(&[m, 256]);
                for (dtype, n) in dtypes.into_iter().zip([48, 21]) {
                    case = case.input(dtype, &[n, 256], Fill::Normal(0.5));
                }
                cases.push(if bias { case.normal(&[48]).normal(&[21]) } else { case });
            }
        }
        let turned = Attrs::new().with("bias", false).with("turned", true);
        let turned = Case::new("turned", turned).normal(&[5, 29]);
        cases.push(turned.normal(&[29, 18]).normal(&[29, 40]));
        cases
    },
    tolerance: PRODUCT,
    in_place: &[],
};

fn define_many(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("linear_many", inputs, 2..=usize::MAX)?;
    let (x, rest) = (inputs[0], &inputs[1..]);
    let turned = is_turned(attrs)?;
    if !attrs.flag("bias")? {
        return rest.iter().map(|&w| linear(b, &[x, w], turned)).collect();
    }
    let (weights, biases) = rest.split_at(rest.len() / 2);
    weights.iter().zip(biases).map(|(&w, &bias)| linear(b, &[x, w, bias], turned)).collect()
}

/// `gated_linear{activation}(gate[..., K], up[..., K], w[N, K], residual[..., N]?)`: the product of
/// `activation(gate) * up`, added to the residual if there is one. `activation` is `silu`, or a
/// form of GELU: `none`, `tanh`, `quick`.
pub static GATED_LINEAR: Jet = Jet {
    name: "gated_linear",
    summary: "product of a gated activation",
    define: |b, inputs, attrs| {
        arity("gated_linear", inputs, 3..=4)?;
        let gated = match attrs.text("activation")? {
            "silu" => (SWIGLU.define)(b, &inputs[..2], &Attrs::new())?[0],
            form => {
                let attrs = Attrs::new().with("approximate", form);
                (GEGLU.define)(b, &inputs[..2], &attrs)?[0]
            }
        };
        let y = linear(b, &[gated, inputs[2]], false)?;
        match inputs.get(3) {
            Some(&residual) => Ok(vec![b.add(residual, y)?]),
            None => Ok(vec![y]),
        }
    },
    signatures: || {
        let inputs = vec![matrix("d0", "k"), matrix("d0", "k"), matrix("n", "k")];
        vec![Signature { inputs, attrs: Attrs::new().with("activation", "silu") }]
    },
    cases: || {
        let mut cases = Vec::new();
        for activation in ["silu", "tanh", "none", "quick"] {
            for (dtype, m) in [(DType::Q4_K, 1), (DType::Q8_0, 5), (DType::F32, 3)] {
                let attrs = Attrs::new().with("activation", activation);
                let case = Case::new(format!("{activation} {dtype} {m}"), attrs)
                    .normal(&[m, 256])
                    .normal(&[m, 256])
                    .input(dtype, &[37, 256], Fill::Normal(0.5));
                cases.push(if m == 5 { case } else { case.normal(&[m, 37]) });
            }
        }
        cases
    },
    tolerance: PRODUCT,
    in_place: &[],
};
