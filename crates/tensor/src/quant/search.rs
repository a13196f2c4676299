//! Scales for the K formats: the search that `Q4_K`, `Q5_K` and `Q6_K` encode with.
//!
//! A block is fitted in three steps. Each group alone: for a range of trial scales round to codes
//! and solve the least-squares problem for the scale (and minimum) that suits those codes best.
//! Then the block: express the groups' scales as integers times one `f16`, trying the neighbors of
//! each integer. Last, with all integers fixed, solve for the `f16` factors again and keep them if
//! the error falls. The error is squared and weighted: large values matter more, as
//! `w = |x| + rms(group)`.

use super::block::Half;

/// A fitted block of eight groups, `x = d * scale * code - dmin * min`.
pub(super) struct AffineBlock {
    pub(super) d: Half,
    pub(super) dmin: Half,
    /// 0..64.
    pub(super) scales: [u8; 8],
    /// 0..64.
    pub(super) mins: [u8; 8],
    pub(super) codes: [u8; 256],
}

/// A fitted block of sixteen groups, `x = d * scale * code`.
pub(super) struct SignedBlock {
    pub(super) d: Half,
    pub(super) scales: [i8; 16],
    /// -32..32.
    pub(super) codes: [i8; 256],
}

/// Rounds of solving for the block's factors.
const REFINEMENTS: usize = 1;
/// Largest scale and minimum of an affine group.
const TOP_SCALE: f32 = 63.0;

/// Fits a block of 256 values with codes `0..=top`.
pub(super) fn affine_block(values: &[f32], top: u8) -> AffineBlock {
    let top = f32::from(top);
    let (groups, _) = values.as_chunks::<32>();
    let weights: Vec<[f32; 32]> = groups.iter().map(weigh).collect();

    let mut ideal = [(0.0, 0.0); 8];
    for ((fit, x), w) in ideal.iter_mut().zip(groups).zip(&weights) {
        *fit = affine_group(x, w, top);
    }
    let mut d = Half::new(ideal.iter().fold(0.0f32, |m, f| m.max(f.0)) / TOP_SCALE);
    let mut dmin = Half::new(ideal.iter().fold(0.0f32, |m, f| m.max(f.1)) / TOP_SCALE);

    let mut best = AffineBlock { d, dmin, scales: [0; 8], mins: [0; 8], codes: [0; 256] };
    let mut best_error = f32::INFINITY;
    for _ in 0..=REFINEMENTS {
        let (df, mf) = (d.get(), dmin.get());
        let (mut error, mut sums) = (0.0, AffineSums::default());
        let mut next = AffineBlock { d, dmin, scales: [0; 8], mins: [0; 8], codes: [0; 256] };
        let groups = groups.iter().zip(&weights).zip(next.codes.chunks_exact_mut(32));
        for (i, ((x, w), codes)) in groups.enumerate() {
            let (e, scale, min) = affine_integers(x, w, ideal[i], (df, mf), top);
            error += e;
            (next.scales[i], next.mins[i]) = (scale as u8, min as u8);
            let q = affine_codes(x, df * scale, mf * min, top);
            sums.add(x, w, &q.map(|q| scale * q), min);
            for (code, q) in codes.iter_mut().zip(q) {
                *code = q as u8;
            }
        }
        if error < best_error {
            (best, best_error) = (next, error);
        }
        let Some((df, mf)) = sums.solve() else { break };
        (d, dmin) = (Half::new(df), Half::new(mf));
    }
    best
}

/// Fits a block of 256 values with codes -32..32.
pub(super) fn signed_block(values: &[f32]) -> SignedBlock {
    let (groups, _) = values.as_chunks::<16>();
    let weights: Vec<[f32; 16]> = groups.iter().map(weigh).collect();

    let mut ideal = [0.0f32; 16];
    for ((fit, x), w) in ideal.iter_mut().zip(groups).zip(&weights) {
        *fit = signed_group(x, w);
    }
    let extreme = ideal.iter().fold(0.0f32, |m, &s| if s.abs() > m.abs() { s } else { m });
    let mut d = Half::new(extreme / -128.0);

    let mut best = SignedBlock { d, scales: [0; 16], codes: [0; 256] };
    let mut best_error = f32::INFINITY;
    for _ in 0..=REFINEMENTS {
        let df = d.get();
        let (mut error, mut across, mut square) = (0.0, 0.0, 0.0);
        let mut next = SignedBlock { d, scales: [0; 16], codes: [0; 256] };
        let groups = groups.iter().zip(&weights).zip(next.codes.chunks_exact_mut(16));
        for (i, ((x, w), codes)) in groups.enumerate() {
            let (e, scale) = signed_integer(x, w, ideal[i], df);
            error += e;
            next.scales[i] = scale as i8;
            let q = signed_codes(x, df * scale);
            for j in 0..16 {
                codes[j] = q[j] as i8;
                let product = scale * q[j];
                across += w[j] * product * x[j];
                square += w[j] * product * product;
            }
        }
        if error < best_error {
            (best, best_error) = (next, error);
        }
        if square <= 0.0 {
            break;
        }
        d = Half::new(across / square);
    }
    best
}

fn weigh<const N: usize>(x: &[f32; N]) -> [f32; N] {
    // The scale is taken out, so that squares of very large and very small values stay finite.
    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    if largest == 0.0 {
        return [1.0; N];
    }
    let relative = x.map(|x| x / largest);
    let rms = (relative.iter().map(|r| r * r).sum::<f32>() / N as f32).sqrt();
    relative.map(|r| r.abs() + rms)
}

/// Nearest integer, for magnitudes below 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
fn nearest(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { scale.recip() }
}

fn affine_codes(x: &[f32; 32], scale: f32, min: f32, top: f32) -> [f32; 32] {
    let inverse = inverse(scale);
    x.map(|x| nearest(((x + min) * inverse).clamp(0.0, top)))
}

fn signed_codes(x: &[f32; 16], scale: f32) -> [f32; 16] {
    let inverse = inverse(scale);
    x.map(|x| nearest((x * inverse).clamp(-32.0, 31.0)))
}

fn error<const N: usize>(x: &[f32; N], w: &[f32; N], q: &[f32; N], scale: f32, min: f32) -> f32 {
    let mut sum = 0.0;
    for j in 0..N {
        let difference = scale * q[j] - min - x[j];
        sum += w[j] * difference * difference;
    }
    sum
}

/// The best scale and minimum, both at least 0, for one group.
fn affine_group(x: &[f32; 32], w: &[f32; 32], top: f32) -> (f32, f32) {
    let low = x.iter().fold(0.0f32, |m, &x| m.min(x));
    let high = x.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let range = high - low;
    if range <= f32::MIN_POSITIVE * 1e6 {
        return (0.0, -low);
    }

    let (mut best, mut best_error) = ((range / top, -low), f32::INFINITY);
    // From one step fewer to one more than the range holds: cutting off extremes can pay.
    for trial in 0..=10 {
        let steps = top - 1.0 + 0.2 * trial as f32;
        let (mut scale, mut min) = (range / steps, -low);
        for _ in 0..2 {
            let q = affine_codes(x, scale, min, top);
            let mut sums = AffineSums::default();
            sums.add(x, w, &q, 1.0);
            let Some(fit) = sums.solve() else { break };
            (scale, min) = fit;
            let e = error(x, w, &q, scale, min);
            if e < best_error {
                (best, best_error) = (fit, e);
            }
        }
    }
    best
}

/// The best scale of either sign for one group.
fn signed_group(x: &[f32; 16], w: &[f32; 16]) -> f32 {
    let extreme = x.iter().fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    if extreme.abs() <= f32::MIN_POSITIVE * 1e6 {
        return 0.0;
    }
    let (mut best, mut best_error) = (extreme / -32.0, f32::INFINITY);
    for trial in -4..=4 {
        let q = signed_codes(x, extreme / -(32.0 + 0.25 * trial as f32));
        let (mut across, mut square) = (0.0, 0.0);
        for j in 0..16 {
            across += w[j] * q[j] * x[j];
            square += w[j] * q[j] * q[j];
        }
        if square <= 0.0 {
            continue;
        }
        let scale = across / square;
        let e = error(x, w, &q, scale, 0.0);
        if e < best_error {
            (best, best_error) = (scale, e);
        }
    }
    best
}

/// Error, scale and minimum of the best integers near `ideal` in units of `(d, dmin)`.
fn affine_integers(
    x: &[f32; 32],
    w: &[f32; 32],
    ideal: (f32, f32),
    (d, dmin): (f32, f32),
    top: f32,
) -> (f32, f32, f32) {
    let near = |value: f32, unit: f32| (value * inverse(unit)).clamp(0.0, TOP_SCALE).round();
    let (scale, min) = (near(ideal.0, d), near(ideal.1, dmin));
    let mut best = (f32::INFINITY, 0.0, 0.0);
    for s in [0.0, -1.0, 1.0].map(|step| scale + step) {
        for m in [0.0, -1.0, 1.0].map(|step| min + step) {
            if !(0.0..=TOP_SCALE).contains(&s) || !(0.0..=TOP_SCALE).contains(&m) {
                continue;
            }
            let q = affine_codes(x, d * s, dmin * m, top);
            let e = error(x, w, &q, d * s, dmin * m);
            if e < best.0 {
                best = (e, s, m);
            }
        }
    }
    best
}

/// Error and scale of the best integer near `ideal` in units of `d`.
fn signed_integer(x: &[f32; 16], w: &[f32; 16], ideal: f32, d: f32) -> (f32, f32) {
    let scale = (ideal * inverse(d)).clamp(-128.0, 127.0).round();
    let mut best = (f32::INFINITY, 0.0);
    for s in [0.0, -1.0, 1.0].map(|step| scale + step) {
        if !(-128.0..=127.0).contains(&s) {
            continue;
        }
        let e = error(x, w, &signed_codes(x, d * s), d * s, 0.0);
        if e < best.0 {
            best = (e, s);
        }
    }
    best
}

/// The weighted sums of the least-squares problem `x = a * u - b * v` for `a, b >= 0`.
#[derive(Default)]
struct AffineSums {
    uu: f32,
    uv: f32,
    vv: f32,
    ux: f32,
    vx: f32,
}

impl AffineSums {
    fn add(&mut self, x: &[f32; 32], w: &[f32; 32], u: &[f32; 32], v: f32) {
        let (mut weight, mut wu, mut wx) = (0.0, 0.0, 0.0);
        for j in 0..32 {
            weight += w[j];
            wu += w[j] * u[j];
            wx += w[j] * x[j];
            self.uu += w[j] * u[j] * u[j];
            self.ux += w[j] * u[j] * x[j];
        }
        self.vv += weight * v * v;
        self.uv += wu * v;
        self.vx += wx * v;
    }

    /// `(a, b)`, or `None` where they are not determined.
    fn solve(&self) -> Option<(f32, f32)> {
        let determinant = self.uu * self.vv - self.uv * self.uv;
        if determinant > 1e-7 * self.uu * self.vv {
            let a = (self.ux * self.vv - self.vx * self.uv) / determinant;
            let b = (self.ux * self.uv - self.vx * self.uu) / determinant;
            if a >= 0.0 && b >= 0.0 {
                return Some((a, b));
            }
        }
        let a = self.ux / self.uu;
        (self.uu > 0.0 && a >= 0.0).then_some((a, 0.0))
    }
}
