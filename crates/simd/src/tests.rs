//! Every instruction set of this CPU against the portable one, bit for bit.

use crate::{AnyIsa, Isa, IsaKind, LANES, Portable, SimdOp, fold_every, math};

/// A 64-bit linear congruential generator; the high bits are good enough for test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn float(&mut self) -> f32 {
        (self.next() as f32 / u32::MAX as f32 - 0.5) * 8.0
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// Results as bits, NaN made canonical since its payload is not part of the contract.
fn canonical(v: [f32; LANES]) -> [u32; LANES] {
    v.map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() })
}

struct Floats {
    a: [f32; LANES],
    b: [f32; LANES],
    c: [f32; LANES],
}

impl SimdOp for &Floats {
    type Output = Vec<[u32; LANES]>;

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Self::Output {
        let (a, b, c) = (s.load_partial(&self.a), s.load_partial(&self.b), s.load_partial(&self.c));
        let in_range = s.max(s.min(c, s.splat(1e6)), s.splat(-1e6));
        let mut half = [0u16; LANES];
        let mut brain = [0u16; LANES];
        // SAFETY: the arrays hold 16 values.
        let (from_half, from_brain) = unsafe {
            s.store_f16(half.as_mut_ptr(), a);
            s.store_bf16(brain.as_mut_ptr(), a);
            (s.load_f16(half.as_ptr()), s.load_bf16(brain.as_ptr()))
        };
        let mut out: Vec<_> = [
            a,
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.sqrt(s.abs(a)),
            s.fma(a, b, c),
            s.min(a, b),
            s.max(a, b),
            s.select_gt(a, b, c, a),
            s.abs(a),
            s.neg(a),
            s.to_float(s.to_int(s.mul(s.splat(0.5), in_range))),
            s.load_padded(&self.a[..5], 7.0),
            from_half,
            from_brain,
            math::exp(s, a),
            math::silu(s, b),
            math::sigmoid(s, c),
            math::tanh(s, a),
        ]
        .map(|v| canonical(s.to_array(v)))
        .to_vec();
        out.push(canonical([s.reduce_sum(a); LANES]));
        let finite = s.min(s.max(b, s.splat(-1e30)), s.splat(1e30));
        out.push([s.reduce_max(finite).to_bits(); LANES]);
        let mut short = [9.0; LANES];
        s.store_partial(&mut short[..3], b);
        out.push(canonical(short));
        const STRIDE: usize = LANES + 3;
        let mut square = [0.0; LANES * STRIDE];
        let mut rows = [a; LANES];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = s.add(s.splat(i as f32), b);
        }
        // SAFETY: the square holds 16 floats at 16 strides.
        unsafe { s.store_transposed(&rows, square.as_mut_ptr(), STRIDE) };
        for row in square.as_chunks::<STRIDE>().0 {
            out.push(canonical(std::array::from_fn(|i| row[i])));
        }
        // Rows of halves, each three further on.
        let mut halves = [0u16; LANES * 4];
        for (i, part) in halves.chunks_exact_mut(LANES).enumerate() {
            // SAFETY: a part holds 16 values.
            unsafe { s.store_f16(part.as_mut_ptr(), rows[i]) };
        }
        // SAFETY: the rows end inside the halves; the square holds 16 floats at 16 strides.
        unsafe { s.turn_halves::<false>(halves.as_ptr(), 6, square.as_mut_ptr(), STRIDE) };
        for row in square.as_chunks::<STRIDE>().0 {
            out.push(canonical(std::array::from_fn(|i| row[i])));
        }
        // SAFETY: as above.
        unsafe { s.turn_halves::<true>(halves.as_ptr(), 6, square.as_mut_ptr(), STRIDE) };
        for row in square.as_chunks::<STRIDE>().0 {
            out.push(canonical(std::array::from_fn(|i| row[i])));
        }
        out
    }
}

struct Integers {
    a: [i32; LANES],
    b: [i32; LANES],
    bytes: [u8; 64],
    more: [u8; 64],
    table: [i8; 16],
}

impl SimdOp for &Integers {
    type Output = Vec<[i32; LANES]>;

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Self::Output {
        let mut narrow = [0i8; LANES];
        let mut short = [0u16; LANES];
        // SAFETY: every array is as long as the operation needs.
        let (a, b, u, i, p, q) = unsafe {
            let a = s.load_i(self.a.as_ptr());
            s.store_i8(narrow.as_mut_ptr(), a);
            s.store_u16(short.as_mut_ptr(), s.and_i(a, s.splat_i(0xffff)));
            (
                a,
                s.load_i(self.b.as_ptr()),
                s.load_u8(self.bytes.as_ptr()),
                s.load_i8(self.bytes.as_ptr().cast()),
                s.load_b(self.bytes.as_ptr()),
                s.load_b(self.more.as_ptr()),
            )
        };
        let mut out: Vec<_> = [
            s.add_i(a, b),
            s.sub_i(a, b),
            s.mul_i(a, b),
            s.max_i(a, b),
            s.and_i(a, b),
            s.or_i(a, b),
            s.shl_i(a, 5),
            s.sar_i(a, 7),
            u,
            i,
        ]
        .map(|v| s.to_array_i(v))
        .to_vec();
        out.push([s.reduce_sum_i(a); LANES]);
        out.push([s.reduce_max_i(a); LANES]);
        out.push(narrow.map(i32::from));
        out.push(short.map(i32::from));
        let nibble = s.and_b(s.shr_b(p, 4), s.splat_b(15));
        let vectors = [
            s.or_b(p, q),
            s.and_b(p, q),
            nibble,
            s.and_b(s.shl_b(p, 3), s.splat_b(0x30)),
            s.lookup_b(&self.table, nibble),
        ];
        for v in vectors {
            let mut bytes = [0u8; 64];
            // SAFETY: `bytes` is 64 long.
            unsafe { s.store_b(bytes.as_mut_ptr(), v) };
            out.extend(bytes.chunks_exact(16).map(|c| std::array::from_fn(|i| i32::from(c[i]))));
        }
        out
    }
}

/// Eight steps of each kind of dot product, with the largest codes of each width.
struct Dots {
    codes: [[u8; 64]; 8],
    x: [i8; 32],
    init: i32,
}

impl SimdOp for &Dots {
    type Output = Vec<[i32; LANES]>;

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Self::Output {
        let mut out = Vec::new();
        for max_code in [3, 15, 31, 63, 127] {
            let mut d = s.dot_start(self.init);
            for g in 0..8 {
                // SAFETY: 64 codes and 4 activations are readable.
                let (w, x) = unsafe {
                    (s.load_b(self.codes[g].as_ptr()), s.load_x(self.x.as_ptr().add(4 * g)))
                };
                d = s.dot_unsigned(d, s.and_b(w, s.splat_b(max_code as u8)), x);
                if (g + 1) % fold_every(max_code) == 0 {
                    d = s.dot_fold(d);
                }
            }
            out.push(s.to_array_i(s.dot_finish(d, self.init)));
        }
        let sum: i32 = self.x.iter().map(|&x| i32::from(x)).sum();
        let init = -S::SIGNED_BIAS * sum;
        let mut d = s.dot_start(init);
        for g in 0..8 {
            // SAFETY: 64 codes and 4 activations are readable.
            let (w, x) =
                unsafe { (s.load_b(self.codes[g].as_ptr()), s.load_x(self.x.as_ptr().add(4 * g))) };
            d = s.dot_signed(d, w, x);
        }
        out.push(s.to_array_i(s.dot_finish(d, init)));
        out
    }
}

/// Eight steps with two rows of activations, two steps at a time.
struct TwoRows<'a>(&'a Dots, [i8; 32]);

impl SimdOp for &TwoRows<'_> {
    type Output = [[i32; LANES]; 2];

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Self::Output {
        let TwoRows(Dots { codes, x, init }, y) = self;
        let mut inits = [*init, init + 1];
        for (init, row) in inits.iter_mut().zip([x, y]) {
            *init -= S::SIGNED_BIAS * row.iter().map(|&x| i32::from(x)).sum::<i32>();
        }
        let mut d = s.dot_rows_start(inits);
        for g in 0..4 {
            // SAFETY: 64 codes each and 8 activations each are readable.
            unsafe {
                let steps = [s.load_b(codes[2 * g].as_ptr()), s.load_b(codes[2 * g + 1].as_ptr())];
                let rows = [x.as_ptr().add(8 * g), y.as_ptr().add(8 * g)];
                d = s.dot_rows(d, s.pair_steps(steps), rows);
            }
        }
        let [x, y] = s.dot_rows_finish(d, inits);
        [s.to_array_i(x), s.to_array_i(y)]
    }
}

fn awkward_float(r: &mut Random) -> f32 {
    const SPECIAL: [f32; 14] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-40,
        65504.0,
        65520.0,
        88.8,
        -103.5,
    ];
    match r.next() % 4 {
        0 => SPECIAL[r.next() as usize % SPECIAL.len()],
        1 => f32::from_bits(r.next()),
        _ => r.float(),
    }
}

#[test]
fn floats_have_the_same_bits_everywhere() {
    let mut r = Random(1);
    for _ in 0..if cfg!(miri) { 3 } else { 2000 } {
        let case = Floats {
            a: std::array::from_fn(|_| awkward_float(&mut r)),
            b: std::array::from_fn(|_| awkward_float(&mut r)),
            c: std::array::from_fn(|_| awkward_float(&mut r)),
        };
        let want = Portable.run(&case);
        for isa in AnyIsa::detect() {
            for (i, (got, want)) in isa.run(&case).iter().zip(&want).enumerate() {
                assert_eq!(got, want, "{} operation {i} a {:?} b {:?}", isa.kind(), case.a, case.b);
            }
        }
    }
}

#[test]
fn integers_are_exact_everywhere() {
    let mut r = Random(2);
    for _ in 0..if cfg!(miri) { 3 } else { 500 } {
        let case = Integers {
            a: std::array::from_fn(|_| r.next().cast_signed()),
            b: std::array::from_fn(|_| r.next().cast_signed()),
            bytes: r.bytes(),
            more: r.bytes(),
            table: r.bytes::<16>().map(u8::cast_signed),
        };
        let want = Portable.run(&case);
        for isa in AnyIsa::detect() {
            assert_eq!(isa.run(&case), want, "{}", isa.kind());
        }
    }
}

/// A step of unsigned bytes, with what the instruction set takes off each.
struct Bytes {
    codes: [u8; 64],
    x: [u8; 4],
    sums: [i32; LANES],
}

impl SimdOp for &Bytes {
    type Output = [i32; LANES];

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Self::Output {
        // SAFETY: 64 codes, 4 bytes and 16 sums are readable.
        let (w, x, sums) = unsafe {
            (
                s.load_b(self.codes.as_ptr()),
                s.load_x(self.x.as_ptr().cast()),
                s.load_i(self.sums.as_ptr()),
            )
        };
        let mut out = s.to_array_i(s.dot_bytes(sums, w, x));
        for (row, sum) in out.iter_mut().enumerate() {
            let codes = &self.codes[4 * row..4 * row + 4];
            *sum += S::BYTE_BIAS * codes.iter().map(|&w| i32::from(w.cast_signed())).sum::<i32>();
        }
        out
    }
}

#[test]
fn dot_products_of_bytes_are_exact() {
    let mut r = Random(17);
    for round in 0..if cfg!(miri) { 4 } else { 500 } {
        let codes = match round % 3 {
            0 => [0x80; 64],
            1 => [0x7f; 64],
            _ => r.bytes(),
        };
        let x = if round % 2 == 0 { [255; 4] } else { r.next().to_le_bytes() };
        let case = Bytes { codes, x, sums: std::array::from_fn(|_| (r.next() as i32) >> 4) };
        let want: [i32; LANES] = std::array::from_fn(|row| {
            let product =
                |j: usize| i32::from(case.codes[4 * row + j].cast_signed()) * i32::from(case.x[j]);
            case.sums[row] + (0..4).map(product).sum::<i32>()
        });
        for isa in AnyIsa::detect() {
            assert_eq!(isa.run(&case), want, "{}", isa.kind());
        }
    }
}

/// As [`Bytes`] with many rows of bytes and one of codes.
struct Codes(Bytes);

impl SimdOp for &Codes {
    type Output = [i32; LANES];

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Self::Output {
        let Bytes { codes: bytes, x: codes, sums } = &self.0;
        // SAFETY: 64 bytes, 4 codes and 16 sums are readable.
        let (x, w, sums) = unsafe {
            (s.load_b(bytes.as_ptr()), s.load_x(codes.as_ptr().cast()), s.load_i(sums.as_ptr()))
        };
        let back = codes.iter().map(|&w| i32::from(w.cast_signed())).sum::<i32>() * S::BYTE_BIAS;
        s.to_array_i(s.add_i(s.dot_codes(sums, x, w), s.splat_i(back)))
    }
}

#[test]
fn dot_products_with_codes_are_exact() {
    let mut r = Random(19);
    for round in 0..if cfg!(miri) { 4 } else { 500 } {
        let bytes = if round % 2 == 0 { [255; 64] } else { r.bytes() };
        let codes = match round % 3 {
            0 => [0x80; 4],
            1 => [0x7f; 4],
            _ => r.next().to_le_bytes(),
        };
        let sums: [i32; LANES] = std::array::from_fn(|_| (r.next() as i32) >> 4);
        let want: [i32; LANES] = std::array::from_fn(|row| {
            let product =
                |j: usize| i32::from(bytes[4 * row + j]) * i32::from(codes[j].cast_signed());
            sums[row] + (0..4).map(product).sum::<i32>()
        });
        let case = Codes(Bytes { codes: bytes, x: codes, sums });
        for isa in AnyIsa::detect() {
            assert_eq!(isa.run(&case), want, "{}", isa.kind());
        }
    }
}

struct Lookup<'a>(&'a [u8; 256], [i32; LANES]);

impl SimdOp for &Lookup<'_> {
    type Output = [i32; LANES];

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> Self::Output {
        // SAFETY: 16 indices.
        let index = unsafe { s.load_i(self.1.as_ptr()) };
        s.to_array_i(s.lookup_i(self.0, index))
    }
}

#[test]
fn tables_of_256_are_read_at_every_place() {
    let mut r = Random(23);
    let mut table = [0; 256];
    table.iter_mut().for_each(|byte| *byte = r.next() as u8);
    for first in (0..256).step_by(LANES) {
        let places: [i32; LANES] = std::array::from_fn(|i| ((first + i * 37) % 256) as i32);
        for isa in AnyIsa::detect() {
            let want = places.map(|i| i32::from(table[i as usize]));
            assert_eq!(isa.run(&Lookup(&table, places)), want, "{}", isa.kind());
        }
    }
}

#[test]
fn dot_products_never_saturate() {
    let mut r = Random(3);
    for round in 0..if cfg!(miri) { 4 } else { 500 } {
        let extreme = round % 2 == 0;
        let case = Dots {
            codes: std::array::from_fn(|_| {
                if extreme { [[0xff, 0x80][r.next() as usize % 2]; 64] } else { r.bytes() }
            }),
            x: std::array::from_fn(|_| match r.next() as u8 as i8 {
                v if extreme => [127, -127][usize::from(v > 0 && round % 4 == 0)],
                i8::MIN => 0,
                v => v,
            }),
            init: (r.next() as i32) >> 8,
        };
        let want: Vec<[i32; LANES]> = [3, 15, 31, 63, 127, 255]
            .iter()
            .map(|&mask| {
                std::array::from_fn(|row| {
                    let mut sum = if mask == 255 { 0 } else { case.init };
                    for k in 0..32 {
                        let code = case.codes[k / 4][4 * row + k % 4];
                        let w = if mask == 255 {
                            i32::from(code.cast_signed())
                        } else {
                            i32::from(code & mask)
                        };
                        sum += w * i32::from(case.x[k]);
                    }
                    sum
                })
            })
            .collect();
        let other = case.x.map(|v| if v % 3 == 0 { v } else { -v });
        let rows: [[i32; LANES]; 2] = std::array::from_fn(|row| {
            std::array::from_fn(|lane| {
                let product = |k: usize| {
                    let code = case.codes[k / 4][4 * lane + k % 4].cast_signed();
                    i32::from(code) * i32::from([case.x, other][row][k])
                };
                case.init + row as i32 + (0..32).map(product).sum::<i32>()
            })
        });
        for isa in AnyIsa::detect() {
            assert_eq!(isa.run(&case), want, "{}", isa.kind());
            assert_eq!(isa.run(&TwoRows(&case, other)), rows, "{} by two rows", isa.kind());
        }
    }
}

/// Distance in units of the last place of the reference, at least the subnormal unit.
fn ulps(got: f32, want: f64) -> f64 {
    let unit = (f64::from((want as f32).abs().next_up()) - f64::from((want as f32).abs()))
        .max(f64::from(f32::from_bits(1)));
    (f64::from(got) - want).abs() / unit
}

fn worst(f: impl Fn(Portable, [f32; LANES]) -> [f32; LANES], g: fn(f64) -> f64, at: &[f32]) -> f64 {
    let mut worst: f64 = 0.0;
    for chunk in at.chunks_exact(LANES) {
        let x: [f32; LANES] = chunk.try_into().unwrap();
        for (got, x) in f(Portable, x).into_iter().zip(x) {
            worst = worst.max(ulps(got, g(f64::from(x))));
        }
    }
    worst
}

#[test]
fn elementary_functions_are_accurate() {
    let steps = if cfg!(miri) { 64 } else { 400_000 };
    let at: Vec<f32> = (0..steps).map(|i| -104.0 + 192.7 * i as f32 / steps as f32).collect();
    let error = worst(math::exp, f64::exp, &at);
    assert!(error <= 1.0, "exp: {error} ulp");
    let at: Vec<f32> = (0..steps).map(|i| -12.0 + 24.0 * i as f32 / steps as f32).collect();
    let error = worst(math::tanh, f64::tanh, &at);
    assert!(error <= 3.0, "tanh: {error} ulp");
    let error = worst(math::silu, |x| x / (1.0 + (-x).exp()), &at);
    assert!(error <= 3.0, "silu: {error} ulp");
    let edges = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 88.73, -104.1, 0.0];
    let got: [f32; LANES] = math::exp(Portable, std::array::from_fn(|i| edges[i % 6]));
    assert_eq!(got[..2], [f32::INFINITY, 0.0]);
    assert!(got[2].is_nan());
    assert_eq!(got[3..6], [f32::INFINITY, 0.0, 1.0]);
}

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn who_wants_asking_goes_by_the_vendor() {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let listed = cpu.lines().find_map(|line| line.strip_prefix("vendor_id")).unwrap();
    let listed = listed.trim_start_matches([' ', '\t', ':']);
    let vendor = crate::x86::vendor();
    let vendor = str::from_utf8(&vendor).unwrap();
    // An emulator answers for another CPU than the system's list may show.
    assert!([listed, "GenuineIntel", "AuthenticAMD"].contains(&vendor), "{vendor}, not {listed}");
    assert_eq!(AnyIsa::wants_asking(), vendor == "GenuineIntel");
}

#[test]
fn sets_are_found_by_name() {
    let found = AnyIsa::detect();
    assert_eq!(found.last().map(|isa| isa.kind()), Some(IsaKind::Portable));
    for isa in found {
        assert_eq!(isa.kind().name().parse::<AnyIsa>().unwrap().kind(), isa.kind());
    }
    let missing = IsaKind::ALL.iter().find(|k| found.iter().all(|isa| isa.kind() != **k)).unwrap();
    let error = missing.name().parse::<AnyIsa>().unwrap_err().to_string();
    assert!(error.contains(missing.name()) && error.contains("portable"), "{error}");
}
