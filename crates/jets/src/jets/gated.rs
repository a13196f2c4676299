//! Gated activations: `activation(gate) * up`.

use cyb_ir::{Attrs, Case, Jet, Signature};

use super::activation::gelu;
use crate::sugar::{ELEMENTWISE, arity, f32_of_rank, sigmoid};

/// `swiglu(gate, up) = silu(gate) * up`.
pub static SWIGLU: Jet = Jet {
    name: "swiglu",
    summary: "silu(gate) * up",
    define: |b, inputs, _| {
        arity("swiglu", inputs, 2..=2)?;
        let s = sigmoid(b, inputs[0])?;
        let activated = b.mul(inputs[0], s)?;
        Ok(vec![b.mul(activated, inputs[1])?])
    },
    signatures: || signatures(Attrs::new()),
    cases: || cases(Attrs::new()),
    tolerance: ELEMENTWISE,
    in_place: &[],
};

/// `geglu{approximate}(gate, up) = gelu(gate) * up`.
pub static GEGLU: Jet = Jet {
    name: "geglu",
    summary: "gelu(gate) * up",
    define: |b, inputs, attrs| {
        arity("geglu", inputs, 2..=2)?;
        let activated = gelu(b, inputs[0], attrs)?;
        Ok(vec![b.mul(activated, inputs[1])?])
    },
    signatures: || signatures(Attrs::new().with("approximate", "none")),
    cases: || {
        ["none", "tanh", "quick"]
            .into_iter()
            .flat_map(|form| cases(Attrs::new().with("approximate", form)))
            .collect()
    },
    tolerance: ELEMENTWISE,
    in_place: &[],
};

fn signatures(attrs: Attrs) -> Vec<Signature> {
    [2, 3]
        .map(|rank| Signature {
            inputs: vec![f32_of_rank(rank), f32_of_rank(rank)],
            attrs: attrs.clone(),
        })
        .into()
}

fn cases(attrs: Attrs) -> Vec<Case> {
    vec![
        Case::new("row", attrs.clone()).normal(&[1, 67]).normal(&[1, 67]),
        Case::new("rows", attrs).normal(&[5, 33]).normal(&[5, 33]),
    ]
}
