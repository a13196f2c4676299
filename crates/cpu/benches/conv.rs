//! How close convolutions come to the machine's arithmetic.
//!
//! `cargo bench -p cyb-cpu --bench conv -- [threads=1,2] [size=320]`. Runs each convolution of
//! YOLOv8n at an input of that size, with its bias and SiLU, and prints milliseconds, GFLOP/s and
//! the fraction of the measured peak of f32 multiply-adds.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use cyb_cpu::CpuBackend;
use cyb_cpu::team::Team;
use cyb_exec::{Backend, Executor, PrepareOptions, Running};
use cyb_ir::{Attrs, Builder, Fact};
use cyb_simd::{AnyIsa, Isa, SimdOp};
use cyb_tensor::{DType, Tensor};

/// Seconds a measurement takes at least.
const SECONDS: f64 = 0.05;

/// Channels in, channels out, kernel, stride, the input's scale (its side is the picture's over
/// this), and how often the network has it.
const SHAPES: [[usize; 6]; 40] = [
    [3, 16, 3, 2, 1, 1],
    [16, 32, 3, 2, 2, 1],
    [32, 32, 1, 1, 4, 1],
    [16, 16, 3, 1, 4, 2],
    [48, 32, 1, 1, 4, 1],
    [32, 64, 3, 2, 4, 1],
    [64, 64, 1, 1, 8, 1],
    [32, 32, 3, 1, 8, 6],
    [128, 64, 1, 1, 8, 1],
    [64, 128, 3, 2, 8, 1],
    [128, 128, 1, 1, 16, 1],
    [64, 64, 3, 1, 16, 8],
    [256, 128, 1, 1, 16, 1],
    [128, 256, 3, 2, 16, 1],
    [256, 256, 1, 1, 32, 1],
    [128, 128, 3, 1, 32, 4],
    [384, 256, 1, 1, 32, 2],
    [256, 128, 1, 1, 32, 1],
    [512, 256, 1, 1, 32, 1],
    [384, 128, 1, 1, 16, 1],
    [192, 128, 1, 1, 16, 3],
    [192, 64, 1, 1, 8, 1],
    [96, 64, 1, 1, 8, 1],
    [64, 64, 3, 2, 8, 1],
    [128, 128, 3, 2, 16, 1],
    [64, 64, 3, 1, 8, 4],
    [64, 64, 1, 1, 8, 1],
    [64, 18, 1, 1, 8, 1],
    [128, 64, 3, 1, 16, 2],
    [64, 64, 3, 1, 16, 2],
    [64, 64, 1, 1, 16, 1],
    [64, 18, 1, 1, 16, 1],
    [256, 64, 3, 1, 32, 2],
    [64, 64, 3, 1, 32, 2],
    [64, 64, 1, 1, 32, 1],
    [64, 18, 1, 1, 32, 1],
    // Not of this network: depthwise, transposed stand-ins of other sizes.
    [64, 64, 5, 1, 8, 0],
    [256, 256, 3, 1, 16, 0],
    [64, 64, 7, 2, 4, 0],
    [32, 32, 3, 1, 1, 0],
];

/// Chains of multiply-adds that hide each other's latency.
struct Peak(usize);

impl SimdOp for Peak {
    type Output = f32;

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) -> f32 {
        let mut acc = [s.splat(0.0); 12];
        let (x, y) = (s.splat(0.999), s.splat(0.5));
        for _ in 0..self.0 {
            for acc in &mut acc {
                *acc = s.fma(*acc, x, y);
            }
        }
        s.reduce_sum(acc.into_iter().fold(s.splat(0.0), |a, b| s.add(a, b)))
    }
}

fn peak(team: &Team) -> f64 {
    const STEPS: usize = 400_000;
    let mut best = 0f64;
    for _ in 0..8 {
        let start = Instant::now();
        team.run(|_| {
            black_box(AnyIsa::best().run(Peak(black_box(STEPS))));
        })
        .unwrap();
        let flops = (STEPS * 12 * 32 * team.count()) as f64;
        best = best.max(flops / start.elapsed().as_secs_f64());
    }
    best
}

fn convolution(backend: Arc<dyn Backend>, shape: [usize; 6], size: usize) -> (Running, f64) {
    let [channels, rows, kernel, stride, scale, _] = shape;
    let side = size / scale;
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [1, channels, side, side].map(Into::into)));
    let values = |n: usize| -> Vec<f32> {
        (0..n).map(|i| ((i * 7919) % 101) as f32 * 2e-4 - 0.01).collect()
    };
    let tensor = |shape: Vec<usize>| {
        let n = shape.iter().product();
        Tensor::from_f32(shape, &values(n)).unwrap()
    };
    let w = b.weight("w", tensor(vec![rows, channels, kernel, kernel]));
    let bias = b.weight("b", tensor(vec![rows]));
    let attrs = Attrs::new()
        .with("strides", vec![stride as i64; 2])
        .with("pads", vec![kernel as i64 / 2; 4])
        .with("dilations", vec![1i64; 2])
        .with("groups", 1usize)
        .with("activation", "silu");
    let y = b.jet(&cyb_jets::CONV_ACTIVATION, attrs, &[x, w, bias]).unwrap();
    b.output("y", y);
    let executor = Executor::prepare(b.finish(), &[backend], PrepareOptions::default()).unwrap();
    let mut running = Arc::new(executor).start(&[]).unwrap();
    let input = tensor(vec![1, channels, side, side]);
    running.input(0, &mut |bytes| bytes.copy_from_slice(input.bytes().as_slice()));
    let out = (side + 2 * (kernel / 2) - kernel) / stride + 1;
    (running, (2 * rows * channels * kernel * kernel * out * out) as f64)
}

fn main() {
    let option =
        |name: &str| std::env::args().find_map(|a| a.strip_prefix(name).map(str::to_owned));
    let threads = option("threads=").unwrap_or("1,2".into());
    let size: usize = option("size=").map_or(320, |s| s.parse().unwrap());
    for count in threads.split(',').map(|n| n.parse::<usize>().unwrap()) {
        let team = Arc::new(Team::new(count).unwrap());
        let peak = peak(&team);
        println!("{count} threads, peak {:.0} GFLOP/s", peak / 1e9);
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(team));
        let (mut all_time, mut all_flops) = (0.0, 0.0);
        for shape in SHAPES {
            let (mut running, flops) = convolution(backend.clone(), shape, size);
            let (mut best, begun) = (f64::INFINITY, Instant::now());
            while begun.elapsed().as_secs_f64() < SECONDS {
                let start = Instant::now();
                running.run().unwrap();
                best = best.min(start.elapsed().as_secs_f64());
            }
            let [channels, rows, kernel, stride, scale, times] = shape;
            println!(
                "{channels:>4} -> {rows:<4} {kernel}x{kernel} /{stride} at {:<4} x{times} {:>8.3} ms {:>6.0} GFLOP/s {:>4.0} %",
                size / scale,
                best * 1e3,
                flops / best / 1e9,
                100.0 * flops / best / peak
            );
            all_time += best * times as f64;
            all_flops += flops * times as f64;
        }
        println!(
            "all of the network: {:.2} ms, {:.2} GFLOP, {:.0} % of the peak",
            all_time * 1e3,
            all_flops / 1e9,
            100.0 * all_flops / all_time / peak
        );
    }
}
