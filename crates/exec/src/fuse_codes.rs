//! Rules for graphs between 8-bit codes: what decodes codes, computes, and encodes again.
//!
//! A function of one code is a table of 256, whatever it is made of. Encoding commutes with moving and
//! with the greatest of a window, so that it meets what was decoded. And exact sums that are encoded
//! are one step with the convolution that makes them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use cyb_interp::evaluate_node;
use cyb_ir::{
    Atom, Attrs, Cmp, Fact, Float, Graph, Node, NodeId, Op, Outcome, Patch, Read, Rule, Tap,
    ValueId, Write, infer,
};
use cyb_jets::{AFFINE_QUANTIZE, CONV_INTEGER, CONV_QUANTIZED, LOOKUP};
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Tensor};

use crate::fuse::{jet_node, reads};
use crate::{Backend, Call};

/// Values that a function of one code is made of at most.
const MOST_VALUES: usize = 64;
/// Codes of 8 bits.
const CODES: usize = 256;

pub(crate) fn rules<'a>(backends: &'a [Arc<dyn Backend>], known: &'a Known) -> Vec<Rule<'a>> {
    type Apply<'a> = Box<dyn Fn(&Graph, &Node) -> Option<Patch> + 'a>;
    let rule = |name, apply: Apply<'a>| Rule {
        name,
        apply: Box::new(move |graph: &Graph, id: NodeId| match apply(graph, graph.node(id)) {
            None => Outcome::NoMatch,
            Some(patch) => supported(graph, patch, backends),
        }),
    };
    vec![
        rule("convolution to codes", Box::new(requantized)),
        rule("function of a code", Box::new(|graph, node| tabulated(graph, node, known))),
        rule("convolution and table", Box::new(through_table)),
        rule("limits of a code", Box::new(limited)),
        rule("codes that move", Box::new(|graph, node| moved(graph, node, known))),
    ]
}

/// Which calls are elementwise, as far as that was asked: every rule asks it of the same calls, in
/// every sweep.
#[derive(Default)]
pub(crate) struct Known(RefCell<HashMap<(Op, Vec<Fact>), bool>>);

impl Known {
    fn is_elementwise(&self, op: &Op, facts: Vec<Fact>) -> bool {
        if matches!(op, Op::Atom(_)) {
            return is_elementwise(op, &facts);
        }
        let mut known = self.0.borrow_mut();
        *known
            .entry((op.clone(), facts))
            .or_insert_with_key(|(op, facts)| is_elementwise(op, facts))
    }
}

/// A walk back through what a value is made of.
struct Search<'a> {
    known: &'a Known,
    /// Values that it may still visit.
    left: usize,
}

impl Search<'_> {
    fn new(known: &Known) -> Search<'_> {
        Search { known, left: MOST_VALUES }
    }
}

/// The rewrite if some backend has a kernel for each of its operations.
fn supported(graph: &Graph, patch: Patch, backends: &[Arc<dyn Backend>]) -> Outcome {
    let mut made: Vec<Vec<Fact>> = Vec::new();
    for (op, inputs) in patch.ops() {
        let fact = |tap: &Tap| match tap {
            Tap::Old(v) => Some(graph.fact(*v).clone()),
            Tap::New(op, output) => made.get(*op)?.get(*output).cloned(),
            Tap::Const(tensor) => Some(Fact::of(tensor)),
        };
        let Some(facts) = inputs.iter().map(fact).collect::<Option<Vec<Fact>>>() else {
            return Outcome::Rejected("an operation reads what is made after it".to_owned());
        };
        let facts: Vec<&Fact> = facts.iter().collect();
        let outputs = match infer(op, &facts) {
            Ok(outputs) => outputs,
            Err(why) => return Outcome::Rejected(why.to_string()),
        };
        let fixed = |tap: &Tap| match tap {
            Tap::Old(v) => graph.tensor(*v).is_some(),
            Tap::New(..) => false,
            Tap::Const(_) => true,
        };
        let call = Call {
            op,
            inputs: facts,
            outputs: outputs.iter().collect(),
            fixed: inputs.iter().map(fixed).collect(),
        };
        // A reshape is no step.
        if !is_reshape(op) && !backends.iter().any(|b| b.kernel(&call).is_some()) {
            return Outcome::Rejected(format!("no backend has a kernel for {}", op.name()));
        }
        made.push(outputs);
    }
    Outcome::Rewrite(patch)
}

fn is_code(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// The one number of a constant.
fn one(graph: &Graph, v: ValueId) -> Option<&Tensor> {
    graph.tensor(v).filter(|t| t.elems() == 1)
}

/// Whether an operation makes each element of its output from those at its place.
fn is_elementwise(op: &Op, facts: &[Fact]) -> bool {
    match op {
        Op::Atom(atom) => matches!(
            atom,
            Atom::Mul | Atom::Add | Atom::Cmp(_) | Atom::Exp(_) | Atom::Read(Read::Cast(_))
        ),
        Op::Jet(jet, _) if *jet == &LOOKUP => true,
        Op::Jet(jet, attrs) => jet.instantiate(facts, attrs).is_ok_and(|inner| {
            inner.outputs.len() == 1 && inner.nodes.iter().all(|n| is_elementwise(&n.op, &[]))
        }),
    }
}

/// What a value is a function of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Nothing,
    Code(ValueId),
}

/// What `v` is an elementwise function of, if it is a function of numbers and of one code at most.
fn function_of(graph: &Graph, v: ValueId, search: &mut Search<'_>) -> Option<Of> {
    search.left = search.left.checked_sub(1)?;
    if graph.tensor(v).is_some() {
        return one(graph, v).map(|_| Of::Nothing);
    }
    let fact = graph.fact(v);
    let through = graph.producer(v).and_then(|node| inputs_of(graph, node, search));
    match through {
        Some(of) => Some(of),
        None => is_code(fact.dtype).then_some(Of::Code(v)),
    }
}

/// What the inputs of an elementwise node are functions of. Reshapes are nothing here: all values of a
/// function of one code have as many elements, in the same order.
fn inputs_of(graph: &Graph, node: &Node, search: &mut Search<'_>) -> Option<Of> {
    let facts: Vec<Fact> = node.inputs.iter().map(|&v| graph.fact(v).clone()).collect();
    let fits = is_reshape(&node.op) || search.known.is_elementwise(&node.op, facts);
    if node.outputs.len() != 1 || !fits {
        return None;
    }
    let is_table = matches!(&node.op, Op::Jet(jet, _) if *jet == &LOOKUP);
    let mut of = Of::Nothing;
    for (i, &input) in node.inputs.iter().enumerate() {
        let own = match graph.tensor(input) {
            Some(_) if is_table && i == 1 => Of::Nothing,
            _ => function_of(graph, input, search)?,
        };
        of = match (of, own) {
            (Of::Nothing, own) => own,
            (of, Of::Nothing) => of,
            (of, own) if of == own => of,
            _ => return None,
        };
    }
    let Of::Code(code) = of else { return None };
    (elements(graph, code)? == elements(graph, node.outputs[0])?).then_some(of)
}

fn is_reshape(op: &Op) -> bool {
    matches!(op, Op::Atom(Atom::Read(Read::Reshape(_))))
}

fn elements(graph: &Graph, v: ValueId) -> Option<usize> {
    graph.fact(v).shape.iter().map(|d| d.known()).product()
}

/// A value at each code in turn, with the code's 8 bits as the place; `made` are those of before.
fn table_of(
    graph: &Graph,
    v: ValueId,
    code: ValueId,
    made: &mut HashMap<ValueId, Tensor>,
) -> Option<Tensor> {
    if let Some(table) = made.get(&v) {
        return Some(table.clone());
    }
    if v == code {
        let dtype = graph.fact(code).dtype;
        let all: Vec<u8> = (0..=u8::MAX).collect();
        let bytes = Bytes::owned(AlignedBytes::from_slice(&all));
        return Tensor::new(dtype, vec![CODES], bytes).ok();
    }
    if let Some(number) = graph.tensor(v) {
        let shape = if number.elems() == 1 { vec![] } else { number.shape().to_vec() };
        return Tensor::new(number.dtype(), shape, number.bytes().clone()).ok();
    }
    let node = graph.producer(v)?;
    if is_reshape(&node.op) {
        return table_of(graph, node.inputs[0], code, made);
    }
    let inputs = node.inputs.iter().map(|&input| table_of(graph, input, code, made));
    let inputs = inputs.collect::<Option<Vec<Tensor>>>()?;
    let table = evaluate_node(&node.op, &inputs, &Bindings::new()).ok()?.into_iter().next()?;
    made.insert(v, table.clone());
    Some(table)
}

/// A function of one code that gives a code, as a table.
fn tabulated(graph: &Graph, node: &Node, known: &Known) -> Option<Patch> {
    let Op::Jet(jet, _) = &node.op else { return None };
    // What encodes, and one table after another.
    let after_table = || jet_node(graph, node.inputs[0], LOOKUP.name).is_some();
    if *jet != &AFFINE_QUANTIZE && !(*jet == &LOOKUP && after_table()) {
        return None;
    }
    let Of::Code(code) = inputs_of(graph, node, &mut Search::new(known))? else { return None };
    let table = table_of(graph, node.outputs[0], code, &mut HashMap::new())?;
    let mut patch = Patch::new();
    let mut y = Tap::Old(code);
    let same = table.dtype() == graph.fact(code).dtype
        && table.bytes().as_slice().iter().enumerate().all(|(i, &to)| i == usize::from(to));
    if !same {
        let op = Op::Jet(&LOOKUP, Attrs::new());
        y = Tap::New(patch.push(op, vec![y, Tap::Const(table)]), 0);
    }
    let shape = &graph.fact(node.outputs[0]).shape;
    if *shape != graph.fact(code).shape {
        let op = Op::Atom(Atom::Read(Read::Reshape(shape.clone())));
        y = Tap::New(patch.push(op, vec![y]), 0);
    }
    patch.shunt(node.outputs[0], y);
    Some(patch)
}

/// Whether encoding `v` would meet decoded codes, on the other side of what moves them.
fn was_decoded(graph: &Graph, v: ValueId, search: &mut Search<'_>) -> bool {
    if search.left == 0 || graph.fact(v).dtype != DType::F32 {
        return false;
    }
    if matches!(function_of(graph, v, search), Some(Of::Code(_))) {
        return true;
    }
    let Some(node) = graph.producer(v) else { return false };
    moves(&node.op) && moved_inputs(node).iter().all(|&input| was_decoded(graph, input, search))
}

/// Whether an operation only moves elements, or picks the greatest.
fn moves(op: &Op) -> bool {
    let (jet, attrs) = match op {
        Op::Jet(jet, attrs) => (jet, attrs),
        Op::Atom(atom) => return is_move(atom),
    };
    match jet.name {
        "max_pool" => true,
        "resize" => attrs.text("mode").is_ok_and(|mode| mode == "nearest"),
        _ => false,
    }
}

fn is_move(atom: &Atom) -> bool {
    matches!(
        atom,
        Atom::Write(Write::Concat { .. })
            | Atom::Read(
                Read::Reshape(_)
                    | Read::Permute(_)
                    | Read::Broadcast(_)
                    | Read::Slice { .. }
                    | Read::Gather { .. }
                    | Read::Pad { .. }
            )
    )
}

/// The inputs whose elements a moving operation moves.
fn moved_inputs(node: &Node) -> &[ValueId] {
    let indexed = matches!(&node.op, Op::Atom(Atom::Read(Read::Gather { .. })));
    if indexed { &node.inputs[..1] } else { &node.inputs }
}

/// Codes of what was moved, as what is moved of the codes.
fn moved(graph: &Graph, node: &Node, known: &Known) -> Option<Patch> {
    let encoder = Encoder::of(graph, node)?;
    let mover = graph.producer(node.inputs[0]).filter(|m| moves(&m.op))?;
    let inputs = moved_inputs(mover);
    if !inputs.iter().all(|&input| was_decoded(graph, input, &mut Search::new(known))) {
        return None;
    }
    let mut op = mover.op.clone();
    if let Op::Atom(Atom::Read(Read::Pad { value, .. })) = &mut op {
        *value = Float::new(f64::from(encoder.code(value.get())?));
    }
    let mut patch = Patch::new();
    let mut taps: Vec<Tap> = mover.inputs.iter().map(|&v| Tap::Old(v)).collect();
    for tap in taps.iter_mut().take(inputs.len()) {
        *tap = encoder.push(&mut patch, tap.clone());
    }
    let number = patch.push(op, taps);
    patch.shunt(node.outputs[0], Tap::New(number, 0));
    Some(patch)
}

/// The other operand of a sum or product with a constant.
fn with_constant<'g>(graph: &'g Graph, v: ValueId, atom: &Atom) -> Option<(ValueId, &'g Tensor)> {
    let node = graph.producer(v).filter(|n| n.op == Op::Atom(atom.clone()))?;
    let &[a, b] = node.inputs.as_slice() else { return None };
    match (graph.tensor(a), graph.tensor(b)) {
        (Some(constant), None) => Some((b, constant)),
        (None, Some(constant)) => Some((a, constant)),
        _ => None,
    }
}

/// A constant that is the same all over each channel of [N, M, ...], one element a channel.
fn by_channel(constant: &Tensor, channels: usize, rank: usize) -> Option<Tensor> {
    let size = constant.dtype().layout().bytes;
    let bytes = constant.bytes().as_slice();
    let all = match constant.elems() {
        1 => bytes.repeat(channels),
        _ => {
            let shape = constant.shape();
            let at = (shape.len() + 1).checked_sub(rank)?;
            let fits =
                shape.iter().enumerate().all(|(i, &n)| n == if i == at { channels } else { 1 });
            (fits && bytes.len() == channels * size).then(|| bytes.to_vec())?
        }
    };
    let bytes = Bytes::owned(AlignedBytes::from_slice(&all));
    Tensor::new(constant.dtype(), vec![channels], bytes).ok()
}

/// The sums of a convolution, scaled and with a bias or not.
struct Scaled<'g> {
    conv: &'g Node,
    offsets: Option<&'g Tensor>,
    factors: &'g Tensor,
    bias: Option<&'g Tensor>,
}

impl Scaled<'_> {
    fn of<'g>(graph: &'g Graph, y: ValueId) -> Option<Scaled<'g>> {
        let (y, bias) = without_constant(graph, y, &Atom::Add);
        let (y, factors) = with_constant(graph, y, &Atom::Mul)?;
        let to_float = Op::Atom(Atom::Read(Read::Cast(DType::F32)));
        let sums = graph.producer(y).filter(|n| n.op == to_float)?.inputs[0];
        let (sums, offsets) = without_constant(graph, sums, &Atom::Add);
        let conv = jet_node(graph, sums, CONV_INTEGER.name)?;
        let same = graph.fact(y).shape == graph.fact(sums).shape && reads(graph, sums) == 1;
        same.then_some(Scaled { conv, offsets, factors, bias })
    }
}

fn without_constant<'g>(
    graph: &'g Graph,
    v: ValueId,
    atom: &Atom,
) -> (ValueId, Option<&'g Tensor>) {
    match with_constant(graph, v, atom) {
        Some((inner, constant)) => (inner, Some(constant)),
        None => (v, None),
    }
}

/// What encodes floats with one scale and one zero point.
struct Encoder<'g> {
    node: &'g Node,
    attrs: &'g Attrs,
    scale: Tensor,
    zero: Tensor,
}

impl Encoder<'_> {
    fn of<'g>(graph: &Graph, node: &'g Node) -> Option<Encoder<'g>> {
        let Op::Jet(jet, attrs) = &node.op else { return None };
        let &[_, scale, zero] = node.inputs.as_slice() else { return None };
        if *jet != &AFFINE_QUANTIZE {
            return None;
        }
        // Without axes, they line up with whatever is encoded.
        let scalar = |v: ValueId| {
            let t = one(graph, v)?;
            Tensor::new(t.dtype(), vec![], t.bytes().clone()).ok()
        };
        let (scale, zero) = (scalar(scale)?, scalar(zero)?);
        let number = scale.to_f32_vec().ok()?.first().copied()?;
        (number > 0.0 && number.is_finite()).then_some(Encoder { node, attrs, scale, zero })
    }

    /// The code of a number.
    fn code(&self, number: f64) -> Option<i16> {
        let number = Tensor::from_f32(vec![], &[number as f32]).ok()?;
        let inputs = [number, self.scale.clone(), self.zero.clone()];
        let code = evaluate_node(&self.node.op, &inputs, &Bindings::new()).ok()?;
        let code = code.first()?;
        let byte = code.bytes().as_slice().first().copied()?;
        Some(number_of(byte, code.dtype()))
    }

    /// Encodes another value.
    fn push(&self, patch: &mut Patch, x: Tap) -> Tap {
        let inputs = vec![x, Tap::Const(self.scale.clone()), Tap::Const(self.zero.clone())];
        Tap::New(patch.push(self.node.op.clone(), inputs), 0)
    }
}

fn number_of(byte: u8, dtype: DType) -> i16 {
    if dtype == DType::I8 { i16::from(byte.cast_signed()) } else { i16::from(byte) }
}

/// `affine_quantize` of the scaled sums of a convolution.
fn requantized(graph: &Graph, node: &Node) -> Option<Patch> {
    let encoder = Encoder::of(graph, node)?;
    let Scaled { conv, offsets, factors, bias } = Scaled::of(graph, node.inputs[0])?;
    let Op::Jet(_, window) = &conv.op else { return None };
    let rank = graph.fact(node.outputs[0]).rank();
    let channels = graph.fact(conv.inputs[1]).shape.first()?.known()?;
    let factors = by_channel(factors, channels, rank)?;
    let bias = match bias {
        Some(bias) => by_channel(bias, channels, rank)?,
        None => Tensor::from_f32(vec![channels], &vec![0.0; channels]).ok()?,
    };
    let offsets = match offsets {
        Some(offsets) => by_channel(offsets, channels, rank)?,
        None => Tensor::from_elems(DType::I32, vec![channels], &vec![0i32; channels]).ok()?,
    };
    let finite = |t: &Tensor| t.to_f32_vec().is_ok_and(|all| all.iter().all(|x| x.is_finite()));
    if !finite(&factors) || !finite(&bias) || offsets.dtype() != DType::I32 {
        return None;
    }
    let mut inputs: Vec<Tap> = conv.inputs.iter().map(|&v| Tap::Old(v)).collect();
    let constants = [offsets, factors, bias, encoder.scale.clone(), encoder.zero.clone()];
    inputs.extend(constants.map(Tap::Const));
    let mut patch = Patch::new();
    let attrs = window.clone().with("dtype", encoder.attrs.dtype("dtype").ok()?);
    let number = patch.push(Op::Jet(&CONV_QUANTIZED, attrs), inputs);
    patch.shunt(node.outputs[0], Tap::New(number, 0));
    Some(patch)
}

/// Codes of the scaled sums of a convolution between limits, as limits of their codes.
fn limited(graph: &Graph, node: &Node) -> Option<Patch> {
    let encoder = Encoder::of(graph, node)?;
    let dtype = encoder.attrs.dtype("dtype").ok()?;
    let (greatest, least) = (Atom::Cmp(Cmp::Max), Atom::Cmp(Cmp::Min));
    let (mut x, mut limits) = (node.inputs[0], Vec::new());
    loop {
        let (is_max, (inner, limit)) = match with_constant(graph, x, &greatest) {
            Some(found) => (true, found),
            None => match with_constant(graph, x, &least) {
                Some(found) => (false, found),
                None => break,
            },
        };
        let [limit] = limit.to_f32_vec().ok()?[..] else { return None };
        if limit.is_nan() {
            return None;
        }
        limits.push((is_max, encoder.code(f64::from(limit))?));
        x = inner;
    }
    Scaled::of(graph, x).filter(|_| !limits.is_empty())?;
    let table: Vec<u8> = (0..=u8::MAX)
        .map(|byte| {
            let code =
                limits.iter().rev().fold(number_of(byte, dtype), |code, &(is_max, limit)| {
                    if is_max { code.max(limit) } else { code.min(limit) }
                });
            code as u8
        })
        .collect();
    let mut patch = Patch::new();
    let codes = encoder.push(&mut patch, Tap::Old(x));
    let bytes = Bytes::owned(AlignedBytes::from_slice(&table));
    let table = Tap::Const(Tensor::new(dtype, vec![CODES], bytes).ok()?);
    let number = patch.push(Op::Jet(&LOOKUP, Attrs::new()), vec![codes, table]);
    patch.shunt(node.outputs[0], Tap::New(number, 0));
    Some(patch)
}

/// A table of what a convolution gives, as its last step.
fn through_table(graph: &Graph, node: &Node) -> Option<Patch> {
    let &[codes, table] = node.inputs.as_slice() else { return None };
    if !matches!(&node.op, Op::Jet(jet, _) if *jet == &LOOKUP) {
        return None;
    }
    let conv = jet_node(graph, codes, CONV_QUANTIZED.name)?;
    if conv.inputs.len() != 9 || graph.tensor(table).is_none() || reads(graph, codes) != 1 {
        return None;
    }
    let mut inputs: Vec<Tap> = conv.inputs.iter().map(|&v| Tap::Old(v)).collect();
    inputs.push(Tap::Old(table));
    let mut patch = Patch::new();
    let number = patch.push(conv.op.clone(), inputs);
    patch.shunt(node.outputs[0], Tap::New(number, 0));
    Some(patch)
}
