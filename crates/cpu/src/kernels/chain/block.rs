//! Elementwise operations on blocks of a few hundred elements of any plain dtype.
//!
//! Loops are plain Rust: inlined into a function that is compiled for an instruction set, the
//! compiler makes vectors of them. Only functions that `cyb_simd::math` has are written in vectors.

use cyb_ir::Exp;
use cyb_simd::{Isa, LANES, math};
use cyb_tensor::DType;
use half::{bf16, f16};

/// Elements of a block.
pub(super) const BLOCK: usize = 512;

/// An operation on blocks; operands have one dtype, that of the instruction, unless it says else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Mul,
    Add,
    Sub,
    Max,
    Min,
    Lt,
    Eq,
    /// The first operand is `Bool`.
    Select,
    Exp(Exp),
    /// From the instruction's dtype.
    Cast(DType),
    Silu,
    Sigmoid,
    Tanh,
    Relu,
    /// By the bits of its slope.
    LeakyRelu(u32),
    Gelu,
    GeluTanh,
    GeluQuick,
}

/// Where the operands of one instruction lie for the block at hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) inputs: [*const u8; 3],
    pub(super) output: *mut u8,
    pub(super) len: usize,
}

// Macros and not functions that take closures: a closure that is not inlined is not compiled for the
// instruction set.

/// A result of each pair of elements, under the contract of [`run`].
macro_rules! zip {
    ($at:expr, $from:ty, $to:ty, |$a:ident, $b:ident| $result:expr) => {{
        let (left, right) = ($at.inputs[0].cast::<$from>(), $at.inputs[1].cast::<$from>());
        let out = $at.output.cast::<$to>();
        for i in 0..$at.len {
            let ($a, $b) = (*left.add(i), *right.add(i));
            *out.add(i) = $result;
        }
    }};
}

/// A result of each element, under the contract of [`run`].
macro_rules! map {
    ($at:expr, $from:ty, $to:ty, |$x:ident| $result:expr) => {{
        let (from, out) = ($at.inputs[0].cast::<$from>(), $at.output.cast::<$to>());
        for i in 0..$at.len {
            let $x = *from.add(i);
            *out.add(i) = $result;
        }
    }};
}

/// A function of vectors of `f32`, under the contract of [`run`].
macro_rules! vectors {
    ($s:expr, $at:expr, $($f:tt)*) => {{
        let (x, out) = ($at.inputs[0].cast::<f32>(), $at.output.cast::<f32>());
        let whole = $at.len / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            $s.store(out.add(i), $($f)*($s, $s.load(x.add(i))));
        }
        let rest = $at.len - whole;
        if rest > 0 {
            let mut lanes = [0f32; LANES];
            std::ptr::copy_nonoverlapping(x.add(whole), lanes.as_mut_ptr(), rest);
            let y = $s.to_array($($f)*($s, $s.load(lanes.as_ptr())));
            std::ptr::copy_nonoverlapping(y.as_ptr(), out.add(whole), rest);
        }
    }};
}

/// A plain number of a dtype.
trait Plain: Copy + PartialEq + PartialOrd {
    /// Whether it is not 0; NaN is not.
    fn is(self) -> bool;
    fn mul(self, other: Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

macro_rules! floats {
    ($($ty:ty),*) => {$(
        impl Plain for $ty {
            #[inline(always)]
            fn is(self) -> bool { self != 0.0 }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { self - other }
            // NaN if either is; +0 above -0.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let first = self > other
                    || self.is_nan()
                    || (self == other && self.is_sign_positive());
                if first { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let first = self < other
                    || self.is_nan()
                    || (self == other && self.is_sign_negative());
                if first { self } else { other }
            }
        }
    )*};
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Plain for $ty {
            #[inline(always)]
            fn is(self) -> bool { self != 0 }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { if self < other { other } else { self } }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { if other < self { other } else { self } }
        }
    )*};
}

floats!(f32, f64);
integers!(u8, i8, i16, u16, i32, u32, i64, u64);

/// A byte of which any but 0 is true.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Truth(u8);

impl PartialEq for Truth {
    #[inline(always)]
    fn eq(&self, other: &Truth) -> bool {
        self.is() == other.is()
    }
}

impl PartialOrd for Truth {
    #[inline(always)]
    fn partial_cmp(&self, other: &Truth) -> Option<std::cmp::Ordering> {
        self.is().partial_cmp(&other.is())
    }
}

impl Plain for Truth {
    #[inline(always)]
    fn is(self) -> bool {
        self.0 != 0
    }
    #[inline(always)]
    fn mul(self, other: Truth) -> Truth {
        Truth(u8::from(self.is() & other.is()))
    }
    #[inline(always)]
    fn add(self, other: Truth) -> Truth {
        Truth(u8::from(self.is() | other.is()))
    }
    #[inline(always)]
    fn sub(self, other: Truth) -> Truth {
        self.add(other)
    }
    #[inline(always)]
    fn larger(self, other: Truth) -> Truth {
        self.add(other)
    }
    #[inline(always)]
    fn smaller(self, other: Truth) -> Truth {
        self.mul(other)
    }
}

/// Arithmetic on a type, under the contract of [`run`].
macro_rules! arithmetic {
    ($code:expr, $at:expr, $ty:ty) => {
        match $code {
            Code::Mul => zip!($at, $ty, $ty, |a, b| Plain::mul(a, b)),
            Code::Add => zip!($at, $ty, $ty, |a, b| Plain::add(a, b)),
            Code::Sub => zip!($at, $ty, $ty, |a, b| Plain::sub(a, b)),
            Code::Max => zip!($at, $ty, $ty, |a, b| Plain::larger(a, b)),
            Code::Min => zip!($at, $ty, $ty, |a, b| Plain::smaller(a, b)),
            Code::Lt => zip!($at, $ty, u8, |a, b| u8::from(a < b)),
            Code::Eq => zip!($at, $ty, u8, |a, b| u8::from(a == b)),
            _ => {}
        }
    };
}

/// Whether [`run`] has an operation.
pub(super) fn has(code: Code, dtype: DType) -> bool {
    let plain = matches!(
        dtype,
        DType::Bool
            | DType::U8
            | DType::I8
            | DType::U16
            | DType::I16
            | DType::U32
            | DType::I32
            | DType::U64
            | DType::I64
            | DType::F32
            | DType::F64
    );
    let half = |d: DType| matches!(d, DType::F16 | DType::BF16);
    match code {
        // An integer of more than 53 bits would be rounded twice on its way to 16 bits.
        Code::Cast(to) if half(to) => {
            half(dtype) || (plain && !matches!(dtype, DType::I64 | DType::U64))
        }
        Code::Cast(to) => (plain || half(dtype)) && has(Code::Mul, to),
        Code::Select => plain || half(dtype),
        Code::Mul | Code::Add | Code::Max | Code::Min | Code::Lt | Code::Eq => plain,
        Code::Sub => plain && dtype != DType::Bool,
        Code::Exp(_) => matches!(dtype, DType::F32 | DType::F64),
        Code::Silu
        | Code::Sigmoid
        | Code::Tanh
        | Code::Relu
        | Code::LeakyRelu(_)
        | Code::Gelu
        | Code::GeluTanh
        | Code::GeluQuick => dtype == DType::F32,
    }
}

/// Calls a macro with the Rust type of a dtype.
macro_rules! by_type {
    ($dtype:expr, $body:ident) => {
        match $dtype {
            DType::Bool => $body!(Truth),
            DType::U8 => $body!(u8),
            DType::I8 => $body!(i8),
            DType::U16 => $body!(u16),
            DType::I16 => $body!(i16),
            DType::U32 => $body!(u32),
            DType::I32 => $body!(i32),
            DType::U64 => $body!(u64),
            DType::I64 => $body!(i64),
            DType::F32 => $body!(f32),
            DType::F64 => $body!(f64),
            _ => {}
        }
    };
}

/// Runs one instruction for which [`has`] holds.
///
/// # Safety
/// Inputs are readable and the output writable for `len` elements of the instruction's types, and
/// aligned for them. The output overlaps no input.
#[inline(always)]
pub(super) unsafe fn run<S: Isa>(s: S, code: Code, dtype: DType, at: &Places) {
    // SAFETY: the caller's contract.
    unsafe {
        match code {
            Code::Mul | Code::Add | Code::Sub | Code::Max | Code::Min | Code::Lt | Code::Eq
                if dtype == DType::F32 =>
            {
                arithmetic!(code, at, f32);
            }
            Code::Select if dtype.layout().bytes == 4 => select::<u32>(at),
            Code::Exp(kind) if dtype == DType::F32 => exp_f32(s, kind, at),
            // What decodes 8-bit codes and scales exact sums.
            Code::Cast(DType::F32) if dtype == DType::U8 => map!(at, u8, f32, |x| f32::from(x)),
            Code::Cast(DType::F32) if dtype == DType::I8 => map!(at, i8, f32, |x| f32::from(x)),
            Code::Cast(DType::F32) if dtype == DType::I32 => map!(at, i32, f32, |x| x as f32),
            Code::Silu => vectors!(s, at, math::silu),
            Code::Sigmoid => vectors!(s, at, math::sigmoid),
            Code::Tanh => vectors!(s, at, math::tanh),
            Code::Relu => vectors!(s, at, relu),
            Code::LeakyRelu(slope) => {
                let slope = f32::from_bits(slope);
                map!(at, f32, f32, |x| if x > 0.0 { x } else { slope * x });
            }
            Code::Gelu => vectors!(s, at, math::gelu_erf),
            Code::GeluTanh => vectors!(s, at, math::gelu_tanh),
            Code::GeluQuick => vectors!(s, at, math::gelu_quick),
            _ => run_other(code, dtype, at),
        }
    }
}

/// What is not computed in `f32`: compiled once, for every CPU, since there are many types of it.
///
/// # Safety
/// As [`run`].
#[inline(never)]
unsafe fn run_other(code: Code, dtype: DType, at: &Places) {
    macro_rules! with_type {
        ($ty:ty) => {
            arithmetic!(code, at, $ty)
        };
    }
    // SAFETY: the caller's contract.
    unsafe {
        match code {
            Code::Select => match dtype.layout().bytes {
                1 => select::<u8>(at),
                2 => select::<u16>(at),
                _ => select::<u64>(at),
            },
            Code::Exp(kind) => exp_f64(kind, at),
            Code::Cast(to) => cast(dtype, to, at),
            _ => by_type!(dtype, with_type),
        }
    }
}

/// NaN stays: `max` gives its second operand where either is NaN.
#[inline(always)]
fn relu<S: Isa>(s: S, x: S::F) -> S::F {
    s.max(s.splat(0.0), x)
}

/// # Safety
/// As [`run`], with a condition of bytes and elements as wide as `T`.
#[inline(always)]
unsafe fn select<T: Copy>(at: &Places) {
    let [condition, a, b] = at.inputs;
    let (a, b, out) = (a.cast::<T>(), b.cast::<T>(), at.output.cast::<T>());
    for i in 0..at.len {
        // SAFETY: the caller's contract.
        unsafe {
            let (a, b) = (*a.add(i), *b.add(i));
            *out.add(i) = if *condition.add(i) != 0 { a } else { b };
        }
    }
}

/// Computes again, one by one, what vectors take with too few bits.
///
/// # Safety
/// As [`run`], with `f32` elements and an output apart from the input.
#[inline(always)]
unsafe fn large_angles(at: &Places, f: fn(f64) -> f64) {
    for i in 0..at.len {
        // SAFETY: the caller's contract.
        unsafe {
            let x = *at.inputs[0].cast::<f32>().add(i);
            if x.abs() > math::LARGEST_ANGLE {
                *at.output.cast::<f32>().add(i) = f(f64::from(x)) as f32;
            }
        }
    }
}

/// # Safety
/// As [`run`], with `f32` elements.
#[inline(always)]
unsafe fn exp_f32<S: Isa>(s: S, kind: Exp, at: &Places) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Exp::Exp => vectors!(s, at, math::exp),
            Exp::Ln => vectors!(s, at, math::ln),
            Exp::Sin => {
                vectors!(s, at, math::sin);
                large_angles(at, libm::sin);
            }
            Exp::Cos => {
                vectors!(s, at, math::cos);
                large_angles(at, libm::cos);
            }
            Exp::Erf => vectors!(s, at, math::erf),
            Exp::Sqrt => map!(at, f32, f32, |x| f32::sqrt(x)),
            Exp::Rsqrt => map!(at, f32, f32, |x| 1.0 / x.sqrt()),
            Exp::Recip => map!(at, f32, f32, |x| 1.0 / x),
            Exp::Floor => map!(at, f32, f32, |x| f32::floor(x)),
        }
    }
}

/// # Safety
/// As [`run`], with `f64` elements.
#[inline(always)]
unsafe fn exp_f64(kind: Exp, at: &Places) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Exp::Exp => map!(at, f64, f64, |x| libm::exp(x)),
            Exp::Ln => map!(at, f64, f64, |x| libm::log(x)),
            Exp::Sin => map!(at, f64, f64, |x| libm::sin(x)),
            Exp::Cos => map!(at, f64, f64, |x| libm::cos(x)),
            Exp::Erf => map!(at, f64, f64, |x| libm::erf(x)),
            Exp::Sqrt => map!(at, f64, f64, |x| f64::sqrt(x)),
            Exp::Rsqrt => map!(at, f64, f64, |x| 1.0 / x.sqrt()),
            Exp::Recip => map!(at, f64, f64, |x| 1.0 / x),
            Exp::Floor => map!(at, f64, f64, |x| f64::floor(x)),
        }
    }
}

/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn cast(from: DType, to: DType, at: &Places) {
    macro_rules! number_to {
        ($from:ty, $x:ident => $wide:expr) => {{
            // SAFETY: the caller's contract.
            unsafe {
                match to {
                    DType::Bool => map!(at, $from, u8, |$x| u8::from($wide.is())),
                    DType::U8 => map!(at, $from, u8, |$x| $wide as u8),
                    DType::I8 => map!(at, $from, i8, |$x| $wide as i8),
                    DType::U16 => map!(at, $from, u16, |$x| $wide as u16),
                    DType::I16 => map!(at, $from, i16, |$x| $wide as i16),
                    DType::U32 => map!(at, $from, u32, |$x| $wide as u32),
                    DType::I32 => map!(at, $from, i32, |$x| $wide as i32),
                    DType::U64 => map!(at, $from, u64, |$x| $wide as u64),
                    DType::I64 => map!(at, $from, i64, |$x| $wide as i64),
                    DType::F32 => map!(at, $from, f32, |$x| $wide as f32),
                    DType::F64 => map!(at, $from, f64, |$x| $wide as f64),
                    DType::F16 => map!(at, $from, f16, |$x| f16::from_f64($wide as f64)),
                    DType::BF16 => map!(at, $from, bf16, |$x| bf16::from_f64($wide as f64)),
                    _ => {}
                }
            }
        }};
    }
    macro_rules! plain_to {
        (Truth) => {
            number_to!(u8, x => u8::from(x != 0))
        };
        ($from:ty) => {
            number_to!($from, x => x)
        };
    }
    match from {
        DType::F16 => number_to!(f16, x => x.to_f32()),
        DType::BF16 => number_to!(bf16, x => x.to_f32()),
        _ => by_type!(from, plain_to),
    }
}
