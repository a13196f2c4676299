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
/// `THREADS` of `decode.cu`, whose splits are as long.
const DECODE_THREADS: usize = 256;
/// The most tokens of a launch there.
const SLICE: usize = 512;
/// Bytes of partial results that the tokens of a launch share, unless one token takes more.
const PARTIALS: usize = 64 << 20;
/// Query heads of a block of `decode.cu`.
const HEADS: usize = 4;
/// Head widths that it is compiled for.
const DECODE_WIDTHS: [usize; 3] = [64, 128, 256];
/// Tokens up to which each is done by itself, whatever sequences they are of.
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
    /// `attend_each` and `attend_alone`, where the pools are f16 and the width is one of
    /// [`DECODE_WIDTHS`].
    decode: Option<[Function; 2]>,
    batch_invariant: bool,
}

/// Bytes of shared memory of a block of `prefill.cu`: one or two tiles of keys and of values.
fn many_shared(width: usize) -> usize {
    let stages = if width == 256 { 1 } else { 2 };
    stages * 2 * QUERIES * (width + 8) * 2
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
        let decode = match fits && DECODE_WIDTHS.contains(&width(1)) {
            false => None,
            true => {
                let function =
                    |name| b.device.function("decode", &format!("attend_{name}_{}", width(1)));
                Some([function("each")?, function("alone")?])
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
            decode,
            batch_invariant: b.device.batch_invariant,
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

impl Sizes {
    /// Blocks that share a token's key heads in `decode.cu`.
    fn rows(&self, decode: bool) -> usize {
        let per_group = self.heads / self.groups.max(1);
        self.groups * if decode { per_group.div_ceil(HEADS) } else { 1 }
    }

    /// Bytes of a token's partial results.
    fn partials(&self) -> usize {
        self.heads * self.splits * (self.value + 2) * 4
    }

    /// Tokens of a launch that does each by itself.
    fn slice(&self) -> usize {
        match self.splits {
            1 => SLICE,
            _ => (PARTIALS / self.partials().max(1)).clamp(1, SLICE),
        }
    }
}

impl Attention {
    /// Whether tokens are done one by one: where there are few of them, or one a sequence, or where
    /// they always are.
    fn one_by_one(&self, s: &Sizes) -> bool {
        self.many.is_none()
            || self.batch_invariant
            || s.tokens <= FEW
            || (self.decode.is_some() && s.tokens <= s.sequences)
    }

    fn paged(&self, t: &[Operand], s: &Sizes, queries: u64, out: u64, scratch: Scratch) -> Paged {
        let sinks = if self.sinks { t[6].address } else { 0 };
        let addresses = [1, 2, 3, 4, 5].map(|i: usize| t[i].address);
        let base = addresses.iter().fold(Parameter::address(queries), |p, &a| p.u64(a));
        let base = base.u64(sinks).u64(out).u64(scratch.address).u64(scratch.zeros);
        let ints = [
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
        Paged { base, ints, floats: [self.scale, self.softcap] }
    }

    /// Tokens one by one, in slices that share partial results.
    fn each(&self, s: &Sizes, paged: &Paged, out: &mut Vec<Launch>) {
        let slice = s.slice();
        for first in (0..s.tokens).step_by(slice) {
            let here = slice.min(s.tokens - first) as u32;
            let (function, block, shared) = match &self.decode {
                Some([each, _]) => (*each, DECODE_THREADS, 0),
                None => (self.function, THREADS, shared(s.heads / s.groups, s.key)),
            };
            out.push(Launch {
                function,
                grid: (s.splits as u32, s.rows(self.decode.is_some()) as u32, here),
                block: block as u32,
                cluster: 1,
                shared: shared as u32,
                parameters: vec![paged.from(first)],
            });
        }
    }
}

/// `Paged` of `paged.cuh`, but for its first token.
struct Paged {
    base: Parameter,
    ints: [usize; 10],
    floats: [f32; 2],
}

impl Paged {
    fn from(&self, first: usize) -> Parameter {
        let p = self.ints.iter().fold(self.base.clone().i32(first), |p, &n| p.i32(n));
        self.floats.iter().fold(p, |p, &x| p.f32(x))
    }
}

impl Op for Attention {
    fn needs(&self, t: &[Operand]) -> Needs {
        let Some(s) = self.sizes(t) else { return Needs::default() };
        // Shorter tables may take more: a launch then has more tokens.
        let scratch = match s.splits {
            1 => 0,
            _ => s.partials().max(PARTIALS.min(s.tokens * s.partials())),
        };
        let zeros = s.tokens.min(SLICE) * s.rows(self.decode.is_some()) * 4;
        Needs { scratch, zeros }
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
            let rope = rope_parameter(&t[5], &frequencies, before.pairs, before.scale);
            if let (Some([_, alone]), 1) = (&self.decode, s.tokens) {
                let fresh = [raw_q, raw_k, raw_v, slots];
                let fresh = fresh.iter().fold(Parameter::new(), |p, o| p.u64(o.address));
                let paged = self.paged(t, &s, 0, output.address, scratch);
                out.push(Launch {
                    function: *alone,
                    grid: (s.splits as u32, s.rows(true) as u32, 1),
                    block: DECODE_THREADS as u32,
                    cluster: 1,
                    shared: 0,
                    parameters: vec![paged.from(0), rope, fresh],
                });
                return;
            }
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
                grid: (s.tokens as u32, 1, 1),
                block: 256,
                cluster: 1,
                shared: 0,
                parameters: vec![rope, stored],
            });
        }
        let paged = self.paged(t, &s, queries.address, output.address, scratch);
        if let Some(many) = self.many.filter(|_| !self.one_by_one(&s)) {
            let tiles = s.tokens.div_ceil(QUERIES / (s.heads / s.groups));
            out.push(Launch {
                function: many,
                grid: (tiles as u32, s.groups as u32, 1),
                block: 128,
                cluster: 1,
                shared: many_shared(s.key) as u32,
                parameters: vec![paged.from(0)],
            });
            return;
        }
        self.each(&s, &paged, out);
    }
}
