//! What a kernel sees: its operands as slices, and its share of the work.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::AtomicUsize;

use cyb_tensor::DType;

use crate::team::Worker;

/// Axes a tensor can have on this backend.
pub(crate) const MAX_RANK: usize = 8;

/// Times a kernel may hand out work within one step.
pub(crate) const PHASES: usize = 4;

/// An operand under the present binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawTensor {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) dtype: DType,
    pub(crate) dims: [usize; MAX_RANK],
    pub(crate) rank: usize,
}

impl RawTensor {
    pub(crate) fn elements(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }
}

/// Element types that a dtype stores as they are.
///
/// # Safety
/// `DTYPE` must have the size and alignment of `Self`, and every bit pattern must be a value.
pub(crate) unsafe trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),*) => {
        $(
            // SAFETY: the dtype is defined as this type's bytes; all bit patterns are values.
            unsafe impl Element for $ty {
                const DTYPE: DType = DType::$dtype;
            }
        )*
    };
}

elements! { f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8, i8 => I8 }

/// The operands of one step on one worker.
pub(crate) struct Io<'a> {
    pub(crate) inputs: &'a [RawTensor],
    pub(crate) outputs: &'a [RawTensor],
    /// Scratch of the step, shared by all workers.
    pub(crate) scratch: (*mut u8, usize),
    pub(crate) worker: &'a Worker<'a>,
    /// Values of the symbols.
    pub(crate) bound: &'a [usize],
    /// One per phase, all zero when the step begins.
    pub(crate) counters: &'a [AtomicUsize; PHASES],
    pub(crate) phase: Cell<usize>,
}

impl<'a> Io<'a> {
    /// The dimensions of an input.
    pub(crate) fn dims(&self, input: usize) -> &'a [usize] {
        let t = &self.inputs[input];
        &t.dims[..t.rank]
    }

    /// The dimensions of an output.
    pub(crate) fn out_dims(&self, output: usize) -> &'a [usize] {
        let t = &self.outputs[output];
        &t.dims[..t.rank]
    }

    pub(crate) fn bytes(&self, input: usize) -> &'a [u8] {
        let t = &self.inputs[input];
        // SAFETY: the session resolved `start` and `bytes` to memory that lives through the step;
        // only outputs are written during a step, and the plan keeps them apart from inputs.
        unsafe { std::slice::from_raw_parts(t.start, t.bytes) }
    }

    /// The elements of an input of type `T`.
    ///
    /// # Panics
    /// If the input has another dtype: kernels are chosen by dtype before they run.
    pub(crate) fn slice<T: Element>(&self, input: usize) -> &'a [T] {
        let t = &self.inputs[input];
        assert_eq!(t.dtype, T::DTYPE, "input {input}");
        assert!(t.start.cast::<T>().is_aligned(), "input {input} is not aligned");
        // SAFETY: as in `bytes`; the dtype's elements are `T`s and the start is aligned.
        unsafe { std::slice::from_raw_parts(t.start.cast(), t.bytes / size_of::<T>()) }
    }

    /// An output whose parts the workers share out among themselves.
    pub(crate) fn output<T: Element>(&self, output: usize) -> Shared<'a, T> {
        let t = &self.outputs[output];
        assert_eq!(t.dtype, T::DTYPE, "output {output}");
        Shared { start: t.start.cast(), len: t.bytes / size_of::<T>(), life: PhantomData }
    }

    /// An output as raw bytes.
    pub(crate) fn output_bytes(&self, output: usize) -> Shared<'a, u8> {
        let t = &self.outputs[output];
        Shared { start: t.start, len: t.bytes, life: PhantomData }
    }

    /// The step's scratch, which all workers share.
    pub(crate) fn scratch<T: Element>(&self) -> Shared<'a, T> {
        Shared {
            start: self.scratch.0.cast(),
            len: self.scratch.1 / size_of::<T>(),
            life: PhantomData,
        }
    }

    /// Hands each of `n` items to exactly one worker.
    pub(crate) fn each(&self, n: usize, mut body: impl FnMut(usize)) {
        self.worker.chunks(&self.counters[self.phase.get()], n).for_each(&mut body);
    }

    /// The counter of one of the step's phases, for code that hands out its own units.
    pub(crate) fn counter(&self, phase: usize) -> &'a AtomicUsize {
        &self.counters[phase]
    }

    /// Waits until every worker has done its share, so that a further `each` may follow.
    ///
    /// # Panics
    /// If the step has no phase left.
    pub(crate) fn next_phase(&self) {
        self.worker.barrier();
        let next = self.phase.get() + 1;
        assert!(next < PHASES, "a step has {PHASES} phases");
        self.phase.set(next);
    }

    /// Hands each row of `len` elements of an output to exactly one worker.
    pub(crate) fn rows<T: Element>(
        &self,
        output: usize,
        len: usize,
        mut body: impl FnMut(usize, &mut [T]),
    ) {
        let out = self.output::<T>(output);
        let n = out.len.checked_div(len).unwrap_or(0);
        self.each(n, |row| {
            // SAFETY: `each` gives every row to one worker only, and rows do not overlap.
            body(row, unsafe { out.range(row * len, len) });
        });
    }
}

/// Elements that several workers write, each its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> Shared<'a, T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// `len` elements from `start`, still shared.
    ///
    /// # Panics
    /// If they are not inside.
    pub(crate) fn part(&self, start: usize, len: usize) -> Shared<'a, T> {
        let inside = start.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} elements from {start} are not inside {}", self.len);
        Shared { start: self.start.wrapping_add(start), len, life: PhantomData }
    }

    /// `len` elements from `start`.
    ///
    /// # Safety
    /// No other worker may touch the range while the slice lives.
    ///
    /// # Panics
    /// If the range is not inside.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's duty")]
    pub(crate) unsafe fn range(&self, start: usize, len: usize) -> &'a mut [T] {
        let inside = start.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} elements from {start} are not inside {}", self.len);
        // SAFETY: inside the allocation; the caller keeps other workers out.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
