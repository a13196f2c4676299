//! Every format on every instruction set of this CPU against scalar references, and bit for bit
//! against each other.

use std::sync::atomic::AtomicUsize;

use cyb_simd::{AnyIsa, IsaKind};
use cyb_tensor::{AlignedBytes, Bytes, Class, DType, quant};

use super::stretch::TOKENS;
use super::*;
use crate::memory::WeightMemory;
use crate::team::Team;

fn native(dtype: DType, bytes: &[u8]) -> Native<'_> {
    Native { dtype, bytes, turned: false }
}

/// xorshift64*, seeded per case.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Roughly normal, with now and then an outlier as activations have.
    fn float(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() & 0xffff) as f32 / 65536.0 - 0.5).sum();
        if self.next().is_multiple_of(61) { sum * 8.0 } else { sum }
    }

    /// Random blocks of a dtype whose values are of sane size: every code pattern occurs.
    fn weights(&mut self, dtype: DType, values: usize) -> Vec<u8> {
        let layout = dtype.layout();
        let mut out = Vec::new();
        let mut decoded = vec![0.0; layout.block];
        while out.len() < dtype.bytes_for(values).unwrap() {
            let block: Vec<u8> = if dtype == DType::F32 {
                self.float().to_le_bytes().to_vec()
            } else {
                (0..layout.bytes).map(|_| self.next() as u8).collect()
            };
            quant::decode(dtype, &block, &mut decoded).unwrap();
            let max = decoded.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            if decoded.iter().all(|v| v.is_finite()) && max > 1e-3 && max < 1e3 {
                out.extend(block);
            }
        }
        out
    }
}

fn dtypes() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|d| match d.class() {
        Class::Quantized | Class::Float => true,
        Class::Bool | Class::Int => false,
    })
}

struct Case {
    dtype: DType,
    n: usize,
    k: usize,
    weights: Vec<u8>,
    x: Vec<f32>,
}

impl Case {
    fn new(dtype: DType, m: usize, n: usize, k: usize) -> Case {
        let mut r = Random(0x9e37_79b9 + (n * 1000 + k) as u64 + dtype.name().len() as u64);
        let weights = r.weights(dtype, n * k);
        Case { dtype, n, k, weights, x: (0..m * k).map(|_| r.float()).collect() }
    }

    fn m(&self) -> usize {
        self.x.len() / self.k
    }

    /// The product of the rows `rows` on `isa` by `team`.
    fn run(
        &self,
        isa: AnyIsa,
        team: &Team,
        rows: std::ops::Range<usize>,
        epilogue: Epilogue<'_>,
    ) -> Vec<f32> {
        let mut memory = WeightMemory::new();
        let Case { n, k, .. } = *self;
        let packed =
            PackedMatrix::pack(&mut memory, team, n, k, native(self.dtype, &self.weights), &|_| ())
                .unwrap();
        self.run_packed(&packed, isa, team, rows, epilogue)
    }

    /// As [`Case::run`], with the weights packed before.
    fn run_packed(
        &self,
        packed: &PackedMatrix,
        isa: AnyIsa,
        team: &Team,
        rows: std::ops::Range<usize>,
        epilogue: Epilogue<'_>,
    ) -> Vec<f32> {
        let Case { n, k, .. } = *self;
        let m = rows.len();
        let x = &self.x[rows.start * k..rows.end * k];
        let mut out = vec![f32::NAN; m * n];
        let counter = AtomicUsize::new(0);
        let mut activations = Activations::new(m, k.next_multiple_of(BLOCK));
        let quantized = packed.takes_quantized();
        let input = if quantized {
            Input::Quantized(activations.rows(m, k))
        } else {
            Input::Float(FloatRows { values: x, stride: k, rows: m })
        };
        let output = Output::new(&mut out, n);
        team.run(|worker| {
            // SAFETY: all workers do the same, with a barrier between.
            unsafe {
                if let Input::Quantized(rows) = input {
                    rows.quantize(isa, Source::Plain(x), k, worker);
                }
                worker.barrier();
                matmul(isa, packed, input, output, epilogue, worker, &counter);
            }
        })
        .unwrap();
        out
    }

    fn decoded(&self) -> Vec<f32> {
        let mut w = vec![0.0; self.n * self.k];
        quant::decode(self.dtype, &self.weights, &mut w).unwrap();
        w
    }

    /// What the product must be: the exact result and the sum of the magnitudes of its terms, which
    /// bounds the rounding.
    fn reference(&self) -> Vec<(f64, f64)> {
        if self.dtype.is_quantized() { self.quantized_reference() } else { self.float_reference() }
    }

    fn float_reference(&self) -> Vec<(f64, f64)> {
        let w = self.decoded();
        let mut out = Vec::new();
        for x in self.x.chunks_exact(self.k) {
            for w in w.chunks_exact(self.k) {
                let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                out.push(terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs())));
            }
        }
        out
    }

    fn quantized_reference(&self) -> Vec<(f64, f64)> {
        let x: Vec<(f64, Vec<f64>)> = self
            .x
            .chunks_exact(BLOCK)
            .map(|x| {
                let max = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let inverse = if max == 0.0 { 0.0 } else { 127.0 / max };
                let codes = x.iter().map(|v| f64::from((v * inverse).round_ties_even()));
                (f64::from(max / 127.0), codes.collect())
            })
            .collect();
        let layout = self.dtype.layout();
        let group = quant::group_size(self.dtype);
        let blocks: Vec<quant::Codes> = self
            .weights
            .chunks_exact(layout.bytes)
            .map(|b| {
                let mut codes = quant::Codes::new();
                quant::codes(self.dtype, b, &mut codes).unwrap();
                codes
            })
            .collect();
        let mut out = Vec::new();
        for row in 0..self.m() {
            for n in 0..self.n {
                let (mut sum, mut magnitude) = (0.0, 0.0);
                for first in (0..self.k).step_by(group) {
                    let block = &blocks[(n * self.k + first) / layout.block];
                    let at = first % layout.block;
                    let (scale, codes) = &x[(row * self.k + first) / BLOCK];
                    let codes = &codes[first % BLOCK..first % BLOCK + group];
                    let dot: f64 = block.codes[at..at + group]
                        .iter()
                        .zip(codes)
                        .map(|(&w, &x)| f64::from(w) * x)
                        .sum();
                    let weight = f64::from(block.scales[at / group]);
                    let offset = f64::from(block.offsets[at / group]);
                    let terms = [weight * scale * dot, offset * scale * codes.iter().sum::<f64>()];
                    sum += terms[0] + terms[1];
                    magnitude += terms[0].abs() + terms[1].abs();
                }
                out.push((sum, magnitude));
            }
        }
        out
    }
}

fn check(case: &Case, isa: AnyIsa, got: &[f32]) {
    for (i, (&got, (want, magnitude))) in got.iter().zip(case.reference()).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(
            error <= 2e-6 * magnitude,
            "{} {} [{} x {}] result {i}: {got}, not {want}",
            isa.kind(),
            case.dtype,
            case.n,
            case.k,
        );
    }
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// Instruction sets other than the portable one, which is slow here, if there are any.
fn fast() -> Vec<AnyIsa> {
    let all = AnyIsa::detect();
    all.iter().copied().filter(|i| all.len() == 1 || i.kind() != IsaKind::Portable).collect()
}

#[test]
fn every_format_on_every_instruction_set() {
    let team = Team::new(2).unwrap();
    for dtype in dtypes() {
        let block = dtype.layout().block.max(32);
        let odd_k = if dtype.is_quantized() { 3 * block } else { 101 };
        for (m, n, k) in [(1, 1, block), (1, 37, odd_k), (3, 16, block), (7, 37, odd_k)] {
            let case = Case::new(dtype, m, n, k);
            let mut first: Option<Vec<u32>> = None;
            for &isa in AnyIsa::detect() {
                let got = case.run(isa, &team, 0..m, Epilogue::default());
                check(&case, isa, &got);
                let got = bits(&got);
                assert_eq!(
                    first.get_or_insert_with(|| got.clone()),
                    &got,
                    "{dtype} differs on {}",
                    isa.kind()
                );
            }
        }
    }
}

#[test]
fn a_row_never_depends_on_the_others() {
    let (one, three) = (Team::new(1).unwrap(), Team::new(3).unwrap());
    for dtype in dtypes() {
        let k = if dtype.is_quantized() { 768 } else { 77 };
        for isa in fast() {
            let case = Case::new(dtype, 64, 21, k);
            let all = case.run(isa, &three, 0..64, Epilogue::default());
            check(&case, isa, &all);
            let mut row = 0;
            for size in [1, 2, 3, 4, 7, 8, 12, 13, 14] {
                let part = case.run(isa, &one, row..row + size, Epilogue::default());
                let want = &all[row * 21..(row + size) * 21];
                assert_eq!(bits(&part), bits(want), "{dtype} {} rows {row}+{size}", isa.kind());
                row += size;
            }
        }
    }
}

#[test]
fn more_rows_than_a_token_block() {
    let team = Team::new(2).unwrap();
    for dtype in [DType::Q4_K, DType::Q8_0, DType::F16] {
        for isa in fast() {
            let case = Case::new(dtype, TOKENS + 9, 16, 256);
            check(&case, isa, &case.run(isa, &team, 0..TOKENS + 9, Epilogue::default()));
        }
    }
}

#[test]
fn quantised_activations_cost_rounding_alone() {
    let team = Team::new(1).unwrap();
    for dtype in dtypes().filter(|d| d.is_quantized()) {
        let (m, n, k) = (12, 48, 1024);
        let case = Case::new(dtype, m, n, k);
        let got = case.run(AnyIsa::best(), &team, 0..m, Epilogue::default());
        let error: f64 = got
            .iter()
            .zip(case.float_reference())
            .map(|(got, (want, _))| (f64::from(*got) - want).powi(2))
            .sum();
        // Rounding to a step `d` is off by `d^2 / 12` in the mean square, each value on its own.
        let w = case.decoded();
        let mut rounding = 0.0;
        for x in case.x.chunks(k) {
            for (b, block) in x.chunks(BLOCK).enumerate() {
                let max = block.iter().fold(0.0f32, |max, v| max.max(v.abs()));
                let square = (f64::from(max) / 127.0).powi(2) / 12.0;
                for row in w.chunks(k) {
                    let weights = &row[b * BLOCK..(b + 1) * BLOCK];
                    rounding += weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>() * square;
                }
            }
        }
        let ratio = (error / rounding).sqrt();
        assert!((0.7..1.3).contains(&ratio), "{dtype}: {ratio} times the error of rounding");
    }
}

#[test]
fn epilogues() {
    let team = Team::new(2).unwrap();
    for dtype in [DType::Q4_0, DType::Q6_K, DType::IQ2_S, DType::F32] {
        for m in [1, 7] {
            let case = Case::new(dtype, m, 19, 256);
            let bias: Vec<f32> = (0..19).map(|i| i as f32 - 3.5).collect();
            let start: Vec<f32> = (0..m * 19).map(|i| i as f32 * 0.25).collect();
            let isa = AnyIsa::best();
            let plain = case.run(isa, &team, 0..m, Epilogue::default());
            let epilogue =
                Epilogue { bias: Some(&bias), residual: Some(&start), ..Epilogue::default() };
            let got = case.run(isa, &team, 0..m, epilogue);
            for (i, got) in got.iter().enumerate() {
                assert_eq!(*got, plain[i] + bias[i % 19] + start[i], "{dtype} {i}");
            }
        }
    }
}

#[test]
fn gated_input_is_quantised_like_its_value() {
    let team = Team::new(2).unwrap();
    let mut r = Random(5);
    let (gate, up): (Vec<f32>, Vec<f32>) =
        (0..3 * 64).map(|_| (r.float() * 4.0, r.float())).unzip();
    let codes = |source: Source<'_>| {
        let mut activations = Activations::new(3, 64);
        let rows = activations.rows(3, 64);
        // SAFETY: the run is over before the rows are read.
        team.run(|worker| unsafe { rows.quantize(AnyIsa::best(), source, 64, worker) }).unwrap();
        activations
    };
    let gated = codes(Source::Gated { gate: &gate, up: &up, activation: Gate::Silu });
    let value: Vec<f32> =
        gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-f64::from(*g)).exp() as f32) * u).collect();
    let plain = codes(Source::Plain(&value));
    for (a, b) in gated.debug_scales().iter().zip(plain.debug_scales()) {
        assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} {b}");
    }
}

#[test]
fn broken_activations_break_the_result() {
    let team = Team::new(1).unwrap();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut case = Case::new(DType::Q4_K, 1, 16, 512);
        case.x[300] = bad;
        for &isa in AnyIsa::detect() {
            let got = case.run(isa, &team, 0..1, Epilogue::default());
            assert!(got.iter().all(|v| !v.is_finite()), "{} {got:?}", isa.kind());
        }
    }
}

#[test]
fn packed_weights_are_hardly_larger() {
    let team = Team::new(1).unwrap();
    for dtype in dtypes() {
        let (n, k) = (64, 1024);
        let bytes = vec![0; dtype.bytes_for(n * k).unwrap()];
        let mut memory = WeightMemory::new();
        let packed =
            PackedMatrix::pack(&mut memory, &team, n, k, native(dtype, &bytes), &|_| ()).unwrap();
        let limit = match dtype {
            // A byte of scale becomes two; 6-bit scales become bytes; a byte of element becomes two.
            DType::MXFP4 | DType::Q3_K => 1.06,
            // What is more than codes of two to four bits in the file: numbers of grid points.
            DType::TQ1_0 => 1.26,
            DType::IQ1_S => 1.52,
            DType::IQ1_M | DType::IQ2_XXS => 1.65,
            DType::IQ2_XS => 1.46,
            DType::IQ2_S => 1.32,
            DType::IQ3_XXS => 1.43,
            DType::IQ3_S => 1.28,
            DType::F8E4M3 | DType::F8E5M2 => 2.0,
            _ => 1.04,
        };
        let ratio = packed.bytes() as f64 / bytes.len() as f64;
        assert!(ratio <= limit, "{dtype}: {ratio}");
    }
}

/// Tiles that are made on the spot lie where those of other formats were.
#[test]
fn tiles_made_on_the_spot_give_the_same_bits() {
    let team = Team::new(2).unwrap();
    let none = Epilogue::default();
    for dtype in dtypes().filter(|d| d.is_quantized()) {
        for (m, n, k) in [(1, 40, 512), (2, 16, 256), (5, 24, 768), (60, 40, 512)] {
            let case = Case::new(dtype, m, n, k);
            let mut memory = WeightMemory::new();
            let bytes = Bytes::owned(AlignedBytes::from_slice(&case.weights));
            let packed = PackedMatrix::pack_later(&mut memory, [n, k], dtype, bytes).unwrap();
            for &isa in AnyIsa::detect() {
                let want = case.run(isa, &team, 0..m, none);
                let got = case.run_packed(&packed, isa, &team, 0..m, none);
                assert_eq!(got, want, "{dtype} {m} x {n} x {k} on {}", isa.kind());
            }
            assert!(!packed.is_made());
            packed.finish(&team).unwrap();
            assert!(packed.is_made());
            let want = case.run(AnyIsa::best(), &team, 0..m, none);
            assert_eq!(case.run_packed(&packed, AnyIsa::best(), &team, 0..m, none), want);
        }
    }
}

#[test]
fn wrong_weights_are_errors() {
    let team = Team::new(1).unwrap();
    let mut memory = WeightMemory::new();
    let mut pack = |dtype, n, k, len| {
        PackedMatrix::pack(&mut memory, &team, n, k, native(dtype, &vec![0; len]), &|_| ())
            .map(|p| p.n())
    };
    assert!(matches!(pack(DType::Q4_0, 2, 32, 35), Err(PackError::Length { want: 36, .. })));
    assert!(matches!(pack(DType::Q4_0, 2, 33, 36), Err(PackError::Shape { .. })));
    assert!(matches!(pack(DType::F32, usize::MAX / 2, 4, 0), Err(PackError::Shape { .. })));
    assert!(matches!(pack(DType::I32, 1, 1, 4), Err(PackError::DType { .. })));
    assert_eq!(pack(DType::Q4_0, 0, 32, 0), Ok(0));
}

/// The product of `case` in bfloat16 on `isa`.
fn run_pairs(
    case: &Case,
    source: Native<'_>,
    isa: AnyIsa,
    team: &Team,
    epilogue: Epilogue<'_>,
) -> Vec<f32> {
    let (mut memory, m) = (WeightMemory::new(), case.m());
    let Case { n, k, ref x, .. } = *case;
    let packed =
        PackedMatrix::pack_for(Compute::Bf16, &mut memory, team, [n, k], source, &|_| ()).unwrap();
    assert!(packed.takes_pairs() && !packed.takes_quantized());
    let mut stored = vec![0u32; PairRows::bytes(m, k).div_ceil(4)];
    // SAFETY: it has room for the rows and outlives them.
    let rows = unsafe { PairRows::over(stored.as_mut_ptr().cast(), m, k) };
    let mut out = vec![f32::NAN; m * n];
    let output = Output::new(&mut out, n);
    let counter = AtomicUsize::new(0);
    team.run(|worker| {
        // SAFETY: each row is one worker's; all workers do the same, with a barrier between.
        unsafe {
            for row in worker.share(m) {
                rows.round(isa, row, &x[row * k..(row + 1) * k]);
            }
            worker.barrier();
            matmul(isa, &packed, Input::Pairs(rows), output, epilogue, worker, &counter);
        }
    })
    .unwrap();
    out
}

#[test]
fn products_in_bfloat16_have_the_bits_of_their_definition() {
    let round = |v: f32| match v.abs() < f32::MIN_POSITIVE {
        true => 0.0,
        false => half::bf16::from_f32(v).to_f32(),
    };
    let (one, two) = (Team::new(1).unwrap(), Team::new(2).unwrap());
    let dtypes = [DType::F32, DType::BF16, DType::F16, DType::F8E4M3];
    for (dtype, (m, n, k)) in dtypes.into_iter().flat_map(|dtype| {
        [(1, 19, 33), (2, 16, 1), (7, 70, 64), (13, 64, 100), (50, 35, 101)].map(|s| (dtype, s))
    }) {
        let case = Case::new(dtype, m, n, k);
        let w: Vec<f32> = case.decoded().into_iter().map(round).collect();
        let x: Vec<f32> = case.x.iter().copied().map(round).collect();
        let mut want = Vec::new();
        for x in x.chunks_exact(k) {
            for w in w.chunks_exact(k) {
                let pairs = w.chunks(2).zip(x.chunks(2));
                // The second of a pair comes first; a lone one has a 0 beside it.
                want.push(pairs.fold(0.0f32, |sum, (w, x)| match (w, x) {
                    (&[w0, w1], &[x0, x1]) => w0.mul_add(x0, w1.mul_add(x1, sum)),
                    _ => w[0].mul_add(x[0], sum),
                }));
            }
        }
        let plain = native(dtype, &case.weights);
        if turns(dtype) {
            let size = dtype.layout().bytes;
            let value = |i: usize, r: usize| case.weights[(r * k + i) * size..][..size].to_vec();
            let bytes: Vec<u8> = (0..k)
                .flat_map(|i| (0..n).flat_map(|r| value(i, r)).collect::<Vec<u8>>())
                .collect();
            let source = Native { dtype, bytes: &bytes, turned: true };
            let got = run_pairs(&case, source, AnyIsa::best(), &one, Epilogue::default());
            assert_eq!(got, run_pairs(&case, plain, AnyIsa::best(), &one, Epilogue::default()));
        }
        for &isa in AnyIsa::detect() {
            for team in [&one, &two] {
                let got = run_pairs(&case, plain, isa, team, Epilogue::default());
                let same = got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{dtype} {m} x {n} x {k} on {}", isa.kind());
            }
        }
        let bias: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
        let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
        let got = run_pairs(&case, plain, AnyIsa::best(), &two, epilogue);
        assert!(got.iter().zip(&want).enumerate().all(|(i, (a, b))| *a == b + bias[i % n]));
    }
}

#[test]
fn quantised_weights_stay_what_they_are_in_bfloat16() {
    let team = Team::new(1).unwrap();
    let mut memory = WeightMemory::new();
    let bytes = vec![0; DType::Q8_0.bytes_for(64).unwrap()];
    let of = |dtype: DType, bytes: &[u8], memory: &mut WeightMemory| {
        let shape = [2, 32];
        PackedMatrix::pack_for(Compute::Bf16, memory, &team, shape, native(dtype, bytes), &|_| ())
    };
    let packed = of(DType::Q8_0, &bytes, &mut memory).unwrap();
    assert!(packed.takes_quantized() && !packed.takes_pairs());
    assert!(matches!(of(DType::I32, &[0; 256], &mut memory), Err(PackError::DType { .. })));
}

/// Weights and activations are rounded, and what is too large is the largest number, not infinity.
#[test]
fn products_in_half_precision_have_the_bits_of_their_definition() {
    let round = |v: f32| half::f16::from_f32(v.clamp(-65504.0, 65504.0)).to_f32();
    let team = Team::new(2).unwrap();
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F8E4M3] {
        let mut case = Case::new(dtype, 7, 35, 33);
        case.x[5] = 1e5;
        case.x[70] = -3e6;
        let w: Vec<f32> = case.decoded().into_iter().map(round).collect();
        let mut x = case.x.clone();
        for &isa in AnyIsa::detect() {
            x.copy_from_slice(&case.x);
            round_to_half(isa, &mut x);
            assert!(x.iter().zip(&case.x).all(|(a, b)| *a == round(*b)), "{}", isa.kind());
            let mut memory = WeightMemory::new();
            let source = native(dtype, &case.weights);
            let shape = [case.n, case.k];
            let packed =
                PackedMatrix::pack_for(Compute::F16, &mut memory, &team, shape, source, &|_| ());
            let packed = packed.unwrap();
            assert!(packed.takes_halves());
            assert_eq!(packed.bytes(), 48 * case.k * 2, "two bytes a weight");
            let mut out = vec![f32::NAN; 7 * case.n];
            let output = Output::new(&mut out, case.n);
            let counter = AtomicUsize::new(0);
            let rows = FloatRows { values: &x, stride: case.k, rows: 7 };
            team.run(|worker| {
                let (input, epilogue) = (Input::Float(rows), Epilogue::default());
                // SAFETY: all workers do the same, and nobody else has the output.
                unsafe { matmul(isa, &packed, input, output, epilogue, worker, &counter) }
            })
            .unwrap();
            for (x, got) in x.chunks_exact(case.k).zip(out.chunks_exact(case.n)) {
                for (w, got) in w.chunks_exact(case.k).zip(got) {
                    let want = w.iter().zip(x).fold(0.0f32, |sum, (w, x)| w.mul_add(*x, sum));
                    assert_eq!(*got, want, "{dtype} on {}", isa.kind());
                }
            }
        }
    }
}
