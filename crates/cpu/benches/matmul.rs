//! How close products come to the machine's limits.
//!
//! `cargo bench -p cyb-cpu --bench matmul -- [threads=1,2] [size=1536x8960] [rows=1,8,512] [isa=NAME]
//! [dtype...]`. Prints, per dtype and size (output x input columns): one row as GB/s of weights and
//! as a fraction of the measured read bandwidth (over enough copies of the matrix to miss the
//! caches), and more rows as GOP/s (two operations a multiply-add) and as a fraction of the measured
//! peak of 4-bit dot products. Every result is checked against the portable kernels before it is
//! timed.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cyb_cpu::matmul::{
    Activations, BLOCK, Epilogue, FloatRows, Input, Native, Output, PackedMatrix, Source, matmul,
};
use cyb_cpu::memory::WeightMemory;
use cyb_cpu::team::Team;
use cyb_simd::{AnyIsa, Isa, SimdOp};
use cyb_tensor::{DType, quant};

const DTYPES: [DType; 16] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Q2_K,
    DType::Q3_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::MXFP4,
    DType::TQ2_0,
    DType::IQ2_S,
    DType::F16,
    DType::F32,
];
const SIZES: [(usize, usize); 4] = [(576, 576), (1536, 576), (896, 4864), (1536, 8960)];
/// Weights that one pass over the copies of a matrix reads: more than the caches hold.
const PASS_BYTES: usize = 512 << 20;
/// Seconds a measurement takes at least.
const SECONDS: f64 = 0.06;

struct Read<'a>(&'a [u8]);

impl SimdOp for Read<'_> {
    type Output = i32;

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> i32 {
        let mut acc = [s.splat_b(0); 4];
        for chunk in self.0.chunks_exact(256) {
            for (i, acc) in acc.iter_mut().enumerate() {
                // SAFETY: a chunk holds four vectors.
                *acc = s.or_b(*acc, unsafe { s.load_b(chunk.as_ptr().add(64 * i)) });
            }
        }
        let mut out = [0u8; 64];
        let all = s.or_b(s.or_b(acc[0], acc[1]), s.or_b(acc[2], acc[3]));
        // SAFETY: `out` holds a vector.
        unsafe { s.store_b(out.as_mut_ptr(), all) };
        i32::from(out[0])
    }
}

/// Steps of 4-bit codes in the form the kernels use: eight steps, then a finish.
struct Peak(usize);

/// Sums that do not wait for each other.
const CHAINS: usize = 8;

impl SimdOp for Peak {
    type Output = i32;

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> i32 {
        let codes = [black_box([7u8; 64]), black_box([9u8; 64])];
        let x = black_box([3i8; 4]);
        // SAFETY: the arrays are as long as the loads.
        let (w, x) = unsafe {
            ([s.load_b(codes[0].as_ptr()), s.load_b(codes[1].as_ptr())], s.load_x(x.as_ptr()))
        };
        let mut total = s.splat_i(0);
        for round in 0..self.0 {
            // What depends on the round cannot be moved out of the loop.
            let mut dots = [s.dot_start(0); CHAINS];
            for (i, d) in dots.iter_mut().enumerate() {
                *d = s.dot_start((round + i) as i32);
            }
            for step in 0..8 {
                for d in &mut dots {
                    *d = s.dot_unsigned(*d, w[step % 2], x);
                }
            }
            for (i, d) in dots.into_iter().enumerate() {
                total = s.add_i(total, s.dot_finish(d, (round + i) as i32));
            }
        }
        s.reduce_sum_i(total)
    }
}

fn seconds(mut f: impl FnMut()) -> f64 {
    f();
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < SECONDS {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

/// Blocks of sane values, repeated: subnormal numbers cost some CPUs a hundred cycles each.
fn weights(dtype: DType, values: usize) -> Vec<u8> {
    let layout = dtype.layout();
    let mut decoded = vec![0.0; layout.block];
    let mut pool = Vec::new();
    let mut seed = 7;
    while pool.len() < 97 * layout.bytes {
        seed += 1;
        let block = random_bytes(seed * 0x9e37_79b9_7f4a_7c15, layout.bytes);
        quant::decode(dtype, &block, &mut decoded).unwrap();
        let largest = decoded.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        if decoded.iter().all(|v| v.is_finite()) && (1e-3..1e3).contains(&largest) {
            pool.extend(block);
        }
    }
    pool.into_iter().cycle().take(dtype.bytes_for(values).unwrap()).collect()
}

/// Multiplies `m` rows with each matrix in turn, as the steps of a model do.
fn products(
    team: &Team,
    isa: AnyIsa,
    copies: &[PackedMatrix],
    x: &[f32],
    m: usize,
    out: &mut [f32],
) {
    let (n, k) = (copies[0].n(), copies[0].k());
    let mut activations = Activations::new(m, k.next_multiple_of(BLOCK));
    let input = if copies[0].takes_quantized() {
        Input::Quantized(activations.rows(m, k))
    } else {
        Input::Float(FloatRows { values: x, stride: k, rows: m })
    };
    let counters: Vec<AtomicUsize> = copies.iter().map(|_| AtomicUsize::new(0)).collect();
    let output = Output::new(out, n);
    team.run(|worker| {
        // SAFETY: all workers do the same, with barriers between.
        unsafe {
            if let Input::Quantized(rows) = input {
                rows.quantize(isa, Source::Plain(x), k, worker);
            }
            worker.barrier();
            for (copy, counter) in copies.iter().zip(&counters) {
                matmul(isa, copy, input, output, Epilogue::default(), worker, counter);
                worker.barrier();
            }
        }
    })
    .unwrap();
    assert!(counters.iter().all(|c| c.load(Ordering::Relaxed) < usize::MAX));
}

fn list<T>(args: &[String], key: &str, parse: impl Fn(&str) -> T) -> Option<Vec<T>> {
    let value = args.iter().find_map(|a| a.strip_prefix(key)?.strip_prefix('='))?;
    Some(value.split(',').map(parse).collect())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let isa =
        list(&args, "isa", |s| s.parse().unwrap()).map_or_else(AnyIsa::best, |v: Vec<AnyIsa>| v[0]);
    let threads = list(&args, "threads", |s| s.parse().unwrap())
        .unwrap_or_else(|| vec![1, Team::default_count()]);
    let sizes = list(&args, "size", |s| {
        let (n, k) = s.split_once('x').unwrap();
        (n.parse().unwrap(), k.parse().unwrap())
    })
    .unwrap_or_else(|| SIZES.to_vec());
    let rows = list(&args, "rows", |s| s.parse().unwrap()).unwrap_or_else(|| vec![1, 8, 512]);
    let chosen: Vec<DType> = args.iter().filter_map(|a| a.parse().ok()).collect();
    let dtypes = if chosen.is_empty() { DTYPES.to_vec() } else { chosen };

    for &count in &threads {
        let team = Team::new(count).unwrap();
        let buffer = random_bytes(3, 8 << 20);
        let copies = PASS_BYTES * 2 / buffer.len();
        let mut memory = WeightMemory::new();
        let big: Vec<PackedMatrix> = (0..copies)
            .map(|_| {
                let rows = buffer.len() / 4096 / 16 * 16;
                let bytes = &buffer[..rows * 4096];
                let source = Native { dtype: DType::F8E5M2, bytes, turned: false };
                PackedMatrix::pack(&mut memory, &team, rows, 4096, source, &|_| ()).unwrap()
            })
            .collect();
        let read = seconds(|| {
            team.run(|worker| {
                for i in worker.share(big.len()) {
                    black_box(isa.run(Read(big[i].packed_bytes())));
                }
            })
            .unwrap();
        });
        let bandwidth = big.iter().map(PackedMatrix::bytes).sum::<usize>() as f64 / read / 1e9;
        drop(big);
        let steps = 1 << 14;
        let time = seconds(|| {
            team.run(|_| {
                black_box(isa.run(Peak(black_box(steps))));
            })
            .unwrap();
        });
        let peak = (count * steps * CHAINS * 8 * 64 * 2) as f64 / time / 1e9;
        println!(
            "{} {count} threads: read {bandwidth:.1} GB/s, 4-bit dot products {peak:.0} GOP/s",
            isa.kind()
        );
        let titles = rows.iter().map(|m| match m {
            1 => format!(" {:14}", "1 row GB/s"),
            m => format!("   {:13}", format!("{m} rows GOP/s")),
        });
        println!("dtype    size        {}", titles.collect::<String>());
        for &dtype in &dtypes {
            for &(n, k) in &sizes {
                if dtype.bytes_for(k).is_none() {
                    continue;
                }
                measure(&team, isa, dtype, (n, k), &rows, (bandwidth, peak));
            }
        }
    }
}

fn measure(
    team: &Team,
    isa: AnyIsa,
    dtype: DType,
    (n, k): (usize, usize),
    rows: &[usize],
    (bandwidth, peak): (f64, f64),
) {
    let most = rows.iter().copied().max().unwrap_or(1).max(2);
    let bytes = weights(dtype, n * k);
    let source = Native { dtype, bytes: &bytes, turned: false };
    let mut memory = WeightMemory::new();
    let copies: Vec<PackedMatrix> = (0..(PASS_BYTES / bytes.len()).clamp(1, 400))
        .map(|_| PackedMatrix::pack(&mut memory, team, n, k, source, &|_| ()).unwrap())
        .collect();
    let x: Vec<f32> =
        random_bytes(11, most * k).into_iter().map(|b| f32::from(b) / 128.0 - 1.0).collect();
    let mut out = vec![0.0; most * n];
    let mut want = vec![0.0; 2 * n];
    let portable: AnyIsa = "portable".parse().unwrap();
    products(team, portable, &copies[..1], &x[..2 * k], 2, &mut want);
    let mut line = format!("{:8} {:11}", dtype.name(), format!("{n}x{k}"));
    for &m in rows {
        let (x, out) = (&x[..m * k], &mut out[..m * n]);
        products(team, isa, &copies[..1], x, m, out);
        let checked = m.min(2) * n;
        assert!(out[..checked] == want[..checked], "{dtype} with {m} rows is wrong");
        let used = if m == 1 { &copies[..] } else { &copies[..(64 / m).clamp(1, copies.len())] };
        let time = seconds(|| products(team, isa, used, x, m, out));
        if m == 1 {
            let rate = used.iter().map(PackedMatrix::bytes).sum::<usize>() as f64 / time / 1e9;
            line += &format!(" {rate:6.1} ({:3.0} %)", 100.0 * rate / bandwidth);
        } else {
            let rate = (2 * used.len() * m * n * k) as f64 / time / 1e9;
            line += &format!("   {rate:6.0} ({:3.0} %)", 100.0 * rate / peak);
        }
    }
    println!("{line}");
}
