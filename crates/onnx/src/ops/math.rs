//! Functions that operators share, as compositions of atoms.

use cyb_ir::{Atom, Cmp, Exp, Op, Read, Reduce, ValueId};
use cyb_tensor::{Class, DType, Dim};

use crate::context::{Context, Made};
use crate::error::{OpError, bad};
use crate::value::floats_tensor;

impl Context<'_> {
    pub(crate) fn scalar(&mut self, like: ValueId, value: f64) -> Made {
        let dtype = self.dtype(like);
        Ok(self.b.scalar(dtype, value)?)
    }

    /// Floats of 16 bits and less as `f32`, in which compositions compute; others as they are. What
    /// an operator made in `f32` and narrowed for its type is taken as it was before, as ONNX Runtime
    /// does on CPUs: only a `Cast` of the file itself rounds between two operators.
    pub(crate) fn wide(&mut self, x: ValueId) -> Made {
        match self.dtype(x) {
            DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => {
                let made = self.b.graph().producer(x);
                let narrowed = made.filter(|n| matches!(n.op, Op::Atom(Atom::Read(Read::Cast(_)))));
                if let Some(source) = narrowed.map(|node| node.inputs[0])
                    && self.dtype(source) == DType::F32
                    && !self.placed.cast.contains(&x)
                {
                    return Ok(source);
                }
                Ok(self.b.cast(x, DType::F32)?)
            }
            _ => Ok(x),
        }
    }

    /// A function of one float tensor, computed in `f64` and rounded once.
    pub(crate) fn in_f64(
        &mut self,
        x: ValueId,
        f: impl FnOnce(&mut Self, ValueId) -> Made,
    ) -> Made {
        let dtype = self.dtype(x);
        let wide = self.b.cast(x, DType::F64)?;
        let y = f(self, wide)?;
        Ok(self.b.cast(y, dtype)?)
    }

    /// A sum with the operand of the result's shape first, which kernels like.
    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> Made {
        let (a, b) = self.larger_first(a, b)?;
        Ok(self.b.add(a, b)?)
    }

    pub(crate) fn mul(&mut self, a: ValueId, b: ValueId) -> Made {
        let (a, b) = self.larger_first(a, b)?;
        Ok(self.b.mul(a, b)?)
    }

    /// `-x`, modulo 2^bits for unsigned integers.
    pub(crate) fn neg(&mut self, x: ValueId) -> Made {
        let ones = |dtype: DType| {
            let ones = cyb_tensor::AlignedBytes::from_slice(&[0xff; 8][..dtype.layout().bytes]);
            cyb_tensor::Tensor::new(dtype, vec![], cyb_tensor::Bytes::owned(ones))
        };
        match self.dtype(x) {
            dtype @ (DType::U8 | DType::U16 | DType::U32 | DType::U64) => {
                let minus_one = self.constant(&ones(dtype)?);
                Ok(self.b.mul(x, minus_one)?)
            }
            _ => Ok(self.b.neg(x)?),
        }
    }

    pub(crate) fn sub(&mut self, a: ValueId, b: ValueId) -> Made {
        match self.dtype(a) {
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
                let minus = self.neg(b)?;
                self.add(a, minus)
            }
            _ => Ok(self.b.sub(a, b)?),
        }
    }

    /// The operand of the result's shape first, and the other without leading axes of length 1:
    /// the same result in the form that kernels know.
    fn larger_first(&mut self, a: ValueId, b: ValueId) -> Result<(ValueId, ValueId), OpError> {
        let size = |v: ValueId| {
            let elems = self.b.shape(v).iter().map(|d| d.known().unwrap_or(0) as u128);
            (self.rank(v), elems.product::<u128>())
        };
        let (a, b) = if size(b) > size(a) { (b, a) } else { (a, b) };
        let (large, small) = (self.dims(a)?, self.dims(b)?);
        let leading = small.iter().take_while(|&&n| n == 1).count();
        let scalar = self.b.graph().tensor(b).is_some_and(|t| t.elems() == 1);
        if leading == 0 || large == small || scalar {
            return Ok((a, b));
        }
        let suffix = &small[leading..];
        if small.len() <= large.len() && large.ends_with(suffix) {
            return Ok((a, self.reshape(b, suffix)?));
        }
        Ok((a, b))
    }

    /// `a / b` of floats: by `f64` and rounded once where both are known, since whole quotients are
    /// sizes there; else as a product with a reciprocal.
    pub(crate) fn divide(&mut self, a: ValueId, b: ValueId) -> Made {
        let dtype = self.dtype(a);
        if self.b.graph().inputs().next().is_none() {
            return self.divide_once(a, b);
        }
        let numerator = self.b.graph().tensor(a).filter(|t| t.elems() == 1);
        let is_one =
            numerator.map(crate::value::to_floats).transpose()?.is_some_and(|x| x == [1.0])
                && self.rank(a) <= self.rank(b);
        let root = Op::Atom(Atom::Exp(Exp::Sqrt));
        if let Some(node) = self.b.graph().producer(b)
            && node.op == root
        {
            // The spelling of normalisations.
            let below = node.inputs[0];
            let r = self.b.exp(Exp::Rsqrt, below)?;
            return if is_one { Ok(r) } else { self.mul(a, r) };
        }
        if let Some(tensor) = self.b.graph().tensor(b) {
            let numbers = crate::value::to_floats(tensor)?;
            let inverse: Vec<f64> = numbers.iter().map(|x| 1.0 / x).collect();
            let shape = tensor.shape().to_vec();
            let inverse = self.numbers(dtype, shape, &inverse)?;
            return self.mul(a, inverse);
        }
        let r = self.b.exp(Exp::Recip, b)?;
        if is_one { Ok(r) } else { self.mul(a, r) }
    }

    /// `a / b` of floats, computed in `f64` and rounded once.
    pub(crate) fn divide_once(&mut self, a: ValueId, b: ValueId) -> Made {
        let dtype = self.dtype(a);
        let (a, b) = (self.b.cast(a, DType::F64)?, self.b.cast(b, DType::F64)?);
        let r = self.b.exp(Exp::Recip, b)?;
        let y = self.mul(a, r)?;
        Ok(self.b.cast(y, dtype)?)
    }

    pub(crate) fn abs(&mut self, x: ValueId) -> Made {
        if matches!(self.dtype(x), DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool) {
            return Ok(x);
        }
        let minus = self.neg(x)?;
        Ok(self.b.max(x, minus)?)
    }

    pub(crate) fn floor(&mut self, x: ValueId) -> Made {
        Ok(self.b.exp(Exp::Floor, x)?)
    }

    pub(crate) fn ceil(&mut self, x: ValueId) -> Made {
        let minus = self.neg(x)?;
        let floor = self.floor(minus)?;
        self.neg(floor)
    }

    pub(crate) fn trunc(&mut self, x: ValueId) -> Made {
        let (down, up) = (self.floor(x)?, self.ceil(x)?);
        let zero = self.scalar(x, 0.0)?;
        let below = self.b.lt(x, zero)?;
        Ok(self.b.select(below, up, down)?)
    }

    /// To the nearest integer, halves to the even one.
    pub(crate) fn round(&mut self, x: ValueId) -> Made {
        let floor = self.floor(x)?;
        let part = self.sub(x, floor)?;
        let half = self.scalar(x, 0.5)?;
        let above = self.b.lt(half, part)?;
        let tie = self.b.cmp(Cmp::Eq, part, half)?;
        let halved = self.b.scale(floor, 0.5)?;
        let whole = self.floor(halved)?;
        let odd = self.b.lt(whole, halved)?;
        let up_at_tie = self.b.mul(tie, odd)?;
        let up = self.b.add(above, up_at_tie)?;
        let next = self.b.offset(floor, 1.0)?;
        Ok(self.b.select(up, next, floor)?)
    }

    pub(crate) fn le(&mut self, a: ValueId, b: ValueId) -> Made {
        let (lt, eq) = (self.b.lt(a, b)?, self.b.cmp(Cmp::Eq, a, b)?);
        Ok(self.b.add(lt, eq)?)
    }

    /// The integer quotient rounded toward zero, and the remainder with the sign of `a`. A zero
    /// divisor gives some number.
    pub(crate) fn int_div(
        &mut self,
        a: ValueId,
        b: ValueId,
    ) -> Result<(ValueId, ValueId), OpError> {
        let dtype = self.dtype(a);
        let (abs_a, abs_b) = (self.abs(a)?, self.abs(b)?);
        let fb = self.b.cast(abs_b, DType::F64)?;
        let inverse = self.b.exp(Exp::Recip, fb)?;
        let mut rest = abs_a;
        let mut quotient = None;
        // The estimate is off by up to 2^11 for 64 bits, so what is left is divided again.
        for _ in 0..2 {
            let fa = self.b.cast(rest, DType::F64)?;
            let q = self.mul(fa, inverse)?;
            let q = self.floor(q)?;
            let q = self.b.cast(q, dtype)?;
            let product = self.mul(q, abs_b)?;
            let minus = self.neg(product)?;
            rest = self.add(rest, minus)?;
            quotient = Some(match quotient {
                Some(sum) => self.add(sum, q)?,
                None => q,
            });
        }
        let Some(mut q) = quotient else { return bad("has no quotient") };
        // Off by at most one now.
        let over = self.le(abs_b, rest)?;
        let one = self.b.cast(over, dtype)?;
        q = self.add(q, one)?;
        let less = self.mul(one, abs_b)?;
        let less = self.neg(less)?;
        rest = self.add(rest, less)?;
        if !matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64) {
            let zero = self.scalar(rest, 0.0)?;
            let under = self.b.lt(rest, zero)?;
            let one = self.b.cast(under, dtype)?;
            let minus = self.neg(one)?;
            q = self.add(q, minus)?;
            let more = self.mul(one, abs_b)?;
            rest = self.add(rest, more)?;
            let (na, nb) = (self.b.lt(a, zero)?, self.b.lt(b, zero)?);
            let same = self.b.cmp(Cmp::Eq, na, nb)?;
            let minus_q = self.neg(q)?;
            q = self.b.select(same, q, minus_q)?;
            let minus_rest = self.neg(rest)?;
            rest = self.b.select(na, minus_rest, rest)?;
        }
        Ok((q, rest))
    }

    /// `arctan(x)` of `f64`: the angle is halved four times, then its series is summed.
    pub(crate) fn atan(&mut self, x: ValueId) -> Made {
        let (low, high) = (self.scalar(x, -1e150)?, self.scalar(x, 1e150)?);
        let x = self.b.max(x, low)?;
        let mut t = self.b.min(x, high)?;
        for _ in 0..4 {
            let square = self.b.mul(t, t)?;
            let below = self.b.offset(square, 1.0)?;
            let root = self.b.exp(Exp::Sqrt, below)?;
            let below = self.b.offset(root, 1.0)?;
            t = self.b.div(t, below)?;
        }
        let square = self.b.mul(t, t)?;
        let mut sum = self.scalar(x, 1.0 / 17.0)?;
        for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0f64] {
            let term = self.b.mul(square, sum)?;
            let minus = self.neg(term)?;
            sum = self.b.offset(minus, 1.0 / odd)?;
        }
        let y = self.b.mul(t, sum)?;
        Ok(self.b.scale(y, 16.0)?)
    }

    /// `a` to the power `b`, both floats, in `f64`.
    pub(crate) fn power(&mut self, a: ValueId, b: ValueId) -> Made {
        let size = self.abs(a)?;
        let ln = self.b.exp(Exp::Ln, size)?;
        let product = self.mul(b, ln)?;
        let p = self.b.exp(Exp::Exp, product)?;
        let zero = self.scalar(a, 0.0)?;
        let one = self.scalar(a, 1.0)?;
        let negative = self.b.lt(a, zero)?;
        // An odd integer exponent keeps the sign; a broken one has no real power.
        let whole = self.floor(b)?;
        let is_whole = self.b.cmp(Cmp::Eq, whole, b)?;
        let half = self.b.scale(b, 0.5)?;
        let half_floor = self.floor(half)?;
        let even = self.b.cmp(Cmp::Eq, half_floor, half)?;
        let minus = self.neg(p)?;
        let signed = self.b.select(even, p, minus)?;
        let nan = self.scalar(a, f64::NAN)?;
        let real = self.b.select(is_whole, signed, nan)?;
        let y = self.b.select(negative, real, p)?;
        let to_zero = self.b.cmp(Cmp::Eq, b, zero)?;
        let of_one = self.b.cmp(Cmp::Eq, a, one)?;
        let trivial = self.b.add(to_zero, of_one)?;
        Ok(self.b.select(trivial, one, y)?)
    }

    /// Collapses `axes`, which keep length 1.
    pub(crate) fn reduce_kept(&mut self, kind: Reduce, x: ValueId, axes: &[usize]) -> Made {
        let mut shape: Vec<Dim> = self.b.shape(x).to_vec();
        let y = self.b.reduce(kind, x, axes)?;
        for &axis in axes {
            shape[axis] = 1.into();
        }
        Ok(self.b.reshape(y, shape)?)
    }

    /// The mean over `axes`, which keep length 1.
    pub(crate) fn mean_kept(&mut self, x: ValueId, axes: &[usize]) -> Made {
        let dims = self.dims(x)?;
        let count: usize = axes.iter().map(|&a| dims[a]).product();
        let sum = self.reduce_kept(Reduce::Sum, x, axes)?;
        Ok(self.b.scale(sum, 1.0 / count as f64)?)
    }

    pub(crate) fn softmax(&mut self, x: ValueId, axis: usize) -> Made {
        let attrs = cyb_ir::Attrs::new().with("axis", axis);
        Ok(self.b.jet(&cyb_jets::SOFTMAX, attrs, &[x])?)
    }

    pub(crate) fn sigmoid(&mut self, x: ValueId) -> Made {
        Ok(self.b.jet(&cyb_jets::SIGMOID, cyb_ir::Attrs::new(), &[x])?)
    }

    pub(crate) fn tanh(&mut self, x: ValueId) -> Made {
        Ok(self.b.jet(&cyb_jets::TANH, cyb_ir::Attrs::new(), &[x])?)
    }

    pub(crate) fn relu(&mut self, x: ValueId) -> Made {
        Ok(self.b.jet(&cyb_jets::RELU, cyb_ir::Attrs::new(), &[x])?)
    }

    pub(crate) fn matmul(&mut self, a: ValueId, b: ValueId) -> Made {
        Ok(self.b.jet(&cyb_jets::MATMUL, cyb_ir::Attrs::new(), &[a, b])?)
    }

    pub(crate) fn reshape(&mut self, x: ValueId, dims: &[usize]) -> Made {
        Ok(self.b.reshape(x, dims.iter().map(|&n| n.into()))?)
    }

    pub(crate) fn broadcast(&mut self, x: ValueId, dims: &[usize]) -> Made {
        Ok(self.b.broadcast(x, dims.iter().map(|&n| n.into()))?)
    }

    /// Numbers known now, as a value of the graph.
    pub(crate) fn numbers(&mut self, dtype: DType, dims: Vec<usize>, numbers: &[f64]) -> Made {
        let tensor = floats_tensor(dtype, dims, numbers)?;
        Ok(self.constant(&tensor))
    }

    pub(crate) fn indices(&mut self, dims: Vec<usize>, indices: &[i64]) -> Made {
        let tensor = crate::value::ints_tensor(dims, indices)?;
        Ok(self.constant(&tensor))
    }

    /// Any number as another plain dtype, with the rules of ONNX (as of C, saturating).
    pub(crate) fn cast(&mut self, x: ValueId, to: DType) -> Made {
        Ok(self.b.cast(x, to)?)
    }

    pub(crate) fn is_int(&self, x: ValueId) -> bool {
        self.dtype(x).class() == Class::Int
    }

    /// The shape that both broadcast to.
    pub(crate) fn common_shape(&self, a: &[usize], b: &[usize]) -> Result<Vec<usize>, OpError> {
        let rank = a.len().max(b.len());
        let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
        (0..rank)
            .map(|i| match (at(a, i), at(b, i)) {
                (x, y) if x == y => Ok(x),
                (1, y) => Ok(y),
                (x, 1) => Ok(x),
                _ => bad(format!("{a:?} and {b:?} do not broadcast")),
            })
            .collect()
    }
}
