//! Products with weights: `linear` and the jets fused from it.
//!
//! One step does all products of one input: it prepares the input once (quantised to 8 bits or
//! rounded to 16 where any weight wants that, gated where the jet says so), waits for all workers,
//! and multiplies.

use std::sync::Arc;

use cyb_exec::{Call, ExecError};
use cyb_ir::{Op, ValueId};
use cyb_simd::AnyIsa;
use cyb_tensor::{Class, DType};

use super::attrs_of;
use crate::activation::Activation;
use crate::io::{Io, PHASES, RawTensor};
use crate::kernel::{Build, Kernel, Row};
use crate::matmul::{
    ActivationRows, Activations, Epilogue, FloatRows, Gate, Input, Output, PackedMatrix, PairRows,
    Source, Tables, matmul, round_to_half, tables, turns,
};
use crate::team::Worker;

/// Alignment of quantised rows.
const ALIGN: usize = 64;

pub(crate) static ROWS: &[Row] = &[
    Row { op: "linear", name: "linear", supports: |c| fits(c, 0, 1..2), build: build_linear },
    Row {
        op: "linear_add",
        name: "linear_add",
        supports: |c| fits(c, 0, 1..2),
        build: build_linear_add,
    },
    Row {
        op: "linear_activation",
        name: "linear_activation",
        supports: |c| fits(c, 0, 1..2),
        build: build_linear,
    },
    Row { op: "linear_many", name: "linear_many", supports: many_fits, build: build_many },
    Row {
        op: "gated_linear",
        name: "gated_linear",
        supports: |c| fits(c, 0, 2..3),
        build: build_gated,
    },
];

/// Whether the inputs in `weights` are fixed matrices this backend packs, and the input at `x` has
/// whole blocks where they are quantised.
fn fits(call: &Call<'_>, x: usize, weights: std::ops::Range<usize>) -> bool {
    let turned = is_turned(call.op);
    let packs = |d: DType| match d.class() {
        Class::Quantized => !turned,
        Class::Float => !turned || turns(d),
        Class::Bool | Class::Int => false,
    };
    let of_floats = call
        .inputs
        .iter()
        .enumerate()
        .all(|(i, f)| weights.contains(&i) || (f.dtype == DType::F32));
    call.inputs[x].dtype == DType::F32
        && of_floats
        && weights.clone().all(|i| call.fixed[i] && packs(call.inputs[i].dtype))
}

fn is_turned(op: &Op) -> bool {
    attrs_of(op).flag("turned").unwrap_or(false)
}

fn many_weights(call: &Call<'_>) -> std::ops::Range<usize> {
    let with_bias = attrs_of(call.op).flag("bias").unwrap_or(false);
    let rest = call.inputs.len() - 1;
    1..1 + if with_bias { rest / 2 } else { rest }
}

fn many_fits(call: &Call<'_>) -> bool {
    let weights = many_weights(call);
    let biases_fixed = call.fixed[weights.end..].iter().all(|f| *f);
    weights.len() <= PHASES && biases_fixed && fits(call, 0, weights)
}

fn build_linear(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let weights = vec![b.pack(b.node.inputs[1], is_turned(&b.node.op))?];
    let bias = b.node.inputs.get(2).map(|_| 2);
    let activation = Activation::of(&attrs_of(&b.node.op))?;
    let around = Around { activation, ..Around::default() };
    Ok(Linear::boxed(b, weights, vec![bias], around))
}

fn build_linear_add(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let weights = vec![b.pack(b.node.inputs[1], is_turned(&b.node.op))?];
    let around = Around { residual: Some(2), ..Around::default() };
    Ok(Linear::boxed(b, weights, vec![None], around))
}

fn build_many(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let range = many_weights(&Call::of(b.graph, b.node));
    let count = range.len();
    let with_bias = b.node.inputs.len() > range.end;
    let ids: Vec<ValueId> = b.node.inputs[range.clone()].to_vec();
    let turned = is_turned(&b.node.op);
    let weights = ids.into_iter().map(|v| b.pack(v, turned)).collect::<Result<Vec<_>, _>>()?;
    let biases = (0..count).map(|i| with_bias.then_some(range.end + i)).collect();
    Ok(Linear::boxed(b, weights, biases, Around::default()))
}

fn build_gated(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let weights = vec![b.pack(b.node.inputs[2], false)?];
    let gate = match attrs_of(&b.node.op).text("activation")? {
        "tanh" => Gate::GeluTanh,
        "none" => Gate::GeluErf,
        "quick" => Gate::GeluQuick,
        _ => Gate::Silu,
    };
    let residual = b.node.inputs.get(3).map(|_| 3);
    let around = Around { gate: Some(gate), residual, ..Around::default() };
    Ok(Linear::boxed(b, weights, vec![None], around))
}

/// What is done before and after the products.
#[derive(Debug, Default)]
struct Around {
    /// The activation of input 0, which input 1 is multiplied with.
    gate: Option<Gate>,
    /// Input number of what the product is added to.
    residual: Option<usize>,
    activation: Activation,
}

#[derive(Debug)]
struct Linear {
    weights: Vec<Arc<PackedMatrix>>,
    /// Input number of each product's bias.
    biases: Vec<Option<usize>>,
    around: Around,
    /// What the products read of quantised rows.
    tables: Tables,
    workers: usize,
    isa: AnyIsa,
}

impl Linear {
    fn boxed(
        b: &Build<'_>,
        weights: Vec<Arc<PackedMatrix>>,
        biases: Vec<Option<usize>>,
        around: Around,
    ) -> Box<dyn Kernel> {
        let tables = weights.iter().map(|w| tables(b.isa, w)).fold(Tables::NONE, Tables::and);
        let (workers, isa) = (b.team.count(), b.isa);
        Box::new(Linear { weights, biases, around, tables, workers, isa })
    }

    fn k(&self) -> usize {
        self.weights[0].k()
    }

    fn quantizes(&self) -> bool {
        self.weights.iter().any(|w| w.takes_quantized())
    }

    fn pairs(&self) -> bool {
        self.weights.iter().any(|w| w.takes_pairs())
    }

    fn halves(&self) -> bool {
        self.weights.iter().any(|w| w.takes_halves())
    }

    /// Whether floats are needed that are not the input's: gated or rounded ones.
    fn makes_floats(&self) -> bool {
        let floats = self.weights.iter().any(|w| !w.takes_quantized());
        floats && (self.around.gate.is_some() || self.halves())
    }

    /// Scratch bytes of the quantised rows, of the rows in pairs, and of the floats that are made, in
    /// this order.
    fn parts(&self, rows: usize) -> [usize; 3] {
        let k = self.k();
        let of = |wanted: bool, bytes: usize| {
            if wanted { bytes.next_multiple_of(ALIGN) } else { 0 }
        };
        [
            of(self.quantizes(), Activations::bytes(rows, k, self.tables)),
            of(self.pairs(), PairRows::bytes(rows, k)),
            of(self.makes_floats(), rows * k * size_of::<f32>()),
        ]
    }
}

impl Kernel for Linear {
    fn reads(&self, input: usize) -> bool {
        // Weights lie between what is multiplied with them and what is added.
        let first = if self.around.gate.is_some() { 2 } else { 1 };
        !(first..first + self.weights.len()).contains(&input)
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        let x = &limits[0];
        let rows = x.dims[..x.rank - 1].iter().product();
        let all: usize = self.parts(rows).iter().sum();
        let own: usize = self.parts(1).iter().sum();
        all.max(self.workers * own)
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let k = self.k();
        let x = io.slice::<f32>(0);
        let rows: usize = io.dims(0)[..io.dims(0).len() - 1].iter().product();
        if rows == 0 {
            return Ok(());
        }
        let parts = self.parts(rows);
        // A single row is prepared by every worker for itself: cheaper than waiting for each other.
        let alone = rows == 1 && !self.makes_floats();
        let at = if alone { io.worker.index * parts.iter().sum::<usize>() } else { 0 };
        let start = io.scratch::<u8>().start().wrapping_add(at);
        let worker = if alone { &Worker::solo() } else { io.worker };
        // SAFETY: the step's scratch is aligned and as large as `scratch` asked for; workers write
        // disjoint rows of it below and read after the barrier, or have a part of their own.
        let quantized = self
            .quantizes()
            .then(|| unsafe { ActivationRows::over(start, parts[0], rows, k, self.tables) });
        let start = start.wrapping_add(parts[0]);
        // SAFETY: as above; the part lies behind the quantised rows.
        let pairs = self.pairs().then(|| unsafe { PairRows::over(start, rows, k) });
        let start = start.wrapping_add(parts[1]);

        if let Some(quantized) = &quantized {
            let source = match self.around.gate {
                None => Source::Plain(x),
                Some(gate) => Source::Gated { gate: x, up: io.slice(1), activation: gate },
            };
            // SAFETY: every worker does so with the same arguments and a barrier follows, or each
            // for itself.
            unsafe { quantized.quantize(self.isa, source, k, worker) };
        }
        let share = worker.share(rows);
        let mut floats = x;
        if self.makes_floats() {
            // SAFETY: rows are disjoint; the part lies behind the others.
            let (mine, all) = unsafe {
                let start = start.cast::<f32>();
                let len = share.len() * k;
                (
                    std::slice::from_raw_parts_mut(start.add(share.start * k), len),
                    std::slice::from_raw_parts(start, rows * k),
                )
            };
            let range = share.start * k..share.end * k;
            match self.around.gate {
                Some(gate) => {
                    let up = io.slice::<f32>(1);
                    gate.multiply(self.isa, &x[range.clone()], &up[range], mine);
                }
                None => mine.copy_from_slice(&x[range]),
            }
            if self.halves() {
                round_to_half(self.isa, mine);
            }
            floats = all;
        }
        if let Some(pairs) = &pairs {
            for row in share {
                // SAFETY: a row is one worker's, which has made its floats itself.
                unsafe { pairs.round(self.isa, row, &floats[row * k..(row + 1) * k]) };
            }
        }
        if !alone {
            io.worker.barrier();
        }

        for (i, (weight, bias)) in self.weights.iter().zip(&self.biases).enumerate() {
            let input = match (&quantized, &pairs) {
                (Some(rows), _) if weight.takes_quantized() => Input::Quantized(*rows),
                (_, Some(rows)) if weight.takes_pairs() => Input::Pairs(*rows),
                _ => Input::Float(FloatRows { values: floats, stride: k, rows }),
            };
            let out = io.output::<f32>(i);
            let epilogue = Epilogue {
                bias: bias.map(|input| io.slice::<f32>(input)),
                residual: self.around.residual.map(|input| io.slice::<f32>(input)),
                activation: self.around.activation,
            };
            // SAFETY: the output is this step's; every worker calls this with the same arguments
            // and a counter of its own.
            unsafe {
                let out = Output::from_raw(out.start(), out.len(), weight.n());
                let counter = io.counter(i);
                matmul(self.isa, weight, input, out, epilogue, io.worker, counter);
            }
        }
        Ok(())
    }
}
