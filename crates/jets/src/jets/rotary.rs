//! Rotary position embedding by tables, as graphs of other runtimes have it.

use cyb_ir::{Attrs, Builder, Case, Fact, IrError, Jet, Signature, ValueId};
use cyb_tensor::Dim;

use crate::sugar::{Defined, ELEMENTWISE, arity, f32_of_rank};

/// `rotary{style}(x[..., 2R], cos[..., R or 2R], sin[..., as cos]) -> [..., 2R]`.
///
/// Turns pairs of elements of every row by angles whose cosines and sines are given, with a value for
/// each pair or for each element. Leading axes of the tables broadcast to those of `x`. Pairs are as in
/// `rope`: elements i and i + R (`half`), or 2i and 2i + 1 (`pairs`). With a value for each element the
/// two of a pair may be turned by different ones: the first is `x1 cos1 - x2 sin1`, the second
/// `x2 cos2 + x1 sin2`.
pub static ROTARY: Jet = Jet {
    name: "rotary",
    summary: "rotary position embedding by tables of cosines and sines",
    define,
    signatures: || {
        ["half", "pairs"]
            .map(|style| {
                let mut x = f32_of_rank(4);
                x.shape[3] = 64.into();
                let table = Fact::new(x.dtype, [Dim::symbol("d2"), 64.into()]);
                Signature {
                    inputs: vec![x, table.clone(), table],
                    attrs: Attrs::new().with("style", style),
                }
            })
            .into()
    },
    cases: || {
        let mut cases = Vec::new();
        for style in ["half", "pairs"] {
            for (name, x, table) in [
                ("a table", vec![2, 3, 5, 40], vec![5, 40]),
                ("a value a pair", vec![2, 3, 5, 40], vec![5, 20]),
                ("positions of their own", vec![2, 3, 5, 6], vec![2, 1, 5, 6]),
                ("heads inside", vec![2, 70, 3, 34], vec![1, 70, 1, 17]),
                ("rows", vec![130, 8], vec![130, 8]),
                ("one row", vec![64], vec![32]),
                ("nothing", vec![0, 4], vec![1, 4]),
            ] {
                let attrs = Attrs::new().with("style", style);
                let case = Case::new(format!("{style}, {name}"), attrs);
                cases.push(case.normal(&x).normal(&table).normal(&table));
            }
        }
        cases
    },
    tolerance: ELEMENTWISE,
    in_place: &[],
};

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("rotary", inputs, 3..=3)?;
    let [x, cos, sin] = [inputs[0], inputs[1], inputs[2]];
    let wrong = |b: &Builder, v: ValueId, why: &str| IrError::Operand {
        op: "rotary".into(),
        facts: b.fact(v).to_string(),
        why: why.into(),
    };
    let axis = b.last_axis(x)?;
    let width = b.dim(x, axis)?.known().filter(|n| n.is_multiple_of(2));
    let width = width.ok_or_else(|| wrong(b, x, "the width must be known and even"))?;
    let half = width / 2;
    let pairs = match attrs.text("style")? {
        "half" => false,
        "pairs" => true,
        other => {
            return Err(IrError::Attr {
                name: "style".into(),
                want: "half or pairs",
                got: other.to_owned(),
            });
        }
    };
    let part = |b: &mut Builder, v: ValueId, second: bool| {
        let axis = b.last_axis(v)?;
        let second = usize::from(second);
        match pairs {
            true => b.strided(v, axis, second, half, 2),
            false => b.slice(v, axis, second * half, half),
        }
    };
    let mut tables = Vec::new();
    for table in [cos, sin] {
        let last = b.last_axis(table)?;
        match b.dim(table, last)?.known() {
            Some(n) if n == width => {
                tables.push([part(b, table, false)?, part(b, table, true)?]);
            }
            Some(n) if n == half => tables.push([table, table]),
            _ => return Err(wrong(b, table, "a table has a value for each pair or element")),
        }
    }
    let (first, second) = (part(b, x, false)?, part(b, x, true)?);
    let (fc, ss) = (b.mul(first, tables[0][0])?, b.mul(second, tables[1][0])?);
    let (sc, fs) = (b.mul(second, tables[0][1])?, b.mul(first, tables[1][1])?);
    let (first, second) = (b.sub(fc, ss)?, b.add(sc, fs)?);
    if !pairs {
        return Ok(vec![b.concat(&[first, second], axis)?]);
    }
    let (first, second) = (b.unsqueeze(first, axis + 1)?, b.unsqueeze(second, axis + 1)?);
    let both = b.concat(&[first, second], axis + 1)?; // [..., R, 2]
    let mut shape = b.shape(both).to_vec();
    shape.truncate(axis);
    shape.push(width.into());
    Ok(vec![b.reshape(both, shape)?])
}
