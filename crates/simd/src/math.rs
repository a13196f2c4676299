//! Elementary functions on 16 lanes, out of exactly rounded operations only, so that every
//! instruction set gives the same bits.

use crate::Isa;

/// 1.5 * 2^23: adding it rounds to the nearest integer, which then sits in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// `exp(x)` within 1 ulp; subnormal results within 1 ulp of the subnormal grid; 0 and infinity
/// beyond the range, NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln(2) / 2`; a polynomial gives `exp(r)` (coefficients of Cephes'
/// `expf`); `2^n` is applied in two halves so that neither over- nor underflows on its own.
#[inline(always)]
pub fn exp<S: Isa>(s: S, x: S::F) -> S::F {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // The operand order keeps NaN.
    let x = s.max(s.splat(-105.0), s.min(s.splat(89.0), x));
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    let p = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    let n = s.sub_i(s.bits(shifted), s.splat_i(ROUND.to_bits().cast_signed()));
    let half = s.sar_i(n, 1);
    s.mul(s.mul(p, power_of_two(s, half)), power_of_two(s, s.sub_i(n, half)))
}

/// `2^n` for `n` in `-126..=127`.
#[inline(always)]
fn power_of_two<S: Isa>(s: S, n: S::I) -> S::F {
    s.float_bits(s.shl_i(s.add_i(n, s.splat_i(127)), 23))
}

/// `ln(x)` within 2 ulp; -infinity for 0, NaN below.
///
/// `x = 2^e m` with `m` around 1; a polynomial gives `ln(m)` (coefficients of Cephes' `logf`).
#[inline(always)]
pub fn ln<S: Isa>(s: S, x: S::F) -> S::F {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Subnormal numbers are made normal first.
    let (least, up) = (s.splat(f32::MIN_POSITIVE), s.splat(8_388_608.0));
    let normal = s.select_gt(least, x, s.mul(x, up), x);
    let moved = s.select_gt(least, x, s.splat(23.0), s.splat(0.0));
    let bits = s.bits(normal);
    let e = s.to_float(s.sub_i(s.sar_i(bits, 23), s.splat_i(126)));
    let e = s.sub(e, moved);
    let half = s.or_i(s.and_i(bits, s.splat_i(0x007f_ffff)), s.splat_i(0x3f00_0000));
    let m = s.float_bits(half);
    let root = s.splat(std::f32::consts::FRAC_1_SQRT_2);
    let one = s.splat(1.0);
    let e = s.select_gt(root, m, s.sub(e, one), e);
    let m = s.sub(s.select_gt(root, m, s.add(m, m), m), one);
    let z = s.mul(m, m);
    let mut p = s.splat(7.037_683_6e-2);
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_7e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = s.fma(p, m, s.splat(c));
    }
    let mut y = s.mul(s.mul(p, m), z);
    y = s.fma(e, s.splat(LN2_LOW), y);
    y = s.fma(z, s.splat(-0.5), y);
    y = s.fma(e, s.splat(LN2_HIGH), s.add(m, y));
    let y = s.select_gt(s.splat(f32::from_bits(1)), x, s.splat(f32::NEG_INFINITY), y);
    let y = s.select_gt(s.splat(0.0), x, s.splat(f32::NAN), y);
    // Infinity and NaN stay.
    let y = s.select_gt(x, s.splat(f32::MAX), x, y);
    s.add(y, s.select_gt(x, s.splat(f32::MAX), s.splat(0.0), s.sub(x, x)))
}

/// The largest `|x|` for which [`sin`] and [`cos`] are accurate: beyond it their reduction of the
/// argument loses bits.
pub const LARGEST_ANGLE: f32 = 8192.0;

/// `sin(x)` within 2e-7 up to [`LARGEST_ANGLE`].
#[inline(always)]
pub fn sin<S: Isa>(s: S, x: S::F) -> S::F {
    sine(s, x, 0)
}

/// `cos(x)` within 2e-7 up to [`LARGEST_ANGLE`].
#[inline(always)]
pub fn cos<S: Isa>(s: S, x: S::F) -> S::F {
    sine(s, x, 1)
}

/// The sine of `x` and `quarters` right angles more.
///
/// `x = n pi / 2 + r` with `pi / 2` in three parts; polynomials give the sine and cosine of `r`
/// (coefficients of Cephes' `sinf` and `cosf`).
#[inline(always)]
fn sine<S: Isa>(s: S, x: S::F, quarters: i32) -> S::F {
    let n = s.to_int(s.mul(x, s.splat(std::f32::consts::FRAC_2_PI)));
    let whole = s.to_float(n);
    let mut r = x;
    for part in [-std::f32::consts::FRAC_PI_2, 4.371_139e-8, 1.715_124_5e-15] {
        r = s.fma(whole, s.splat(part), r);
    }
    let z = s.mul(r, r);
    let mut p = s.splat(-1.951_529_6e-4);
    for c in [8.332_161e-3, -1.666_665_5e-1] {
        p = s.fma(p, z, s.splat(c));
    }
    let odd = s.fma(s.mul(p, z), r, r);
    let mut q = s.splat(2.443_315_7e-5);
    for c in [-1.388_731_6e-3, 4.166_664_6e-2] {
        q = s.fma(q, z, s.splat(c));
    }
    let even = s.fma(s.mul(z, z), q, s.fma(z, s.splat(-0.5), s.splat(1.0)));
    let n = s.add_i(n, s.splat_i(quarters));
    let swap = s.to_float(s.and_i(n, s.splat_i(1)));
    let y = s.select_gt(swap, s.splat(0.5), even, odd);
    // 1 in the first two quarters, -1 in the others.
    let sign = s.to_float(s.sub_i(s.splat_i(1), s.and_i(n, s.splat_i(2))));
    s.mul(y, sign)
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid<S: Isa>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.neg(x))))
}

/// `x * sigmoid(x)`, computed as `x / (1 + exp(-x))`.
#[inline(always)]
pub fn silu<S: Isa>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.neg(x))))
}

/// `tanh(x)` within 3 ulp.
///
/// From `exp` for large arguments; near zero, where that cancels, an odd polynomial (coefficients
/// of Cephes' `tanhf`).
#[inline(always)]
pub fn tanh<S: Isa>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    let a = s.abs(x);
    let e = exp(s, s.add(a, a));
    let large = s.sub(one, s.div(s.splat(2.0), s.add(e, one)));
    let sign = s.and_i(s.bits(x), s.splat_i(i32::MIN));
    let large = s.float_bits(s.or_i(s.bits(large), sign));
    let z = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.fma(p, z, s.splat(c));
    }
    let small = s.fma(s.mul(p, z), x, x);
    s.select_gt(s.splat(0.625), a, small, large)
}

/// `erf(x)` within 3e-7, by formula 7.1.26 of Abramowitz and Stegun.
#[inline(always)]
pub fn erf<S: Isa>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    let a = s.abs(x);
    let t = s.div(one, s.fma(a, s.splat(0.327_591_1), one));
    let mut p = s.splat(1.061_405_4);
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = s.fma(p, t, s.splat(c));
    }
    let tail = s.mul(s.mul(p, t), exp(s, s.neg(s.mul(a, a))));
    let magnitude = s.sub(one, tail);
    let sign = s.and_i(s.bits(x), s.splat_i(i32::MIN));
    s.float_bits(s.or_i(s.bits(magnitude), sign))
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`.
#[inline(always)]
pub fn gelu_erf<S: Isa>(s: S, x: S::F) -> S::F {
    let e = erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
    s.mul(s.mul(x, s.splat(0.5)), s.add(e, s.splat(1.0)))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
#[inline(always)]
pub fn gelu_tanh<S: Isa>(s: S, x: S::F) -> S::F {
    let cube = s.mul(s.mul(x, x), x);
    let inner = s.fma(cube, s.splat(0.044_715), x);
    let t = tanh(s, s.mul(inner, s.splat(0.797_884_6)));
    s.mul(s.mul(x, s.splat(0.5)), s.add(t, s.splat(1.0)))
}

/// `x * sigmoid(1.702 x)`.
#[inline(always)]
pub fn gelu_quick<S: Isa>(s: S, x: S::F) -> S::F {
    s.mul(x, sigmoid(s, s.mul(x, s.splat(1.702))))
}
