//! Elementwise arithmetic with broadcasting.

use cyb_ir::{Attrs, Builder, Case, Jet, Signature, ValueId};

use crate::sugar::{Defined, EXACT, arity, f32_of_rank, unary_signatures};

/// `add(a, b)`.
pub static ADD: Jet = Jet {
    name: "add",
    summary: "elementwise sum",
    define: |b, inputs, _| binary("add", b, inputs, Builder::add),
    signatures: binary_signatures,
    cases: binary_cases,
    tolerance: EXACT,
    in_place: &[],
};

/// `mul(a, b)`.
pub static MUL: Jet = Jet {
    name: "mul",
    summary: "elementwise product",
    define: |b, inputs, _| binary("mul", b, inputs, Builder::mul),
    signatures: binary_signatures,
    cases: binary_cases,
    tolerance: EXACT,
    in_place: &[],
};

/// `sub(a, b)`, as `a + -b`.
pub static SUB: Jet = Jet {
    name: "sub",
    summary: "elementwise difference",
    define: |b, inputs, _| binary("sub", b, inputs, Builder::sub),
    signatures: binary_signatures,
    cases: binary_cases,
    tolerance: EXACT,
    in_place: &[],
};

fn binary(
    name: &str,
    b: &mut Builder,
    inputs: &[ValueId],
    apply: fn(&mut Builder, ValueId, ValueId) -> Result<ValueId, cyb_ir::IrError>,
) -> Defined {
    arity(name, inputs, 2..=2)?;
    Ok(vec![apply(b, inputs[0], inputs[1])?])
}

fn binary_signatures() -> Vec<Signature> {
    vec![Signature { inputs: vec![f32_of_rank(2), f32_of_rank(2)], attrs: Attrs::new() }]
}

fn binary_cases() -> Vec<Case> {
    vec![
        Case::new("same", Attrs::new()).normal(&[7, 33]).normal(&[7, 33]),
        Case::new("row", Attrs::new()).normal(&[7, 33]).normal(&[33]),
        Case::new("column", Attrs::new()).normal(&[7, 33]).normal(&[7, 1]),
        Case::new("outer", Attrs::new()).normal(&[7, 1]).normal(&[1, 5]),
        Case::new("scalar", Attrs::new()).normal(&[3, 4, 5]).normal(&[]),
        Case::new("empty", Attrs::new()).normal(&[0, 5]).normal(&[5]),
    ]
}

/// `clamp{min, max}(x)`.
pub static CLAMP: Jet = Jet {
    name: "clamp",
    summary: "limits to an interval",
    define: |b, inputs, attrs| {
        arity("clamp", inputs, 1..=1)?;
        let dtype = b.fact(inputs[0]).dtype;
        let low = b.attr_scalar(attrs, "min", dtype)?;
        let high = b.attr_scalar(attrs, "max", dtype)?;
        let raised = b.max(inputs[0], low)?;
        Ok(vec![b.min(raised, high)?])
    },
    signatures: || {
        let holes = Attrs::new().with("min", cyb_ir::Attr::Hole).with("max", cyb_ir::Attr::Hole);
        unary_signatures(holes)
    },
    cases: || {
        let attrs = Attrs::new().with("min", -0.5).with("max", 0.75);
        vec![Case::new("clamp", attrs).normal(&[5, 33])]
    },
    tolerance: EXACT,
    in_place: &[],
};
