//! Atoms that move elements of four bytes: slices and other views that are made anew, tensors one
//! behind the other.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Atom, Node, Op as IrOp, Read, Write};
use cyb_tensor::DType;

use crate::driver::{Function, Launch, Parameter};
use crate::op::{Build, MAX_RANK, Op, Operand, Scratch, per_element};

/// The kernel of an atom that moves elements.
pub(crate) fn kernel(call: &Call<'_>) -> Option<&'static str> {
    let IrOp::Atom(atom) = call.op else { return None };
    let words = || {
        let is_word = |dtype| matches!(dtype, DType::F32 | DType::I32 | DType::U32);
        call.inputs.iter().chain(&call.outputs).all(|fact| is_word(fact.dtype))
    };
    match atom {
        Atom::Read(Read::Slice { start, .. }) => {
            (words() && start.known().is_some()).then_some("view")
        }
        Atom::Read(Read::Permute(_) | Read::Broadcast(_)) => words().then_some("view"),
        Atom::Write(Write::Concat { .. }) => words().then_some("view"),
        _ => None,
    }
}

/// The step of such an atom.
pub(crate) fn build(b: &mut Build<'_>, node: &Node) -> Result<Option<Box<dyn Op>>, ExecError> {
    let call = Call::of(b.graph, node);
    let (Some(_), IrOp::Atom(atom)) = (kernel(&call), &node.op) else { return Ok(None) };
    let view = || b.device.function("elementwise", "view");
    Ok(match atom {
        Atom::Read(read) => Some(Box::new(View { read: read.clone(), function: view()? })),
        Atom::Write(Write::Concat { axis }) => {
            Some(Box::new(Concat { axis: *axis, function: view()? }))
        }
        _ => None,
    })
}

/// The strides of a tensor whose elements lie one behind the other.
fn strides(dims: &[usize]) -> [i64; MAX_RANK] {
    let mut strides = [0; MAX_RANK];
    let mut stride = 1;
    for (i, &n) in dims.iter().enumerate().rev() {
        strides[i] = stride;
        stride *= n as i64;
    }
    strides
}

/// A launch of `view`; elements go to the view with `writes`, else come from it.
fn launch(
    function: Function,
    [from, to]: [u64; 2],
    dims: &[usize],
    start: usize,
    strides: &[i64; MAX_RANK],
    writes: bool,
) -> Launch {
    let mut shape = Parameter::new().i32(dims.len());
    for axis in 0..MAX_RANK {
        shape = shape.i32(dims.get(axis).copied().unwrap_or(1));
    }
    // Strides fit as the tensor's sizes do; the second operand's are not used.
    shape = strides.iter().fold(shape, |shape, &stride| shape.word(stride as u32));
    shape = (0..MAX_RANK).fold(shape, |shape, _| shape.i32(0));
    let n = dims.iter().product();
    let parameters = vec![
        Parameter::address(from),
        Parameter::address(to),
        Parameter::long(n),
        Parameter::long(start),
        Parameter::int(usize::from(writes)),
        shape,
    ];
    per_element(function, n, parameters)
}

#[derive(Debug)]
struct View {
    read: Read,
    function: Function,
}

/// Where a view `y` of `x` begins there, and its strides.
fn place(read: &Read, x: &[usize], y: &[usize]) -> (usize, [i64; MAX_RANK]) {
    let own = strides(x);
    let mut of = [0; MAX_RANK];
    let mut start = 0;
    match read {
        Read::Slice { axis, start: first, step, .. } => {
            of = own;
            of[*axis] = own[*axis].saturating_mul(*step);
            start = first.known().unwrap_or(0) * own[*axis] as usize;
        }
        Read::Permute(perm) => {
            perm.iter().zip(&mut of).for_each(|(&from, stride)| *stride = own[from]);
        }
        // New axes come first; one of length 1 stays where it is.
        _ => {
            let new = y.len() - x.len();
            for (i, &n) in x.iter().enumerate() {
                of[new + i] = if n == 1 { 0 } else { own[i] };
            }
        }
    }
    (start, of)
}

impl Op for View {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let (x, y) = (&t[0], &t[1]);
        if y.elements() > 0 {
            let (start, strides) = place(&self.read, x.dims(), y.dims());
            let addresses = [x.address, y.address];
            out.push(launch(self.function, addresses, y.dims(), start, &strides, false));
        }
    }
}

#[derive(Debug)]
struct Concat {
    axis: usize,
    function: Function,
}

impl Op for Concat {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let (y, parts) = (&t[t.len() - 1], &t[..t.len() - 1]);
        let strides = strides(y.dims());
        let mut first = 0;
        for part in parts {
            let start = first * strides[self.axis] as usize;
            first += part.dims()[self.axis];
            if part.elements() > 0 {
                let addresses = [part.address, y.address];
                out.push(launch(self.function, addresses, part.dims(), start, &strides, true));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cyb_tensor::Dim;

    use super::*;

    #[test]
    fn views_lie_where_their_elements_are() {
        // What the kernel reads, by the numbers it is given.
        let elements = |read: Read, x: &[usize], y: &[usize]| -> Vec<i64> {
            let (start, strides) = place(&read, x, y);
            let element = |i: usize| {
                let (mut rest, mut at) = (i, start as i64);
                for axis in (0..y.len()).rev() {
                    at += (rest % y[axis]) as i64 * strides[axis];
                    rest /= y[axis];
                }
                at
            };
            (0..y.iter().product()).map(element).collect()
        };
        let slice = |axis, start: usize, len: usize, step| Read::Slice {
            axis,
            start: Dim::from(start),
            len: Dim::from(len),
            step,
        };
        assert_eq!(elements(slice(1, 1, 2, 1), &[2, 4], &[2, 2]), [1, 2, 5, 6]);
        assert_eq!(elements(slice(0, 2, 2, -2), &[3, 2], &[2, 2]), [4, 5, 0, 1]);
        assert_eq!(elements(Read::Permute(vec![1, 0]), &[2, 3], &[3, 2]), [0, 3, 1, 4, 2, 5]);
        let shape = [2, 2, 3].map(Dim::from).to_vec();
        let want = [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1];
        assert_eq!(elements(Read::Broadcast(shape), &[2, 1], &[2, 2, 3]), want);
    }
}
