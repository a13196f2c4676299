//! `lstm`, `gru` and `rnn`: the steps of a sequence, one after another.
//!
//! Directions and sequences of a batch are independent, so workers take some of them each and walk all
//! steps without waiting. Where there are too few, the states of a direction are dealt out instead: a
//! worker makes its states of every step, and all wait for each other between steps. A state is computed
//! the same way either way.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use cyb_exec::{Call, ExecError};
use cyb_ir::Attrs;
use cyb_simd::{AnyIsa, LANES};
use cyb_tensor::{Class, DType};

use super::attrs_of;
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};
use crate::matmul::{Epilogue, FloatRows, Input, Output, PackedMatrix, matmul};
use crate::team::Worker;

mod steps;

use steps::{Function, GruClose, GruOpen, GruStep, LstmStep, One, RnnStep};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "lstm", name: "lstm_f32", supports, build },
    Row { op: "gru", name: "gru_f32", supports, build },
    Row { op: "rnn", name: "rnn_f32", supports, build },
];

/// Weights of a direction from which several workers share its states.
const SHARED: usize = 1 << 17;
/// The most gates, and functions of a direction.
const GATES: usize = 4;
const FUNCTIONS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lstm,
    Gru,
    Rnn,
}

impl Kind {
    fn of(name: &str) -> Kind {
        match name {
            "lstm" => Kind::Lstm,
            "gru" => Kind::Gru,
            _ => Kind::Rnn,
        }
    }

    fn gates(self) -> usize {
        match self {
            Kind::Lstm => 4,
            Kind::Gru => 3,
            Kind::Rnn => 1,
        }
    }

    fn functions(self) -> usize {
        match self {
            Kind::Lstm => 3,
            Kind::Gru => 2,
            Kind::Rnn => 1,
        }
    }

    /// How many gates are one product: a GRU's hidden gate may need another input.
    fn products(self) -> &'static [usize] {
        match self {
            Kind::Lstm => &[4],
            Kind::Gru => &[2, 1],
            Kind::Rnn => &[1],
        }
    }
}

/// Which input is what.
#[derive(Clone, Debug)]
struct Places {
    cell: Option<usize>,
    weights: Range<usize>,
    /// Peepholes of an LSTM, or the bias of a GRU's hidden gate.
    extra: Option<usize>,
    lengths: Option<usize>,
}

fn is_set(attrs: &Attrs, name: &str) -> bool {
    attrs.flag(name).unwrap_or(false)
}

impl Places {
    fn of(kind: Kind, attrs: &Attrs) -> Places {
        let both = attrs.text("direction").is_ok_and(|d| d == "bidirectional");
        let first = if kind == Kind::Lstm { 3 } else { 2 };
        let weights = first..first + if both { 2 } else { 1 };
        let mut next = weights.end;
        let mut take = |there: bool| {
            next += usize::from(there);
            there.then_some(next - 1)
        };
        let extra = take(is_set(attrs, "peepholes") || is_set(attrs, "linear_before_reset"));
        let lengths = take(is_set(attrs, "lengths"));
        Places { cell: (kind == Kind::Lstm).then_some(2), weights, extra, lengths }
    }
}

fn supports(call: &Call<'_>) -> bool {
    let attrs = attrs_of(call.op);
    let places = Places::of(Kind::of(call.op.name()), &attrs);
    let fits = |i: usize, dtype: DType| match () {
        () if places.weights.contains(&i) => call.fixed[i] && dtype.class() == Class::Float,
        () if places.lengths == Some(i) => dtype == DType::I64,
        () => dtype == DType::F32,
    };
    call.inputs.iter().enumerate().all(|(i, fact)| fits(i, fact.dtype))
        && call.inputs[..2].iter().all(|fact| fact.shape.iter().all(|d| d.known().is_some()))
}

/// What a direction multiplies with: for each part of its states, for each product.
#[derive(Debug)]
struct Direction {
    backward: bool,
    weights: Arc<Vec<PackedMatrix>>,
    functions: [Function; FUNCTIONS],
}

#[derive(Debug)]
struct Recurrent {
    kind: Kind,
    places: Places,
    directions: Vec<Direction>,
    hidden: usize,
    /// Parts that the states of a direction are dealt out in.
    parts: usize,
    clip: Option<f32>,
    couple: bool,
    linear_before_reset: bool,
    isa: AnyIsa,
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    let attrs = attrs_of(&b.node.op);
    let kind = Kind::of(b.node.op.name());
    let places = Places::of(kind, &attrs);
    let shape = &b.graph.fact(b.node.inputs[1]).shape; // [D, B, H]
    let known: Vec<usize> = shape.iter().filter_map(|d| d.known()).collect();
    let &[directions, batch, hidden] = known.as_slice() else {
        let why = "states need three known sizes".to_owned();
        return Err(ExecError::Step { step: b.node.label.to_string(), why });
    };
    let workers = b.team.count();
    let large = kind.gates() * hidden * hidden >= SHARED;
    let tiles = hidden.div_ceil(LANES).max(1);
    let parts = match large && directions * batch < workers {
        true => workers.div_ceil(directions.max(1)).min(tiles),
        false => 1,
    };
    let names: Vec<&str> = attrs.text("activations")?.split(' ').collect();
    let (alpha, beta) = (attrs.floats("alpha")?, attrs.floats("beta")?);
    let reverse = attrs.text("direction")? == "reverse";
    let mut all = Vec::new();
    for d in 0..directions {
        let mut functions = [Function::Tanh; FUNCTIONS];
        for (i, function) in functions.iter_mut().take(kind.functions()).enumerate() {
            let at = d * kind.functions() + i;
            if let (Some(name), Some(&alpha), Some(&beta)) =
                (names.get(at), alpha.get(at), beta.get(at))
            {
                *function = Function::of(name, alpha, beta)?;
            }
        }
        let mut rows = Vec::new();
        for part in 0..parts {
            let own = of_part(hidden, parts, part);
            let mut first = 0;
            for &gates in kind.products() {
                let all = first..first + gates;
                first += gates;
                rows.push(all.flat_map(|g| own.clone().map(move |j| g * hidden + j)).collect());
            }
        }
        let form = format!("{} in {parts} parts", b.node.op.name());
        let weights = b.pack_rows(b.node.inputs[places.weights.start + d], &form, &rows)?;
        all.push(Direction { backward: reverse || d == 1, weights, functions });
    }
    Ok(Box::new(Recurrent {
        kind,
        places,
        directions: all,
        hidden,
        parts,
        clip: attrs.get("clip").map(|_| attrs.float("clip")).transpose()?.map(|x| x as f32),
        couple: is_set(&attrs, "input_forget"),
        linear_before_reset: is_set(&attrs, "linear_before_reset"),
        isa: b.isa,
    }))
}

/// The states of a part: whole vectors.
fn of_part(hidden: usize, parts: usize, part: usize) -> Range<usize> {
    let tiles = hidden.div_ceil(LANES);
    let edge = |i: usize| (tiles * i / parts * LANES).min(hidden);
    edge(part)..edge(part + 1)
}

/// Some states of some sequences in one direction.
struct Unit {
    d: usize,
    part: usize,
    rows: Range<usize>,
}

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Sizes {
    steps: usize,
    batch: usize,
    directions: usize,
}

impl Recurrent {
    fn sizes(&self, gates: &RawTensor) -> Sizes {
        Sizes { steps: gates.dims[0], batch: gates.dims[1], directions: gates.dims[2] }
    }

    /// Floats of scratch: two copies of the states, what a GRU keeps between its products, and the
    /// products.
    fn layout(&self, sizes: Sizes) -> [usize; 3] {
        let states = sizes.directions * sizes.batch * self.hidden;
        let kept = if self.kind == Kind::Gru { 2 * states } else { 0 };
        [2 * states, kept, self.kind.gates() * states]
    }

    /// Into how many units the sequences of a direction go.
    fn blocks(&self, sizes: Sizes, workers: usize) -> usize {
        match self.parts {
            1 => workers.div_ceil(sizes.directions.max(1)).clamp(1, sizes.batch.max(1)),
            _ => 1,
        }
    }

    fn unit(&self, sizes: Sizes, blocks: usize, number: usize) -> Unit {
        let (part, number) = (number % self.parts, number / self.parts);
        let (block, d) = (number % blocks, number / blocks);
        let rows = sizes.batch * block / blocks..sizes.batch * (block + 1) / blocks;
        Unit { d, part, rows }
    }
}

impl Kernel for Recurrent {
    fn reads(&self, input: usize) -> bool {
        !self.places.weights.contains(&input)
    }

    fn scratch(&self, limits: &[RawTensor]) -> usize {
        self.layout(self.sizes(&limits[0])).iter().sum::<usize>() * size_of::<f32>()
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let sizes = self.sizes(&io.inputs[0]);
        let run = Run::new(self, io, sizes);
        let blocks = self.blocks(sizes, io.worker.count);
        let count = sizes.directions * blocks * self.parts;
        if self.parts == 1 {
            // Nothing of a unit depends on another.
            io.each(count, |i| {
                let unit = self.unit(sizes, blocks, i);
                run.begin(&unit);
                for step in 0..sizes.steps {
                    run.first(&unit, step);
                    run.second(&unit, step);
                }
                run.end(&unit);
            });
            return Ok(());
        }
        let own = || {
            let numbers = (io.worker.index..count).step_by(io.worker.count);
            numbers.map(|i| self.unit(sizes, blocks, i))
        };
        own().for_each(|unit| run.begin(&unit));
        io.worker.barrier();
        for step in 0..sizes.steps {
            own().for_each(|unit| run.first(&unit, step));
            io.worker.barrier();
            if run.has_second() {
                own().for_each(|unit| run.second(&unit, step));
                io.worker.barrier();
            }
        }
        own().for_each(|unit| run.end(&unit));
        Ok(())
    }
}

/// A run over a sequence: where everything lies. Whoever has a unit is the only one to write what is its
/// own; states of the step before are read by all.
struct Run<'a> {
    layer: &'a Recurrent,
    sizes: Sizes,
    gates: &'a [f32],
    h0: &'a [f32],
    c0: Option<&'a [f32]>,
    extra: Option<&'a [f32]>,
    lengths: Option<&'a [i64]>,
    /// Scratch: states of even and odd steps, a GRU's update gate and reset states, products.
    states: [*mut f32; 2],
    update: *mut f32,
    reset: *mut f32,
    products: *mut f32,
    y: *mut f32,
    last: *mut f32,
    cell: *mut f32,
}

impl<'a> Run<'a> {
    fn new(layer: &'a Recurrent, io: &Io<'a>, sizes: Sizes) -> Run<'a> {
        let [states, kept, _] = layer.layout(sizes);
        let start = io.scratch::<f32>().start();
        let at = |floats: usize| start.wrapping_add(floats);
        let cell = layer.places.cell.map_or(std::ptr::null_mut(), |_| io.output::<f32>(2).start());
        Run {
            layer,
            sizes,
            gates: io.slice(0),
            h0: io.slice(1),
            c0: layer.places.cell.map(|i| io.slice(i)),
            extra: layer.places.extra.map(|i| io.slice(i)),
            lengths: layer.places.lengths.map(|i| io.slice(i)),
            states: [at(0), at(states / 2)],
            update: at(states),
            reset: at(states + kept / 2),
            products: at(states + kept),
            y: io.output::<f32>(0).start(),
            last: io.output::<f32>(1).start(),
            cell,
        }
    }

    /// Whether a step has a part that needs the first part of all units.
    fn has_second(&self) -> bool {
        self.layer.kind == Kind::Gru && !self.layer.linear_before_reset
    }

    /// Where the states of a sequence begin.
    fn at(&self, unit: &Unit, row: usize) -> usize {
        (unit.d * self.sizes.batch + row) * self.layer.hidden
    }

    fn own(&self, unit: &Unit) -> Range<usize> {
        of_part(self.layer.hidden, self.layer.parts, unit.part)
    }

    /// # Safety
    /// The range lies in the buffer and is the unit's own for as long as the slice lives.
    unsafe fn part(&self, buffer: *mut f32, at: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(buffer.add(at), len) }
    }

    fn begin(&self, unit: &Unit) {
        let own = self.own(unit);
        for row in unit.rows.clone() {
            let (at, len) = (self.at(unit, row) + own.start, own.len());
            // SAFETY: the states of a unit's sequences are its own, in all buffers of [D, B, H].
            let state = unsafe { self.part(self.states[0], at, len) };
            state.copy_from_slice(&self.h0[at..at + len]);
            if let Some(c0) = self.c0 {
                // SAFETY: as above.
                let cell = unsafe { self.part(self.cell, at, len) };
                cell.copy_from_slice(&c0[at..at + len]);
            }
        }
    }

    fn end(&self, unit: &Unit) {
        let own = self.own(unit);
        for row in unit.rows.clone() {
            let (at, len) = (self.at(unit, row) + own.start, own.len());
            // SAFETY: as in `begin`; no one writes these states any more.
            unsafe {
                let state = self.part(self.states[self.sizes.steps % 2], at, len);
                self.part(self.last, at, len).copy_from_slice(state);
            }
        }
    }

    /// Where the products of a unit begin: as many for every sequence as its part has gates.
    fn products(&self, unit: &Unit) -> usize {
        let (gates, hidden) = (self.layer.kind.gates(), self.layer.hidden);
        let before = unit.d * self.sizes.batch * gates * hidden + unit.rows.start * gates * hidden;
        before + self.sizes.batch * gates * self.own(unit).start
    }

    /// Multiplies the states in `from` with the weights of a product; the sums, gate by gate for each
    /// sequence.
    fn product(&self, unit: &Unit, from: *mut f32, number: usize) -> (&'a [f32], usize) {
        let layer = self.layer;
        let of = layer.kind.products();
        let own = self.own(unit).len();
        let before: usize = of[..number].iter().map(|gates| gates * own).sum();
        let width = of[number] * own;
        let rows = unit.rows.len();
        let start = self.products(unit) + before * rows;
        let weights = &layer.directions[unit.d].weights[unit.part * of.len() + number];
        // SAFETY: states are [D, B, H]; nobody writes those of `from` while a step reads them, and the
        // products are the unit's own.
        unsafe {
            let at = self.at(unit, unit.rows.start);
            let values = std::slice::from_raw_parts(from.add(at), rows * layer.hidden);
            let input = Input::Float(FloatRows { values, stride: layer.hidden, rows });
            let sums = self.products.add(start);
            let out = Output::from_raw(sums, rows * width, width);
            let (alone, counter) = (Worker::solo(), AtomicUsize::new(0));
            matmul(layer.isa, weights, input, out, Epilogue::default(), &alone, &counter);
            (std::slice::from_raw_parts(sums, rows * width), width)
        }
    }

    /// The place of a step in the sequence.
    fn time(&self, unit: &Unit, step: usize) -> usize {
        match self.layer.directions[unit.d].backward {
            true => self.sizes.steps - 1 - step,
            false => step,
        }
    }

    /// Whether a sequence has a step at `time`.
    fn inside(&self, row: usize, time: usize) -> bool {
        self.lengths.is_none_or(|n| i64::try_from(time).is_ok_and(|time| time < n[row]))
    }

    /// The inputs' part of gate `gate`.
    fn gate(&self, unit: &Unit, row: usize, time: usize, gate: usize) -> &'a [f32] {
        let (hidden, own) = (self.layer.hidden, self.own(unit));
        let line = (time * self.sizes.batch + row) * self.sizes.directions + unit.d;
        let at = (line * self.layer.kind.gates() + gate) * hidden + own.start;
        &self.gates[at..at + own.len()]
    }

    /// A step, or its first part where it has a second.
    fn first(&self, unit: &Unit, step: usize) {
        let own = self.own(unit);
        if own.is_empty() || unit.rows.is_empty() {
            return;
        }
        let (layer, n) = (self.layer, own.len());
        let time = self.time(unit, step);
        let (sums, width) = self.product(unit, self.states[step % 2], 0);
        let hidden_sums = match layer.kind == Kind::Gru && layer.linear_before_reset {
            true => Some(self.product(unit, self.states[step % 2], 1)),
            false => None,
        };
        for (number, row) in unit.rows.clone().enumerate() {
            let at = self.at(unit, row) + own.start;
            let mut gates = [&[][..]; GATES];
            let mut seen = [&[][..]; GATES];
            for gate in 0..layer.kind.gates() {
                gates[gate] = self.gate(unit, row, time, gate);
                if (gate + 1) * n <= width {
                    seen[gate] = &sums[number * width + gate * n..][..n];
                }
            }
            if let Some((sums, width)) = hidden_sums {
                seen[2] = &sums[number * width..][..n];
            }
            // SAFETY: a unit's states are its own in every buffer that this step writes; the states of
            // the step before are read only.
            let (old, new, y) = unsafe { self.places(unit, row, step, time) };
            if !self.inside(row, time) {
                new.copy_from_slice(old);
                y.fill(0.0);
                continue;
            }
            let one = One { layer, d: unit.d, gates, seen };
            match layer.kind {
                Kind::Lstm => {
                    let peepholes = self.extra.map(|p| {
                        let at = |gate: usize| (unit.d * 3 + gate) * layer.hidden + own.start;
                        [0, 1, 2].map(|gate| &p[at(gate)..at(gate) + n])
                    });
                    // SAFETY: as above.
                    let cell = unsafe { self.part(self.cell, at, n) };
                    layer.isa.run(LstmStep { one, peepholes, cell, h: new });
                }
                Kind::Rnn => layer.isa.run(RnnStep { one, h: new }),
                Kind::Gru if self.has_second() => {
                    // SAFETY: as above.
                    let (update, reset) =
                        unsafe { (self.part(self.update, at, n), self.part(self.reset, at, n)) };
                    layer.isa.run(GruOpen { one, old, update, reset });
                    continue;
                }
                Kind::Gru => {
                    let bias = self.extra.map(|b| {
                        let at = unit.d * layer.hidden + own.start;
                        &b[at..at + n]
                    });
                    layer.isa.run(GruStep { one, bias, old, h: new });
                }
            }
            y.copy_from_slice(new);
        }
    }

    /// The states of before, those of a step, and where they are shown.
    ///
    /// # Safety
    /// As [`Run::part`]; the states of before are not written.
    unsafe fn places(
        &self,
        unit: &Unit,
        row: usize,
        step: usize,
        time: usize,
    ) -> (&'a [f32], &'a mut [f32], &'a mut [f32]) {
        let own = self.own(unit);
        let (at, n) = (self.at(unit, row) + own.start, own.len());
        let line = (time * self.sizes.directions + unit.d) * self.sizes.batch + row;
        // SAFETY: the caller's contract.
        unsafe {
            let old = std::slice::from_raw_parts(self.states[step % 2].add(at), n);
            let new = self.part(self.states[(step + 1) % 2], at, n);
            (old, new, self.part(self.y, line * self.layer.hidden + own.start, n))
        }
    }

    /// The hidden gate of a GRU, from the states that were reset.
    fn second(&self, unit: &Unit, step: usize) {
        let own = self.own(unit);
        if !self.has_second() || own.is_empty() || unit.rows.is_empty() {
            return;
        }
        let (layer, n) = (self.layer, own.len());
        let time = self.time(unit, step);
        let (sums, width) = self.product(unit, self.reset, 1);
        for (number, row) in unit.rows.clone().enumerate() {
            if !self.inside(row, time) {
                continue;
            }
            let at = self.at(unit, row) + own.start;
            let mut gates = [&[][..]; GATES];
            let mut seen = [&[][..]; GATES];
            gates[2] = self.gate(unit, row, time, 2);
            seen[2] = &sums[number * width..][..n];
            // SAFETY: as in `first`.
            unsafe {
                let (old, new, y) = self.places(unit, row, step, time);
                let update = self.part(self.update, at, n);
                let one = One { layer, d: unit.d, gates, seen };
                layer.isa.run(GruClose { one, update, old, h: new });
                y.copy_from_slice(new);
            }
        }
    }
}
