//! What text encoders need besides: layernorm, and attention within packed sequences.

use cyb_exec::{Call, ExecError};
use cyb_ir::Node;
use cyb_tensor::DType;

use crate::driver::{Function, Launch, Parameter};
use crate::op::{Build, Op, Operand, Row, Scratch, attrs_of, per_row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "layernorm", name: "layernorm", supports: norm_fits },
    Row { op: "sdpa_packed", name: "attend_packed", supports: attention_fits },
];

/// Queries and keys that a block has at once; `QUERIES` and `KEYS` of `encoder.cu`.
const QUERIES: usize = 16;
const KEYS: usize = 32;
const THREADS: u32 = 128;
/// The widest heads.
const WIDEST: usize = 256;

fn norm_fits(call: &Call<'_>) -> bool {
    call.inputs.iter().all(|f| f.dtype == DType::F32) && call.inputs[0].rank() > 0
}

fn attention_fits(call: &Call<'_>) -> bool {
    let width = |i: usize| call.inputs[i].shape[2].known().is_some_and(|n| n <= WIDEST);
    let floats = [0, 1, 2].iter().all(|&i| call.inputs[i].dtype == DType::F32);
    let ints = [3, 4].iter().all(|&i| call.inputs[i].dtype == DType::I32);
    let bias = call.inputs.get(5).is_none_or(|f| f.dtype == DType::F32);
    // Scores are not bounded here.
    let plain = attrs_of(call.op).float("softcap").is_ok_and(|cap| cap == 0.0);
    floats && ints && bias && plain && width(0) && width(2)
}

#[derive(Debug)]
pub(crate) struct LayerNorm {
    eps: f32,
    function: Function,
}

impl LayerNorm {
    pub(crate) fn build(b: &Build<'_>, node: &Node) -> Result<LayerNorm, ExecError> {
        let eps = attrs_of(&node.op).float("eps")? as f32;
        Ok(LayerNorm { eps, function: b.device.function("encoder", "layernorm")? })
    }
}

impl Op for LayerNorm {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let (x, y) = (&t[0], &t[t.len() - 1]);
        if x.elements() == 0 {
            return;
        }
        let bias = if t.len() > 3 { t[2].address } else { 0 };
        let addresses = [x.address, t[1].address, bias, y.address].map(Parameter::address);
        let sizes = [Parameter::int(x.width()), Parameter::new().f32(self.eps)];
        out.push(per_row(self.function, x.rows(), addresses.into_iter().chain(sizes).collect()));
    }
}

#[derive(Debug)]
pub(crate) struct PackedAttention {
    scale: f32,
    window: usize,
    causal: bool,
    function: Function,
}

impl PackedAttention {
    pub(crate) fn build(b: &Build<'_>, node: &Node) -> Result<PackedAttention, ExecError> {
        let attrs = attrs_of(&node.op);
        let width = |i: usize| b.graph.fact(node.inputs[i]).shape[2].known().unwrap_or(WIDEST);
        let name = if width(2) <= 64 { "attend_packed_64" } else { "attend_packed_256" };
        let function = b.device.function("encoder", name)?;
        function.allow_shared(shared(width(0), width(2)))?;
        Ok(PackedAttention {
            scale: attrs.float("scale")? as f32,
            window: attrs.size("window")?,
            causal: attrs.flag("causal")?,
            function,
        })
    }
}

/// Bytes of a block's queries, keys, values and weights.
fn shared(key: usize, value: usize) -> usize {
    let padded = key.next_multiple_of(4);
    let stride = if (padded / 4).is_multiple_of(2) { padded + 4 } else { padded };
    (QUERIES * padded + KEYS * (stride + value) + QUERIES * KEYS) * 4
}

impl Op for PackedAttention {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let (&[tokens, heads, d], &[_, groups, _], &[_, _, e]) =
            (t[0].dims(), t[1].dims(), t[2].dims())
        else {
            return;
        };
        let sequences = t[3].elements().saturating_sub(1);
        if tokens == 0 || heads == 0 || sequences == 0 {
            return;
        }
        let has_bias = t.len() > 6;
        let (bias, distances) = if has_bias { (t[5].address, t[5].width()) } else { (0, 0) };
        let addresses = [0, 1, 2, 3, 4].map(|i: usize| t[i].address);
        let parameter = addresses.iter().fold(Parameter::new(), |p, &a| p.u64(a));
        let parameter = parameter.u64(bias).u64(t[t.len() - 1].address);
        let sizes = [sequences, tokens, heads, groups, d, e, distances, self.window];
        let parameter = sizes.iter().fold(parameter, |p, &n| p.i32(n));
        let parameter = parameter.i32(usize::from(self.causal)).f32(self.scale);
        out.push(Launch {
            function: self.function,
            // At most so many: each sequence may end with a block that is not full.
            grid: ((tokens / QUERIES + sequences) as u32, heads as u32, 1),
            block: THREADS,
            cluster: 1,
            shared: shared(d, e) as u32,
            parameters: vec![parameter],
        });
    }
}
