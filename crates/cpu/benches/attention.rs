//! How close attention over a cache comes to the machine's arithmetic and memory.
//!
//! `cargo bench -p cyb-cpu --bench attention -- [threads=1,2] [type=f16] [model=0.5B] [tokens=1]
//! [mib=64]`. Runs
//! `sdpa_paged` in the shapes of known models, for one token and for a chunk of a prompt, over so
//! many MiB of keys and values (enough to miss the processor's caches), and prints microseconds a call, GFLOP/s with the fraction of the measured peak
//! of f32 multiply-adds, and GB/s of keys and values.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measuring program")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use cyb_cpu::CpuBackend;
use cyb_cpu::team::Team;
use cyb_exec::{Backend, Executor, PrepareOptions, Running};
use cyb_ir::{Attrs, Builder, Fact};
use cyb_simd::{AnyIsa, Isa, SimdOp};
use cyb_tensor::{DType, quant};

/// Seconds a measurement takes at least.
const SECONDS: f64 = 0.3;
const BLOCK: usize = 32;

/// Name, query heads, key heads, width.
const SHAPES: [(&str, usize, usize, usize); 5] = [
    ("SmolLM2-135M", 9, 3, 64),
    ("Gemma-3-270M", 4, 1, 256),
    ("Qwen2.5-0.5B", 14, 2, 64),
    ("Qwen2.5-1.5B", 12, 2, 128),
    ("Llama-3-8B", 32, 8, 128),
];
/// Tokens, and the positions that the last of them sees.
const WORK: [(usize, usize); 4] = [(1, 200), (1, 4096), (64, 512), (64, 4096)];

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

/// As many calls as have so many bytes of keys and values.
fn calls(
    backend: Arc<dyn Backend>,
    (dtype, caches): (DType, usize),
    (heads, groups, width): (usize, usize, usize),
    (tokens, depth): (usize, usize),
) -> (Running, usize) {
    let blocks = depth.div_ceil(BLOCK);
    let slots = blocks * BLOCK;
    let pool_bytes = dtype.bytes_for(slots * groups * width).unwrap();
    let count = caches.div_ceil(2 * pool_bytes).min(200);
    let mut b = Builder::new();
    let ints = |dims: &[usize]| Fact::new(DType::I32, dims.iter().map(|&d| d.into()));
    let pool = Fact::new(dtype, [slots, groups, width].map(Into::into));
    let q = b.input("q", Fact::new(DType::F32, [tokens, heads, width].map(Into::into)));
    let tables = b.input("tables", ints(&[1, blocks]));
    let rows = b.input("rows", ints(&[tokens]));
    let positions = b.input("positions", ints(&[tokens]));
    for i in 0..count {
        let keys = b.input(&format!("keys {i}"), pool.clone());
        let values = b.input(&format!("values {i}"), pool.clone());
        let attrs = Attrs::new()
            .with("scale", 1.0 / (width as f64).sqrt())
            .with("window", 0usize)
            .with("softcap", 0.0)
            .with("block", BLOCK);
        let inputs = [q, keys, values, tables, rows, positions];
        let y = b.jet(&cyb_jets::SDPA_PAGED, attrs, &inputs).unwrap();
        b.output(&i.to_string(), y);
    }
    let executor = Executor::prepare(b.finish(), &[backend], PrepareOptions::default()).unwrap();
    let executor = Arc::new(executor);
    let mut running = executor.start(&[]).unwrap();
    let floats =
        |n: usize| (0..n).map(|i| ((i * 7919) % 101) as f32 * 0.02 - 1.0).collect::<Vec<_>>();
    let bytes_of = |ints: Vec<usize>| -> Vec<u8> {
        ints.into_iter().flat_map(|i| (i as i32).to_le_bytes()).collect()
    };
    let mut cache = Vec::new();
    quant::encode(dtype, &floats(slots * groups * width), &mut cache).unwrap();
    for (i, name) in executor.inputs().map(|(n, _)| n.to_owned()).enumerate() {
        let bytes = match name.as_str() {
            "q" => floats(tokens * heads * width).iter().flat_map(|v| v.to_le_bytes()).collect(),
            "tables" => bytes_of((0..blocks).map(|i| (i * 5 + 3) % blocks).collect()),
            "rows" => bytes_of(vec![0; tokens]),
            "positions" => bytes_of((depth - tokens..depth).collect()),
            _ => cache.clone(),
        };
        running.input(i, &mut |to| to.copy_from_slice(&bytes));
    }
    (running, count)
}

fn main() {
    let option =
        |name: &str| std::env::args().find_map(|a| a.strip_prefix(name).map(str::to_owned));
    let threads = option("threads=").unwrap_or("1,2".into());
    let dtype: DType = option("type=").unwrap_or("f16".into()).parse().unwrap();
    let model = option("model=").unwrap_or_default();
    let only = option("tokens=").map(|n| n.parse::<usize>().unwrap());
    let caches = option("mib=").map_or(64, |n| n.parse::<usize>().unwrap()) << 20;
    for count in threads.split(',').map(|n| n.parse::<usize>().unwrap()) {
        let team = Arc::new(Team::new(count).unwrap());
        let peak = peak(&team);
        println!("{count} threads, {dtype}, peak {:.0} GFLOP/s", peak / 1e9);
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(team));
        for (name, heads, groups, width) in SHAPES {
            if !name.contains(&model) {
                continue;
            }
            for (tokens, depth) in WORK {
                if only.is_some_and(|only| only != tokens) {
                    continue;
                }
                let shape = (heads, groups, width);
                let (mut running, calls) =
                    calls(backend.clone(), (dtype, caches), shape, (tokens, depth));
                let (mut best, begun) = (f64::INFINITY, Instant::now());
                while begun.elapsed().as_secs_f64() < SECONDS {
                    let start = Instant::now();
                    running.run().unwrap();
                    best = best.min(start.elapsed().as_secs_f64() / calls as f64);
                }
                let seen: usize = (depth - tokens + 1..=depth).sum();
                let flops = (4 * heads * width * seen) as f64;
                let bytes = 2 * dtype.bytes_for(depth * groups * width).unwrap();
                println!(
                    "{name:<13} {tokens:>3} x {depth:<5} {:>9.1} us {:>5.0} GFLOP/s {:>4.0} % {:>6.1} GB/s",
                    best * 1e6,
                    flops / best / 1e9,
                    100.0 * flops / best / peak,
                    bytes as f64 / best / 1e9
                );
            }
        }
    }
}
