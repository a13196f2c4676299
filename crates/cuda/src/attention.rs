//! `sdpa_paged`, with the rotary embeddings and cache writes before it where a step takes them over.

use cyb_exec::{Call, ExecError};
use cyb_ir::Node;
use cyb_tensor::DType;

use crate::driver::{Function, Launch, Parameter};
use crate::elementwise::{pool_kind, rope_parameter};
use crate::op::{Build, Needs, Op, Operand, Row, Scratch, attrs_of};

pub(crate) static ROWS: &[Row] = &[Row { op: "sdpa_paged", name: "attend", supports }];

/// Positions of a split; `SPLIT` of `attention.cu`.
const SPLIT: usize = 256;
/// Threads of a block; `THREADS` there.
const THREADS: usize = 128;
/// Tokens of a launch there, which share partial results.
const SLICE: usize = 64;
/// Tokens up to which each is done by itself.
const FEW: usize = 16;
/// Query rows of a block of `prefill.cu`, and positions of its tiles.
const QUERIES: usize = 64;
/// Head widths that it is compiled for.
const WIDTHS: [usize; 5] = [64, 80, 96, 128, 256];
/// Bytes of shared memory that a block may take.
const SHARED: usize = 96 << 10;

fn supports(call: &Call<'_>) -> bool {
    let known = |i: usize, axis: usize| call.inputs[i].shape[axis].known();
    let (Some(heads), Some(key), Some(groups), Some(value)) =
        (known(0, 1), known(0, 2), known(1, 1), known(2, 2))
    else {
        return false;
    };
    let pool = call.inputs[1].dtype;
    call.inputs[0].dtype == DType::F32
        && pool_kind(pool).is_some()
        && call.inputs[2].dtype == pool
        && call.inputs[3..6].iter().all(|f| f.dtype == DType::I32)
        && call.inputs.get(6).is_none_or(|f| f.dtype == DType::F32)
        && groups > 0
        && heads % groups == 0
        && [key, value].iter().all(|w| w % 8 == 0 && (8..=512).contains(w))
        && shared(heads / groups, key) <= SHARED
}

/// Bytes of a block's shared memory.
fn shared(per_group: usize, key: usize) -> usize {
    4 * (per_group * (key + SPLIT + 2) + 4 * THREADS * 8)
}

/// Rotary embedding of queries and keys, and the writes to the pools.
#[derive(Debug)]
struct Before {
    pairs: bool,
    scale: f32,
    function: Function,
}

/// Operands: q, keys, values, tables, rows, positions, sinks?, then where the step rotates and
/// stores too: raw q, raw k, raw v, slots, frequencies; then the output and there turned q and k.
#[derive(Debug)]
pub(crate) struct Attention {
    scale: f32,
    window: usize,
    softcap: f32,
    block: usize,
    sinks: bool,
    before: Option<Before>,
    function: Function,
    /// Where the pools are f16 and the width is one of [`WIDTHS`].
    many: Option<Function>,
}

/// Bytes of shared memory of a block of `prefill.cu`: a tile of keys and one of values.
fn many_shared(width: usize) -> usize {
    2 * QUERIES * (width + 8) * 2
}

impl Attention {
    /// The step of an `sdpa_paged` node; `rope` is the node that turns its queries.
    pub(crate) fn build(
        b: &mut Build<'_>,
        node: &Node,
        rope: Option<&Node>,
    ) -> Result<Attention, ExecError> {
        let attrs = attrs_of(&node.op);
        let pool = b.graph.fact(node.inputs[1]).dtype;
        let function = b.device.function("attention", &format!("attend_{}", pool.name()))?;
        function.allow_shared(SHARED)?;
        let width = |i: usize| b.graph.fact(node.inputs[i]).shape[2].known().unwrap_or(0);
        let known = |i: usize, axis: usize| b.graph.fact(node.inputs[i]).shape[axis].known();
        let per_group = known(0, 1).zip(known(1, 1)).map_or(usize::MAX, |(h, g)| h / g.max(1));
        let fits = pool == DType::F16
            && width(1) == width(2)
            && WIDTHS.contains(&width(1))
            && per_group <= QUERIES;
        let many = match fits {
            false => None,
            true => {
                let many = b.device.function("prefill", &format!("attend_many_{}", width(1)))?;
                many.allow_shared(many_shared(width(1)))?;
                Some(many)
            }
        };
        let before = match rope {
            None => None,
            Some(rope) => {
                let attrs = attrs_of(&rope.op);
                Some(Before {
                    pairs: attrs.text("style")? == "pairs",
                    scale: attrs.float("scale")? as f32,
                    function: b.device.function("elementwise", "rope_store")?,
                })
            }
        };
        Ok(Attention {
            scale: attrs.float("scale")? as f32,
            window: attrs.size("window")?,
            softcap: attrs.float("softcap")? as f32,
            block: attrs.size("block")?,
            sinks: node.inputs.len() > 6,
            before,
            function,
            many,
        })
    }

    fn sizes(&self, t: &[Operand]) -> Option<Sizes> {
        let (&[tokens, heads, key], &[slots, groups, _], &[_, _, value], &[sequences, blocks]) =
            (t[0].dims(), t[1].dims(), t[2].dims(), t[3].dims())
        else {
            return None;
        };
        let splits = (blocks * self.block).div_ceil(SPLIT).max(1);
        Some(Sizes { tokens, heads, key, slots, groups, value, sequences, blocks, splits })
    }
}

struct Sizes {
    tokens: usize,
    heads: usize,
    key: usize,
    slots: usize,
    groups: usize,
    value: usize,
    sequences: usize,
    blocks: usize,
    splits: usize,
}

impl Op for Attention {
    fn needs(&self, t: &[Operand]) -> Needs {
        let Some(s) = self.sizes(t) else { return Needs::default() };
        let tokens = s.tokens.min(if self.many.is_some() { FEW } else { SLICE });
        Needs {
            scratch: tokens * s.heads * s.splits * (s.value + 2) * 4,
            zeros: tokens * s.groups * 4,
        }
    }

    fn launches(&self, t: &[Operand], scratch: Scratch, out: &mut Vec<Launch>) {
        let Some(s) = self.sizes(t) else { return };
        if s.tokens == 0 || s.slots == 0 {
            return;
        }
        let inputs = 6 + usize::from(self.sinks);
        let mut output = &t[inputs];
        let mut queries = &t[0];
        if let Some(before) = &self.before {
            let [raw_q, raw_k, raw_v, slots, frequencies] = [0, 1, 2, 3, 4].map(|i| t[inputs + i]);
            output = &t[inputs + 5];
            queries = &t[inputs + 6];
            let turned_k = &t[inputs + 7];
            let kind = t[1].dtype.and_then(pool_kind).unwrap_or(0);
            let stored = [raw_q, raw_k, raw_v, *queries, *turned_k, slots, t[1], t[2]]
                .iter()
                .fold(Parameter::new(), |p, operand| p.u64(operand.address));
            let stored = [s.heads, s.groups, s.key, s.value, kind, kind, s.slots]
                .iter()
                .fold(stored, |p, &n| p.i32(n));
            out.push(Launch {
                function: before.function,
                grid: (s.tokens as u32, (s.heads + 2 * s.groups) as u32, 1),
                block: 128,
                shared: 0,
                parameters: vec![
                    rope_parameter(&t[5], &frequencies, before.pairs, before.scale),
                    stored,
                ],
            });
        }
        let sinks = if self.sinks { t[6].address } else { 0 };
        let paged = [queries.address, t[1].address, t[2].address, t[3].address, t[4].address]
            .iter()
            .fold(Parameter::new(), |p, &a| p.u64(a))
            .u64(t[5].address)
            .u64(sinks)
            .u64(output.address)
            .u64(scratch.address)
            .u64(scratch.zeros);
        let paged = |first: usize| {
            let ints = [
                first,
                s.tokens,
                s.heads,
                s.groups,
                s.key,
                s.value,
                s.blocks,
                self.block,
                self.window,
                s.slots,
                s.sequences,
            ];
            ints.iter().fold(paged.clone(), |p, &n| p.i32(n)).f32(self.scale).f32(self.softcap)
        };
        let per_group = s.heads / s.groups;
        if let Some(many) = self.many.filter(|_| s.tokens > FEW) {
            let tiles = s.tokens.div_ceil(QUERIES / per_group);
            out.push(Launch {
                function: many,
                grid: (tiles as u32, s.groups as u32, 1),
                block: 128,
                shared: many_shared(s.key) as u32,
                parameters: vec![paged(0)],
            });
            return;
        }
        for first in (0..s.tokens).step_by(SLICE) {
            let here = SLICE.min(s.tokens - first);
            out.push(Launch {
                function: self.function,
                grid: (s.splits as u32, s.groups as u32, here as u32),
                block: THREADS as u32,
                shared: shared(per_group, s.key) as u32,
                parameters: vec![paged(first)],
            });
        }
    }
}
