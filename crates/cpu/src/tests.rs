//! The conformance suite on this backend, and what a session promises.

use std::sync::Arc;

use cyb_exec::{Backend, Executor, PlanMode, PrepareOptions};
use cyb_ir::{Case, Fill, Jet, Op, Tolerance};
use cyb_jets::JETS;
use cyb_simd::AnyIsa;
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Tensor};

use crate::team::Team;
use crate::{Compute, CpuBackend};

fn team(count: usize) -> Arc<Team> {
    Arc::new(Team::new(count).unwrap())
}

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
}

fn filled(dtype: DType, shape: &[usize], fill: &Fill, random: &mut Random) -> Tensor {
    let n: usize = shape.iter().product();
    let floats: Vec<f32> = match fill {
        Fill::Normal(scale) => (0..n).map(|_| random.normal() * scale).collect(),
        Fill::Below(below) => (0..n).map(|_| (random.next() % u64::from(*below)) as f32).collect(),
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
            let blocks = n / layout.block;
            let mut decoded = vec![0f32; layout.block];
            while bytes.len() < blocks * layout.bytes {
                let block: Vec<u8> = (0..layout.bytes).map(|_| random.next() as u8).collect();
                let fits = cyb_tensor::quant::decode(dtype, &block, &mut decoded).is_ok();
                if fits && decoded.iter().all(|v| v.is_finite() && v.abs() < 64.0) {
                    bytes.extend(block);
                }
            }
        }
    }
    Tensor::new(dtype, shape.to_vec(), Bytes::owned(AlignedBytes::from_slice(&bytes))).unwrap()
}

fn inputs(case: &Case) -> Vec<Tensor> {
    let mut random = Random(case.name.bytes().map(u64::from).sum());
    case.inputs
        .iter()
        .map(|(fact, fill)| {
            let shape: Vec<usize> = fact.shape.iter().map(|d| d.known().unwrap()).collect();
            filled(fact.dtype, &shape, fill, &mut random)
        })
        .collect()
}

fn run_case(backend: Arc<dyn Backend>, jet: &'static Jet, case: &Case) -> Vec<Vec<u8>> {
    run_jet(backend, jet, &case.attrs, &inputs(case))
        .iter()
        .map(|output| output.bytes().as_slice().to_vec())
        .collect()
}

/// Runs a call on a backend; inputs of the jet that models keep as weights are weights.
fn run_jet(
    backend: Arc<dyn Backend>,
    jet: &'static Jet,
    attrs: &cyb_ir::Attrs,
    tensors: &[Tensor],
) -> Vec<Tensor> {
    let mut b = cyb_ir::Builder::new();
    let weights: &[usize] = match jet.name {
        "linear" | "linear_activation" => &[1, 2],
        "linear_add" => &[1],
        "linear_many" => &[1, 2, 3, 4],
        "gated_linear" => &[2],
        "embedding" => &[0],
        "lstm" => &[3, 4],
        "gru" | "rnn" => &[2, 3],
        "conv" | "conv_activation" | "conv_add" | "conv_transpose" => &[1],
        "matmul_integer" | "conv_integer" => &[1, 3],
        "conv_quantized" => &[1, 3, 4, 5, 6, 7, 8, 9],
        _ => &[],
    };
    let ids: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| {
            if weights.contains(&i) {
                b.weight(&i.to_string(), t.clone())
            } else if jet.in_place.iter().any(|(input, _)| *input == i) {
                b.state(&i.to_string(), cyb_ir::Fact::of(t))
            } else {
                b.input(&i.to_string(), cyb_ir::Fact::of(t))
            }
        })
        .collect();
    let outputs = b.jet_outputs(jet, attrs.clone(), &ids).unwrap();
    let facts: Vec<_> = outputs.iter().map(|&v| b.fact(v).clone()).collect();
    for (i, &v) in outputs.iter().enumerate() {
        b.output(&i.to_string(), v);
    }
    let executor = Executor::prepare(b.finish(), &[backend], PrepareOptions::default()).unwrap();
    let executor = Arc::new(executor);
    let mut running = executor.start(&[]).unwrap();
    for (i, name) in executor.inputs().map(|(n, _)| n.to_owned()).enumerate() {
        let tensor = &tensors[name.parse::<usize>().unwrap()];
        running.input(i, &mut |bytes| bytes.copy_from_slice(tensor.bytes().as_slice()));
    }
    for (i, name) in executor.states().map(str::to_owned).enumerate() {
        let tensor = &tensors[name.parse::<usize>().unwrap()];
        running.set_state(i, tensor.bytes().as_slice()).unwrap();
    }
    running.run().unwrap();
    let tensor = |(i, fact): (usize, &cyb_ir::Fact)| {
        let shape = fact.shape.iter().map(|d| d.known().unwrap()).collect();
        let bytes = AlignedBytes::from_slice(running.output(i).unwrap());
        Tensor::new(fact.dtype, shape, Bytes::owned(bytes)).unwrap()
    };
    facts.iter().enumerate().map(tensor).collect()
}

fn compare(jet: &Jet, tolerance: Tolerance, case: &str, want: &Tensor, got: &[u8]) {
    if want.dtype() != DType::F32 {
        assert_eq!(want.bytes().as_slice(), got, "{} {case}", jet.name);
        return;
    }
    let want = want.to_f32_vec().unwrap();
    let got: Vec<f32> =
        got.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(want.len(), got.len());
    let largest = want.iter().filter(|v| v.is_finite()).fold(0f32, |m, v| m.max(v.abs()));
    let allowed = tolerance.absolute + tolerance.relative * largest;
    for (i, (w, g)) in want.iter().zip(&got).enumerate() {
        let same = w == g || (w.is_nan() && g.is_nan()) || (w - g).abs() <= allowed;
        assert!(same, "{} {case}: element {i} is {g}, the definition gives {w}", jet.name);
    }
}

#[test]
fn every_kernel_computes_its_definition_on_every_instruction_set() {
    for &isa in AnyIsa::detect() {
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::with_isa(team(2), isa));
        for jet in JETS {
            for case in (jet.cases)() {
                let want = cyb_interp::evaluate_node(
                    &Op::Jet(jet, case.attrs.clone()),
                    &inputs(&case),
                    &Bindings::new(),
                );
                let got = run_case(backend.clone(), jet, &case);
                let name = format!("{} on {}", case.name, isa.kind());
                let dtypes = case.inputs.iter().map(|(fact, _)| fact.dtype);
                let tolerance = jet.tolerance_of(dtypes);
                for (w, g) in want.unwrap().iter().zip(&got) {
                    compare(jet, tolerance, &name, w, g);
                }
            }
        }
    }
}

#[test]
fn every_kernel_computes_what_pytorch_computes() {
    for &isa in AnyIsa::detect() {
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::with_isa(team(2), isa));
        for case in cyb_testkit::golden_jets() {
            let got = run_jet(backend.clone(), case.jet, &case.attrs, &case.inputs);
            assert_eq!(case.check(&got), Ok(()), "on {}", isa.kind());
        }
    }
}

#[test]
fn threads_and_instruction_sets_give_the_same_bits() {
    let reference: Arc<dyn Backend> = Arc::new(CpuBackend::with_isa(team(1), AnyIsa::best()));
    for jet in JETS {
        for case in (jet.cases)() {
            let want = run_case(reference.clone(), jet, &case);
            for &isa in AnyIsa::detect() {
                for threads in [1, 3] {
                    let other = Arc::new(CpuBackend::with_isa(team(threads), isa));
                    let got = run_case(other, jet, &case);
                    let how = format!("{threads} threads, {}", isa.kind());
                    assert_eq!(want, got, "{} {} with {how}", jet.name, case.name);
                }
            }
        }
    }
}

/// In bfloat16 or half precision a product is near the one in `f32` (each side is off by up to 2^-9 or
/// 2^-11 of itself), and the same bits on every instruction set with any number of threads.
#[test]
fn linear_kernels_in_sixteen_bits() {
    for (compute, tolerance) in [(Compute::Bf16, 8e-3), (Compute::F16, 2e-3)] {
        linear_kernels_in(compute, tolerance);
    }
}

fn linear_kernels_in(compute: Compute, tolerance: f64) {
    for name in ["linear", "linear_activation", "linear_add", "linear_many", "gated_linear"] {
        let jet = JETS.iter().find(|jet| jet.name == name).unwrap();
        for case in (jet.cases)() {
            let as_floats = |t: Tensor| {
                if !t.dtype().is_quantized() {
                    return t;
                }
                let mut values = vec![0.0; t.elems()];
                cyb_tensor::quant::decode(t.dtype(), t.bytes().as_slice(), &mut values).unwrap();
                Tensor::from_f32(t.shape().to_vec(), &values).unwrap()
            };
            let tensors: Vec<Tensor> = inputs(&case).into_iter().map(as_floats).collect();
            let run = |threads: usize, isa: AnyIsa| {
                let backend = CpuBackend::with_isa(team(threads), isa).computing(compute);
                let outputs = run_jet(Arc::new(backend), jet, &case.attrs, &tensors);
                outputs.iter().map(|o| o.bytes().as_slice().to_vec()).collect::<Vec<Vec<u8>>>()
            };
            let got = run(2, AnyIsa::best());
            let op = Op::Jet(jet, case.attrs.clone());
            let want = cyb_interp::evaluate_node(&op, &tensors, &Bindings::new()).unwrap();
            for (want, got) in want.iter().zip(&got) {
                let want = want.to_f32_vec().unwrap();
                let got = got.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let sum =
                    |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
                let off = sum(&mut got.zip(&want).map(|(a, b)| f64::from(a) - f64::from(*b)));
                let all = sum(&mut want.iter().map(|v| f64::from(*v)));
                let most = tolerance * all.sqrt() + 1e-30;
                assert!(off.sqrt() <= most, "{name} {} {compute:?}: {off}", case.name);
            }
            for &isa in AnyIsa::detect() {
                for threads in [1, 3] {
                    assert_eq!(run(threads, isa), got, "{name} {} {}", case.name, isa.kind());
                }
            }
        }
    }
}

#[test]
fn without_kernels_calls_run_as_atoms() {
    let backend = Arc::new(CpuBackend::atoms(team(2)));
    for jet in JETS {
        let case = (jet.cases)().remove(0);
        let want = cyb_interp::evaluate_node(
            &Op::Jet(jet, case.attrs.clone()),
            &inputs(&case),
            &Bindings::new(),
        );
        let got = run_case(backend.clone(), jet, &case);
        for (w, g) in want.unwrap().iter().zip(&got) {
            assert_eq!(w.bytes().as_slice(), &g[..], "{}", jet.name);
        }
    }
}

#[test]
fn reused_and_fresh_buffers_give_the_same_bits() {
    let run = |mode: PlanMode| {
        let mut b = cyb_ir::Builder::new();
        let rows = cyb_tensor::Dim::symbol("S");
        let x = b.input("x", cyb_ir::Fact::new(DType::F32, [rows, 64.into()]));
        let mut y = x;
        for _ in 0..5 {
            let attrs = cyb_ir::Attrs::new().with("eps", 1e-5);
            let n = b.jet(&cyb_jets::RMSNORM, attrs, &[y]).unwrap();
            let s = b.jet(&cyb_jets::SILU, cyb_ir::Attrs::new(), &[n]).unwrap();
            y = b.jet(&cyb_jets::ADD, cyb_ir::Attrs::new(), &[y, s]).unwrap();
        }
        b.output("y", y);
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(team(2)));
        let options = PrepareOptions { mode, ..PrepareOptions::default() };
        let executor = Arc::new(Executor::prepare(b.finish(), &[backend], options).unwrap());
        let mut running = executor.start(&[9]).unwrap();
        running.bind(&[7]).unwrap();
        let mut random = Random(1);
        running.input(0, &mut |bytes| {
            bytes
                .chunks_exact_mut(4)
                .for_each(|b| b.copy_from_slice(&random.normal().to_le_bytes()));
        });
        running.run().unwrap();
        assert!(running.bind(&[10]).unwrap_err().to_string().contains("at most 9"));
        (running.output(0).unwrap().to_vec(), running.memory().arena)
    };
    let (reused, small) = run(PlanMode::Reuse);
    let (fresh, large) = run(PlanMode::WriteNewOnly);
    assert_eq!(reused, fresh);
    assert!(small < large);
}

/// A convolution and `x * sigmoid(x)` become one step that gives what two give.
#[test]
fn a_convolution_takes_its_activation() {
    let run = |kernels: bool| {
        let mut b = cyb_ir::Builder::new();
        let x = b.input("x", cyb_ir::Fact::new(DType::F32, [1, 4, 9, 7].map(Into::into)));
        let w = filled(DType::F32, &[6, 4, 3, 3], &Fill::Normal(0.5), &mut Random(2));
        let w = b.weight("w", w);
        let attrs = cyb_ir::Attrs::new()
            .with("strides", vec![1, 1])
            .with("pads", vec![1, 1, 1, 1])
            .with("dilations", vec![1, 1])
            .with("groups", 1usize);
        let y = b.jet(&cyb_jets::CONV, attrs, &[x, w]).unwrap();
        let s = b.jet(&cyb_jets::SIGMOID, cyb_ir::Attrs::new(), &[y]).unwrap();
        let y = b.jet(&cyb_jets::MUL, cyb_ir::Attrs::new(), &[y, s]).unwrap();
        b.output("y", y);
        let backend: Arc<dyn Backend> = match kernels {
            true => Arc::new(CpuBackend::new(team(2))),
            false => Arc::new(CpuBackend::atoms(team(2))),
        };
        let options = PrepareOptions { foreign: true, ..PrepareOptions::default() };
        let executor = Arc::new(Executor::prepare(b.finish(), &[backend], options).unwrap());
        let mut running = executor.start(&[]).unwrap();
        let input = filled(DType::F32, &[1, 4, 9, 7], &Fill::Normal(1.0), &mut Random(3));
        running.input(0, &mut |bytes| bytes.copy_from_slice(input.bytes().as_slice()));
        running.run().unwrap();
        let steps: Vec<&str> = executor.steps().iter().map(|s| s.op).collect();
        (steps, running.output(0).unwrap().to_vec())
    };
    let (steps, got) = run(true);
    assert_eq!(steps, ["conv_activation"]);
    let want = Tensor::new(
        DType::F32,
        vec![1, 6, 9, 7],
        Bytes::owned(AlignedBytes::from_slice(&run(false).1)),
    );
    compare(
        &cyb_jets::CONV_ACTIVATION,
        cyb_jets::CONV_ACTIVATION.tolerance,
        "fused",
        &want.unwrap(),
        &got,
    );
}

/// What a batch normalization does to a convolution goes into its weight and bias.
#[test]
fn a_convolution_takes_constants_of_its_channels() {
    let mut b = cyb_ir::Builder::new();
    let x = b.input("x", cyb_ir::Fact::new(DType::F32, [1, 4, 9, 7].map(Into::into)));
    let mut random = Random(5);
    let mut tensor = |shape: &[usize]| filled(DType::F32, shape, &Fill::Normal(0.5), &mut random);
    let (w, bias) = (b.weight("w", tensor(&[6, 4, 3, 3])), b.weight("b", tensor(&[6])));
    let attrs = cyb_ir::Attrs::new()
        .with("strides", vec![1, 2])
        .with("pads", vec![1, 0, 0, 1])
        .with("dilations", vec![1, 1])
        .with("groups", 1usize);
    let mut y = b.jet(&cyb_jets::CONV, attrs, &[x, w, bias]).unwrap();
    let constants = [[1, 6, 1, 1].as_slice(), &[6, 1, 1], &[1], &[6, 1, 1]];
    let constants = constants.map(|shape| b.constant(tensor(shape)));
    for (jet, c) in [&cyb_jets::SUB, &cyb_jets::MUL, &cyb_jets::MUL].into_iter().zip(constants) {
        y = b.jet(jet, cyb_ir::Attrs::new(), &[y, c]).unwrap();
    }
    y = b.jet(&cyb_jets::ADD, cyb_ir::Attrs::new(), &[constants[3], y]).unwrap();
    y = b.jet(&cyb_jets::RELU, cyb_ir::Attrs::new(), &[y]).unwrap();
    b.output("y", y);
    let graph = b.finish();
    let input = filled(DType::F32, &[1, 4, 9, 7], &Fill::Normal(1.0), &mut Random(3));
    let want = cyb_interp::Prepared::new(&graph)
        .unwrap()
        .run(&Bindings::new(), &[("x".to_owned(), input.clone())].into(), &mut [].into())
        .unwrap();

    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(team(2)));
    let executor = Executor::prepare(graph, &[backend], PrepareOptions::default()).unwrap();
    let executor = Arc::new(executor);
    let steps: Vec<&str> = executor.steps().iter().map(|s| s.op).collect();
    assert_eq!(steps, ["conv_activation"]);
    let mut running = executor.start(&[]).unwrap();
    running.input(0, &mut |bytes| bytes.copy_from_slice(input.bytes().as_slice()));
    running.run().unwrap();
    let jet = &cyb_jets::CONV_ACTIVATION;
    compare(jet, jet.tolerance, "constants", &want["y"], running.output(0).unwrap());
}

/// Blocks of residuals whose sums are added up: every sum is part of a convolution, and lies where
/// the one before it did.
#[test]
fn residual_blocks_are_convolutions_alone() {
    for shape in [[1, 16, 9, 70].as_slice(), &[1, 16, 9000], &[2, 5, 33]] {
        let run = |mode: PlanMode| {
            let mut random = Random(11);
            let mut b = cyb_ir::Builder::new();
            let axes = shape.len() - 2;
            let channels = shape[1];
            let x = b.input("x", cyb_ir::Fact::new(DType::F32, shape.iter().map(|&n| n.into())));
            let mut conv = |b: &mut cyb_ir::Builder, x, kernel: usize| {
                let w = [vec![channels, channels], vec![kernel; axes]].concat();
                let w = filled(DType::F32, &w, &Fill::Normal(0.2), &mut random);
                let bias = filled(DType::F32, &[channels], &Fill::Normal(0.2), &mut random);
                let [w, bias] = [("w", w), ("b", bias)].map(|(name, t)| {
                    let name = format!("{name}{}", random.next());
                    b.weight(&name, t)
                });
                let attrs = cyb_ir::Attrs::new()
                    .with("strides", vec![1; axes])
                    .with("pads", vec![(kernel / 2) as i64; 2 * axes])
                    .with("dilations", vec![1; axes])
                    .with("groups", 1usize);
                let slope = cyb_ir::Attrs::new().with("slope", 0.1);
                let x = b.jet(&cyb_jets::LEAKY_RELU, slope, &[x]).unwrap();
                b.jet(&cyb_jets::CONV, attrs, &[x, w, bias]).unwrap()
            };
            let start = conv(&mut b, x, 1);
            let mut sum = None;
            for kernel in [3, 5, 7] {
                let mut y = start;
                for _ in 0..2 {
                    let more = conv(&mut b, y, kernel);
                    y = b.add(more, y).unwrap();
                }
                sum = Some(sum.map_or(y, |sum| b.add(sum, y).unwrap()));
            }
            b.output("y", sum.unwrap());
            let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(team(2)));
            let options = PrepareOptions { mode, ..PrepareOptions::default() };
            let executor = Arc::new(Executor::prepare(b.finish(), &[backend], options).unwrap());
            let mut running = executor.start(&[]).unwrap();
            let input = filled(DType::F32, shape, &Fill::Normal(1.0), &mut Random(3));
            running.input(0, &mut |bytes| bytes.copy_from_slice(input.bytes().as_slice()));
            running.run().unwrap();
            let steps: Vec<&str> = executor.steps().iter().map(|s| s.op).collect();
            (steps, running.output(0).unwrap().to_vec(), running.memory().arena)
        };
        let (steps, got, arena) = run(PlanMode::Reuse);
        assert!(steps.iter().all(|step| step.starts_with("conv")), "{steps:?}");
        // The start, a block's first sum, and the sum of blocks.
        let bytes = shape.iter().product::<usize>() * 4;
        assert!(arena <= 3 * bytes.next_multiple_of(128), "{arena} bytes for tensors of {bytes}");
        assert_eq!(got, run(PlanMode::WriteNewOnly).1);
    }
}

/// Gate and `up` become one step; the last product takes the activation and the residual.
#[test]
fn a_feed_forward_layer_is_two_steps() {
    let mut b = cyb_ir::Builder::new();
    let x = b.input("x", cyb_ir::Fact::new(DType::F32, [3, 64].map(Into::into)));
    let mut random = Random(7);
    let mut weight = |shape: &[usize]| filled(DType::F32, shape, &Fill::Normal(0.1), &mut random);
    let weights = [[96, 64], [96, 64], [64, 96]].map(|shape| weight(&shape));
    let [gate, up, down] = weights.map(|w| b.weight("w", w));
    let none = cyb_ir::Attrs::new;
    let gate = b.jet(&cyb_jets::LINEAR, none(), &[x, gate]).unwrap();
    let up = b.jet(&cyb_jets::LINEAR, none(), &[x, up]).unwrap();
    let y = b.jet(&cyb_jets::SWIGLU, none(), &[gate, up]).unwrap();
    let y = b.jet(&cyb_jets::LINEAR, none(), &[y, down]).unwrap();
    let y = b.jet(&cyb_jets::ADD, none(), &[x, y]).unwrap();
    b.output("y", y);
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(team(1)));
    let executor = Executor::prepare(b.finish(), &[backend], PrepareOptions::default()).unwrap();
    let steps: Vec<&str> = executor.steps().iter().map(|s| s.op).collect();
    assert_eq!(steps, ["linear_many", "gated_linear"]);
}
