//! Recurrent layers: LSTM, GRU and RNN over a whole sequence, in one or both directions.
//!
//! What of the gates depends on the inputs only is one product before. These jets carry the state
//! along: a scan whose body is a step.

use cyb_ir::{Attrs, Builder, Case, Exp, Fact, Fill, Graph, IrError, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, SUMMED, sigmoid, tanh};

/// `lstm{direction, activations, alpha, beta, clip?, input_forget?, peepholes?, lengths?}(
/// gates[T, B, D, 4H], h[D, B, H], c[D, B, H], r[4H, H] for each direction, p[D, 3H]?, n[B]?)
/// -> y[T, D, B, H], h[D, B, H], c[D, B, H]`.
///
/// `gates` are the inputs' part of the gates with all biases, in the order input, output, forget,
/// cell; `r` what the state is multiplied with. `direction` is `forward`, `reverse` or `bidirectional`.
/// `activations` names three functions a direction (of gates, candidate, cell), `alpha` and `beta` are
/// their parameters. `p` with `peepholes` are the weights of the cell in the gates input, output and
/// forget; `n` with `lengths` is how many steps each sequence has: behind it the state stays and `y` is
/// 0. Attributes and formulas are those of ONNX; `clip` limits the sums of the gates.
pub static LSTM: Jet = Jet {
    name: "lstm",
    summary: "long short-term memory over a sequence",
    define: |b, inputs, attrs| define(b, inputs, attrs, Kind::Lstm),
    signatures: || signatures(Kind::Lstm),
    cases: || cases(Kind::Lstm),
    tolerance: SUMMED,
    in_place: &[],
};

/// `gru{direction, activations, alpha, beta, clip?, linear_before_reset?, lengths?}(gates[T, B, D, 3H],
/// h[D, B, H], r[3H, H] for each direction, bias[D, H]?, n[B]?) -> y[T, D, B, H], h[D, B, H]`: as [`LSTM`],
/// with the gates update, reset, hidden and two functions a direction. With `linear_before_reset` the
/// state's part of the hidden gate is reset as a whole, and `bias` is in it.
pub static GRU: Jet = Jet {
    name: "gru",
    summary: "gated recurrent unit over a sequence",
    define: |b, inputs, attrs| define(b, inputs, attrs, Kind::Gru),
    signatures: || signatures(Kind::Gru),
    cases: || cases(Kind::Gru),
    tolerance: SUMMED,
    in_place: &[],
};

/// `rnn{direction, activations, alpha, beta, clip?, lengths?}(gates[T, B, D, H], h[D, B, H], r[H, H] for
/// each direction, n[B]?) -> y[T, D, B, H], h[D, B, H]`: as [`LSTM`], with one gate and one function.
pub static RNN: Jet = Jet {
    name: "rnn",
    summary: "recurrent layer over a sequence",
    define: |b, inputs, attrs| define(b, inputs, attrs, Kind::Rnn),
    signatures: || signatures(Kind::Rnn),
    cases: || cases(Kind::Rnn),
    tolerance: SUMMED,
    in_place: &[],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lstm,
    Gru,
    Rnn,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Lstm => "lstm",
            Kind::Gru => "gru",
            Kind::Rnn => "rnn",
        }
    }

    fn gates(self) -> usize {
        match self {
            Kind::Lstm => 4,
            Kind::Gru => 3,
            Kind::Rnn => 1,
        }
    }

    /// The functions of a direction where a file names none.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Kind::Lstm => &["sigmoid", "tanh", "tanh"],
            Kind::Gru => &["sigmoid", "tanh"],
            Kind::Rnn => &["tanh"],
        }
    }
}

/// An activation with its parameters.
#[derive(Clone, Debug)]
struct Function {
    name: String,
    alpha: f64,
    beta: f64,
}

impl Function {
    fn apply(&self, b: &mut Builder, x: ValueId) -> Result<ValueId, IrError> {
        let dtype = b.fact(x).dtype;
        match self.name.as_str() {
            "sigmoid" => sigmoid(b, x),
            "tanh" => tanh(b, x),
            "relu" => {
                let zero = b.scalar(dtype, 0.0)?;
                b.max(x, zero)
            }
            "affine" => {
                let y = b.scale(x, self.alpha)?;
                b.offset(y, self.beta)
            }
            "leakyrelu" => {
                let zero = b.scalar(dtype, 0.0)?;
                let (low, above) = (b.scale(x, self.alpha)?, b.lt(zero, x)?);
                b.select(above, x, low)
            }
            "thresholdedrelu" => {
                let (zero, edge) = (b.scalar(dtype, 0.0)?, b.scalar(dtype, self.alpha)?);
                let above = b.lt(edge, x)?;
                b.select(above, x, zero)
            }
            "scaledtanh" => {
                let y = b.scale(x, self.beta)?;
                let y = tanh(b, y)?;
                b.scale(y, self.alpha)
            }
            "hardsigmoid" => {
                let y = b.scale(x, self.alpha)?;
                let y = b.offset(y, self.beta)?;
                let (zero, one) = (b.scalar(dtype, 0.0)?, b.scalar(dtype, 1.0)?);
                let y = b.max(y, zero)?;
                b.min(y, one)
            }
            "elu" => {
                let zero = b.scalar(dtype, 0.0)?;
                let e = b.exp(Exp::Exp, x)?;
                let less = b.offset(e, -1.0)?;
                let (low, below) = (b.scale(less, self.alpha)?, b.lt(x, zero)?);
                b.select(below, low, x)
            }
            "softsign" => {
                let minus = b.neg(x)?;
                let size = b.max(x, minus)?;
                let below = b.offset(size, 1.0)?;
                b.div(x, below)
            }
            // max(x, 0) + ln(1 + exp(-|x|))
            "softplus" => {
                let zero = b.scalar(dtype, 0.0)?;
                let minus = b.neg(x)?;
                let (top, down) = (b.max(x, zero)?, b.min(x, minus)?);
                let e = b.exp(Exp::Exp, down)?;
                let above = b.offset(e, 1.0)?;
                let ln = b.exp(Exp::Ln, above)?;
                b.add(top, ln)
            }
            other => Err(IrError::Attr {
                name: "activations".into(),
                want: "names of activations",
                got: other.to_owned(),
            }),
        }
    }
}

/// The functions of all directions, one after another.
fn functions(attrs: &Attrs) -> Result<Vec<Function>, IrError> {
    let (alpha, beta) = (attrs.floats("alpha")?, attrs.floats("beta")?);
    let names: Vec<&str> = attrs.text("activations")?.split(' ').collect();
    if names.len() != alpha.len() || names.len() != beta.len() {
        return Err(IrError::Attr {
            name: "alpha".into(),
            want: "a parameter for each activation",
            got: format!("{} and {} of {}", alpha.len(), beta.len(), names.len()),
        });
    }
    let each = names.into_iter().zip(alpha.into_iter().zip(beta));
    Ok(each.map(|(name, (alpha, beta))| Function { name: name.to_owned(), alpha, beta }).collect())
}

fn is_set(attrs: &Attrs, name: &str) -> Result<bool, IrError> {
    if attrs.get(name).is_none() { Ok(false) } else { attrs.flag(name) }
}

/// What a step of one direction is made of beside values.
struct Cell {
    kind: Kind,
    hidden: usize,
    functions: Vec<Function>,
    clip: Option<f64>,
    couple: bool,
    linear_before_reset: bool,
}

/// What a step reads beside its element of the sequence; the scan carries all of it.
struct State<T> {
    h: T,
    cell: Option<T>,
    /// [gates * H, H]
    r: T,
    /// Peepholes [3H], or the bias of the hidden gate [H].
    extra: Option<T>,
    lengths: Option<T>,
}

impl<T: Copy> State<T> {
    fn list(&self) -> Vec<T> {
        let mut all = vec![self.h];
        all.extend(self.cell);
        all.push(self.r);
        all.extend(self.extra);
        all.extend(self.lengths);
        all
    }

    fn map<U>(&self, mut f: impl FnMut(T) -> U) -> State<U> {
        State {
            h: f(self.h),
            cell: self.cell.map(&mut f),
            r: f(self.r),
            extra: self.extra.map(&mut f),
            lengths: self.lengths.map(&mut f),
        }
    }
}

/// `x[B, K] · w[N, K]ᵀ`
fn product(b: &mut Builder, x: ValueId, w: ValueId) -> Result<ValueId, IrError> {
    let x = b.unsqueeze(x, 1)?; // [B, 1, K]
    let products = b.mul(x, w)?; // [B, N, K]
    b.sum(products, &[2])
}

impl Cell {
    fn apply(&self, b: &mut Builder, x: ValueId, number: usize) -> Result<ValueId, IrError> {
        let mut x = x;
        if let Some(clip) = self.clip {
            let dtype = b.fact(x).dtype;
            let (low, high) = (b.scalar(dtype, -clip)?, b.scalar(dtype, clip)?);
            let above = b.max(x, low)?;
            x = b.min(above, high)?;
        }
        self.functions[number].apply(b, x)
    }

    /// The new states from the inputs' part of the gates [B, gates * H].
    fn step(
        &self,
        b: &mut Builder,
        gates: ValueId,
        state: &State<ValueId>,
    ) -> Result<(ValueId, Option<ValueId>), IrError> {
        let n = self.hidden;
        let part = |b: &mut Builder, x: ValueId, i: usize| {
            let axis = b.last_axis(x)?;
            b.slice(x, axis, i * n, n)
        };
        let one_less = |b: &mut Builder, x: ValueId| {
            let minus = b.neg(x)?;
            b.offset(minus, 1.0)
        };
        match (self.kind, state.cell) {
            (Kind::Lstm, Some(cell)) => {
                let seen = product(b, state.h, state.r)?;
                let all = b.add(gates, seen)?;
                let gate = |b: &mut Builder, i: usize, cell: ValueId| {
                    let x = part(b, all, i)?;
                    let Some(peepholes) = state.extra else { return Ok(x) };
                    let p = part(b, peepholes, i)?;
                    let seen = b.mul(cell, p)?;
                    b.add(x, seen)
                };
                let i = gate(b, 0, cell)?;
                let i = self.apply(b, i, 0)?;
                let f = if self.couple {
                    one_less(b, i)?
                } else {
                    let f = gate(b, 2, cell)?;
                    self.apply(b, f, 0)?
                };
                let new = part(b, all, 3)?;
                let new = self.apply(b, new, 1)?;
                let (kept, added) = (b.mul(f, cell)?, b.mul(i, new)?);
                let cell = b.add(kept, added)?;
                let o = gate(b, 1, cell)?;
                let o = self.apply(b, o, 0)?;
                // ONNX Runtime limits the gates only.
                let shown = self.functions[2].apply(b, cell)?;
                Ok((b.mul(o, shown)?, Some(cell)))
            }
            (Kind::Gru, _) => {
                let rows = |b: &mut Builder, first: usize, count: usize| {
                    let w = b.slice(state.r, 0, first * n, count * n)?;
                    product(b, state.h, w)
                };
                let seen = rows(b, 0, 2)?;
                let both = b.slice(gates, 1, 0, 2 * n)?;
                let both = b.add(both, seen)?;
                let open = self.apply(b, both, 0)?;
                let (update, reset) = (part(b, open, 0)?, part(b, open, 1)?);
                let seen = if self.linear_before_reset {
                    let mut seen = rows(b, 2, 1)?;
                    if let Some(bias) = state.extra {
                        seen = b.add(seen, bias)?;
                    }
                    b.mul(reset, seen)?
                } else {
                    let kept = b.mul(reset, state.h)?;
                    let w = b.slice(state.r, 0, 2 * n, n)?;
                    product(b, kept, w)?
                };
                let candidate = part(b, gates, 2)?;
                let candidate = b.add(candidate, seen)?;
                let new = self.apply(b, candidate, 1)?;
                let rest = one_less(b, update)?;
                let (added, kept) = (b.mul(rest, new)?, b.mul(update, state.h)?);
                Ok((b.add(added, kept)?, None))
            }
            (Kind::Rnn | Kind::Lstm, _) => {
                let seen = product(b, state.h, state.r)?;
                let all = b.add(gates, seen)?;
                Ok((self.apply(b, all, 0)?, None))
            }
        }
    }

    /// A step as the body of a scan over elements of the gates and their numbers.
    fn body(&self, facts: &State<Fact>, gates: Fact) -> Result<Graph, IrError> {
        let mut b = Builder::new();
        let mut number = 0;
        let mut input = |b: &mut Builder, fact: &Fact| {
            number += 1;
            b.input(&format!("s{number}"), fact.clone())
        };
        let state = State {
            h: input(&mut b, &facts.h),
            cell: facts.cell.as_ref().map(|fact| input(&mut b, fact)),
            r: input(&mut b, &facts.r),
            extra: facts.extra.as_ref().map(|fact| input(&mut b, fact)),
            lengths: facts.lengths.as_ref().map(|fact| input(&mut b, fact)),
        };
        let gates = b.input("gates", gates);
        let at = b.input("at", Fact::new(DType::I64, []));
        let (mut h, mut cell) = self.step(&mut b, gates, &state)?;
        let mut y = h;
        if let Some(lengths) = state.lengths {
            let inside = b.lt(at, lengths)?;
            let inside = b.unsqueeze(inside, 1)?; // [B, 1]
            let zero = b.scalar(b.fact(h).dtype, 0.0)?;
            y = b.select(inside, h, zero)?;
            h = b.select(inside, h, state.h)?;
            if let (Some(new), Some(old)) = (cell, state.cell) {
                cell = Some(b.select(inside, new, old)?);
            }
        }
        let new = State { h, cell, ..state };
        for (i, v) in new.list().into_iter().chain([y]).enumerate() {
            b.output(&i.to_string(), v);
        }
        Ok(b.finish())
    }
}

fn define(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs, kind: Kind) -> Defined {
    let direction = attrs.text("direction")?;
    let directions = match direction {
        "forward" | "reverse" => 1,
        "bidirectional" => 2,
        other => {
            return Err(IrError::Attr {
                name: "direction".into(),
                want: "forward, reverse or bidirectional",
                got: other.to_owned(),
            });
        }
    };
    let linear_before_reset = is_set(attrs, "linear_before_reset")?;
    let with_extra = match kind {
        Kind::Lstm => is_set(attrs, "peepholes")?,
        Kind::Gru => linear_before_reset,
        Kind::Rnn => false,
    };
    let with_lengths = is_set(attrs, "lengths")?;
    let states = if kind == Kind::Lstm { 2 } else { 1 };
    let want = 1 + states + directions + usize::from(with_extra) + usize::from(with_lengths);
    if inputs.len() != want {
        let op = kind.name().to_owned();
        return Err(IrError::Arity { op, want: want.to_string(), got: inputs.len() });
    }
    let (gates, h0) = (inputs[0], inputs[1]);
    let wrong = |b: &Builder, v: ValueId, why: &str| IrError::Operand {
        op: kind.name().into(),
        facts: b.fact(v).to_string(),
        why: why.into(),
    };
    let [steps, batch, _, width] = b.shape(gates) else {
        return Err(wrong(b, gates, "gates have four axes"));
    };
    let (steps, batch, width) = (steps.clone(), batch.clone(), width.clone());
    let hidden = b.dim(h0, 2)?.known();
    let hidden = hidden.ok_or_else(|| wrong(b, h0, "the number of states must be known"))?;
    let length = steps.known();
    let length = length.ok_or_else(|| wrong(b, gates, "the number of steps must be known"))?;
    let all = functions(attrs)?;
    let each = kind.functions().len();
    if all.len() != each * directions {
        return Err(IrError::Attr {
            name: "activations".into(),
            want: "activations for each direction",
            got: all.len().to_string(),
        });
    }
    let dtype = b.fact(gates).dtype;
    let mut rest = inputs[1 + states + directions..].iter().copied();
    let extra = if with_extra { rest.next() } else { None };
    let lengths = if with_lengths { rest.next() } else { None };

    let (mut ys, mut hs, mut cells) = (Vec::new(), Vec::new(), Vec::new());
    for d in 0..directions {
        let backward = direction == "reverse" || d == 1;
        let turned = |b: &mut Builder, x: ValueId| match backward {
            true => b.strided(x, 0, length.saturating_sub(1), length, -1),
            false => Ok(x),
        };
        let own = |b: &mut Builder, x: ValueId| {
            let part = b.slice(x, 0, d, 1)?;
            let shape: Vec<Dim> = b.shape(part)[1..].to_vec();
            b.reshape(part, shape)
        };
        let state = State {
            h: own(b, h0)?,
            cell: if kind == Kind::Lstm { Some(own(b, inputs[2])?) } else { None },
            r: b.cast(inputs[1 + states + d], dtype)?,
            extra: match extra {
                Some(extra) => Some(own(b, extra)?),
                None => None,
            },
            lengths,
        };
        let sequence = b.slice(gates, 2, d, 1)?;
        let sequence = b.reshape(sequence, [steps.clone(), batch.clone(), width.clone()])?;
        let sequence = turned(b, sequence)?;
        let numbers = b.iota(steps.clone());
        let numbers = turned(b, numbers)?;
        let cell = Cell {
            kind,
            hidden,
            functions: all[d * each..(d + 1) * each].to_vec(),
            clip: attrs.get("clip").map(|_| attrs.float("clip")).transpose()?,
            couple: is_set(attrs, "input_forget")?,
            linear_before_reset,
        };
        let facts = state.map(|v| b.fact(v).clone());
        let body = cell.body(&facts, Fact::new(dtype, [batch.clone(), width.clone()]))?;
        let mut scanned = state.list();
        let carried = scanned.len();
        scanned.extend([sequence, numbers]);
        let outputs = b.scan(carried, body, &scanned)?;
        let y = turned(b, outputs[carried])?;
        ys.push(b.unsqueeze(y, 1)?); // [T, 1, B, H]
        hs.push(b.unsqueeze(outputs[0], 0)?);
        if kind == Kind::Lstm {
            cells.push(b.unsqueeze(outputs[1], 0)?);
        }
    }
    let mut made = Vec::new();
    for (parts, axis) in [(ys, 1), (hs, 0), (cells, 0)] {
        match parts.as_slice() {
            [] => {}
            [one] => made.push(*one),
            many => made.push(b.concat(many, axis)?),
        }
    }
    Ok(made)
}

/// The attributes of a layer with these functions a direction; `None` for the usual ones.
fn layer(kind: Kind, direction: &str, names: Option<&[&str]>) -> Attrs {
    let names = names.unwrap_or(kind.functions());
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let all = vec![names.join(" "); directions].join(" ");
    let n = names.len() * directions;
    Attrs::new()
        .with("direction", direction)
        .with("activations", all.as_str())
        .with("alpha", vec![0.3; n].as_slice())
        .with("beta", vec![0.4; n].as_slice())
}

fn signatures(kind: Kind) -> Vec<Signature> {
    let f32s = |shape: &[usize]| Fact::new(DType::F32, shape.iter().map(|&n| n.into()));
    let mut inputs = vec![f32s(&[3, 2, 1, kind.gates() * 4]), f32s(&[1, 2, 4])];
    if kind == Kind::Lstm {
        inputs.push(f32s(&[1, 2, 4]));
    }
    inputs.push(f32s(&[kind.gates() * 4, 4]));
    vec![Signature { inputs, attrs: layer(kind, "forward", None) }]
}

fn cases(kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str, [t, batch, hidden]: [usize; 3], attrs: Attrs, weight: DType| {
        let both = attrs.text("direction").is_ok_and(|d| d == "bidirectional");
        let directions = if both { 2 } else { 1 };
        let mut case = Case::new(name, attrs)
            .normal(&[t, batch, directions, kind.gates() * hidden])
            .normal(&[directions, batch, hidden]);
        if kind == Kind::Lstm {
            case = case.normal(&[directions, batch, hidden]);
        }
        for _ in 0..directions {
            case = case.input(weight, &[kind.gates() * hidden, hidden], Fill::Normal(0.2));
        }
        let set = |case: &Case, name| case.attrs.flag(name).unwrap_or(false);
        if set(&case, "peepholes") {
            case = case.input(DType::F32, &[directions, 3 * hidden], Fill::Normal(0.3));
        }
        if set(&case, "linear_before_reset") {
            case = case.normal(&[directions, hidden]);
        }
        if set(&case, "lengths") {
            let lengths = (0..batch as i64).map(|i| (i * 3 + 1) % (t as i64 + 1)).collect();
            case = case.input(DType::I64, &[batch], Fill::Ints(lengths));
        }
        cases.push(case);
    };
    let usual = |direction| layer(kind, direction, None);
    add("one step", [1, 1, 16], usual("forward"), DType::F32);
    add("both ways", [7, 3, 19], usual("bidirectional"), DType::F32);
    add("reverse, half-precision weights", [5, 2, 8], usual("reverse"), DType::F16);
    add("lengths", [6, 5, 9], usual("bidirectional").with("lengths", true), DType::F32);
    add("clipped", [4, 2, 5], usual("forward").with("clip", 0.7), DType::F32);
    add("no steps", [0, 2, 4], usual("bidirectional"), DType::F32);
    // So large that workers share a state.
    add("wide", [3, 1, 320], usual("forward"), DType::F32);
    for names in [
        ["relu", "affine", "leakyrelu"],
        ["hardsigmoid", "scaledtanh", "softsign"],
        ["thresholdedrelu", "elu", "softplus"],
        ["softplus", "hardsigmoid", "elu"],
        ["softsign", "tanh", "scaledtanh"],
        ["affine", "thresholdedrelu", "sigmoid"],
    ] {
        let each = kind.functions().len();
        let attrs = layer(kind, "forward", Some(&names[..each]));
        add(&names.join(" "), [3, 2, 5], attrs, DType::F32);
    }
    if kind == Kind::Lstm {
        let attrs = usual("bidirectional").with("peepholes", true);
        add("peepholes", [5, 2, 7], attrs.clone(), DType::F32);
        add("coupled", [5, 2, 7], attrs.with("input_forget", true), DType::F32);
    }
    if kind == Kind::Gru {
        let attrs = usual("bidirectional").with("linear_before_reset", true);
        add("linear before reset", [5, 2, 7], attrs.clone(), DType::F32);
        add(
            "linear before reset, wide",
            [3, 1, 320],
            usual("forward").with("linear_before_reset", true),
            DType::F32,
        );
    }
    cases
}
