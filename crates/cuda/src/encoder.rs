//! What text encoders need besides: layernorm, and attention within packed sequences, by contents or
//! by contents and relative positions.

use cyb_exec::{Call, ExecError};
use cyb_ir::Node;
use cyb_tensor::DType;

use crate::driver::{Function, Launch, Parameter};
use crate::op::{Build, Op, Operand, Row, Scratch, attrs_of, per_row};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "layernorm", name: "layernorm", supports: norm_fits },
    Row { op: "sdpa_packed", name: "attend_packed", supports: attention_fits },
    Row { op: "sdpa_disentangled", name: "attend_apart", supports: disentangled_fits },
];

/// Queries and keys that a block has at once; `QUERIES` and `KEYS` of `encoder.cu`.
const QUERIES: usize = 16;
const KEYS: usize = 32;
const THREADS: u32 = 128;
/// The widest heads.
const WIDEST: usize = 256;
/// The widest heads, keys and values, where contents meet positions: what the rows of positions leave
/// of a block's shared memory on any GPU.
const WIDEST_APART: [usize; 2] = [96, 128];
/// Distances between a block's queries and keys; `APART` there.
const APART: usize = QUERIES + KEYS - 1;

fn norm_fits(call: &Call<'_>) -> bool {
    call.inputs.iter().all(|f| f.dtype == DType::F32) && call.inputs[0].rank() > 0
}

fn attention_fits(call: &Call<'_>) -> bool {
    let width = |i: usize| call.inputs[i].shape[2].known().is_some_and(|n| n <= WIDEST);
    let floats = [0, 1, 2].iter().all(|&i| call.inputs[i].dtype == DType::F32);
    let ints = [3, 4].iter().all(|&i| call.inputs[i].dtype == DType::I32);
    let bias = call.inputs.get(5).is_none_or(|f| f.dtype == DType::F32);
    floats && ints && bias && width(0) && width(2)
}

fn disentangled_fits(call: &Call<'_>) -> bool {
    let width = |i: usize, most: usize| call.inputs[i].shape[2].known().is_some_and(|n| n <= most);
    let ints = 3..6;
    let dtype = |i: usize| if ints.contains(&i) { DType::I32 } else { DType::F32 };
    (0..call.inputs.len()).all(|i| call.inputs[i].dtype == dtype(i))
        && width(0, WIDEST_APART[0])
        && width(2, WIDEST_APART[1])
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

/// How the distance of a query and a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distance {
    /// Keys farther away than the window are not seen; 0 for none. There may be a bias.
    Seen { window: usize, causal: bool },
    /// Contents meet positions: with `c2p` queries those of keys, with `p2c` keys those of queries.
    Positions { c2p: bool, p2c: bool },
}

#[derive(Debug)]
pub(crate) struct PackedAttention {
    scale: f32,
    /// Bound of scores; 0 for none.
    softcap: f32,
    distance: Distance,
    function: Function,
}

impl PackedAttention {
    pub(crate) fn build(b: &Build<'_>, node: &Node) -> Result<PackedAttention, ExecError> {
        let attrs = attrs_of(&node.op);
        let width = |i: usize| b.graph.fact(node.inputs[i]).shape[2].known().unwrap_or(WIDEST);
        let narrow = width(2) <= 64;
        let mut softcap = 0.0;
        let (name, distance) = if node.op.name() == "sdpa_disentangled" {
            let positions =
                Distance::Positions { c2p: attrs.flag("c2p")?, p2c: attrs.flag("p2c")? };
            (if narrow { "attend_apart_64" } else { "attend_apart_128" }, positions)
        } else {
            softcap = attrs.float("softcap")? as f32;
            let seen =
                Distance::Seen { window: attrs.size("window")?, causal: attrs.flag("causal")? };
            (if narrow { "attend_packed_64" } else { "attend_packed_256" }, seen)
        };
        let function = b.device.function("encoder", name)?;
        function.allow_shared(shared(width(0), width(2), distance))?;
        Ok(PackedAttention { scale: attrs.float("scale")? as f32, softcap, distance, function })
    }
}

/// Bytes of a block's queries, keys, values, weights and rows of positions.
fn shared(key: usize, value: usize, distance: Distance) -> usize {
    let padded = key.next_multiple_of(4);
    let stride = if (padded / 4).is_multiple_of(2) { padded + 4 } else { padded };
    let tables = match distance {
        Distance::Seen { .. } => 0,
        Distance::Positions { c2p, p2c } => usize::from(c2p) + usize::from(p2c),
    };
    let rows = tables * APART * stride;
    (QUERIES * padded + KEYS * (stride + value) + QUERIES * KEYS + rows) * 4
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
        let y = t[t.len() - 1].address;
        // A bias, or the rows of distances and the tables.
        let given = &t[5..t.len() - 1];
        let (mut bias, mut index, mut tables) = (0, 0, [0; 2]);
        let distances = given.first().map_or(0, Operand::width);
        let (mut positions, mut seen) = (0, (0, false));
        match self.distance {
            Distance::Seen { window, causal } => {
                bias = given.first().map_or(0, |bias| bias.address);
                seen = (window, causal);
            }
            Distance::Positions { c2p, .. } => {
                index = given[0].address;
                let first = usize::from(!c2p);
                for (table, operand) in tables[first..].iter_mut().zip(&given[1..]) {
                    (*table, positions) = (operand.address, operand.dims()[0]);
                }
            }
        }
        let (window, causal) = seen;
        let addresses = [0, 1, 2, 3, 4].map(|i: usize| t[i].address);
        let parameter = addresses.iter().fold(Parameter::new(), |p, &a| p.u64(a));
        let [pos_k, pos_q] = tables;
        let parameter =
            [bias, index, pos_k, pos_q, y].into_iter().fold(parameter, |p, address| p.u64(address));
        let sizes = [sequences, tokens, heads, groups, d, e, distances, window];
        let parameter = sizes.iter().fold(parameter, |p, &n| p.i32(n));
        let parameter =
            parameter.i32(usize::from(causal)).i32(positions).f32(self.scale).f32(self.softcap);
        out.push(Launch {
            function: self.function,
            // At most so many: each sequence may end with a block that is not full.
            grid: ((tokens / QUERIES + sequences) as u32, heads as u32, 1),
            block: THREADS,
            cluster: 1,
            shared: shared(d, e, self.distance) as u32,
            parameters: vec![parameter],
        });
    }
}
