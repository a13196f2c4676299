//! The vector operations that kernels are written in.

use crate::IsaKind;

/// Lanes of a logical vector: 16 floats or 32-bit integers, whatever the register width.
pub const LANES: usize = 16;

/// A kernel: a function of a token, inlined into a function compiled for that instruction set.
pub trait SimdOp {
    type Output;

    /// Must be `#[inline(always)]`.
    fn eval<S: Isa>(self, s: S) -> Self::Output;
}

/// Operations of one instruction set on 16 lanes. A value of the implementing type is the proof
/// that the CPU has it.
///
/// # Int8 dot products
/// A 64-byte vector of weight codes holds 4 consecutive codes for each of 16 rows. A step adds, in
/// every lane `r`, `sum(w[4r + j] * x[j], j < 4)`; sums are exact. A block is computed as
/// [`dot_start`](Isa::dot_start), steps, [`dot_finish`](Isa::dot_finish). Some instruction sets
/// add up in 16 bits: after every [`fold_every`] steps of codes up to a maximum, `dot_fold` must
/// run (not needed before `dot_finish`). `init` is an integer added to each lane; the same value
/// goes to `dot_start` and `dot_finish`.
pub trait Isa: Copy + Send + Sync + std::fmt::Debug + 'static {
    const KIND: IsaKind;

    /// [`dot_signed`](Isa::dot_signed) computes with codes this much larger than given, so that
    /// `init` must hold `-SIGNED_BIAS * sum(x)`.
    const SIGNED_BIAS: i32;

    /// [`dot_bytes`](Isa::dot_bytes) computes with bytes this much smaller than given.
    const BYTE_BIAS: i32;

    /// Whether there are 32 registers of 16 lanes.
    const WIDE: bool;

    /// Whether [`dot_rows`](Isa::dot_rows) is an instruction and not made of single steps.
    const PAIRED: bool = false;

    /// 16 floats.
    type F: Copy;
    /// 16 32-bit integers.
    type I: Copy;
    /// 64 bytes.
    type B: Copy;
    /// 4 bytes, repeated.
    type X: Copy;
    /// The running sums of a dot product block.
    type D: Copy;

    /// Enters a function compiled for this instruction set.
    fn run<Op: SimdOp>(self, op: Op) -> Op::Output;

    fn splat(self, v: f32) -> Self::F;
    /// # Safety
    /// `p` is valid for reading 16 floats, of any alignment.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// `p` is valid for writing 16 floats, of any alignment.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    fn sqrt(self, a: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a < b ? a : b`, so `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`, so `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? x : y`.
    fn select_gt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// `((l0 + l8) + (l4 + l12)) + ((l2 + l10) + (l6 + l14))` plus the same of the odd lanes.
    fn reduce_sum(self, v: Self::F) -> f32;

    /// Lane bits.
    fn bits(self, v: Self::F) -> Self::I;
    fn float_bits(self, v: Self::I) -> Self::F;
    /// Exact for magnitudes up to 2^24, else rounded to nearest even.
    fn to_float(self, v: Self::I) -> Self::F;
    /// Nearest integer, ties to even; unspecified outside the range of `i32`.
    fn to_int(self, v: Self::F) -> Self::I;

    fn splat_i(self, v: i32) -> Self::I;
    /// # Safety
    /// `p` is valid for reading 16 integers, of any alignment.
    unsafe fn load_i(self, p: *const i32) -> Self::I;
    /// # Safety
    /// `p` is valid for writing 16 integers, of any alignment.
    unsafe fn store_i(self, p: *mut i32, v: Self::I);
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Low 32 bits of the product.
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Signed maximum.
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn shl_i(self, a: Self::I, n: u32) -> Self::I;
    /// Arithmetic shift right.
    fn sar_i(self, a: Self::I, n: u32) -> Self::I;
    fn reduce_sum_i(self, v: Self::I) -> i32;

    /// # Safety
    /// `p` is valid for reading 16 half-precision floats (their bits), of any alignment.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// Rounds to nearest even.
    /// # Safety
    /// `p` is valid for writing 16 half-precision floats (their bits), of any alignment.
    unsafe fn store_f16(self, p: *mut u16, v: Self::F);
    /// # Safety
    /// `p` is valid for reading 16 bfloat16 values (their bits), of any alignment.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// Widens 16 unsigned bytes.
    /// # Safety
    /// `p` is valid for reading 16 bytes.
    unsafe fn load_u8(self, p: *const u8) -> Self::I;
    /// Widens 16 signed bytes.
    /// # Safety
    /// `p` is valid for reading 16 bytes.
    unsafe fn load_i8(self, p: *const i8) -> Self::I;
    /// Keeps the low 8 bits of each lane.
    /// # Safety
    /// `p` is valid for writing 16 bytes.
    unsafe fn store_i8(self, p: *mut i8, v: Self::I);
    /// Keeps the low 16 bits of lanes in `0..=65535`.
    /// # Safety
    /// `p` is valid for writing 16 values, of any alignment.
    unsafe fn store_u16(self, p: *mut u16, v: Self::I);

    /// # Safety
    /// `p` is valid for reading 64 bytes.
    unsafe fn load_b(self, p: *const u8) -> Self::B;
    /// # Safety
    /// `p` is valid for writing 64 bytes.
    unsafe fn store_b(self, p: *mut u8, v: Self::B);
    fn splat_b(self, v: u8) -> Self::B;
    fn and_b(self, a: Self::B, b: Self::B) -> Self::B;
    fn or_b(self, a: Self::B, b: Self::B) -> Self::B;
    /// Shifts 16-bit lanes right: bits of the upper byte enter the lower one, to be masked away.
    fn shr_b(self, a: Self::B, n: u32) -> Self::B;
    /// Shifts 16-bit lanes left: bits of the lower byte enter the upper one, to be masked away.
    fn shl_b(self, a: Self::B, n: u32) -> Self::B;
    /// `table[i]` for every byte `i` of `index`; indices must be below 16.
    fn lookup_b(self, table: &[i8; 16], index: Self::B) -> Self::B;

    /// # Safety
    /// `p` is valid for reading 4 bytes.
    unsafe fn load_x(self, p: *const i8) -> Self::X;
    fn dot_start(self, init: i32) -> Self::D;
    /// A step with codes in `0..=127` and activations in `-127..=127`.
    fn dot_unsigned(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D;
    /// A step with codes in `-128..=127` and activations in `-127..=127`; see
    /// [`SIGNED_BIAS`](Isa::SIGNED_BIAS).
    fn dot_signed(self, d: Self::D, w: Self::B, x: Self::X) -> Self::D;
    /// Adds `sum(w[4r + j] * (x[j] - BYTE_BIAS), j < 4)` to every lane `r`, exactly, for codes in
    /// `-128..=127` and unsigned bytes: see [`BYTE_BIAS`](Isa::BYTE_BIAS).
    fn dot_bytes(self, sums: Self::I, w: Self::B, x: Self::X) -> Self::I;
    /// As [`dot_bytes`](Isa::dot_bytes) with the roles changed: adds
    /// `sum((x[4r + j] - BYTE_BIAS) * w[j], j < 4)` for unsigned bytes `x` and codes in `-128..=127`.
    fn dot_codes(self, sums: Self::I, x: Self::B, w: Self::X) -> Self::I;
    fn dot_fold(self, d: Self::D) -> Self::D;
    fn dot_finish(self, d: Self::D, init: i32) -> Self::I;

    /// Two steps of weight codes in the order in which [`dot_rows`](Isa::dot_rows) takes them.
    #[inline(always)]
    fn pair_steps(self, steps: [Self::B; 2]) -> [Self::B; 2] {
        steps
    }
    /// What the dot products of two rows of activations start from.
    #[inline(always)]
    fn dot_rows_start(self, init: [i32; 2]) -> [Self::D; 2] {
        [self.dot_start(init[0]), self.dot_start(init[1])]
    }
    /// Two steps, from [`pair_steps`](Isa::pair_steps), with 8 activations of each of two rows; codes
    /// and sums are those of [`dot_signed`](Isa::dot_signed).
    /// # Safety
    /// Both pointers are valid for reading 8 bytes.
    #[inline(always)]
    unsafe fn dot_rows(self, d: [Self::D; 2], w: [Self::B; 2], x: [*const i8; 2]) -> [Self::D; 2] {
        // SAFETY: the caller's contract.
        unsafe { dot_rows_by_steps(self, d, w, x) }
    }
    /// The sums of both rows.
    #[inline(always)]
    fn dot_rows_finish(self, d: [Self::D; 2], init: [i32; 2]) -> [Self::I; 2] {
        [self.dot_finish(d[0], init[0]), self.dot_finish(d[1], init[1])]
    }

    /// `table[i]` for every lane `i`, which must be in `0..=255`.
    #[inline(always)]
    fn lookup_i(self, table: &[u8; 256], index: Self::I) -> Self::I {
        let mut lanes = self.to_array_i(index);
        for lane in &mut lanes {
            *lane = i32::from(table[usize::from(*lane as u8)]);
        }
        // SAFETY: an array of 16.
        unsafe { self.load_i(lanes.as_ptr()) }
    }

    /// Stores lane `l` of `rows[r]` at `to[l * stride + r]`.
    /// # Safety
    /// `to` is valid for writing 16 floats at every multiple of `stride` below `16 * stride`.
    #[inline(always)]
    unsafe fn store_transposed(self, rows: &[Self::F; LANES], to: *mut f32, stride: usize) {
        for (r, row) in rows.iter().enumerate() {
            for (l, v) in self.to_array(*row).into_iter().enumerate() {
                // SAFETY: the caller's contract.
                unsafe { *to.add(l * stride + r) = v };
            }
        }
    }

    /// Stores value `l` of row `r`, widened, at `to[l * stride + r]`, for 16 rows of 16 half-precision
    /// floats, or bfloat16 ones, that lie `apart` bytes apart.
    /// # Safety
    /// 16 values are readable from every row, 16 floats writable at every multiple of `stride` below
    /// `16 * stride`; of any alignment.
    #[inline(always)]
    unsafe fn turn_halves<const BF16: bool>(
        self,
        rows: *const u16,
        apart: usize,
        to: *mut f32,
        stride: usize,
    ) {
        let mut lines = [self.splat(0.0); LANES];
        for (r, line) in lines.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *line = unsafe {
                let row = rows.byte_add(r * apart);
                if BF16 { self.load_bf16(row) } else { self.load_f16(row) }
            };
        }
        // SAFETY: the caller's contract.
        unsafe { self.store_transposed(&lines, to, stride) };
    }

    /// Asks for the cache line at `p`, which need not be readable, to be brought to the second-level
    /// cache: the first level has too few places for lines on their way from memory.
    fn prefetch(self, p: *const u8);

    /// As [`Isa::prefetch`], to the first-level cache: for a line that is on its way already.
    fn prefetch_near(self, p: *const u8);

    /// Up to 16 floats from the front of `v`, then zeros.
    #[inline(always)]
    fn load_partial(self, v: &[f32]) -> Self::F {
        self.load_padded(v, 0.0)
    }

    /// Up to 16 floats from the front of `v`, then `pad`.
    #[inline(always)]
    fn load_padded(self, v: &[f32], pad: f32) -> Self::F {
        if v.len() >= LANES {
            // SAFETY: 16 floats are readable.
            return unsafe { self.load(v.as_ptr()) };
        }
        let mut lanes = [pad; LANES];
        lanes[..v.len()].copy_from_slice(v);
        // SAFETY: `lanes` holds 16 floats.
        unsafe { self.load(lanes.as_ptr()) }
    }

    /// Stores the first lanes into the front of `out`, at most 16.
    #[inline(always)]
    fn store_partial(self, out: &mut [f32], v: Self::F) {
        if out.len() >= LANES {
            // SAFETY: 16 floats are writable.
            return unsafe { self.store(out.as_mut_ptr(), v) };
        }
        let lanes = self.to_array(v);
        out.copy_from_slice(&lanes[..out.len()]);
    }

    #[inline(always)]
    fn to_array(self, v: Self::F) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` holds 16 floats.
        unsafe { self.store(lanes.as_mut_ptr(), v) };
        lanes
    }

    #[inline(always)]
    fn to_array_i(self, v: Self::I) -> [i32; LANES] {
        let mut lanes = [0; LANES];
        // SAFETY: `lanes` holds 16 integers.
        unsafe { self.store_i(lanes.as_mut_ptr(), v) };
        lanes
    }

    #[inline(always)]
    fn abs(self, v: Self::F) -> Self::F {
        self.float_bits(self.and_i(self.bits(v), self.splat_i(0x7fff_ffff)))
    }

    #[inline(always)]
    fn neg(self, v: Self::F) -> Self::F {
        self.float_bits(self.add_i(self.bits(v), self.splat_i(i32::MIN)))
    }

    /// The largest lane, in the order of [`reduce_sum`](Isa::reduce_sum); for lanes without NaN.
    #[inline(always)]
    fn reduce_max(self, v: Self::F) -> f32 {
        let mut lanes = self.to_array(v);
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                if lanes[i + half] >= lanes[i] {
                    lanes[i] = lanes[i + half];
                }
            }
            half /= 2;
        }
        lanes[0]
    }

    /// The largest lane as signed integers.
    #[inline(always)]
    fn reduce_max_i(self, v: Self::I) -> i32 {
        self.to_array_i(v).into_iter().fold(i32::MIN, i32::max)
    }

    /// Rounds to nearest even; NaN stays NaN.
    /// # Safety
    /// `p` is valid for writing 16 bfloat16 values (their bits), of any alignment.
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, v: Self::F) {
        // Adding 0x7fff, plus one when the kept part is odd, carries exactly when rounding is up.
        let bits = self.bits(v);
        let odd = self.and_i(self.sar_i(bits, 16), self.splat_i(1));
        let rounded = self.add_i(self.add_i(bits, self.splat_i(0x7fff)), odd);
        let quiet = self.or_i(bits, self.splat_i(0x0040_0000));
        // Magnitudes above infinity's are NaN; compared as integers.
        let magnitude = self.and_i(bits, self.splat_i(0x7fff_ffff));
        let is_nan = self.sar_i(self.sub_i(self.splat_i(0x7f80_0000), magnitude), 31);
        let not_nan = self.sub_i(self.splat_i(-1), is_nan);
        let picked = self.or_i(self.and_i(quiet, is_nan), self.and_i(rounded, not_nan));
        let high = self.and_i(self.sar_i(picked, 16), self.splat_i(0xffff));
        // SAFETY: the caller's contract; lanes are in 0..=65535.
        unsafe { self.store_u16(p, high) }
    }
}

/// [`Isa::dot_rows`] without an instruction for it.
///
/// # Safety
/// Both pointers are valid for reading 8 bytes.
#[inline(always)]
pub(crate) unsafe fn dot_rows_by_steps<S: Isa>(
    s: S,
    mut d: [S::D; 2],
    w: [S::B; 2],
    x: [*const i8; 2],
) -> [S::D; 2] {
    for (d, x) in d.iter_mut().zip(x) {
        for (step, w) in w.into_iter().enumerate() {
            // SAFETY: the caller's contract.
            *d = s.dot_signed(*d, w, unsafe { s.load_x(x.add(4 * step)) });
        }
    }
    d
}

/// Steps of codes in `0..=max_code` after which [`Isa::dot_fold`] must run: pairs of products add
/// up in 16 bits (2 * 127 * max_code each).
pub const fn fold_every(max_code: u32) -> usize {
    let steps = 32767 / (2 * 127 * max_code);
    if steps >= 8 {
        8
    } else if steps >= 4 {
        4
    } else if steps >= 2 {
        2
    } else {
        1
    }
}
