//! Layout: views that must become memory, concatenation, gathers, casts and index ranges.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Atom, Op, Read, Write};
use cyb_tensor::{Class, DType};

use super::{decode_row, decodes};
use crate::io::{Io, MAX_RANK, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "read", name: "copy_view", supports: is_view, build: build_view },
    Row {
        op: "read",
        name: "gather_rows",
        supports: is_row_gather,
        build: |_| Ok(Box::new(GatherRows)),
    },
    Row { op: "read", name: "gather", supports: is_gather, build: build_gather },
    Row { op: "read", name: "pad", supports: is_pad, build: build_pad },
    Row { op: "read", name: "decode", supports: is_decode, build: |_| Ok(Box::new(Decode)) },
    Row { op: "write", name: "concat", supports: is_concat, build: build_concat },
];

/// 0, 1, 2, ... as `I64`.
#[derive(Debug)]
pub(crate) struct Iota;

impl Kernel for Iota {
    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let n = io.out_dims(0)[0];
        io.rows::<i64>(0, n, |_, out| (0i64..).zip(out).for_each(|(i, slot)| *slot = i));
        Ok(())
    }
}

fn is_view(call: &Call<'_>) -> bool {
    let plain = call.inputs[0].dtype.class() != Class::Quantized;
    let view = match call.op {
        Op::Atom(Atom::Read(Read::Permute(_) | Read::Broadcast(_))) => true,
        Op::Atom(Atom::Read(Read::Slice { start, .. })) => start.known().is_some(),
        Op::Atom(_) | Op::Jet(..) => false,
    };
    plain && view
}

/// How an output index becomes an input offset: for each output axis, the input axis it walks and
/// how far; and where the walk begins.
#[derive(Debug)]
enum View {
    Permute(Vec<usize>),
    Broadcast,
    Slice { axis: usize, start: usize, step: i64 },
}

fn build_view(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let view = match &b.node.op {
        Op::Atom(Atom::Read(Read::Permute(perm))) => View::Permute(perm.clone()),
        Op::Atom(Atom::Read(Read::Slice { axis, start, step, .. })) => {
            View::Slice { axis: *axis, start: start.known().unwrap_or(0), step: *step }
        }
        _ => View::Broadcast,
    };
    Ok(Box::new(CopyView { view }))
}

#[derive(Debug)]
struct CopyView {
    view: View,
}

impl CopyView {
    /// Input strides in elements along each output axis, and the offset of the first element.
    fn strides(&self, from: &[usize], to: &[usize]) -> Result<([isize; MAX_RANK], usize), String> {
        let mut dense = [0isize; MAX_RANK];
        let mut product = 1isize;
        for axis in (0..from.len()).rev() {
            dense[axis] = product;
            product *= from[axis] as isize;
        }
        let mut out = [0isize; MAX_RANK];
        let mut offset = 0;
        match &self.view {
            View::Permute(perm) => {
                perm.iter().enumerate().for_each(|(i, &axis)| out[i] = dense[axis]);
            }
            View::Broadcast => {
                let lead = to.len() - from.len();
                for (axis, &n) in from.iter().enumerate() {
                    out[lead + axis] = if n == 1 { 0 } else { dense[axis] };
                }
            }
            View::Slice { axis, start, step } => {
                out = dense;
                out[*axis] = dense[*axis] * *step as isize;
                let last = *start as i64 + step * (to[*axis].max(1) as i64 - 1);
                let inside = |i: i64| (0..from[*axis] as i64).contains(&i);
                if to[*axis] > 0 && !(inside(*start as i64) && inside(last)) {
                    return Err(format!(
                        "slice from {start} to {last} is outside an axis of {}",
                        from[*axis]
                    ));
                }
                offset = start * dense[*axis] as usize;
            }
        }
        Ok((out, offset))
    }
}

impl Kernel for CopyView {
    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (from, to) = (io.dims(0), io.out_dims(0));
        let size = io.inputs[0].dtype.layout().bytes;
        let (strides, offset) = self.strides(from, to)?;
        let source = io.bytes(0);
        let width = to.last().copied().unwrap_or(1);
        let rows: usize = to.iter().rev().skip(1).product();
        let out = io.output_bytes(0);
        let inner = if to.is_empty() { 1 } else { strides[to.len() - 1] };
        if width == 0 || rows == 0 {
            return Ok(());
        }
        let unit = 2048usize.div_ceil(width).max(1);
        io.each(rows.div_ceil(unit), |u| {
            for row in u * unit..rows.min((u + 1) * unit) {
                let mut rest = row;
                let mut at = offset as isize;
                for axis in (0..to.len().saturating_sub(1)).rev() {
                    at += (rest % to[axis]) as isize * strides[axis];
                    rest /= to[axis];
                }
                // SAFETY: rows do not overlap and each goes to one worker.
                let out = unsafe { out.range(row * width * size, width * size) };
                if inner == 1 {
                    let start = at as usize * size;
                    out.copy_from_slice(&source[start..start + width * size]);
                    continue;
                }
                match size {
                    1 => copy_strided::<1>(source, at, inner, out),
                    2 => copy_strided::<2>(source, at, inner, out),
                    4 => copy_strided::<4>(source, at, inner, out),
                    _ => copy_strided::<8>(source, at, inner, out),
                }
            }
        });
        Ok(())
    }
}

/// Elements of `N` bytes from `at` on, `step` apart.
fn copy_strided<const N: usize>(source: &[u8], at: isize, step: isize, out: &mut [u8]) {
    let mut at = at;
    for slot in out.as_chunks_mut::<N>().0 {
        let start = at as usize * N;
        slot.copy_from_slice(&source[start..start + N]);
        at += step;
    }
}

fn is_row_gather(call: &Call<'_>) -> bool {
    matches!(call.op, Op::Atom(Atom::Read(Read::Gather { axis: 0 })))
        && call.inputs[1].dtype == DType::I32
        && call.inputs[0].rank() >= 1
}

/// Whole entries along the first axis, of any dtype.
#[derive(Debug)]
struct GatherRows;

impl Kernel for GatherRows {
    fn reads_bytes(&self, input: usize) -> bool {
        input == 0
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (table, index) = (io.bytes(0), io.slice::<i32>(1));
        let rows = io.dims(0)[0];
        if index.is_empty() {
            return Ok(());
        }
        check_index(index, rows)?;
        let width = table.len() / rows;
        let out = io.output_bytes(0);
        io.each(index.len(), |i| {
            // SAFETY: rows do not overlap and each goes to one worker.
            let out = unsafe { out.range(i * width, width) };
            out.copy_from_slice(&table[index[i] as usize * width..][..width]);
        });
        Ok(())
    }
}

/// Fails when an index is not below `rows`.
pub(crate) fn check_index(index: &[i32], rows: usize) -> Result<(), String> {
    match index.iter().find(|&&i| usize::try_from(i).map_or(true, |i| i >= rows)) {
        Some(i) => Err(format!("index {i} is not below {rows}")),
        None => Ok(()),
    }
}

fn is_gather(call: &Call<'_>) -> bool {
    matches!(call.op, Op::Atom(Atom::Read(Read::Gather { .. })))
        && matches!(call.inputs[1].dtype, DType::I32 | DType::I64)
        && call.inputs[0].dtype.class() != Class::Quantized
}

fn build_gather(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let axis = match &b.node.op {
        Op::Atom(Atom::Read(Read::Gather { axis })) => *axis,
        _ => 0,
    };
    Ok(Box::new(Gather { axis }))
}

/// Slabs along any axis.
#[derive(Debug)]
struct Gather {
    axis: usize,
}

impl Kernel for Gather {
    fn reads_bytes(&self, input: usize) -> bool {
        input == 0
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let dims = io.dims(0);
        let len = dims[self.axis];
        let size = io.inputs[0].dtype.layout().bytes;
        let width = dims[self.axis + 1..].iter().product::<usize>() * size;
        let outer: usize = dims[..self.axis].iter().product();
        let count = io.inputs[1].elements();
        // Indices that are out of range are an error even where nothing is read.
        let narrow = io.inputs[1].dtype == DType::I32;
        let index = |i: usize| match narrow {
            true => i64::from(io.slice::<i32>(1)[i]),
            false => io.slice::<i64>(1)[i],
        };
        let wrong = (0..count).map(index).find(|&i| usize::try_from(i).map_or(true, |i| i >= len));
        if let Some(i) = wrong {
            return Err(format!("index {i} is not below {len}"));
        }
        if outer * count * width == 0 {
            return Ok(());
        }
        let (table, out) = (io.bytes(0), io.output_bytes(0));
        let unit = 4096usize.div_ceil(width).max(1);
        io.each((outer * count).div_ceil(unit), |u| {
            for row in u * unit..(outer * count).min((u + 1) * unit) {
                let from = (row / count * len + index(row % count) as usize) * width;
                // SAFETY: rows do not overlap and each goes to one worker.
                let out = unsafe { out.range(row * width, width) };
                out.copy_from_slice(&table[from..from + width]);
            }
        });
        Ok(())
    }
}

/// The bytes of a number as a plain dtype holds it.
fn border(dtype: DType, value: f64) -> Option<Vec<u8>> {
    Some(match dtype {
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::I8 => (value as i8).to_le_bytes().to_vec(),
        DType::U8 => vec![value as u8],
        DType::Bool => vec![u8::from(value != 0.0)],
        _ => return None,
    })
}

fn is_pad(call: &Call<'_>) -> bool {
    match call.op {
        Op::Atom(Atom::Read(Read::Pad { before, after, value, .. })) => {
            before.known().is_some()
                && after.known().is_some()
                && border(call.inputs[0].dtype, value.get()).is_some()
        }
        Op::Atom(_) | Op::Jet(..) => false,
    }
}

fn build_pad(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let dtype = b.graph.fact(b.node.inputs[0]).dtype;
    let made = match &b.node.op {
        Op::Atom(Atom::Read(Read::Pad { axis, before, value, .. })) => {
            let parts = (before.known(), border(dtype, value.get()));
            parts.0.zip(parts.1).map(|(before, fill)| Pad { axis: *axis, before, fill })
        }
        Op::Atom(_) | Op::Jet(..) => None,
    };
    match made {
        Some(pad) => Ok(Box::new(pad)),
        None => Err(ExecError::Unsupported { op: "pad".into(), facts: dtype.to_string() }),
    }
}

/// An axis with a border on both sides.
#[derive(Debug)]
struct Pad {
    axis: usize,
    before: usize,
    /// An element of the border.
    fill: Vec<u8>,
}

impl Kernel for Pad {
    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (from, to) = (io.dims(0), io.out_dims(0));
        let size = self.fill.len();
        let inner = to[self.axis + 1..].iter().product::<usize>() * size;
        let (row, kept) = (to[self.axis] * inner, from[self.axis] * inner);
        let outer: usize = to[..self.axis].iter().product();
        if row == 0 {
            return Ok(());
        }
        let (source, out) = (io.bytes(0), io.output_bytes(0));
        let start = self.before * inner;
        io.each(outer, |i| {
            // SAFETY: rows do not overlap and each goes to one worker.
            let out = unsafe { out.range(i * row, row) };
            let (before, rest) = out.split_at_mut(start);
            let (middle, after) = rest.split_at_mut(kept);
            middle.copy_from_slice(&source[i * kept..][..kept]);
            for border in [before, after] {
                border.chunks_exact_mut(size).for_each(|slot| slot.copy_from_slice(&self.fill));
            }
        });
        Ok(())
    }
}

fn is_decode(call: &Call<'_>) -> bool {
    matches!(call.op, Op::Atom(Atom::Read(Read::Cast(DType::F32)))) && decodes(call.inputs[0].dtype)
}

/// Any float or quantised storage as `F32`.
#[derive(Debug)]
struct Decode;

impl Kernel for Decode {
    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let t = &io.inputs[0];
        let layout = t.dtype.layout();
        let unit = 4096 / layout.block;
        let source = io.bytes(0);
        let out = io.output::<f32>(0);
        let mut result = Ok(());
        io.each(source.len().div_ceil(unit * layout.bytes), |i| {
            let start = i * unit * layout.bytes;
            let bytes = &source[start..source.len().min(start + unit * layout.bytes)];
            let len = bytes.len() / layout.bytes * layout.block;
            // SAFETY: units do not overlap and each goes to one worker.
            let out = unsafe { out.range(i * unit * layout.block, len) };
            if let Err(why) = decode_row(t.dtype, bytes, out) {
                result = Err(why);
            }
        });
        result
    }
}

fn is_concat(call: &Call<'_>) -> bool {
    matches!(call.op, Op::Atom(Atom::Write(Write::Concat { .. })))
        && call.inputs[0].dtype.class() != Class::Quantized
}

fn build_concat(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let axis = match &b.node.op {
        Op::Atom(Atom::Write(Write::Concat { axis })) => *axis,
        _ => 0,
    };
    Ok(Box::new(Concat { axis }))
}

/// Bytes of a row that a worker copies at a time.
const PIECE: usize = 1 << 15;

#[derive(Debug)]
struct Concat {
    axis: usize,
}

impl Kernel for Concat {
    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let to = io.out_dims(0);
        let size = io.inputs[0].dtype.layout().bytes;
        let inner: usize = to[self.axis + 1..].iter().product::<usize>() * size;
        let outer: usize = to[..self.axis].iter().product();
        let row = to[self.axis] * inner;
        if row == 0 {
            return Ok(());
        }
        let out = io.output_bytes(0);
        let pieces = row.div_ceil(PIECE);
        io.each(outer * pieces, |unit| {
            let (i, start) = (unit / pieces, unit % pieces * PIECE);
            let end = row.min(start + PIECE);
            let mut at = 0;
            for (part, input) in io.inputs.iter().enumerate() {
                let width = io.dims(part)[self.axis] * inner;
                let (from, to) = (start.max(at), end.min(at + width));
                let first = i * width + from.saturating_sub(at);
                let place = i * row + from;
                // A part may have been made where it belongs.
                let moves = input.start.wrapping_add(first) != out.start().wrapping_add(place);
                if from < to && moves {
                    // SAFETY: pieces do not overlap and each goes to one worker; a part that lies
                    // elsewhere in the output is not written.
                    let slot = unsafe { out.range(place, to - from) };
                    slot.copy_from_slice(&io.bytes(part)[first..first + (to - from)]);
                }
                at += width;
            }
        });
        Ok(())
    }
}
