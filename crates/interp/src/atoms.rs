//! The eight atoms on values. docs/atoms.md says the same in words.

use cyb_ir::{Atom, Cmp, IrError, Read, Reduce, Scatter, Slide, Write};
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Tensor, byte_len, quant};

use crate::number::{self, Arith, Compare, maximum, minimum};
use crate::value::{Element, Value};
use crate::{InterpError, Prepared};

/// What an evaluation needs beside the atom and its inputs.
pub(crate) struct Call<'a> {
    /// Of the outputs.
    pub shapes: &'a [&'a [usize]],
    pub bindings: &'a Bindings,
    /// Of a scan.
    pub body: Option<&'a Prepared>,
}

type One = Result<Value, InterpError>;

/// The outputs of an atom whose inputs have the facts that inference accepted.
pub(crate) fn evaluate(
    atom: &Atom,
    inputs: Vec<Value>,
    call: &Call<'_>,
) -> Result<Vec<Value>, InterpError> {
    if let Atom::Slide(Slide::Scan { states, .. }) = atom {
        return scan(*states, inputs, call);
    }
    let shape = call.shapes.first().copied().unwrap_or_default();
    let arith = |op, inputs| {
        let [a, b] = take(atom, inputs)?;
        Ok(Value::arith(op, a, b, shape)?)
    };
    let compare = |op, inputs| {
        let [a, b] = take(atom, inputs)?;
        Ok(Value::compare(op, a, b, shape)?)
    };
    let output: One = match atom {
        Atom::Mul => arith(Arith::Mul, inputs),
        Atom::Add => arith(Arith::Add, inputs),
        Atom::Cmp(Cmp::Max) => arith(Arith::Max, inputs),
        Atom::Cmp(Cmp::Min) => arith(Arith::Min, inputs),
        Atom::Cmp(Cmp::Lt) => compare(Compare::Lt, inputs),
        Atom::Cmp(Cmp::Eq) => compare(Compare::Eq, inputs),
        Atom::Cmp(Cmp::Select) => {
            let [condition, a, b] = take(atom, inputs)?;
            Ok(Value::select(condition, a, b, shape)?)
        }
        Atom::Exp(kind) => {
            let [x] = take(atom, inputs)?;
            Ok(x.exp(*kind))
        }
        Atom::Read(Read::Gather { axis }) => {
            let [x, index] = take(atom, inputs)?;
            gather(*axis, &x, &index, shape)
        }
        Atom::Read(read) => {
            let [x] = take(atom, inputs)?;
            read_one(read, x, call.bindings, shape)
        }
        Atom::Write(Write::Scatter { axis, mode }) => {
            let [base, index, updates] = take(atom, inputs)?;
            scatter(*axis, *mode, &base, &index, &updates)
        }
        Atom::Write(Write::Concat { axis }) => concat(*axis, &inputs, shape),
        Atom::Write(Write::Encode(dtype)) => {
            let [x] = take(atom, inputs)?;
            encode(x, *dtype, shape)
        }
        Atom::Reduce { kind, axes } => {
            let [x] = take(atom, inputs)?;
            reduce(*kind, axes, x, shape)
        }
        Atom::Slide(Slide::Window { axis, size, stride, dilation }) => {
            let [x] = take(atom, inputs)?;
            Ok(x.window(*axis, *size, *stride, *dilation, shape)?)
        }
        Atom::Slide(Slide::Scan { .. }) => unreachable!("a scan is evaluated above"),
    };
    Ok(vec![output?])
}

fn take<const N: usize>(atom: &Atom, inputs: Vec<Value>) -> Result<[Value; N], InterpError> {
    let got = inputs.len();
    inputs
        .try_into()
        .map_err(|_| IrError::Arity { op: atom.name().to_owned(), want: N.to_string(), got }.into())
}

/// The reads of one input.
fn read_one(read: &Read, x: Value, bindings: &Bindings, shape: &[usize]) -> One {
    match read {
        Read::Reshape(_) => {
            if x.elems() != shape.iter().product::<usize>() {
                let (from, to) = (x.shape().to_vec(), shape.to_vec());
                return Err(InterpError::Reshape { from, to });
            }
            Ok(x.reshape(shape))
        }
        Read::Permute(perm) => Ok(x.permute(perm)?),
        Read::Slice { axis, start, step, .. } => {
            let (start, len, have) = (start.eval(bindings)?, shape[*axis], x.shape()[*axis]);
            let last = start as i128 + (len as i128 - 1) * i128::from(*step);
            let inside = |i: i128| (0..have as i128).contains(&i);
            if len > 0 && !(inside(start as i128) && inside(last)) {
                return Err(InterpError::Slice { start, len, step: *step, have, axis: *axis });
            }
            Ok(x.slice(*axis, start, len, *step as isize)?)
        }
        Read::Broadcast(_) => Ok(x.broadcast(shape)?),
        Read::Pad { axis, before, after, value } => {
            let border = |len: usize| {
                let mut shape = x.shape().to_vec();
                shape[*axis] = len;
                constant(x.dtype(), value.get())?.broadcast(&shape)
            };
            let (before, after) = (before.eval(bindings)?, after.eval(bindings)?);
            let parts = [border(before)?, x.clone(), border(after)?];
            concat(*axis, &parts, shape)
        }
        Read::Cast(dtype) if x.dtype().is_quantized() => {
            let blocks = x.to_tensor()?;
            let mut elems = vec![0.0; x.elems()];
            quant::decode(x.dtype(), blocks.bytes().as_slice(), &mut elems)?;
            Ok(Value::of(&Tensor::from_f32(shape.to_vec(), &elems)?).cast(*dtype))
        }
        Read::Cast(dtype) => Ok(x.cast(*dtype)),
        Read::Gather { .. } => unreachable!("a gather has two inputs"),
    }
}

/// A scalar of a plain dtype.
fn constant(dtype: DType, value: f64) -> Result<Value, cyb_tensor::TensorError> {
    if number::is_float(dtype) {
        made(dtype, &[], &[number::round_one(dtype, value)])
    } else {
        made(dtype, &[], &[number::float_to_integer(dtype, value)])
    }
}

/// A value with these elements, which are numbers of `dtype`.
fn made<T: Element>(
    dtype: DType,
    shape: &[usize],
    elems: &[T],
) -> Result<Value, cyb_tensor::TensorError> {
    let mut bytes = AlignedBytes::zeroed(byte_len(dtype, shape)?);
    T::store(dtype, elems, 0, bytes.as_mut_slice());
    Ok(Value::of(&Tensor::new(dtype, shape.to_vec(), Bytes::owned(bytes))?))
}

/// Index values, all of which are inside an axis of length `len`.
fn indexes(index: &Value, axis: usize, len: usize) -> Result<Vec<usize>, InterpError> {
    let inside = |i: i64| {
        let index = number::integer(index.dtype(), i);
        let inside = usize::try_from(index).ok().filter(|&i| i < len);
        inside.ok_or(InterpError::Index { index, len, axis })
    };
    index.to_vec::<i64>().into_iter().map(inside).collect()
}

fn gather(axis: usize, x: &Value, index: &Value, shape: &[usize]) -> One {
    let index = indexes(index, axis, x.shape()[axis])?;
    let tensor = x.to_tensor()?;
    let from = tensor.bytes().as_slice();
    let row = byte_len(x.dtype(), &x.shape()[axis + 1..])?;
    let mut bytes = AlignedBytes::zeroed(byte_len(x.dtype(), shape)?);
    if !bytes.as_slice().is_empty() {
        let slab = row * x.shape()[axis];
        let slabs = from.chunks_exact(slab).flat_map(|slab| index.iter().map(move |&i| (slab, i)));
        for (out, (slab, i)) in bytes.as_mut_slice().chunks_exact_mut(row).zip(slabs) {
            out.copy_from_slice(&slab[i * row..(i + 1) * row]);
        }
    }
    Ok(Value::of(&Tensor::new(x.dtype(), shape.to_vec(), Bytes::owned(bytes))?))
}

fn scatter(axis: usize, mode: Scatter, base: &Value, index: &Value, updates: &Value) -> One {
    let (dtype, shape) = (base.dtype(), base.shape());
    let index = indexes(index, axis, shape[axis])?;
    let row: usize = shape[axis + 1..].iter().product();
    let slabs: usize = shape[..axis].iter().product();
    // (first element in the base, first element in the updates) of every row, in order.
    let m = index.len();
    let rows = (0..slabs).flat_map(|slab| {
        let to = move |i: usize| (slab * shape[axis] + i) * row;
        index.iter().enumerate().map(move |(k, &i)| (to(i), (slab * m + k) * row))
    });
    let op = match mode {
        Scatter::Set => {
            let mut bytes = AlignedBytes::from_slice(base.to_tensor()?.bytes().as_slice());
            let updates = updates.to_tensor()?;
            let from = updates.bytes().as_slice();
            let at = |elems: usize| dtype.bytes_for(elems).ok_or(InterpError::QuantizedScatter);
            for (to, of) in rows {
                let (to, of, len) = (at(to)?, at(of)?, at(row)?);
                bytes.as_mut_slice()[to..to + len].copy_from_slice(&from[of..of + len]);
            }
            return Ok(Value::of(&Tensor::new(dtype, shape.to_vec(), Bytes::owned(bytes))?));
        }
        Scatter::Add => Arith::Add,
        Scatter::Mul => Arith::Mul,
        Scatter::Max => Arith::Max,
        Scatter::Min => Arith::Min,
    };
    if dtype.is_quantized() {
        return Err(InterpError::QuantizedScatter);
    }
    if number::is_float(dtype) {
        let (mut out, from) = (base.to_vec::<f64>(), updates.to_vec::<f64>());
        for (to, of) in rows {
            number::arith_floats(op, dtype, &mut out[to..to + row], &from[of..of + row]);
        }
        Ok(made(dtype, shape, &out)?)
    } else {
        let (mut out, from) = (base.to_vec::<i64>(), updates.to_vec::<i64>());
        for (to, of) in rows {
            number::arith_ints(op, dtype, &mut out[to..to + row], &from[of..of + row]);
        }
        Ok(made(dtype, shape, &out)?)
    }
}

fn concat(axis: usize, parts: &[Value], shape: &[usize]) -> One {
    let dtype = parts.first().map_or(DType::F32, Value::dtype);
    let mut bytes = AlignedBytes::zeroed(byte_len(dtype, shape)?);
    let slabs: usize = shape[..axis].iter().product();
    let slab = bytes.as_slice().len() / slabs.max(1);
    let mut start = 0;
    for part in parts {
        let part = part.to_tensor()?;
        let from = part.bytes().as_slice();
        let len = from.len() / slabs.max(1);
        for i in 0..slabs {
            let to = i * slab + start;
            bytes.as_mut_slice()[to..to + len].copy_from_slice(&from[i * len..(i + 1) * len]);
        }
        start += len;
    }
    Ok(Value::of(&Tensor::new(dtype, shape.to_vec(), Bytes::owned(bytes))?))
}

fn encode(x: Value, dtype: DType, shape: &[usize]) -> One {
    if !dtype.is_quantized() {
        return Ok(x.cast(dtype));
    }
    // Blocks lie along rows, so that a row must be whole blocks.
    let len = byte_len(dtype, shape)?;
    let elems = x.cast(DType::F32).to_tensor()?.to_f32_vec()?;
    let mut bytes = Vec::with_capacity(len);
    quant::encode(dtype, &elems, &mut bytes)?;
    let bytes = Bytes::owned(AlignedBytes::from_slice(&bytes));
    Ok(Value::of(&Tensor::new(dtype, shape.to_vec(), bytes)?))
}

fn reduce(kind: Reduce, axes: &[usize], x: Value, shape: &[usize]) -> One {
    let dtype = x.dtype();
    let len: usize = axes.iter().map(|&i| x.shape()[i]).product();
    let kept = (0..x.shape().len()).filter(|i| !axes.contains(i));
    let perm: Vec<usize> = kept.chain(axes.iter().copied()).collect();
    let x = x.permute(&perm)?;
    let rows = Rows { x, rows: shape.iter().product(), len };
    let best = match kind {
        Reduce::Sum | Reduce::Prod | Reduce::Max | Reduce::Min => {
            return if number::is_float(dtype) {
                let mut out = reduce_floats(kind, &rows);
                number::round(dtype, &mut out);
                Ok(made(dtype, shape, &out)?)
            } else {
                Ok(made(dtype, shape, &reduce_ints(kind, dtype, &rows))?)
            };
        }
        Reduce::Argmax | Reduce::Argmin if len == 0 => {
            return Err(InterpError::EmptyArg { axis: axes.first().copied().unwrap_or(0) });
        }
        Reduce::Argmax if number::is_float(dtype) => {
            rows.best(|x: f64, best: f64| x > best || (x.is_nan() && !best.is_nan()))
        }
        Reduce::Argmin if number::is_float(dtype) => {
            rows.best(|x: f64, best: f64| x < best || (x.is_nan() && !best.is_nan()))
        }
        Reduce::Argmax => rows.best(|x, best| number::order(dtype, x) > number::order(dtype, best)),
        Reduce::Argmin => rows.best(|x, best| number::order(dtype, x) < number::order(dtype, best)),
    };
    Ok(made(DType::I64, shape, &best)?)
}

/// A value whose elements in row-major order are `rows` rows of `len`.
struct Rows {
    x: Value,
    rows: usize,
    len: usize,
}

impl Rows {
    /// Folds each row in order; `step` is also given the position in the row.
    fn fold<T: Element, A: Copy>(&self, init: A, step: impl Fn(A, T, usize) -> A) -> Vec<A> {
        if self.len == 0 {
            return vec![init; self.rows];
        }
        let mut out = Vec::with_capacity(self.rows);
        let (mut folded, mut at) = (init, 0);
        self.x.for_chunks(|_, chunk: &[T]| {
            for &x in chunk {
                folded = step(folded, x, at);
                at += 1;
                if at == self.len {
                    out.push(folded);
                    (folded, at) = (init, 0);
                }
            }
        });
        out
    }

    /// The position of the first element of each row that no other is better than.
    fn best<T: Element>(&self, better: impl Fn(T, T) -> bool) -> Vec<i64> {
        let best = self.fold(None, |best: Option<(T, usize)>, x, at| match best {
            Some((b, _)) if !better(x, b) => best,
            _ => Some((x, at)),
        });
        best.into_iter().map(|b| b.map_or(0, |(_, at)| at as i64)).collect()
    }
}

fn reduce_floats(kind: Reduce, rows: &Rows) -> Vec<f64> {
    match kind {
        Reduce::Sum => rows.fold(0.0, |a, x: f64, _| a + x),
        Reduce::Prod => rows.fold(1.0, |a, x: f64, _| a * x),
        Reduce::Max => rows.fold(f64::NEG_INFINITY, |a, x, _| maximum(a, x)),
        Reduce::Min => rows.fold(f64::INFINITY, |a, x, _| minimum(a, x)),
        Reduce::Argmax | Reduce::Argmin => unreachable!("the result is an index"),
    }
}

fn reduce_ints(kind: Reduce, dtype: DType, rows: &Rows) -> Vec<i64> {
    let (lowest, highest) = match dtype {
        DType::Bool => (0, 1),
        // All bits set.
        DType::U64 => (0, -1),
        _ => (
            number::float_to_integer(dtype, f64::NEG_INFINITY),
            number::float_to_integer(dtype, f64::INFINITY),
        ),
    };
    let fold = |init, op| rows.fold(init, |a, x, _| number::arith_int(op, dtype, a, x));
    match kind {
        Reduce::Sum => fold(0, Arith::Add),
        Reduce::Prod => fold(1, Arith::Mul),
        Reduce::Max => fold(lowest, Arith::Max),
        Reduce::Min => fold(highest, Arith::Min),
        Reduce::Argmax | Reduce::Argmin => unreachable!("the result is an index"),
    }
}

/// Runs the body once for each index of the sequences' first axis.
fn scan(n_states: usize, inputs: Vec<Value>, call: &Call<'_>) -> Result<Vec<Value>, InterpError> {
    let body = call.body.ok_or_else(|| IrError::Illegal("scan: the body is missing".into()))?;
    let ids = body.input_ids();
    let shapes = body.shapes(call.bindings)?;
    let mut states: Vec<Value> = Vec::new();
    let mut sequences: Vec<Value> = Vec::new();
    for (i, input) in inputs.into_iter().enumerate() {
        let to = if i < n_states { &mut states } else { &mut sequences };
        to.push(input.computed()?);
    }
    let steps = sequences.first().map_or(0, |s| s.shape()[0]);
    let mut stacked: Vec<Vec<u8>> = vec![Vec::new(); call.shapes.len() - n_states];
    for i in 0..steps {
        let mut elements = Vec::with_capacity(ids.len());
        elements.append(&mut states);
        for sequence in &sequences {
            elements.push(sequence.clone().row(i)?);
        }
        let given = ids.iter().copied().zip(elements).collect();
        let mut results = body.walk(call.bindings, &shapes, given)?;
        let elements = results.split_off(n_states);
        for state in results {
            states.push(state.computed()?);
        }
        for (to, element) in stacked.iter_mut().zip(&elements) {
            to.extend_from_slice(element.to_tensor()?.bytes().as_slice());
        }
    }
    let results = body.output_dtypes().skip(n_states).zip(&call.shapes[n_states..]);
    for (bytes, (dtype, shape)) in stacked.iter().zip(results) {
        let bytes = Bytes::owned(AlignedBytes::from_slice(bytes));
        states.push(Value::of(&Tensor::new(dtype, shape.to_vec(), bytes)?));
    }
    Ok(states)
}
