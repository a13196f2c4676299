//! Sequences and optionals, which exist only while a graph is imported.

use cyb_tensor::{DType, Tensor};

use super::Rows;
use crate::context::{Context, Outputs};
use crate::error::{OpError, bad};
use crate::value::{Val, X};

pub(super) static ROWS: Rows = &[
    ("SequenceEmpty", |_| Ok(vec![Val::Sequence(Vec::new())])),
    ("SequenceConstruct", |c| Ok(vec![Val::Sequence(c.inputs.clone())])),
    ("SequenceInsert", |c| {
        let mut all = sequence(c)?;
        let at = if c.has(2) { place(c, 2, all.len() + 1)? } else { all.len() };
        all.insert(at, c.inputs.get(1).cloned().unwrap_or(Val::None));
        Ok(vec![Val::Sequence(all)])
    }),
    ("SequenceErase", |c| {
        let mut all = sequence(c)?;
        if all.is_empty() {
            return bad("the sequence is empty");
        }
        let at = if c.has(1) { place(c, 1, all.len())? } else { all.len() - 1 };
        all.remove(at);
        Ok(vec![Val::Sequence(all)])
    }),
    ("SequenceAt", |c| {
        let mut all = sequence(c)?;
        let at = place(c, 1, all.len())?;
        Ok(vec![all.swap_remove(at)])
    }),
    ("SequenceLength", |c| {
        let n = sequence(c)?.len() as i64;
        let tensor = Tensor::from_elems(DType::I64, vec![], &[n])?;
        Ok(vec![Val::Known { elem: cyb_formats::onnx::Elem::I64, tensor }])
    }),
    ("SplitToSequence", split),
    ("Optional", |c| Ok(vec![c.inputs.first().cloned().unwrap_or(Val::None)])),
    ("OptionalGetElement", |c| match c.inputs.first() {
        Some(Val::None) | None => bad("the optional has no element"),
        Some(val) => Ok(vec![val.clone()]),
    }),
    ("OptionalHasElement", |c| {
        let has = u8::from(c.has(0));
        let tensor = Tensor::from_elems(DType::Bool, vec![], &[has])?;
        Ok(vec![Val::Known { elem: cyb_formats::onnx::Elem::Bool, tensor }])
    }),
];

fn sequence(c: &Context<'_>) -> Result<Vec<Val>, OpError> {
    match c.inputs.first() {
        Some(Val::Sequence(all)) => Ok(all.clone()),
        _ => bad("input 0 must be a sequence"),
    }
}

/// A place below `n`, counted from the end of the sequence when it is negative.
fn place(c: &Context<'_>, input: usize, n: usize) -> Result<usize, OpError> {
    let at = c.int_input(input)?;
    let len = sequence(c)?.len() as i64;
    let from_start = if at < 0 { at + len } else { at };
    match usize::try_from(from_start) {
        Ok(at) if at < n => Ok(at),
        _ => bad(format!("place {at} is outside a sequence of {len}")),
    }
}

fn split(c: &mut Context<'_>) -> Outputs {
    let x = c.x(0)?;
    let dims = c.dims(x.id)?;
    let axis = c.axis(c.int("axis", 0)?, dims.len())?;
    let n = dims[axis];
    let (widths, keep) = if c.has(1) {
        let given = super::shape::sizes(&c.ints(1)?)?;
        let is_scalar = c.known(1)?.1.shape().is_empty();
        match given[..] {
            [0] if is_scalar => return bad("parts of length 0"),
            [each] if is_scalar => {
                let parts = n.div_ceil(each);
                ((0..parts).map(|i| each.min(n - i * each)).collect(), true)
            }
            _ => (given, true),
        }
    } else {
        (vec![1; n], c.flag("keepdims", true)?)
    };
    let mut all = Vec::new();
    let mut start = 0usize;
    for width in widths {
        let mut part = c.b.slice(x.id, axis, start, width)?;
        if !keep {
            part = super::reduce::drop_axes(c, part, &[axis])?;
        }
        all.push(Val::Value(X { id: part, elem: x.elem }));
        start += width;
    }
    Ok(vec![Val::Sequence(all)])
}
