//! Layout: jets that are one view or one store each.

use cyb_ir::{Attrs, Builder, Case, IrError, Jet, Signature, ValueId};

use crate::sugar::{Defined, EXACT, arity, f32_of_rank};

fn one(inputs: usize, rank: usize, attrs: Attrs) -> Vec<Signature> {
    vec![Signature { inputs: vec![f32_of_rank(rank); inputs], attrs }]
}

/// `reshape{shape}(x)` with a fixed shape.
pub static RESHAPE: Jet = Jet {
    name: "reshape",
    summary: "the same elements under another shape",
    define: |b, inputs, attrs| {
        arity("reshape", inputs, 1..=1)?;
        let shape = attrs.sizes("shape")?;
        Ok(vec![b.reshape(inputs[0], shape.into_iter().map(Into::into))?])
    },
    signatures: || {
        let x = cyb_ir::Fact::new(cyb_tensor::DType::F32, [6.into()]);
        vec![Signature { inputs: vec![x], attrs: Attrs::new().with("shape", &[2, 3][..]) }]
    },
    cases: || {
        let attrs = Attrs::new().with("shape", &[4, 9][..]);
        vec![Case::new("reshape", attrs).normal(&[3, 12])]
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `transpose(x)`: the last two axes exchanged.
pub static TRANSPOSE: Jet = Jet {
    name: "transpose",
    summary: "exchanges the last two axes",
    define: |b, inputs, _| {
        arity("transpose", inputs, 1..=1)?;
        let mut perm: Vec<usize> = (0..b.fact(inputs[0]).rank()).collect();
        match perm.as_mut_slice() {
            [.., a, b] => std::mem::swap(a, b),
            _ => return Err(too_flat(b, inputs[0])),
        }
        Ok(vec![b.permute(inputs[0], &perm)?])
    },
    signatures: || one(1, 2, Attrs::new()),
    cases: || {
        vec![
            Case::new("matrix", Attrs::new()).normal(&[5, 33]),
            Case::new("batched", Attrs::new()).normal(&[2, 5, 3]),
        ]
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `permute{perm}(x)`: output axis i is input axis perm\[i\].
pub static PERMUTE: Jet = Jet {
    name: "permute",
    summary: "reorders the axes",
    define: |b, inputs, attrs| {
        arity("permute", inputs, 1..=1)?;
        Ok(vec![b.permute(inputs[0], &attrs.sizes("perm")?)?])
    },
    signatures: || one(1, 3, Attrs::new().with("perm", &[1, 0, 2][..])),
    cases: || {
        let attrs = Attrs::new().with("perm", &[2, 0, 1][..]);
        vec![Case::new("permute", attrs).normal(&[3, 4, 5])]
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `concat{axis}(parts...)`.
pub static CONCAT: Jet = Jet {
    name: "concat",
    summary: "joins along an axis",
    define: |b, inputs, attrs| Ok(vec![b.concat(inputs, attrs.size("axis")?)?]),
    signatures: || one(2, 2, Attrs::new().with("axis", 0usize)),
    cases: || {
        let axis = |axis: usize| Attrs::new().with("axis", axis);
        vec![
            Case::new("rows", axis(0)).normal(&[2, 7]).normal(&[3, 7]),
            Case::new("columns", axis(1)).normal(&[2, 7]).normal(&[2, 1]).normal(&[2, 4]),
        ]
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `split{axis, sizes}(x) -> one output per size`. `chunk` is a split into equal sizes.
pub static SPLIT: Jet = Jet {
    name: "split",
    summary: "cuts along an axis",
    define: define_split,
    signatures: || one(1, 2, Attrs::new().with("axis", 0usize).with("sizes", &[1, 1][..])),
    cases: || {
        let attrs = Attrs::new().with("axis", 1usize).with("sizes", &[4, 1, 2][..]);
        vec![Case::new("columns", attrs).normal(&[3, 7])]
    },
    tolerance: EXACT,
    in_place: &[],
};

fn define_split(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("split", inputs, 1..=1)?;
    let axis = attrs.size("axis")?;
    let mut start = 0usize;
    let mut parts = Vec::new();
    for size in attrs.sizes("sizes")? {
        parts.push(b.slice(inputs[0], axis, start, size)?);
        start = start.saturating_add(size);
    }
    Ok(parts)
}

fn too_flat(b: &Builder, x: ValueId) -> IrError {
    IrError::Operand {
        op: "transpose".into(),
        facts: b.fact(x).to_string(),
        why: "it needs two axes".into(),
    }
}
