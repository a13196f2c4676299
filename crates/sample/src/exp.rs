//! The exponential of numbers that are zero or less, in a form that compilers vectorise and that
//! gives the same bits on every machine (no fused multiply-add, no libm).

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has few enough bits that `n * LN2_HIGH` is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
const ROUNDER: f32 = 12_582_912.0;
/// Below this the result is zero (the true value is under 1.7e-38).
const UNDERFLOW: f32 = -87.0;

/// `e^x` for `x <= 0`, within 2e-7 of the true value relatively; exactly 1 for 0 and exactly 0
/// below -87, minus infinity included.
#[inline]
pub(crate) fn exp_nonpositive(x: f32) -> f32 {
    let clamped = if x < UNDERFLOW { UNDERFLOW } else { x };
    let shifted = clamped * LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    // Taylor terms of e^r up to r^7 for |r| <= ln(2) / 2.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    // The low bits of `shifted` hold n; 2^n * p is an addition to the exponent field.
    let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) << 23;
    let value = f32::from_bits(p.to_bits().wrapping_add(exponent));
    if x < UNDERFLOW { 0.0 } else { value }
}

const LANES: usize = 16;

/// `sum(exp((x - max) * inv_t))`, in a fixed order: lanes within one call, so callers pass blocks
/// of bounded size and add the results in `f64`.
pub(crate) fn sum_exp(block: &[f32], max: f32, inv_t: f32) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += exp_nonpositive((x - max) * inv_t);
        }
    }
    let tail: f64 = tail.iter().map(|&x| f64::from(exp_nonpositive((x - max) * inv_t))).sum();
    lanes.iter().map(|&l| f64::from(l)).sum::<f64>() + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_double_precision_exponential() {
        let mut worst = 0.0f64;
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp_nonpositive(x)) / want - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst}");
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-100.0), 0.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn the_sum_handles_every_tail_length() {
        for n in 0..40 {
            let xs: Vec<f32> = (0..n).map(|i| -(i as f32) * 0.3).collect();
            let want: f64 = xs.iter().map(|&x| (f64::from(x) * 0.5).exp()).sum();
            assert!((sum_exp(&xs, 0.0, 0.5) - want).abs() < 1e-5, "{n}");
        }
    }
}
