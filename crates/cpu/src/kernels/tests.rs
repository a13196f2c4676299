//! Kernels of atoms, alone and as chains, against the interpreter.

use std::sync::Arc;

use cyb_exec::{Backend, Executor, PlanMode, PrepareOptions};
use cyb_ir::{Atom, Attrs, Builder, Cmp, Exp, Fact, Graph, Op, Read, Reduce, ValueId};
use cyb_simd::AnyIsa;
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Tensor};

use crate::CpuBackend;
use crate::team::Team;

/// Numbers from a counter.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % n
    }

    /// Mostly modest numbers, with some that are special.
    fn number(&mut self) -> f64 {
        match self.below(24) {
            0 => 0.0,
            1 => -0.0,
            2 => f64::NAN,
            3 => f64::INFINITY,
            4 => f64::NEG_INFINITY,
            5 => 1e30,
            6 => -300.7,
            _ => (self.below(2001) as f64 - 1000.0) / 128.0,
        }
    }
}

const PLAIN: [DType; 13] = [
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::I32,
    DType::U64,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

fn tensor(dtype: DType, shape: &[usize], random: &mut Random) -> Tensor {
    let n: usize = shape.iter().product();
    let mut bytes = Vec::new();
    for _ in 0..n {
        let x = random.number();
        match dtype {
            DType::F64 => bytes.extend(x.to_le_bytes()),
            DType::F32 => bytes.extend((x as f32).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(x).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f64(x).to_le_bytes()),
            DType::Bool => bytes.push(u8::from(x > 0.0)),
            _ => bytes.extend(&(x as i64).to_le_bytes()[..dtype.layout().bytes]),
        }
    }
    Tensor::new(dtype, shape.to_vec(), Bytes::owned(AlignedBytes::from_slice(&bytes))).unwrap()
}

/// Runs a graph on the kernels and by the definitions, and compares every output.
fn check(graph: Graph, inputs: &[(String, Tensor)], isa: AnyIsa, threads: usize, exact: bool) {
    let named = inputs.iter().cloned().collect();
    let want = cyb_interp::Prepared::new(&graph)
        .unwrap()
        .run(&Bindings::new(), &named, &mut [].into())
        .unwrap();
    let text = cyb_ir::print(&graph);
    let team = Arc::new(Team::new(threads).unwrap());
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::with_isa(team, isa));
    for mode in [PlanMode::Reuse, PlanMode::WriteNewOnly] {
        let options = PrepareOptions { mode, ..Default::default() };
        let executor = Arc::new(
            Executor::prepare(graph.clone(), std::slice::from_ref(&backend), options).unwrap(),
        );
        for step in executor.steps() {
            assert_ne!(step.kernel, "atoms", "{} has no kernel in\n{text}", step.op);
        }
        let mut running = executor.start(&[]).unwrap();
        let names: Vec<String> = executor.inputs().map(|(name, _)| name.to_owned()).collect();
        for (i, name) in names.iter().enumerate() {
            let from = inputs.iter().find(|(n, _)| n == name).unwrap().1.bytes().clone();
            running.input(i, &mut |bytes| bytes.copy_from_slice(from.as_slice()));
        }
        running.run().unwrap();
        let outputs: Vec<String> = executor.outputs().map(|(name, _)| name.to_owned()).collect();
        for (i, name) in outputs.iter().enumerate() {
            let want = &want[name];
            let got = running.output(i).unwrap();
            compare(want, got, exact, &format!("{name} of\n{text}on {}", isa.kind()));
        }
    }
}

fn compare(want: &Tensor, got: &[u8], exact: bool, what: &str) {
    let size = want.dtype().layout().bytes;
    let pairs = want.bytes().as_slice().chunks_exact(size).zip(got.chunks_exact(size));
    assert_eq!(want.bytes().len(), got.len());
    for (i, (w, g)) in pairs.enumerate() {
        let number = |b: &[u8]| match want.dtype() {
            DType::F64 => f64::from_le_bytes(b.try_into().unwrap()),
            DType::F32 => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
            DType::F16 => half::f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            DType::BF16 => half::bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            _ => 0.0,
        };
        let (x, y) = (number(w), number(g));
        let near = !exact && (x - y).abs() <= 4e-7 * x.abs().max(1.0);
        assert!(
            w == g || (x.is_nan() && y.is_nan()) || near,
            "element {i} is {y} {g:?}, not {x} {w:?}: {what}"
        );
    }
}

fn op(b: &mut Builder, atom: Atom, inputs: &[ValueId]) -> ValueId {
    b.push(Op::Atom(atom), inputs).unwrap()[0]
}

/// Shapes that broadcast to the first.
const SHAPES: [&[usize]; 7] =
    [&[3, 5, 131], &[131], &[5, 131], &[5, 1], &[3, 1, 131], &[], &[3, 5, 1]];

#[test]
fn chains_compute_what_their_atoms_do() {
    for (number, &isa) in AnyIsa::detect().iter().enumerate() {
        for seed in 0..40 {
            let mut random = Random(seed * 7 + number as u64);
            let mut b = Builder::new();
            let mut inputs = Vec::new();
            // Every value has the first shape or one that broadcasts to it.
            let mut values: Vec<ValueId> = Vec::new();
            for i in 0..6 {
                let dtype =
                    [DType::F32, DType::F32, DType::I64, DType::I32, DType::F64][random.below(5)];
                let t = tensor(dtype, SHAPES[random.below(SHAPES.len())], &mut random);
                values.push(b.input(&format!("x{i}"), Fact::of(&t)));
                inputs.push((format!("x{i}"), t));
            }
            for _ in 0..14 {
                let x = values[random.below(values.len())];
                let dtype = b.fact(x).dtype;
                let alike: Vec<ValueId> =
                    values.iter().copied().filter(|&v| b.fact(v).dtype == dtype).collect();
                let y = alike[random.below(alike.len())];
                let made = match random.below(8) {
                    0 => op(&mut b, Atom::Mul, &[x, y]),
                    1 => op(&mut b, Atom::Add, &[x, y]),
                    2 => op(&mut b, Atom::Cmp(Cmp::Max), &[x, y]),
                    3 => op(&mut b, Atom::Cmp(Cmp::Min), &[x, y]),
                    4 => {
                        let less = op(&mut b, Atom::Cmp(Cmp::Lt), &[x, y]);
                        op(&mut b, Atom::Cmp(Cmp::Select), &[less, y, x])
                    }
                    5 => op(&mut b, Atom::Cmp(Cmp::Eq), &[x, y]),
                    6 if matches!(dtype, DType::F32 | DType::F64) => {
                        let kinds = [Exp::Sqrt, Exp::Recip, Exp::Floor];
                        op(&mut b, Atom::Exp(kinds[random.below(3)]), &[x])
                    }
                    _ => {
                        // Narrow floats are cast only: sums of them have no kernel.
                        let to = [DType::F32, DType::I32, DType::I64, DType::U8, DType::Bool];
                        op(&mut b, Atom::Read(Read::Cast(to[random.below(5)])), &[x])
                    }
                };
                values.push(made);
            }
            for i in [values.len() - 1, values.len() - 3, values.len() - 6] {
                b.output(&format!("y{i}"), values[i]);
            }
            check(b.finish(), &inputs, isa, 1 + seed as usize % 3, true);
        }
    }
}

#[test]
fn casts_of_all_dtypes() {
    let mut random = Random(3);
    for from in PLAIN {
        for to in PLAIN {
            let wide = matches!(from, DType::I64 | DType::U64);
            if from == to || (wide && matches!(to, DType::F16 | DType::BF16)) {
                continue;
            }
            let mut b = Builder::new();
            let t = tensor(from, &[700], &mut random);
            let x = b.input("x", Fact::of(&t));
            let y = op(&mut b, Atom::Read(Read::Cast(to)), &[x]);
            b.output("y", y);
            check(b.finish(), &[("x".to_owned(), t)], AnyIsa::best(), 2, true);
        }
    }
}

#[test]
fn functions_are_within_their_tolerance() {
    for &isa in AnyIsa::detect() {
        for kind in [Exp::Exp, Exp::Ln, Exp::Sin, Exp::Cos, Exp::Erf, Exp::Rsqrt] {
            let mut floats: Vec<f32> = (0..3000).map(|i| (i as f32 - 1500.0) / 37.0).collect();
            floats.extend([0.0, f32::INFINITY, f32::NAN, 1e-40, 1e30, 5e4, -8191.5, 3.0e-6]);
            if kind == Exp::Exp {
                // Elsewhere results are as far off as their size asks.
                floats.iter_mut().for_each(|x| *x /= 40.0);
            }
            let t = Tensor::from_f32(vec![floats.len()], &floats).unwrap();
            let mut b = Builder::new();
            let x = b.input("x", Fact::of(&t));
            let y = op(&mut b, Atom::Exp(kind), &[x]);
            b.output("y", y);
            check(b.finish(), &[("x".to_owned(), t)], isa, 1, false);
        }
    }
}

#[test]
fn reductions_over_any_axes() {
    let mut random = Random(11);
    let kinds =
        [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min, Reduce::Argmax, Reduce::Argmin];
    for (number, axes) in
        [vec![0], vec![1], vec![2], vec![3], vec![1, 2], vec![0, 2], vec![0, 1, 2, 3], vec![2, 3]]
            .into_iter()
            .enumerate()
    {
        for kind in kinds {
            let position = matches!(kind, Reduce::Argmax | Reduce::Argmin);
            if position && axes.len() > 1 {
                continue;
            }
            for dtype in [DType::F32, DType::I64, DType::I32] {
                let t = tensor(dtype, &[3, 4, 7, 300], &mut random);
                let mut b = Builder::new();
                let x = b.input("x", Fact::of(&t));
                let y = op(&mut b, Atom::Reduce { kind, axes: axes.clone() }, &[x]);
                b.output("y", y);
                let all = AnyIsa::detect();
                // Sums keep their order where the compiler may not reorder them.
                check(b.finish(), &[("x".to_owned(), t)], all[number % all.len()], 2, true);
            }
        }
    }
    let mut b = Builder::new();
    let t = tensor(DType::F32, &[3, 0], &mut random);
    let x = b.input("x", Fact::of(&t));
    let y = op(&mut b, Atom::Reduce { kind: Reduce::Max, axes: vec![1] }, &[x]);
    b.output("y", y);
    check(b.finish(), &[("x".to_owned(), t)], AnyIsa::best(), 2, true);
}

#[test]
fn layout_moves_every_bit() {
    let mut random = Random(5);
    for dtype in [DType::F32, DType::I64, DType::U8, DType::F16] {
        let t = tensor(dtype, &[3, 5, 7, 9], &mut random);
        let index = Tensor::from_elems(DType::I64, vec![2, 3], &[4i64, 0, 2, 2, 1, 3]).unwrap();
        let mut b = Builder::new();
        let (x, i) = (b.input("x", Fact::of(&t)), b.input("i", Fact::of(&index)));
        let y = b.gather(x, 1, i).unwrap();
        b.output("gathered", y);
        let y = b.pad(x, 2, 2, 3, 1.0).unwrap();
        b.output("padded", y);
        let y = b.permute(x, &[2, 0, 3, 1]).unwrap();
        b.output("permuted", y);
        let y = b.strided(x, 3, 8, 3, -2).unwrap();
        b.output("strided", y);
        let y = b.broadcast(x, [2, 3, 5, 7, 9].map(Into::into)).unwrap();
        b.output("broadcast", y);
        let named = [("x".to_owned(), t), ("i".to_owned(), index)];
        check(b.finish(), &named, AnyIsa::best(), 2, true);
    }
}

#[test]
fn an_index_outside_is_an_error() {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [2, 4, 3].map(Into::into)));
    let i = b.input("i", Fact::new(DType::I64, [2].map(Into::into)));
    let y = b.gather(x, 1, i).unwrap();
    b.output("y", y);
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(Arc::new(Team::new(2).unwrap())));
    let executor = Executor::prepare(b.finish(), &[backend], PrepareOptions::default()).unwrap();
    let mut running = Arc::new(executor).start(&[]).unwrap();
    for wrong in [4i64, -1] {
        running.input(1, &mut |bytes| bytes[8..].copy_from_slice(&wrong.to_le_bytes()));
        let error = running.run().unwrap_err().to_string();
        assert!(error.contains(&wrong.to_string()), "{error}");
    }
    running.input(1, &mut |bytes| bytes.fill(0));
    running.run().unwrap();
}

/// Codes that are decoded and encoded alike go through as they are: the output is the input's copy.
#[test]
fn codes_that_stay_are_copied() {
    let mut builder = Builder::new();
    let x = builder.input("x", Fact::new(DType::I8, [3, 50].map(Into::into)));
    let mut c = Codes(&mut builder);
    let y = c.decode(x, 0.5, 3);
    let y = c.encode(y, 0.5, 3);
    builder.output("y", y);
    let graph = builder.finish();
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(Arc::new(Team::new(1).unwrap())));
    let (fused, _) = cyb_exec::optimize(graph.clone(), &[backend], false).unwrap();
    let ops: Vec<&str> = fused.nodes.iter().map(|node| node.op.name()).collect();
    assert_eq!(ops, ["read"]);
    let bytes: Vec<u8> = (0..150).map(|i| (i * 7 % 256) as u8).collect();
    let bytes = Bytes::owned(AlignedBytes::from_slice(&bytes));
    let t = Tensor::new(DType::I8, vec![3, 50], bytes).unwrap();
    check(graph, &[("x".to_owned(), t)], AnyIsa::best(), 2, true);
}

/// Codes of all values, and floats between them, as quantizers write it.
struct Codes<'b>(&'b mut Builder);

impl Codes<'_> {
    fn number(&mut self, value: f32) -> ValueId {
        self.0.scalar(DType::F32, f64::from(value)).unwrap()
    }

    fn encode(&mut self, x: ValueId, scale: f32, zero: i8) -> ValueId {
        let scale = self.number(scale);
        let zero = self.0.scalar(DType::I8, f64::from(zero)).unwrap();
        let attrs = Attrs::new().with("dtype", DType::I8);
        self.0.jet(&cyb_jets::AFFINE_QUANTIZE, attrs, &[x, scale, zero]).unwrap()
    }

    fn decode(&mut self, x: ValueId, scale: f32, zero: i8) -> ValueId {
        let x = self.0.cast(x, DType::F32).unwrap();
        let x = self.0.offset(x, -f64::from(zero)).unwrap();
        let scale = self.number(scale);
        self.0.mul(x, scale).unwrap()
    }

    /// Scaled sums of a convolution with a 3x3 kernel around each element.
    fn conv(&mut self, x: ValueId, zero: i8, channels: usize, random: &mut Random) -> ValueId {
        let inner = self.0.shape(x)[1].known().unwrap();
        let bytes: Vec<u8> = (0..channels * inner * 9).map(|_| random.below(256) as u8).collect();
        let bytes = Bytes::owned(AlignedBytes::from_slice(&bytes));
        let w = Tensor::new(DType::I8, vec![channels, inner, 3, 3], bytes).unwrap();
        let w = self.0.weight("w", w);
        let zero = self.0.scalar(DType::I8, f64::from(zero)).unwrap();
        let no_zero = self.0.scalar(DType::I8, 0.0).unwrap();
        let attrs = Attrs::new()
            .with("strides", vec![1, 1])
            .with("pads", vec![1, 1, 1, 1])
            .with("dilations", vec![1, 1])
            .with("groups", 1usize);
        let inputs = [x, w, zero, no_zero];
        let sums = self.0.jet(&cyb_jets::CONV_INTEGER, attrs, &inputs).unwrap();
        let y = self.0.cast(sums, DType::F32).unwrap();
        let factors: Vec<f32> = (0..channels).map(|i| 1e-4 * (i + 3) as f32).collect();
        let factors = Tensor::from_f32(vec![channels, 1, 1], &factors).unwrap();
        let factors = self.0.constant(factors);
        self.0.mul(y, factors).unwrap()
    }
}

#[test]
fn between_codes_nothing_is_decoded() {
    let mut random = Random(29);
    let mut builder = Builder::new();
    let t = tensor(DType::I8, &[1, 6, 9, 13], &mut random);
    let x = builder.input("x", Fact::of(&t));
    let mut c = Codes(&mut builder);
    // SiLU with an encoding of each of its parts.
    let y = c.conv(x, 4, 10, &mut random);
    let y = c.encode(y, 0.05, -3);
    let y = c.decode(y, 0.05, -3);
    let s = c.0.jet(&cyb_jets::SIGMOID, Attrs::new(), &[y]).unwrap();
    let s = c.encode(s, 1.0 / 255.0, -128);
    let s = c.decode(s, 1.0 / 255.0, -128);
    // An operand without the leading axis lines up with one that has it.
    let s = c.0.reshape(s, [10, 9, 13].map(Into::into)).unwrap();
    let y = c.0.mul(y, s).unwrap();
    let silu = c.encode(y, 0.03, -100);
    // Limits after a convolution, with a bias.
    let y = c.conv(silu, -100, 7, &mut random);
    let bias = Tensor::from_f32(vec![7, 1, 1], &[0.1, -0.2, 0.3, 2.0, 0.0, -1.0, 0.5]).unwrap();
    let bias = c.0.constant(bias);
    let y = c.0.add(y, bias).unwrap();
    let low = c.number(0.0);
    let y = c.0.max(y, low).unwrap();
    let high = c.number(1.7);
    let y = c.0.min(y, high).unwrap();
    let limited = c.encode(y, 0.02, -70);
    // Halves of one and all of the other, moved and encoded anew.
    let a = c.decode(silu, 0.03, -100);
    let a = c.0.slice(a, 1, 0, 5).unwrap();
    let b = c.decode(limited, 0.02, -70);
    let y = c.0.concat(&[a, b], 1).unwrap();
    let y = c.0.pad(y, 3, 2, 1, -0.7).unwrap();
    let pool = Attrs::new()
        .with("kernel", vec![3, 3])
        .with("strides", vec![2, 2])
        .with("pads", vec![1, 1, 1, 1])
        .with("dilations", vec![1, 1]);
    let y = c.0.jet(&cyb_jets::MAX_POOL, pool, &[y]).unwrap();
    let resize = Attrs::new()
        .with("mode", "nearest")
        .with("coordinates", "asymmetric")
        .with("rounding", "floor")
        .with("cubic", -0.75)
        .with("axes", vec![2, 3])
        .with("sizes", vec![10, 16]);
    let y = c.0.jet(&cyb_jets::RESIZE, resize, &[y]).unwrap();
    let moved = c.encode(y, 0.04, 11);
    builder.output("moved", moved);
    builder.output("limited", limited);
    let graph = builder.finish();

    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(Arc::new(Team::new(1).unwrap())));
    let (fused, _) = cyb_exec::optimize(graph.clone(), &[backend], false).unwrap();
    let ops: Vec<&str> = fused.nodes.iter().map(|node| node.op.name()).collect();
    assert!(!ops.contains(&"affine_quantize"), "{ops:?}");
    assert_eq!(ops.iter().filter(|op| **op == "conv_quantized").count(), 2, "{ops:?}");
    assert!(fused.nodes.iter().flat_map(|n| &n.outputs).all(|&v| fused.fact(v).dtype == DType::I8));
    for &isa in AnyIsa::detect() {
        check(graph.clone(), &[("x".to_owned(), t.clone())], isa, 2, true);
    }
}

/// Slices and concatenations of rows, in whatever order, lie in one another where they can.
#[test]
fn what_lies_in_other_values_is_what_copies_would_be() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut b = Builder::new();
        let mut inputs = Vec::new();
        let mut values = Vec::new();
        for i in 0..2 {
            let t = tensor(DType::F32, &[1 + random.below(6), 5], &mut random);
            values.push(b.input(&format!("x{i}"), Fact::of(&t)));
            inputs.push((format!("x{i}"), t));
        }
        for _ in 0..12 {
            let x = values[values.len() - 1 - random.below(values.len().min(5))];
            let rows = b.fact(x).shape[0].known().unwrap();
            let made = match random.below(6) {
                0 if rows > 1 => {
                    let start = random.below(rows);
                    b.slice(x, 0, start, 1 + random.below(rows - start)).unwrap()
                }
                1 => {
                    let flat = b.reshape(x, [(rows * 5).into()]).unwrap();
                    b.reshape(flat, [rows.into(), 5.into()]).unwrap()
                }
                2 => {
                    let wide = b.reshape(x, [1, rows, 1, 5].map(Into::into)).unwrap();
                    let moved = b.permute(wide, &[1, 2, 3, 0]).unwrap();
                    b.reshape(moved, [rows.into(), 5.into()]).unwrap()
                }
                3 | 4 => {
                    let n = 2 + random.below(3);
                    let parts: Vec<ValueId> =
                        (0..n).map(|_| values[random.below(values.len())]).collect();
                    b.concat(&parts, 0).unwrap()
                }
                _ => op(&mut b, Atom::Add, &[x, x]),
            };
            if b.fact(made).shape[0].known().unwrap() <= 60 {
                values.push(made);
            }
        }
        for i in (0..values.len()).filter(|_| random.below(3) == 0) {
            b.output(&format!("y{i}"), values[i]);
        }
        b.output("last", values[values.len() - 1]);
        check(b.finish(), &inputs, AnyIsa::best(), 1 + seed as usize % 2, true);
    }
}

/// Halves of channels, one of them changed, and all three together: nothing is copied.
#[test]
fn parts_are_made_where_they_belong() {
    let mut b = Builder::new();
    let t = tensor(DType::F32, &[1, 6, 2, 3], &mut Random(1));
    let x = b.input("x", Fact::of(&t));
    let none = Attrs::new;
    let both = b.jet(&cyb_jets::SOFTMAX, none().with("axis", 1usize), &[x]).unwrap();
    let halves = [0, 3].map(|start| b.slice(both, 1, start, 3).unwrap());
    let more = b.jet(&cyb_jets::SOFTMAX, none().with("axis", 2usize), &[halves[1]]).unwrap();
    let all = b.concat(&[halves[0], halves[1], more], 1).unwrap();
    let y = b.jet(&cyb_jets::SOFTMAX, none().with("axis", 3usize), &[all]).unwrap();
    b.output("y", y);
    let graph = b.finish();
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(Arc::new(Team::new(1).unwrap())));
    let executor = Executor::prepare(graph.clone(), &[backend], PrepareOptions::default()).unwrap();
    let ops: Vec<&str> = executor.steps().iter().map(|step| step.op).collect();
    assert_eq!(ops, ["softmax"; 3]);
    check(graph, &[("x".to_owned(), t)], AnyIsa::best(), 2, false);
}
