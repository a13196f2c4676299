//! The conformance suite on the GPU: every case of every jet against the interpreter, and what the
//! backend promises besides. Run it on a machine with a GPU: `scripts/gpu-check` does.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that tests")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use cyb_cpu::CpuBackend;
use cyb_cpu::team::Team;
use cyb_cuda::CudaBackend;
use cyb_exec::{Backend, Executor, PlanMode, PrepareOptions};
use cyb_ir::{Attrs, Builder, Case, Fact, Fill, Graph, Jet, Op, ValueId};
use cyb_jets::JETS;
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Dim, Tensor};

/// Normally distributed floats and small integers from a counter.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| ((bits >> 40) as f64 + 0.5) / (1u64 << 24) as f64;
        let (a, b) = (uniform(self.next()), uniform(self.next()));
        ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize], fill: &Fill) -> Tensor {
        let n: usize = shape.iter().product();
        let floats: Vec<f32> = match fill {
            Fill::Normal(scale) => (0..n).map(|_| self.normal() * scale).collect(),
            Fill::Below(below) => {
                (0..n).map(|_| (self.next() % u64::from(*below)) as f32).collect()
            }
            Fill::Ints(ints) => ints.iter().cycle().take(n).map(|&i| i as f32).collect(),
            Fill::Floats(floats) => floats.iter().cycle().take(n).copied().collect(),
        };
        let mut bytes = Vec::new();
        match dtype {
            DType::Bool => bytes.extend(floats.iter().map(|&v| u8::from(v != 0.0))),
            DType::U8 => floats.iter().for_each(|&v| bytes.push(v as u8)),
            DType::I8 => floats.iter().for_each(|&v| bytes.push((v as i8).cast_unsigned())),
            DType::I32 => floats.iter().for_each(|&v| bytes.extend((v as i32).to_le_bytes())),
            DType::I64 => floats.iter().for_each(|&v| bytes.extend((v as i64).to_le_bytes())),
            _ if cyb_tensor::quant::can_encode(dtype) => {
                cyb_tensor::quant::encode(dtype, &floats, &mut bytes).unwrap();
            }
            _ => {
                // Formats without an encoder: random codes under modest scales.
                let layout = dtype.layout();
                let mut decoded = vec![0f32; layout.block];
                while bytes.len() < n / layout.block * layout.bytes {
                    let block: Vec<u8> = (0..layout.bytes).map(|_| self.next() as u8).collect();
                    let fits = cyb_tensor::quant::decode(dtype, &block, &mut decoded).is_ok();
                    // Blocks of like size: where one outweighs all others, the sums of a
                    // tolerance's row are those of a single block.
                    let top = decoded.iter().fold(0f32, |top, v| top.max(v.abs()));
                    if fits && (0.25..16.0).contains(&top) && decoded.iter().all(|v| v.is_finite())
                    {
                        bytes.extend(block);
                    }
                }
            }
        }
        Tensor::new(dtype, shape.to_vec(), Bytes::owned(AlignedBytes::from_slice(&bytes))).unwrap()
    }
}

/// A graph's named leaves with their values.
struct Call {
    graph: Graph,
    leaves: BTreeMap<String, Tensor>,
}

/// Runs a call `runs` times in one session and gives the outputs of the last and then the states, and
/// which backends had steps.
fn run(call: &Call, backends: &[Arc<dyn Backend>], runs: usize) -> (Vec<Vec<u8>>, Vec<String>) {
    let executor = Executor::prepare(call.graph.clone(), backends, PrepareOptions::default());
    let executor = Arc::new(executor.unwrap());
    let steps = executor.steps().iter().map(|s| format!("{}:{}", s.backend, s.op)).collect();
    let mut running = executor.start(&[]).unwrap();
    let names: Vec<String> = executor.inputs().map(|(n, _)| n.to_owned()).collect();
    let states: Vec<String> = executor.states().map(str::to_owned).collect();
    for _ in 0..runs {
        for (i, name) in names.iter().enumerate() {
            let bytes = call.leaves[name].bytes().as_slice();
            running.input(i, &mut |to| to.copy_from_slice(bytes));
        }
        for (i, name) in states.iter().enumerate() {
            running.set_state(i, call.leaves[name].bytes().as_slice()).unwrap();
        }
        running.run().unwrap();
    }
    let n = executor.outputs().count();
    let mut out: Vec<Vec<u8>> = (0..n).map(|i| running.output(i).unwrap().to_vec()).collect();
    out.extend((0..states.len()).map(|i| running.state(i).unwrap().to_vec()));
    (out, steps)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The elements of a pool.
fn pool_floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let halves = |f: fn([u8; 2]) -> f32| bytes.chunks_exact(2).map(|b| f([b[0], b[1]])).collect();
    match dtype {
        DType::F16 => halves(|b| half::f16::from_le_bytes(b).to_f32()),
        DType::BF16 => halves(|b| half::bf16::from_le_bytes(b).to_f32()),
        DType::F32 => floats(bytes),
        _ => {
            let mut out = vec![0.0; bytes.len() / dtype.layout().bytes * dtype.layout().block];
            cyb_tensor::quant::decode(dtype, bytes, &mut out).unwrap();
            out
        }
    }
}

/// The largest difference in units of what is allowed; above 1 is wrong.
fn badness(want: &[f32], got: &[f32], absolute: f32, relative: f32) -> f32 {
    let largest = want.iter().filter(|v| v.is_finite()).fold(0f32, |m, v| m.max(v.abs()));
    let allowed = absolute + relative * largest;
    let pairs = want.iter().zip(got);
    let worst = pairs.map(|(w, g)| {
        let same = w == g || (w.is_nan() && g.is_nan());
        match () {
            () if same => 0.0,
            () if (w - g).is_nan() => f32::INFINITY,
            () => (w - g).abs() / allowed.max(f32::MIN_POSITIVE),
        }
    });
    if want.len() == got.len() { worst.fold(0.0, f32::max) } else { f32::INFINITY }
}

fn jet_call(jet: &'static Jet, case: &Case, inputs: &[Tensor]) -> Call {
    let weights: &[usize] = match jet.name {
        "linear" => &[1, 2],
        "linear_add" => &[1],
        "linear_many" => &[1, 2, 3, 4],
        "gated_linear" => &[2],
        "embedding" => &[0],
        _ => &[],
    };
    let mut b = Builder::new();
    let mut leaves = BTreeMap::new();
    let ids: Vec<ValueId> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| {
            let name = i.to_string();
            leaves.insert(name.clone(), t.clone());
            if weights.contains(&i) {
                b.weight(&name, t.clone())
            } else if jet.in_place.iter().any(|(input, _)| *input == i) {
                b.state(&name, Fact::of(t))
            } else {
                b.input(&name, Fact::of(t))
            }
        })
        .collect();
    for (i, v) in b.jet_outputs(jet, case.attrs.clone(), &ids).unwrap().into_iter().enumerate() {
        b.output(&i.to_string(), v);
    }
    Call { graph: b.finish(), leaves }
}

#[derive(Default)]
struct Report {
    checks: usize,
    failures: usize,
}

impl Report {
    fn check(&mut self, what: &str, ok: bool, why: impl FnOnce() -> String) {
        self.checks += 1;
        if !ok {
            self.failures += 1;
            if self.failures <= 60 {
                println!("FAILED {what}: {}", why());
            }
        }
    }
}

fn jets(both: &[Arc<dyn Backend>], seed: u64, report: &mut Report) {
    let only = std::env::args().nth(1);
    for jet in JETS.iter().filter(|jet| only.as_ref().is_none_or(|name| jet.name == name)) {
        let (mut worst, mut on_gpu, mut cases) = (0f32, 0, 0);
        for (number, case) in (jet.cases)().iter().enumerate() {
            let mut random = Random(seed.wrapping_add(number as u64 * 1000));
            let inputs: Vec<Tensor> = case
                .inputs
                .iter()
                .map(|(fact, fill)| {
                    let shape: Vec<usize> = fact.shape.iter().map(|d| d.known().unwrap()).collect();
                    random.tensor(fact.dtype, &shape, fill)
                })
                .collect();
            let op = Op::Jet(jet, case.attrs.clone());
            let want = cyb_interp::evaluate_node(&op, &inputs, &Bindings::new()).unwrap();
            if only.is_some() {
                println!("{} {}", jet.name, case.name);
            }
            // The third run is a recorded graph.
            let (got, steps) = run(&jet_call(jet, case, &inputs), both, 3);
            cases += 1;
            on_gpu += usize::from(steps.iter().all(|s| s.starts_with("cuda")));
            let name = format!("{} {}", jet.name, case.name);
            for (want, got) in want.iter().zip(&got) {
                if want.dtype() == DType::F32 {
                    let want = want.to_f32_vec().unwrap();
                    let tolerance = jet.tolerance;
                    let got = floats(got);
                    let bad = badness(&want, &got, tolerance.absolute, tolerance.relative);
                    worst = worst.max(bad);
                    report.check(&name, bad <= 1.0, || format!("{bad} times what is allowed"));
                } else {
                    report.check(&name, want.bytes().as_slice() == &got[..], || "bytes".into());
                }
            }
        }
        println!("{:14} {on_gpu:3} of {cases:3} cases on the GPU, worst {worst:.3}", jet.name);
    }
}

/// `linear` of `m` rows; the first rows are the same whatever `m`.
fn linear(dtype: DType, m: usize, k: usize, n: usize) -> Call {
    let mut random = Random(7);
    let w = random.tensor(dtype, &[n, k], &Fill::Normal(0.5));
    let x = random.tensor(DType::F32, &[m, k], &Fill::Normal(1.0));
    let mut b = Builder::new();
    let (xv, wv) = (b.input("x", Fact::of(&x)), b.weight("w", w));
    let y = b.jet(&cyb_jets::LINEAR, Attrs::new(), &[xv, wv]).unwrap();
    b.output("y", y);
    Call { graph: b.finish(), leaves: BTreeMap::from([("x".into(), x)]) }
}

fn batches(
    gpu: &[Arc<dyn Backend>],
    invariant: &[Arc<dyn Backend>],
    cpu: &[Arc<dyn Backend>],
    report: &mut Report,
) {
    use DType::{BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    let (k, n) = (2816, 200);
    for dtype in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16, F32] {
        let alone = run(&linear(dtype, 1, k, n), gpu, 1).0.remove(0);
        for m in [2, 8, 9, 33, 64, 65, 200, 300, 513] {
            let call = linear(dtype, m, k, n);
            let got = run(&call, gpu, 1).0.remove(0);
            let name = format!("linear {dtype} {m}x{k}x{n}");
            let want = run(&call, cpu, 1).0.remove(0);
            let bad = badness(&floats(&want), &floats(&got), 1e-4, 2e-2);
            report.check(&name, bad <= 1.0, || format!("{bad} times what is allowed"));
            let same = alone[..] == got[..alone.len()];
            report.check(&name, same || m > 8, || "a row alone has other bits".into());
            let fixed = run(&call, invariant, 1).0.remove(0);
            let fixed = alone[..] == fixed[..alone.len()];
            report.check(&name, fixed, || "batch-invariant, a row alone has other bits".into());
            println!(
                "{name:28} worst {bad:.3}, row alone {}",
                if same { "same" } else { "differs" }
            );
        }
    }
}

struct Layer {
    heads: usize,
    groups: usize,
    width: usize,
    pool: DType,
    window: usize,
    /// Position and sequence of each token.
    tokens: Vec<(i64, i64)>,
    /// Blocks of a sequence.
    blocks: usize,
}

/// A decoder layer as models say it.
fn layer(how: &Layer) -> Call {
    let Layer { heads, groups, width, pool, window, ref tokens, blocks } = *how;
    let (hidden, inner, sequences) = (512, 768, 3);
    let mut random = Random(11);
    let mut leaves = BTreeMap::new();
    let mut b = Builder::new();
    let ints = |list: Vec<i64>| Fill::Ints(list);
    let t = tokens.len();
    let slots = sequences * blocks * 32;
    let table = |s: usize, i: usize| ((i * sequences + s) % (sequences * blocks)) as i64;
    let slot = |&(p, s): &(i64, i64)| table(s as usize, p as usize / 32) * 32 + p % 32;
    let normal = |d: f32| Fill::Normal(d);
    let mut leaf = |b: &mut Builder, name: &str, dtype, shape: &[usize], fill: Fill, kind: u8| {
        let tensor = random.tensor(dtype, shape, &fill);
        let fact = Fact::of(&tensor);
        if kind == 1 {
            return b.weight(name, tensor);
        }
        leaves.insert(name.to_owned(), tensor);
        if kind == 0 { b.input(name, fact) } else { b.state(name, fact) }
    };
    let x = leaf(&mut b, "x", DType::F32, &[t, hidden], normal(1.0), 0);
    let positions = ints(tokens.iter().map(|t| t.0).collect());
    let positions = leaf(&mut b, "positions", DType::I32, &[t], positions, 0);
    let rows = ints(tokens.iter().map(|t| t.1).collect());
    let rows = leaf(&mut b, "rows", DType::I32, &[t], rows, 0);
    let slot_list = ints(tokens.iter().map(slot).collect());
    let slot_list = leaf(&mut b, "slots", DType::I32, &[t], slot_list, 0);
    let all = (0..sequences).flat_map(|s| (0..blocks).map(move |i| table(s, i))).collect();
    let tables = leaf(&mut b, "tables", DType::I32, &[sequences, blocks], ints(all), 0);
    let keys = leaf(&mut b, "k", pool, &[slots, groups, width], normal(1.0), 2);
    let values = leaf(&mut b, "v", pool, &[slots, groups, width], normal(1.0), 2);
    let mut weight = |b: &mut Builder, name: &str, dtype, shape: &[usize]| {
        leaf(b, name, dtype, shape, normal(0.1), 1)
    };
    let norm1 = weight(&mut b, "norm1", DType::F32, &[hidden]);
    let norm2 = weight(&mut b, "norm2", DType::F32, &[hidden]);
    let wq = weight(&mut b, "wq", DType::Q4_K, &[heads * width, hidden]);
    let wk = weight(&mut b, "wk", DType::Q4_K, &[groups * width, hidden]);
    let wv = weight(&mut b, "wv", DType::Q6_K, &[groups * width, hidden]);
    let wo = weight(&mut b, "wo", DType::Q8_0, &[hidden, heads * width]);
    // A float gate in layers with float pools.
    let gates = if pool == DType::BF16 || pool == DType::F32 { pool } else { DType::Q4_K };
    let gate = weight(&mut b, "gate", gates, &[inner, hidden]);
    let up = weight(&mut b, "up", gates, &[inner, hidden]);
    let down = weight(&mut b, "down", DType::Q6_K, &[hidden, inner]);
    let turned = width / 2;
    let frequencies: Vec<f32> =
        (0..turned).map(|i| 10000f32.powf(-(i as f32) / turned as f32)).collect();
    let frequencies = b.constant(Tensor::from_f32(vec![turned], &frequencies).unwrap());

    let eps = || Attrs::new().with("eps", 1e-5);
    let jet = |b: &mut Builder, j: &'static Jet, attrs: Attrs, inputs: &[ValueId]| {
        b.jet(j, attrs, inputs).unwrap()
    };
    let none = Attrs::new;
    let h = jet(&mut b, &cyb_jets::RMSNORM, eps(), &[x, norm1]);
    let project = |b: &mut Builder, w, n: usize| {
        let y = b.jet(&cyb_jets::LINEAR, none(), &[h, w]).unwrap();
        b.reshape(y, [t.into(), n.into(), width.into()]).unwrap()
    };
    let (q, k, v) =
        (project(&mut b, wq, heads), project(&mut b, wk, groups), project(&mut b, wv, groups));
    let rope = Attrs::new().with("style", "half").with("scale", 1.0);
    let q = jet(&mut b, &cyb_jets::ROPE, rope.clone(), &[q, positions, frequencies]);
    let k = jet(&mut b, &cyb_jets::ROPE, rope, &[k, positions, frequencies]);
    let new_keys = jet(&mut b, &cyb_jets::KV_CACHE, none(), &[keys, slot_list, k]);
    b.update(keys, new_keys);
    let new_values = jet(&mut b, &cyb_jets::KV_CACHE, none(), &[values, slot_list, v]);
    b.update(values, new_values);
    let attrs = Attrs::new()
        .with("scale", 1.0 / (width as f64).sqrt())
        .with("window", window)
        .with("softcap", 0.0)
        .with("block", 32usize);
    let given = [q, new_keys, new_values, tables, rows, positions];
    let a = jet(&mut b, &cyb_jets::SDPA_PAGED, attrs, &given);
    let a = b.reshape(a, [t.into(), Dim::from(heads * width)]).unwrap();
    let o = jet(&mut b, &cyb_jets::LINEAR, none(), &[a, wo]);
    let x = jet(&mut b, &cyb_jets::ADD, none(), &[x, o]);
    let h = jet(&mut b, &cyb_jets::RMSNORM, eps(), &[x, norm2]);
    let g = jet(&mut b, &cyb_jets::LINEAR, none(), &[h, gate]);
    let u = jet(&mut b, &cyb_jets::LINEAR, none(), &[h, up]);
    let s = jet(&mut b, &cyb_jets::SWIGLU, none(), &[g, u]);
    let d = jet(&mut b, &cyb_jets::LINEAR, none(), &[s, down]);
    let y = jet(&mut b, &cyb_jets::ADD, none(), &[x, d]);
    let last = leaf(&mut b, "last", DType::I32, &[2], ints(vec![t as i64 - 1, 0]), 0);
    let rows = b.gather(y, 0, last).unwrap();
    b.output("y", y);
    b.output("a", a);
    b.output("rows", rows);
    Call { graph: b.finish(), leaves }
}

fn layers(gpu: &[Arc<dyn Backend>], cpu: &[Arc<dyn Backend>], report: &mut Report) {
    let decode = || vec![(700, 0), (3, 1), (255, 2)];
    let lone = |p: i64| vec![(p, 1)];
    let prefill = || (200..270).map(|p| (p, 1)).chain([(511, 0)]).collect::<Vec<_>>();
    let long = || (0..300).map(|p| (p + 17, 2)).collect::<Vec<_>>();
    let prompt = || (0..600).map(|p| (p + 17, 2)).collect::<Vec<_>>();
    for (heads, groups, width, pool, window) in [
        (8, 2, 64, DType::F16, 0),
        (4, 4, 128, DType::F16, 100),
        (6, 1, 96, DType::BF16, 0),
        (14, 2, 64, DType::Q8_0, 0),
        (16, 2, 128, DType::F32, 0),
        (4, 2, 256, DType::F16, 0),
        (8, 4, 80, DType::F16, 300),
    ] {
        for (name, tokens) in [
            ("decode", decode()),
            ("first token", lone(0)),
            ("one token", lone(255)),
            ("one token, split", lone(700)),
            ("mixed", prefill()),
            ("prefill", long()),
            ("prompt", prompt()),
        ] {
            let how = Layer { heads, groups, width, pool, window, tokens, blocks: 24 };
            let call = layer(&how);
            let (want, _) = run(&call, cpu, 1);
            let (got, steps) = run(&call, gpu, 1);
            let (again, _) = run(&call, gpu, 3);
            let name = format!("layer {heads}/{groups}x{width} {pool} window {window} {name}");
            report.check(&name, got == again, || "two runs differ".into());
            report.check(&name, steps.iter().all(|s| s.starts_with("cuda")), || steps.join(" "));
            let mut worst = 0f32;
            let outputs = call.graph.outputs.len();
            for (w, g) in want.iter().zip(&got).take(outputs) {
                worst = worst.max(badness(&floats(w), &floats(g), 1e-3, 2e-2));
            }
            for (w, g) in want.iter().zip(&got).skip(outputs) {
                let floats = |bytes: &[u8]| pool_floats(pool, bytes);
                worst = worst.max(badness(&floats(w), &floats(g), 1e-3, 2e-2));
            }
            report.check(&name, worst <= 1.0, || format!("{worst} times what is allowed"));
            println!("{name:54} {} steps, worst {worst:.3}", steps.len());
        }
    }
}

/// The time of products of an 8B model's shapes, with `SOMA_CUDA_TIMES=1`.
fn speed(gpu: &[Arc<dyn Backend>]) {
    for (dtype, n, k) in [
        (DType::Q4_K, 6144, 4096),
        (DType::Q4_K, 4096, 4096),
        (DType::Q4_K, 28672, 4096),
        (DType::Q4_K, 4096, 14336),
        (DType::Q8_0, 28672, 4096),
        (DType::BF16, 28672, 4096),
        (DType::Q6_K, 128_256, 4096),
    ] {
        let mut random = Random(5);
        let block = random.tensor(dtype, &[64, dtype.layout().block.max(256)], &Fill::Normal(0.1));
        let size = dtype.bytes_for(n * k).unwrap();
        let bytes: Vec<u8> = block.bytes().as_slice().iter().copied().cycle().take(size).collect();
        let bytes = Bytes::owned(AlignedBytes::from_slice(&bytes));
        let w = Tensor::new(dtype, vec![n, k], bytes).unwrap();
        let mut b = Builder::new();
        let x = b.input("x", Fact::new(DType::F32, [Dim::symbol("T"), k.into()]));
        let w = b.weight("w", w);
        let y = b.jet(&cyb_jets::LINEAR, Attrs::new(), &[x, w]).unwrap();
        b.output("y", y);
        let executor = Executor::prepare(b.finish(), gpu, PrepareOptions::default());
        let executor = Arc::new(executor.unwrap());
        let rows: &[usize] =
            if n > 100_000 { &[1, 8] } else { &[1, 8, 32, 128, 256, 512, 2048, 4096] };
        for &m in rows {
            let mut running = executor.start(&[m]).unwrap();
            running.bind(&[m]).unwrap();
            running.input(0, &mut |bytes| {
                let values = bytes.chunks_exact_mut(4);
                values.for_each(|b| b.copy_from_slice(&random.normal().to_le_bytes()));
            });
            (0..3).for_each(|_| running.run().unwrap());
            running.reset_times();
            (0..10).for_each(|_| running.run().unwrap());
            let (_, time) = running.times()[0];
            let seconds = time.nanos as f64 / 1e9 / time.calls as f64;
            println!(
                "{dtype} {m} x {k} x {n}: {:.1} us, {:.0} GB/s of weights, {:.1} TFLOP/s",
                seconds * 1e6,
                size as f64 / seconds / 1e9,
                2.0 * (m * n * k) as f64 / seconds / 1e12
            );
        }
    }
}

fn main() -> ExitCode {
    let cuda = match CudaBackend::open(false) {
        Ok(cuda) => cuda,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", cuda.device());
    let invariant: Arc<dyn Backend> = Arc::new(CudaBackend::open(true).unwrap());
    let cuda: Arc<dyn Backend> = Arc::new(cuda);
    let cpu: Arc<dyn Backend> = Arc::new(CpuBackend::new(Arc::new(Team::new(8).unwrap())));
    let invariant = [invariant, cpu.clone()];
    let (both, cpu) = ([cuda, cpu.clone()], [cpu]);
    if std::env::args().nth(1).is_some_and(|word| word == "speed") {
        speed(&both);
        return ExitCode::SUCCESS;
    }
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut report = Report::default();
    jets(&both, seed, &mut report);
    batches(&both, &invariant, &cpu, &mut report);
    layers(&both, &cpu, &mut report);
    let fresh = PlanMode::WriteNewOnly;
    let options = PrepareOptions { mode: fresh, ..PrepareOptions::default() };
    let call = linear(DType::Q4_K, 3, 256, 32);
    report.check(
        "fresh buffers",
        Executor::prepare(call.graph, &both, options).is_ok(),
        String::new,
    );
    println!("{} checks, {} failures", report.checks, report.failures);
    if report.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
