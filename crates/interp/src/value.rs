//! A value while a graph is evaluated: strided data, or an expression over strided data that is
//! computed when it is read.
//!
//! The one idea: every leaf of an expression walks the same row-major index space, the value's
//! shape. A view therefore changes the strides of the leaves and computes nothing, and a product
//! of two broadcasts (a matrix product before its sum) never takes memory of its size. Elements
//! are computed in chunks of that index space, so that the cost of walking the tree is shared.

use bytemuck::Zeroable;
use cyb_ir::Exp;
use cyb_tensor::{AlignedBytes, Bytes, DType, Tensor, TensorError, byte_len};

use crate::number::{self, Arith, CHUNK, Compare};

/// Expressions larger than this are computed, which bounds the recursion over them.
const MAX_EXPR: usize = 64;

/// A dtype, a shape whose element count fits `usize`, and the elements.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    shape: Vec<usize>,
    expr: Expr,
}

#[derive(Clone, Debug)]
struct Expr {
    dtype: DType,
    kind: Kind,
    /// Expressions in the tree.
    size: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Data(Data),
    Arith(Arith, Box<[Expr; 2]>),
    Compare(Compare, Box<[Expr; 2]>),
    Select(Box<[Expr; 3]>),
    Exp(Exp, Box<Expr>),
    Cast(Box<Expr>),
}

/// Elements in memory: number `i` of the walk over `dims` in row-major order.
#[derive(Clone, Debug)]
struct Data {
    bytes: Bytes,
    offset: isize,
    dims: Vec<Axis>,
}

/// An axis of a walk. The step is in elements; 0 repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    len: usize,
    step: isize,
}

impl Data {
    fn contiguous(bytes: Bytes, shape: &[usize]) -> Data {
        let mut step = 1isize;
        let mut dims: Vec<Axis> = shape.iter().map(|&len| Axis { len, step: 0 }).collect();
        for axis in dims.iter_mut().rev() {
            axis.step = step;
            step = step.wrapping_mul(axis.len as isize);
        }
        Data { bytes, offset: 0, dims }
    }

    /// The same walk over fewer, longer axes.
    fn merged(&self) -> Vec<Axis> {
        if self.dims.iter().any(|a| a.len == 0) {
            return vec![Axis { len: 0, step: 1 }];
        }
        let mut out: Vec<Axis> = Vec::with_capacity(self.dims.len());
        for &axis in self.dims.iter().filter(|a| a.len != 1) {
            match out.last_mut() {
                Some(outer) if outer.step == axis.step.wrapping_mul(axis.len as isize) => {
                    *outer = Axis { len: outer.len * axis.len, step: axis.step };
                }
                _ => out.push(axis),
            }
        }
        out
    }

    /// The same walk over axes of these lengths, when such axes have fixed steps.
    fn aligned(&self, shape: &[usize]) -> Option<Data> {
        let split = |dims: Vec<Axis>| Data { bytes: self.bytes.clone(), offset: self.offset, dims };
        if self.dims.iter().map(|a| &a.len).eq(shape) {
            return Some(self.clone());
        }
        if shape.contains(&0) {
            return Some(split(shape.iter().map(|&len| Axis { len, step: 0 }).collect()));
        }
        let mut rest = self.merged();
        let mut dims = vec![Axis { len: 1, step: 0 }; shape.len()];
        for (axis, &len) in dims.iter_mut().zip(shape).rev().filter(|(_, len)| **len != 1) {
            let inner = rest.last_mut()?;
            if !inner.len.is_multiple_of(len) {
                return None;
            }
            *axis = Axis { len, step: inner.step };
            *inner = Axis { len: inner.len / len, step: inner.step * len as isize };
            if inner.len == 1 {
                rest.pop();
            }
        }
        Some(split(dims))
    }

    /// Splits elements `start..start + len` of the walk into runs of a fixed step and calls
    /// `run(elements before, offset, step, elements)` for each.
    fn runs(&self, start: usize, len: usize, mut run: impl FnMut(usize, isize, isize, usize)) {
        let Some((inner, outer)) = self.dims.split_last() else {
            return if len > 0 {
                run(0, self.offset, 0, len)
            };
        };
        let mut index = vec![0; outer.len()];
        let mut rest = start / inner.len.max(1);
        let mut at = start % inner.len.max(1);
        let mut offset = self.offset;
        for (i, axis) in index.iter_mut().zip(outer).rev() {
            *i = rest % axis.len.max(1);
            rest /= axis.len.max(1);
            offset += *i as isize * axis.step;
        }
        let mut done = 0;
        while done < len {
            let n = (inner.len - at).min(len - done);
            run(done, offset + at as isize * inner.step, inner.step, n);
            done += n;
            at = 0;
            for (i, axis) in index.iter_mut().zip(outer).rev() {
                *i += 1;
                offset += axis.step;
                if *i < axis.len {
                    break;
                }
                offset -= axis.len as isize * axis.step;
                *i = 0;
            }
        }
    }

    /// The bytes of `elems` elements, when they lie together.
    fn together(&self, dtype: DType, elems: usize) -> Option<std::ops::Range<usize>> {
        if elems == 0 {
            return Some(0..0);
        }
        let whole = match self.merged().as_slice() {
            [] => true,
            [axis] => axis.step == 1,
            _ => false,
        };
        let from = dtype.bytes_for(usize::try_from(self.offset).ok()?)?;
        whole.then_some(from..from + dtype.bytes_for(elems)?)
    }
}

impl Expr {
    fn of(dtype: DType, kind: Kind) -> Expr {
        let size = match &kind {
            Kind::Data(_) => 1,
            Kind::Arith(_, x) | Kind::Compare(_, x) => 1 + x[0].size + x[1].size,
            Kind::Select(x) => 1 + x.iter().map(|x| x.size).sum::<usize>(),
            Kind::Exp(_, x) | Kind::Cast(x) => 1 + x.size,
        };
        Expr { dtype, kind, size }
    }

    /// Calls `f` on the data of every leaf until one fails.
    fn try_each(&mut self, f: &mut impl FnMut(&mut Data) -> Option<()>) -> Option<()> {
        match &mut self.kind {
            Kind::Data(data) => f(data),
            Kind::Arith(_, x) | Kind::Compare(_, x) => x.iter_mut().try_for_each(|x| x.try_each(f)),
            Kind::Select(x) => x.iter_mut().try_for_each(|x| x.try_each(f)),
            Kind::Exp(_, x) | Kind::Cast(x) => x.try_each(f),
        }
    }

    /// Elements `start..` of a float expression.
    fn floats(&self, start: usize, out: &mut [f64]) {
        let mut space = [0.0; CHUNK];
        let temp = &mut space[..out.len()];
        match &self.kind {
            Kind::Data(data) => data.runs(start, out.len(), |done, at, step, n| {
                let out = &mut out[done..done + n];
                number::load_floats(self.dtype, data.bytes.as_slice(), at, step, out);
            }),
            Kind::Arith(op, x) => {
                x[0].floats(start, out);
                x[1].floats(start, temp);
                number::arith_floats(*op, self.dtype, out, temp);
            }
            Kind::Select(x) => {
                let mut space = [0; CHUNK];
                let condition = &mut space[..out.len()];
                x[0].ints(start, condition);
                x[1].floats(start, out);
                x[2].floats(start, temp);
                choose(condition, out, temp);
            }
            Kind::Exp(kind, x) => {
                x.floats(start, out);
                let f = number::transcendental(*kind);
                out.iter_mut().for_each(|x| *x = f(*x));
                number::round(self.dtype, out);
            }
            Kind::Cast(x) if number::is_float(x.dtype) => {
                x.floats(start, out);
                number::round(self.dtype, out);
            }
            Kind::Cast(x) => {
                let mut space = [0; CHUNK];
                let ints = &mut space[..out.len()];
                x.ints(start, ints);
                for (o, &i) in out.iter_mut().zip(ints.iter()) {
                    *o = number::integer_to_float(x.dtype, self.dtype, i);
                }
            }
            Kind::Compare(..) => unreachable!("a comparison is of Bool"),
        }
    }

    /// Elements `start..` of an expression of integers or `Bool`.
    fn ints(&self, start: usize, out: &mut [i64]) {
        let mut space = [0; CHUNK];
        let temp = &mut space[..out.len()];
        match &self.kind {
            Kind::Data(data) => data.runs(start, out.len(), |done, at, step, n| {
                let out = &mut out[done..done + n];
                number::load_ints(self.dtype, data.bytes.as_slice(), at, step, out);
            }),
            Kind::Arith(op, x) => {
                x[0].ints(start, out);
                x[1].ints(start, temp);
                number::arith_ints(*op, self.dtype, out, temp);
            }
            Kind::Compare(op, x) if number::is_float(x[0].dtype) => {
                let (mut a, mut b) = ([0.0; CHUNK], [0.0; CHUNK]);
                x[0].floats(start, &mut a[..out.len()]);
                x[1].floats(start, &mut b[..out.len()]);
                for (o, (a, b)) in out.iter_mut().zip(a.iter().zip(&b)) {
                    *o = i64::from(number::compare(*op, a, b));
                }
            }
            Kind::Compare(op, x) => {
                x[0].ints(start, out);
                x[1].ints(start, temp);
                let key = |v| number::order(x[0].dtype, v);
                for (o, &b) in out.iter_mut().zip(temp.iter()) {
                    *o = i64::from(number::compare(*op, key(*o), key(b)));
                }
            }
            Kind::Select(x) => {
                let mut space = [0; CHUNK];
                let condition = &mut space[..out.len()];
                x[0].ints(start, condition);
                x[1].ints(start, out);
                x[2].ints(start, temp);
                choose(condition, out, temp);
            }
            Kind::Cast(x) if number::is_float(x.dtype) => {
                let mut space = [0.0; CHUNK];
                let floats = &mut space[..out.len()];
                x.floats(start, floats);
                for (o, &x) in out.iter_mut().zip(floats.iter()) {
                    *o = number::float_to_integer(self.dtype, x);
                }
            }
            Kind::Cast(x) => {
                x.ints(start, out);
                out.iter_mut().for_each(|x| *x = number::wrap(self.dtype, *x));
            }
            Kind::Exp(..) => unreachable!("a transcendental function is of floats"),
        }
    }
}

/// Where `condition` is false, `a` becomes `b`.
fn choose<T: Copy>(condition: &[i64], a: &mut [T], b: &[T]) {
    for (a, (&c, &b)) in a.iter_mut().zip(condition.iter().zip(b)) {
        if c == 0 {
            *a = b;
        }
    }
}

/// An element as it is computed with: `f64` for floats, `i64` for the others.
pub(crate) trait Element: Copy + Zeroable {
    fn load(value: &Value, start: usize, out: &mut [Self]);
    fn store(dtype: DType, values: &[Self], at: usize, bytes: &mut [u8]);
}

impl Element for f64 {
    fn load(value: &Value, start: usize, out: &mut [f64]) {
        value.expr.floats(start, out);
    }

    fn store(dtype: DType, values: &[f64], at: usize, bytes: &mut [u8]) {
        number::store_floats(dtype, values, at, bytes);
    }
}

impl Element for i64 {
    fn load(value: &Value, start: usize, out: &mut [i64]) {
        value.expr.ints(start, out);
    }

    fn store(dtype: DType, values: &[i64], at: usize, bytes: &mut [u8]) {
        number::store_ints(dtype, values, at, bytes);
    }
}

impl Value {
    pub(crate) fn of(tensor: &Tensor) -> Value {
        let data = Data::contiguous(tensor.bytes().clone(), tensor.shape());
        let expr = Expr::of(tensor.dtype(), Kind::Data(data));
        Value { shape: tensor.shape().to_vec(), expr }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.expr.dtype
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether reading it computes nothing.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.expr.kind, Kind::Data(_))
    }

    /// Calls `f` on the elements in row-major order, in chunks.
    pub(crate) fn for_chunks<T: Element>(&self, mut f: impl FnMut(usize, &[T])) {
        let mut merged = self.clone();
        let merge = |data: &mut Data| {
            data.dims = data.merged();
            Some(())
        };
        merged.expr.try_each(&mut { merge });
        let mut space = [T::zeroed(); CHUNK];
        let elems = self.elems();
        for start in (0..elems).step_by(CHUNK) {
            let out = &mut space[..CHUNK.min(elems - start)];
            T::load(&merged, start, out);
            f(start, out);
        }
    }

    /// All elements.
    pub(crate) fn to_vec<T: Element>(&self) -> Vec<T> {
        let mut out = Vec::with_capacity(self.elems());
        self.for_chunks(|_, chunk| out.extend_from_slice(chunk));
        out
    }

    /// The elements as contiguous bytes. Data keeps its bits.
    pub(crate) fn to_tensor(&self) -> Result<Tensor, TensorError> {
        let (dtype, len) = (self.dtype(), byte_len(self.dtype(), &self.shape)?);
        let done = |bytes| Tensor::new(dtype, self.shape.clone(), bytes);
        if let Kind::Data(data) = &self.expr.kind
            && let Some(range) = data.together(dtype, self.elems())
        {
            if range == (0..data.bytes.len()) {
                return done(data.bytes.clone());
            }
            return done(Bytes::owned(AlignedBytes::from_slice(&data.bytes.as_slice()[range])));
        }
        let mut bytes = AlignedBytes::zeroed(len);
        let out = bytes.as_mut_slice();
        match &self.expr.kind {
            Kind::Data(data) => {
                let (from, size) = (data.bytes.as_slice(), dtype.layout().bytes);
                let data = Data { dims: data.merged(), ..data.clone() };
                data.runs(0, self.elems(), |done, at, step, n| {
                    for (i, out) in out[done * size..].chunks_exact_mut(size).take(n).enumerate() {
                        let at = (at + i as isize * step) as usize * size;
                        out.copy_from_slice(&from[at..at + size]);
                    }
                });
            }
            _ if number::is_float(dtype) => {
                self.for_chunks(|at, chunk| f64::store(dtype, chunk, at, out));
            }
            _ => self.for_chunks(|at, chunk| i64::store(dtype, chunk, at, out)),
        }
        done(Bytes::owned(bytes))
    }

    /// The value as data; computed unless it is data already.
    pub(crate) fn computed(self) -> Result<Value, TensorError> {
        if self.is_data() { Ok(self) } else { Ok(Value::of(&self.to_tensor()?)) }
    }

    /// Computed if the expression has become too large to carry on.
    pub(crate) fn bounded(self) -> Result<Value, TensorError> {
        if self.expr.size > MAX_EXPR { self.computed() } else { Ok(self) }
    }

    /// The value with leaves whose axes are those of its shape.
    fn aligned(mut self) -> Result<Value, TensorError> {
        let shape = &self.shape;
        let mut expr = self.expr.clone();
        let fits = expr.try_each(&mut |data| {
            *data = data.aligned(shape)?;
            Some(())
        });
        if fits.is_none() {
            return Ok(Value::of(&self.to_tensor()?));
        }
        self.expr = expr;
        Ok(self)
    }

    fn view(self, shape: Vec<usize>, f: impl Fn(&mut Data)) -> Result<Value, TensorError> {
        let mut value = self.aligned()?;
        value.shape = shape;
        value.expr.try_each(&mut |data| {
            f(data);
            Some(())
        });
        Ok(value)
    }

    /// The caller has checked that the element counts are the same.
    pub(crate) fn reshape(mut self, shape: &[usize]) -> Value {
        self.shape = shape.to_vec();
        self
    }

    pub(crate) fn permute(self, perm: &[usize]) -> Result<Value, TensorError> {
        if perm.iter().copied().eq(0..perm.len()) {
            return Ok(self);
        }
        let shape = perm.iter().map(|&i| self.shape[i]).collect();
        self.view(shape, |data| data.dims = perm.iter().map(|&i| data.dims[i]).collect())
    }

    /// The caller has checked that all indexes are inside the axis.
    pub(crate) fn slice(
        self,
        axis: usize,
        start: usize,
        len: usize,
        step: isize,
    ) -> Result<Value, TensorError> {
        let mut shape = self.shape.clone();
        shape[axis] = len;
        self.view(shape, |data| {
            let old = data.dims[axis];
            if len > 0 {
                data.offset = data.offset.wrapping_add(old.step.wrapping_mul(start as isize));
            }
            // Products wrap only where an axis is empty or has one element: no such step is taken.
            data.dims[axis] = Axis { len, step: old.step.wrapping_mul(step) };
        })
    }

    /// Without axis 0, at one index of it.
    pub(crate) fn row(self, index: usize) -> Result<Value, TensorError> {
        let row = self.slice(0, index, 1, 1)?;
        let shape = row.shape[1..].to_vec();
        Ok(row.reshape(&shape))
    }

    /// Elements that are repeated are computed once, before.
    pub(crate) fn broadcast(self, shape: &[usize]) -> Result<Value, TensorError> {
        if self.shape == shape {
            return Ok(self);
        }
        let repeats = shape.iter().product::<usize>() > self.elems();
        let value = if repeats { self.computed()? } else { self };
        let new = shape.len() - value.shape.len();
        value.view(shape.to_vec(), |data| {
            let old = |i: usize| i.checked_sub(new).map(|i| data.dims[i]);
            data.dims = (0..shape.len())
                .map(|i| match old(i) {
                    Some(axis) if axis.len == shape[i] => axis,
                    _ => Axis { len: shape[i], step: 0 },
                })
                .collect();
        })
    }

    /// Windows overlap, so that their elements are computed once, before.
    pub(crate) fn window(
        self,
        axis: usize,
        size: usize,
        stride: usize,
        dilation: usize,
        shape: &[usize],
    ) -> Result<Value, TensorError> {
        self.computed()?.view(shape.to_vec(), |data| {
            let old = data.dims[axis];
            // As in `slice`, only a step that is never taken wraps.
            let by = |n: usize| old.step.wrapping_mul(n as isize);
            data.dims[axis] = Axis { len: shape[axis], step: by(stride) };
            data.dims.push(Axis { len: size, step: by(dilation) });
        })
    }

    pub(crate) fn arith(
        op: Arith,
        a: Value,
        b: Value,
        shape: &[usize],
    ) -> Result<Value, TensorError> {
        let (a, b) = (a.broadcast(shape)?.expr, b.broadcast(shape)?.expr);
        let expr = Expr::of(a.dtype, Kind::Arith(op, Box::new([a, b])));
        Ok(Value { shape: shape.to_vec(), expr })
    }

    pub(crate) fn compare(
        op: Compare,
        a: Value,
        b: Value,
        shape: &[usize],
    ) -> Result<Value, TensorError> {
        let operands = Box::new([a.broadcast(shape)?.expr, b.broadcast(shape)?.expr]);
        let expr = Expr::of(DType::Bool, Kind::Compare(op, operands));
        Ok(Value { shape: shape.to_vec(), expr })
    }

    pub(crate) fn select(
        condition: Value,
        a: Value,
        b: Value,
        shape: &[usize],
    ) -> Result<Value, TensorError> {
        let (a, b) = (a.broadcast(shape)?.expr, b.broadcast(shape)?.expr);
        let operands = Box::new([condition.broadcast(shape)?.expr, a, b]);
        let expr = Expr::of(operands[1].dtype, Kind::Select(operands));
        Ok(Value { shape: shape.to_vec(), expr })
    }

    pub(crate) fn exp(self, kind: Exp) -> Value {
        let expr = Expr::of(self.dtype(), Kind::Exp(kind, Box::new(self.expr)));
        Value { shape: self.shape, expr }
    }

    /// Between plain dtypes.
    pub(crate) fn cast(self, dtype: DType) -> Value {
        if dtype == self.dtype() {
            return self;
        }
        Value { shape: self.shape, expr: Expr::of(dtype, Kind::Cast(Box::new(self.expr))) }
    }
}
