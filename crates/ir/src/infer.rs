//! Facts of an operation's outputs: the one place that knows shape and dtype rules.

use cyb_tensor::{Class, DType, Dim};

use crate::{
    Atom, Builder, Cmp, Fact, Graph, IrError, Op, Read, Reduce, Slide, Source, Value, ValueId,
    Write,
};

/// Output facts of `op` on inputs with these facts.
pub fn infer(op: &Op, inputs: &[&Fact]) -> Result<Vec<Fact>, IrError> {
    match op {
        Op::Atom(Atom::Slide(Slide::Scan { states, body })) => infer_scan(*states, body, inputs),
        Op::Atom(atom) => infer_atom(atom, inputs).map(|f| vec![f]),
        Op::Jet(jet, attrs) => {
            let mut graph = Graph::default();
            for (i, fact) in inputs.iter().enumerate() {
                let source = Source::Input(i.to_string().into());
                graph.values.push(Value { fact: (*fact).clone(), source });
            }
            let ids: Vec<ValueId> = graph.value_ids().collect();
            let mut builder = Builder::over(graph);
            let outputs = (jet.define)(&mut builder, &ids, attrs)?;
            Ok(outputs.iter().map(|&v| builder.fact(v).clone()).collect())
        }
    }
}

/// Checks arity and gives errors their context.
struct Call<'a> {
    atom: &'a Atom,
    inputs: &'a [&'a Fact],
}

impl<'a> Call<'a> {
    fn fail<T>(&self, why: impl Into<String>) -> Result<T, IrError> {
        let facts: Vec<String> = self.inputs.iter().map(|f| f.to_string()).collect();
        Err(IrError::Operand {
            op: self.atom.name().to_owned(),
            facts: facts.join(", "),
            why: why.into(),
        })
    }

    fn take<const N: usize>(&self) -> Result<[&'a Fact; N], IrError> {
        <[&Fact; N]>::try_from(self.inputs).map_err(|_| IrError::Arity {
            op: self.atom.name().to_owned(),
            want: N.to_string(),
            got: self.inputs.len(),
        })
    }

    fn axis(&self, axis: usize, of: &Fact) -> Result<(), IrError> {
        if axis < of.rank() { Ok(()) } else { self.fail(format!("there is no axis {axis}")) }
    }

    fn same_dtype(&self, a: &Fact, b: &Fact) -> Result<DType, IrError> {
        if a.dtype == b.dtype { Ok(a.dtype) } else { self.fail("the dtypes differ") }
    }

    fn plain(&self, fact: &Fact) -> Result<(), IrError> {
        match fact.dtype.class() {
            Class::Quantized => self.fail("quantised data must be read first"),
            Class::Bool | Class::Int | Class::Float => Ok(()),
        }
    }

    fn broadcast(&self, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, IrError> {
        let rank = a.len().max(b.len());
        let at = |shape: &[Dim], i: usize| {
            (i + shape.len()).checked_sub(rank).map_or_else(|| 1.into(), |j| shape[j].clone())
        };
        (0..rank)
            .map(|i| match (at(a, i), at(b, i)) {
                (x, y) if x == y => Ok(x),
                (x, y) if x == 1 => Ok(y),
                (x, y) if y == 1 => Ok(x),
                (x, y) => self.fail(format!("{x} and {y} do not broadcast")),
            })
            .collect()
    }
}

fn infer_atom(atom: &Atom, inputs: &[&Fact]) -> Result<Fact, IrError> {
    let call = Call { atom, inputs };
    match atom {
        Atom::Mul | Atom::Add | Atom::Cmp(Cmp::Max | Cmp::Min | Cmp::Lt | Cmp::Eq) => {
            let [a, b] = call.take()?;
            call.plain(a)?;
            let dtype = call.same_dtype(a, b)?;
            let shape = call.broadcast(&a.shape, &b.shape)?;
            let truth = matches!(atom, Atom::Cmp(Cmp::Lt | Cmp::Eq));
            Ok(Fact { dtype: if truth { DType::Bool } else { dtype }, shape })
        }
        Atom::Cmp(Cmp::Select) => {
            let [c, a, b] = call.take()?;
            if c.dtype != DType::Bool {
                return call.fail("the condition must be bool");
            }
            call.plain(a)?;
            let dtype = call.same_dtype(a, b)?;
            let shape = call.broadcast(&call.broadcast(&a.shape, &b.shape)?, &c.shape)?;
            Ok(Fact { dtype, shape })
        }
        Atom::Exp(_) => {
            let [a] = call.take()?;
            if a.dtype.class() != Class::Float {
                return call.fail("it is defined on floats");
            }
            Ok(a.clone())
        }
        Atom::Read(read) => infer_read(&call, read),
        Atom::Write(write) => infer_write(&call, write),
        Atom::Reduce { kind, axes } => {
            let [a] = call.take()?;
            call.plain(a)?;
            if axes.windows(2).any(|w| w[0] >= w[1]) {
                return call.fail("axes must ascend");
            }
            axes.iter().try_for_each(|&axis| call.axis(axis, a))?;
            let indexes = matches!(kind, Reduce::Argmax | Reduce::Argmin);
            if indexes && axes.len() != 1 {
                return call.fail("argmax takes one axis");
            }
            let kept = (0..a.rank()).filter(|i| !axes.contains(i)).map(|i| a.shape[i].clone());
            Ok(Fact::new(if indexes { DType::I64 } else { a.dtype }, kept))
        }
        Atom::Slide(Slide::Window { axis, size, stride, dilation }) => {
            let [a] = call.take()?;
            call.plain(a)?;
            call.axis(*axis, a)?;
            if *size == 0 || *stride == 0 || *dilation == 0 {
                return call.fail("size, stride and dilation must not be 0");
            }
            let Some(span) = dilation.checked_mul(size - 1).and_then(|s| s.checked_add(1)) else {
                return call.fail("the window is too large");
            };
            let room = a.shape[*axis].clone() - span.into();
            let windows = room.floor_div(&(*stride).into()) + 1.into();
            let mut shape = a.shape.clone();
            shape[*axis] = windows;
            shape.push((*size).into());
            Ok(Fact { dtype: a.dtype, shape })
        }
        Atom::Slide(Slide::Scan { .. }) => {
            call.fail("a scan has several outputs and is inferred by `infer`")
        }
    }
}

fn infer_read(call: &Call<'_>, read: &Read) -> Result<Fact, IrError> {
    if let Read::Gather { axis } = read {
        let [x, index] = call.take()?;
        call.axis(*axis, x)?;
        if index.dtype.class() != Class::Int {
            return call.fail("the index must be of integers");
        }
        if x.dtype.is_quantized() && *axis + 1 == x.rank() {
            return call.fail("quantised rows are gathered whole");
        }
        let mut shape = x.shape[..*axis].to_vec();
        shape.extend_from_slice(&index.shape);
        shape.extend_from_slice(&x.shape[axis + 1..]);
        return Ok(Fact { dtype: x.dtype, shape });
    }
    let [x] = call.take()?;
    if x.dtype.is_quantized() && !matches!(read, Read::Cast(_) | Read::Reshape(_)) {
        return call.fail("quantised data must be read first");
    }
    let mut shape = x.shape.clone();
    match read {
        Read::Reshape(to) => {
            let count = |s: &[Dim]| s.iter().cloned().fold(Dim::from(1), |p, d| p * d);
            // A difference that no binding can make zero is an error now; another one is checked
            // when the sizes are known.
            let difference = count(to) - count(&x.shape);
            if difference.symbols().is_empty() && difference != 0 {
                return call.fail(format!(
                    "{} elements do not fill {}",
                    count(&x.shape),
                    count(to)
                ));
            }
            shape = to.clone();
        }
        Read::Permute(perm) => {
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted != (0..x.rank()).collect::<Vec<_>>() {
                return call.fail(format!("{perm:?} is no permutation of its axes"));
            }
            shape = perm.iter().map(|&i| x.shape[i].clone()).collect();
        }
        Read::Slice { axis, len, step, .. } => {
            call.axis(*axis, x)?;
            if *step == 0 {
                return call.fail("the step must not be 0");
            }
            shape[*axis] = len.clone();
        }
        Read::Broadcast(to) => {
            if call.broadcast(&x.shape, to)? != *to {
                return call.fail("a broadcast cannot shrink");
            }
            shape = to.clone();
        }
        Read::Pad { axis, before, after, .. } => {
            call.axis(*axis, x)?;
            shape[*axis] = before.clone() + shape[*axis].clone() + after.clone();
        }
        Read::Cast(dtype) => {
            if dtype.is_quantized() {
                return call.fail("quantised data is made by write, not by read");
            }
            return Ok(Fact { dtype: *dtype, shape });
        }
        Read::Gather { .. } => {}
    }
    Ok(Fact { dtype: x.dtype, shape })
}

fn infer_write(call: &Call<'_>, write: &Write) -> Result<Fact, IrError> {
    match write {
        Write::Scatter { axis, .. } => {
            let [base, index, updates] = call.take()?;
            call.axis(*axis, base)?;
            call.same_dtype(base, updates)?;
            if index.dtype.class() != Class::Int || index.rank() != 1 {
                return call.fail("the index must be one axis of integers");
            }
            let mut want = base.shape.clone();
            want[*axis] = index.shape[0].clone();
            if updates.shape != want {
                return call.fail("the updates have another shape than the indexed rows");
            }
            Ok((*base).clone())
        }
        Write::Concat { axis } => {
            let Some((first, rest)) = call.inputs.split_first() else {
                return call.fail("there is nothing to join");
            };
            call.axis(*axis, first)?;
            let mut shape = first.shape.clone();
            for other in rest {
                call.same_dtype(first, other)?;
                let fits = other.rank() == first.rank()
                    && (0..first.rank()).all(|i| i == *axis || other.shape[i] == first.shape[i]);
                if !fits {
                    return call.fail("the other axes differ");
                }
                shape[*axis] = shape[*axis].clone() + other.shape[*axis].clone();
            }
            Ok(Fact { dtype: first.dtype, shape })
        }
        Write::Encode(dtype) => {
            let [x] = call.take()?;
            if x.dtype.class() != Class::Float {
                return call.fail("only floats are encoded");
            }
            if let Some(inner) = x.shape.last().and_then(Dim::known)
                && !inner.is_multiple_of(dtype.layout().block)
            {
                return call.fail(format!("rows of {inner} are not whole {dtype} blocks"));
            }
            Ok(Fact { dtype: *dtype, shape: x.shape.clone() })
        }
    }
}

fn infer_scan(states: usize, body: &Graph, inputs: &[&Fact]) -> Result<Vec<Fact>, IrError> {
    let illegal = |why: &str| Err(IrError::Illegal(format!("scan: {why}")));
    let body_inputs: Vec<ValueId> = body.inputs().map(|(_, v)| v).collect();
    if body_inputs.len() != inputs.len() || states > inputs.len() || states > body.outputs.len() {
        return illegal("the body takes other inputs");
    }
    let Some(length) = inputs.get(states).and_then(|x| x.shape.first()).cloned() else {
        return illegal("there is no sequence");
    };
    for (i, (&fact, &v)) in inputs.iter().zip(&body_inputs).enumerate() {
        let element = if i < states {
            fact.clone()
        } else if fact.shape.first() == Some(&length) {
            Fact::new(fact.dtype, fact.shape[1..].iter().cloned())
        } else {
            return illegal("the sequences differ in length");
        };
        if *body.fact(v) != element {
            return illegal("the body takes other facts");
        }
    }
    let outputs = body.outputs.iter().enumerate().map(|(i, (_, v))| {
        let fact = body.fact(*v);
        if i < states {
            fact.clone()
        } else {
            Fact::new(fact.dtype, std::iter::once(length.clone()).chain(fact.shape.clone()))
        }
    });
    Ok(outputs.collect())
}
