//! Elementwise operations with broadcasting, several of them as one step.
//!
//! A chain is a program over blocks of a few hundred elements: each instruction reads blocks and
//! makes one, so that what lies between the instructions never leaves the first-level cache. Only
//! the last instruction's block is a tensor.

mod block;
mod plan;

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, SimdOp};

use self::block::{BLOCK, Places, run};
use self::plan::Operand;
pub(crate) use self::plan::{Chain, chains};
use crate::io::{Io, MAX_RANK, RawTensor};
use crate::kernel::{Build, Kernel, Row};

/// Bytes of a block of scratch: the widest element.
const BLOCK_BYTES: usize = BLOCK * 8;
/// Blocks that a worker takes at a time.
const UNIT: usize = 8;
/// Inputs of a chain, and one more for a node with many.
const INPUTS: usize = 13;

#[derive(Debug)]
pub(crate) struct ChainKernel {
    pub(crate) chain: Chain,
    pub(crate) isa: AnyIsa,
    pub(crate) workers: usize,
}

/// How an input is read: its elements one after another, or by strides.
#[derive(Clone, Copy, Debug)]
enum Form {
    Whole,
    Scalar,
    Strided,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    start: *const u8,
    bytes: usize,
    form: Form,
    strides: [usize; MAX_RANK],
}

/// Axes of the output, neighbors joined where every input walks them as one.
#[derive(Clone, Copy, Debug)]
struct Axes {
    dims: [usize; MAX_RANK],
    rank: usize,
}

impl ChainKernel {
    /// Blocks of scratch of one worker: those of instructions, and one for each input.
    fn blocks(&self) -> usize {
        self.chain.blocks + self.chain.inputs.len()
    }
}

impl Kernel for ChainKernel {
    fn scratch(&self, _limits: &[RawTensor]) -> usize {
        self.workers * self.blocks() * BLOCK_BYTES
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements() * self.chain.len().div_ceil(4))
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let out = &io.outputs[0];
        let n = out.elements();
        if n == 0 {
            return Ok(());
        }
        assert_eq!(io.inputs.len(), self.chain.inputs.len(), "a chain's step reads its inputs");
        let (axes, sources) = sources(io)?;
        let scratch = io.scratch::<u8>();
        let own = self.blocks() * BLOCK_BYTES;
        // SAFETY: every worker has a part of its own.
        let scratch = unsafe { scratch.range(io.worker.index * own, own) }.as_mut_ptr();
        let size = out.dtype.layout().bytes;
        let bytes = io.output_bytes(0);
        let work = Work { chain: &self.chain, axes, sources: &sources[..io.inputs.len()], scratch };
        work.fill_scalars();
        io.each(n.div_ceil(UNIT * BLOCK), |unit| {
            let start = unit * UNIT * BLOCK;
            let len = (UNIT * BLOCK).min(n - start);
            // SAFETY: units do not overlap and each goes to one worker.
            let to = unsafe { bytes.range(start * size, len * size) }.as_mut_ptr();
            self.isa.run(Unit { work: &work, start, len, to, size });
        });
        Ok(())
    }
}

/// The inputs as the output's axes walk them.
fn sources(io: &Io<'_>) -> Result<(Axes, [Source; INPUTS]), String> {
    let out = io.out_dims(0);
    let n = io.inputs.len();
    let none =
        Source { start: std::ptr::null(), bytes: 1, form: Form::Scalar, strides: [0; MAX_RANK] };
    let mut all = [none; INPUTS];
    for (i, source) in all.iter_mut().enumerate().take(n) {
        let t = &io.inputs[i];
        let dims = io.dims(i);
        let lead = out.len().checked_sub(dims.len()).ok_or("an operand has too many axes")?;
        let mut stride = 1;
        for axis in (0..dims.len()).rev() {
            let wanted = out[lead + axis];
            if dims[axis] != wanted && dims[axis] != 1 {
                return Err(format!("{dims:?} does not broadcast to {out:?}"));
            }
            source.strides[lead + axis] = if dims[axis] == 1 { 0 } else { stride };
            stride *= dims[axis];
        }
        source.start = t.start;
        source.bytes = t.dtype.layout().bytes;
    }
    // Join axis `a + 1` to `a` where each input steps over the one as over the other.
    let mut axes = Axes { dims: [1; MAX_RANK], rank: 0 };
    for (a, &dim) in out.iter().enumerate().filter(|(_, dim)| **dim != 1) {
        let last = axes.rank.checked_sub(1);
        let steps_over = |l: usize| all[..n].iter().all(|s| s.strides[l] == s.strides[a] * dim);
        let joins = last.filter(|&l| steps_over(l));
        let at = joins.unwrap_or(axes.rank);
        axes.dims[at] = if joins.is_some() { axes.dims[at] * dim } else { dim };
        for s in &mut all[..n] {
            s.strides[at] = s.strides[a];
        }
        axes.rank = at + 1;
    }
    for s in &mut all[..n] {
        let strides = &s.strides[..axes.rank];
        s.form = match strides {
            _ if strides.iter().all(|&stride| stride == 0) => Form::Scalar,
            [1] => Form::Whole,
            _ => Form::Strided,
        };
        // All axes were walked as one where the input has the output's shape.
        let mut dense = 1;
        let whole = (0..axes.rank).rev().all(|a| {
            let same = s.strides[a] == dense;
            dense *= axes.dims[a];
            same
        });
        if whole && axes.rank > 0 {
            s.form = Form::Whole;
        }
    }
    Ok((axes, all))
}

/// What a worker computes with.
struct Work<'a> {
    chain: &'a Chain,
    axes: Axes,
    sources: &'a [Source],
    scratch: *mut u8,
}

impl Work<'_> {
    /// The block of an input in this worker's scratch.
    fn own_block(&self, input: usize) -> *mut u8 {
        self.scratch.wrapping_add((self.chain.blocks + input) * BLOCK_BYTES)
    }

    fn fill_scalars(&self) {
        for (i, source) in self.sources.iter().enumerate() {
            if matches!(source.form, Form::Scalar) {
                // SAFETY: the input has an element, and the block is this worker's.
                unsafe { repeat(source.start, self.own_block(i), BLOCK, source.bytes) };
            }
        }
    }

    /// Copies `len` elements of a strided input from element `start` of the output on.
    ///
    /// # Safety
    /// `start + len` is at most the output's elements, and `len` at most a block.
    #[inline(always)]
    unsafe fn gather(&self, source: &Source, to: *mut u8, start: usize, len: usize) {
        let rank = self.axes.rank;
        let inner = self.axes.dims[rank - 1];
        let step = source.strides[rank - 1];
        let (mut row, mut within) = (start / inner, start % inner);
        let (mut done, size) = (0, source.bytes);
        while done < len {
            let run = (inner - within).min(len - done);
            let (mut rest, mut at) = (row, within * step);
            for axis in (0..rank - 1).rev() {
                at += rest % self.axes.dims[axis] * source.strides[axis];
                rest /= self.axes.dims[axis];
            }
            // SAFETY: indices stay inside the shape, so that the element is the input's.
            unsafe {
                let from = source.start.add(at * size);
                let to = to.add(done * size);
                match step {
                    0 => repeat(from, to, run, size),
                    1 => std::ptr::copy_nonoverlapping(from, to, run * size),
                    _ => {
                        for i in 0..run {
                            let from = from.add(i * step * size);
                            std::ptr::copy_nonoverlapping(from, to.add(i * size), size);
                        }
                    }
                }
            }
            (done, row, within) = (done + run, row + 1, 0);
        }
    }
}

/// `n` copies of an element.
///
/// # Safety
/// `from` is readable for an element and `to` writable for `n`, aligned for elements of this size.
#[inline(always)]
unsafe fn repeat(from: *const u8, to: *mut u8, n: usize, size: usize) {
    macro_rules! fill {
        ($ty:ty) => {{
            // SAFETY: the caller's contract.
            unsafe {
                let value = *from.cast::<$ty>();
                std::slice::from_raw_parts_mut(to.cast::<$ty>(), n).fill(value);
            }
        }};
    }
    match size {
        1 => fill!(u8),
        2 => fill!(u16),
        4 => fill!(u32),
        _ => fill!(u64),
    }
}

struct Unit<'a> {
    work: &'a Work<'a>,
    start: usize,
    len: usize,
    to: *mut u8,
    /// Bytes of an element of the output.
    size: usize,
}

impl SimdOp for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Self { work, start, len, to, size } = self;
        let program = &work.chain.instructions;
        for begin in (0..len).step_by(BLOCK) {
            let n = BLOCK.min(len - begin);
            let mut inputs = [std::ptr::null::<u8>(); INPUTS];
            for (i, source) in work.sources.iter().enumerate() {
                inputs[i] = match source.form {
                    Form::Whole => source.start.wrapping_add((start + begin) * source.bytes),
                    Form::Scalar => work.own_block(i),
                    Form::Strided => {
                        let block = work.own_block(i);
                        // SAFETY: the elements are the output's, and the block is a worker's own.
                        unsafe { work.gather(source, block, start + begin, n) };
                        block
                    }
                };
            }
            for (i, step) in program.iter().enumerate() {
                let mut at =
                    Places { inputs: [std::ptr::null(); 3], output: std::ptr::null_mut(), len: n };
                for (place, operand) in at.inputs.iter_mut().zip(&step.operands[..step.arity]) {
                    *place = match operand {
                        Operand::Input(i) => inputs[*i],
                        Operand::Block(b) => work.scratch.wrapping_add(b * BLOCK_BYTES),
                    };
                }
                at.output = match i + 1 == program.len() {
                    true => to.wrapping_add(begin * size),
                    false => work.scratch.wrapping_add(step.output * BLOCK_BYTES),
                };
                // SAFETY: inputs hold `n` elements from here on, blocks have room for them, and
                // the output is this worker's; an instruction's block is none of its operands'.
                unsafe { run(s, step.code, step.dtype, &at) };
            }
        }
    }
}

/// Operations that are elementwise run as a chain of one where they have no kernel of their own.
pub(crate) static ROWS: &[Row] = &[
    Row { op: "mul", name: "chain", supports, build },
    Row { op: "add", name: "chain", supports, build },
    Row { op: "sub", name: "chain", supports, build },
    Row { op: "cmp", name: "chain", supports, build },
    Row { op: "exp", name: "chain", supports, build },
    Row { op: "read", name: "chain", supports, build },
    Row { op: "silu", name: "chain", supports, build },
    Row { op: "sigmoid", name: "chain", supports, build },
    Row { op: "tanh", name: "chain", supports, build },
    Row { op: "relu", name: "chain", supports, build },
    Row { op: "leaky_relu", name: "chain", supports, build },
    Row { op: "gelu", name: "chain", supports, build },
];

fn supports(call: &Call<'_>) -> bool {
    let facts = call.inputs.iter().chain(&call.outputs);
    plan::code(call.op, call.inputs[0].dtype, call.outputs[0].dtype).is_some()
        && facts.into_iter().all(|f| f.rank() <= MAX_RANK)
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let number = b.graph.nodes.iter().position(|n| n.outputs == b.node.outputs);
    match number.and_then(|i| plan::program(b.graph, &[i])) {
        Some(chain) => Ok(Box::new(ChainKernel { chain, isa: b.isa, workers: b.team.count() })),
        None => Err(ExecError::Unsupported { op: b.node.op.name().into(), facts: String::new() }),
    }
}
