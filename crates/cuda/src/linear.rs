//! Products with weights: `linear` and the jets fused from it.
//!
//! A step prepares its rows once (normalised or gated where the step says so) and multiplies them
//! with one matrix for each storage kind; weights of one kind lie behind each other, so that
//! queries, keys and values are one launch.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Node, ValueId};
use cyb_tensor::DType;

use crate::driver::{CudaError, Function, Launch, Memory, Parameter};
use crate::fold::{Folded, Pair};
use crate::op::{Activation, Before, Build, Needs, Op, Operand, Row, Scratch, attrs_of, per_row};
use crate::pack::{Kind, Rows, TILE, pack};
use crate::wide::{self, DENSE_FROM, DENSE_TOKENS, SPLIT_UP_TO, Wide};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "linear", name: "linear", supports: |c| fits(c, 0, 1..2) },
    Row { op: "linear_add", name: "linear_add", supports: |c| fits(c, 0, 1..2) },
    Row { op: "linear_many", name: "linear_many", supports: many_fits },
    Row { op: "gated_linear", name: "gated_linear", supports: |c| fits(c, 0, 2..3) },
];

/// Targets that one launch writes; `MAX_TARGETS` of `linear.cu`.
const MAX_TARGETS: usize = 4;
/// Columns that the rows' preparation does in a block.
const SEGMENT: usize = 1024;
/// Tokens up to which the kernel for few is used.
const FEW: usize = 8;

/// Warps of a block of `linear.cu`.
const WARPS: usize = 8;
/// Bytes of shared memory that the row's preparation keeps a row in, at most.
const KEPT: usize = 64 << 10;

/// Bytes of shared memory for the records of a block of `linear.cu`.
fn ring_shared(kind: &Kind, hopper: bool) -> usize {
    WARPS * kind.record() * if hopper { 3 } else { 2 }
}

fn fits(call: &Call<'_>, x: usize, weights: std::ops::Range<usize>) -> bool {
    let stores = |d: DType| Kind::of(d).is_some();
    let floats = |i: usize| weights.contains(&i) || call.inputs[i].dtype == DType::F32;
    // Weights are packed from rows.
    let turned = attrs_of(call.op).flag("turned").unwrap_or(false);
    !turned
        && call.inputs[x].dtype == DType::F32
        && call.inputs[x].rank() > 0
        && (0..call.inputs.len()).all(floats)
        && weights.clone().all(|i| {
            call.fixed[i]
                && stores(call.inputs[i].dtype)
                && call.inputs[i].rank() == 2
                && call.inputs[i].shape.iter().all(|d| d.known().is_some_and(|n| n > 0))
        })
}

fn many_weights(call: &Call<'_>) -> std::ops::Range<usize> {
    let with_bias = attrs_of(call.op).flag("bias").unwrap_or(false);
    let rest = call.inputs.len() - 1;
    1..1 + if with_bias { rest / 2 } else { rest }
}

/// The inputs of a product that are its weights.
pub(crate) fn weights(call: &Call<'_>) -> Option<std::ops::Range<usize>> {
    match call.op.name() {
        "linear" | "linear_add" => Some(1..2),
        "linear_many" => Some(many_weights(call)),
        "gated_linear" => Some(2..3),
        _ => None,
    }
}

fn many_fits(call: &Call<'_>) -> bool {
    fits(call, 0, many_weights(call))
}

/// What a step multiplies, by number of its operands.
#[derive(Debug)]
struct Product {
    /// Input of the bias.
    bias: Option<usize>,
    /// Output.
    out: usize,
    n: usize,
    /// First tile in its matrix.
    tile: usize,
}

/// Weights of one kind.
#[derive(Debug)]
struct Matrix {
    records: Memory,
    row_scales: Option<Memory>,
    kind: Kind,
    /// With its shared memory, where a row of activations fits beside the records.
    one: Option<(Block, usize)>,
    few: Block,
    many: Block,
    wide: Option<Wide>,
    tiles: usize,
    chunks: usize,
    /// Parts of a row that are summed apart.
    splits: usize,
    products: Vec<Product>,
}

/// Tiles that leave multiprocessors without work.
const FEW_TILES: usize = 128;
/// Columns up to which each block prepares a single row of codes by itself: every one of them reads all
/// of it. Rows for float weights have no kernel that prepares them with more than one block.
const ALONE: usize = 16384;

/// A kernel of `linear.cu` and how many of its blocks a multiprocessor holds.
#[derive(Clone, Copy, Debug)]
struct Block {
    function: Function,
    resident: usize,
}

impl Block {
    fn new(function: Function, shared: usize) -> Result<Block, CudaError> {
        function.allow_shared(shared)?;
        Ok(Block { function, resident: function.resident(256, shared)? })
    }
}

#[derive(Debug)]
pub(crate) struct Linear {
    before: Before,
    /// Input with the norm's weight, or with `up`.
    other: Option<usize>,
    /// Input of what the product is added to.
    residual: Option<usize>,
    /// The two products are a gate and its `up`; the output is the gated activation.
    paired: Option<Activation>,
    k: usize,
    inputs: usize,
    matrices: Vec<Matrix>,
    quantize: Function,
    narrow: Function,
    split: Function,
    multiprocessors: usize,
    /// Whether there is a choice of ways to multiply.
    wide: bool,
    hopper: bool,
}

impl Linear {
    /// The step of a node. What it takes over has its own second operand, where it has one, as the
    /// step's last input. With `pair` the step's two products become one gated activation.
    pub(crate) fn build(
        b: &mut Build<'_>,
        node: &Node,
        folded: Option<&Folded>,
        pair: Option<Pair>,
    ) -> Result<Linear, ExecError> {
        let call = Call::of(b.graph, node);
        let last = node.inputs.len();
        let mut before = folded.map_or(Before::Plain, |f| f.before);
        let mut other = folded.and_then(|f| f.other).map(|_| last);
        let inputs = last + usize::from(other.is_some());
        let mut residual = None;
        let (mut weights, mut biases): (Vec<usize>, Vec<Option<usize>>) = match node.op.name() {
            "linear_add" => {
                residual = Some(2);
                (vec![1], vec![None])
            }
            "linear_many" => {
                let range = many_weights(&call);
                let with_bias = last > range.end;
                let bias = |i: usize| with_bias.then_some(range.end + i);
                (range.clone().collect(), (0..range.len()).map(bias).collect())
            }
            "gated_linear" => {
                // Unless the step before gives the gated activation.
                if folded.is_none() {
                    let name = attrs_of(&node.op).text("activation")?;
                    before = Before::Gated(Activation::named(name));
                    other = Some(1);
                }
                residual = (last > 3).then_some(3);
                (vec![2], vec![None])
            }
            _ => (vec![1], vec![(last > 2).then_some(2)]),
        };
        if let Some(pair) = pair {
            // The gate comes first.
            weights.swap(0, pair.gate);
            biases.swap(0, pair.gate);
        }
        let paired = pair.map(|p| p.activation);
        let device = b.device;
        let mut matrices: Vec<(DType, Vec<(ValueId, Product)>)> = Vec::new();
        for (out, (&weight, bias)) in weights.iter().zip(biases).enumerate() {
            let v = node.inputs[weight];
            let fact = b.graph.fact(v);
            let n = fact.shape[0].known().unwrap_or(0);
            let product = Product { bias, out, n, tile: 0 };
            let room = |(d, parts): &&mut (DType, Vec<(ValueId, Product)>)| {
                *d == fact.dtype && parts.len() < MAX_TARGETS
            };
            match matrices.iter_mut().find(room) {
                Some((_, parts)) => parts.push((v, product)),
                None => matrices.push((fact.dtype, vec![(v, product)])),
            }
        }
        let k = b.graph.fact(node.inputs[weights[0]]).shape[1].known().unwrap_or(0);
        let matrices = matrices
            .into_iter()
            .map(|(dtype, parts)| {
                matrix(b, dtype, k, parts, paired.is_some(), before == Before::Plain)
            })
            .collect::<Result<_, _>>()?;
        let narrow = device.function("activations", "narrow_rows")?;
        narrow.allow_shared(KEPT)?;
        Ok(Linear {
            before,
            other,
            residual,
            paired,
            k,
            inputs,
            matrices,
            quantize: device.function("activations", "quantize_rows")?,
            narrow,
            split: device.function("activations", "split_rows")?,
            wide: device.gpu.is_hopper() && !device.batch_invariant,
            hopper: device.gpu.is_hopper(),
            multiprocessors: device.gpu.multiprocessors,
        })
    }

    /// Whether rows are needed as 8-bit codes.
    fn has_quantized(&self) -> bool {
        self.matrices.iter().any(|m| !m.kind.is_float())
    }

    /// Whether rows are needed as pairs of halves.
    fn has_floats(&self) -> bool {
        self.matrices.iter().any(|m| m.kind.is_float())
    }

    /// Whether the products of one row prepare it themselves.
    fn is_alone(&self, rows: usize) -> bool {
        let simple = match self.before {
            Before::Plain => true,
            Before::Norm(_) => self.other.is_some(),
            Before::Gated(_) => false,
        };
        let fits = self.k.is_multiple_of(4) && self.matrices.iter().all(|m| m.one.is_some());
        let short = |m: &Matrix| m.kind.is_float() || self.k.div_ceil(m.splits) <= ALONE;
        rows == 1 && simple && fits && self.matrices.iter().all(short)
    }

    /// Whether the float tensor cores do the products.
    fn is_wide(&self, rows: usize) -> bool {
        self.wide && rows > FEW
    }

    /// Whether weights are decoded by a kernel of its own.
    fn is_dense(&self, rows: usize) -> bool {
        let dense = |m: &Matrix| m.wide.as_ref().is_some_and(|w| w.is_dense(rows));
        self.is_wide(rows) && self.matrices.iter().all(dense)
    }

    fn layout(&self, rows: usize) -> Layout {
        let padded = self.k.next_multiple_of(256);
        let columns = rows.next_multiple_of(32);
        let mut at = 0;
        let mut take = |bytes: usize| {
            let start = at;
            at += bytes.next_multiple_of(256);
            start
        };
        let mut layout = Layout { padded, columns, ..Layout::default() };
        if self.is_alone(rows) {
            return layout;
        }
        if self.is_wide(rows) {
            let whole = if self.is_dense(rows) { DENSE_TOKENS } else { 1 };
            layout.codes = take(rows.next_multiple_of(whole) * padded * 2);
            layout.scales = take(rows * 4);
            let most = |bytes: fn(&Wide, usize) -> usize| {
                let wides = self.matrices.iter().filter_map(|m| m.wide.as_ref());
                wides.map(|w| bytes(w, rows)).max().unwrap_or(0)
            };
            layout.partials = take(most(Wide::partials));
            layout.decoded = take(most(Wide::decoded));
        } else {
            if self.has_quantized() {
                layout.codes = take(padded * columns);
                layout.scales = take(padded / 32 * columns * 8);
                layout.firsts = take(padded / 32 * columns * 4);
            }
            if self.has_floats() {
                layout.high = take(rows * padded * 2);
                layout.low = take(rows * padded * 2);
                layout.down = take(rows * 4);
            }
        }
        layout.total = take(0);
        layout
    }

    /// The launches that prepare the rows.
    fn prepare(&self, t: &[Operand], layout: &Layout, at: &dyn Fn(usize) -> u64) -> Vec<Launch> {
        let rows = t[0].rows();
        let other = self.other.map_or(0, |i| t[i].address);
        let source = || self.before.source(t[0].address, other);
        let address = |offset: usize| Parameter::address(at(offset));
        let (k, padded) = (Parameter::int(self.k), Parameter::int(layout.padded));
        let mut out = Vec::new();
        if self.is_wide(rows) {
            let bytes = layout.padded * 4;
            let kept = if bytes <= KEPT { bytes } else { 0 };
            let mut launch = per_row(
                self.narrow,
                rows,
                vec![
                    source(),
                    address(layout.codes),
                    address(layout.scales),
                    k,
                    padded,
                    Parameter::int(usize::from(kept > 0)),
                    Parameter::int(usize::from(!self.has_floats())),
                    Parameter::int(usize::from(self.is_dense(rows))),
                ],
            );
            launch.shared = kept as u32;
            return vec![launch];
        }
        if self.has_quantized() {
            out.push(Launch {
                function: self.quantize,
                grid: (layout.padded.div_ceil(SEGMENT) as u32, rows as u32, 1),
                block: 256,
                cluster: 1,
                shared: 0,
                parameters: vec![
                    source(),
                    address(layout.codes),
                    address(layout.scales),
                    address(layout.firsts),
                    k.clone(),
                    padded.clone(),
                    Parameter::int(layout.columns),
                ],
            });
        }
        if self.has_floats() {
            let halves = [layout.high, layout.low, layout.down].map(address);
            let parameters = [source()].into_iter().chain(halves).chain([k, padded]).collect();
            out.push(per_row(self.split, rows, parameters));
        }
        out
    }

    fn targets(&self, matrix: &Matrix, t: &[Operand]) -> Parameter {
        let residual = self.residual.map_or(0, |i| t[i].address);
        let mut targets = Parameter::new();
        for i in 0..MAX_TARGETS {
            let part = matrix.products.get(i);
            let bias = part.and_then(|p| p.bias).map_or(0, |i| t[i].address);
            let gone = self.paired.is_some() && i > 0;
            let to = part.filter(|_| !gone).map_or(0, |p| t[self.inputs + p.out].address);
            targets = targets.u64(to).u64(bias).u64(residual);
            let (n, tile) = part.map_or((0, 0), |p| (p.n, p.tile));
            targets = targets.i32(n).i32(tile);
        }
        targets
            .i32(matrix.products.len())
            .i32(usize::from(self.paired.is_some()))
            .i32(self.paired.map_or(0, |a| a as usize))
    }
}

impl Matrix {
    /// `Matrix` of `packed.cuh`.
    fn parameter(&self) -> Parameter {
        Parameter::new()
            .u64(self.records.at(0))
            .u64(self.row_scales.as_ref().map_or(0, |m| m.at(0)))
            .i32(self.tiles)
            .i32(self.chunks)
            .i32(self.splits)
    }
}

/// Where the prepared rows lie in scratch memory.
#[derive(Default)]
struct Layout {
    padded: usize,
    columns: usize,
    /// 8-bit codes, or f16 rows.
    codes: usize,
    /// Scales of groups, or of rows.
    scales: usize,
    firsts: usize,
    high: usize,
    low: usize,
    down: usize,
    partials: usize,
    decoded: usize,
    total: usize,
}

/// Parts of a row that the blocks of a cluster do, none of them empty: two where there are fewer tiles
/// than multiprocessors and each part still has work for every warp.
fn splits(tiles: usize, chunks: usize) -> usize {
    if tiles <= FEW_TILES && chunks >= 2 * WARPS { 2 } else { 1 }
}

fn matrix(
    b: &mut Build<'_>,
    dtype: DType,
    k: usize,
    mut parts: Vec<(ValueId, Product)>,
    paired: bool,
    plain: bool,
) -> Result<Matrix, ExecError> {
    let fail = |why: &str| ExecError::Step {
        step: format!("weights of {}", b.label),
        why: why.to_owned(),
    };
    let device = b.device;
    let tensors = parts
        .iter()
        .map(|(v, _)| b.graph.tensor(*v).ok_or_else(|| fail("they are no tensor")))
        .collect::<Result<Vec<_>, _>>()?;
    let kind = Kind::of(dtype).ok_or_else(|| fail("no kernel reads their type"))?;
    let rows: Vec<Rows<'_>> = tensors
        .iter()
        .map(|t| Rows { dtype, n: t.shape()[0], bytes: t.bytes().as_slice() })
        .collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let packed = pack(kind, k, &rows, paired, threads);
    let records = b.weights.upload(&device.gpu, &packed.bytes)?;
    let row_scales = match kind.is_float() {
        false => None,
        true => {
            let bytes: Vec<u8> = packed.row_scales.iter().flat_map(|v| v.to_le_bytes()).collect();
            Some(b.weights.upload(&device.gpu, &bytes)?)
        }
    };
    let ring = ring_shared(&kind, device.gpu.is_hopper());
    let block = |name: &str, shared: usize| -> Result<Block, CudaError> {
        Block::new(device.function(kind.module, name)?, shared)
    };
    let splits =
        if plain && device.gpu.is_hopper() { splits(packed.tiles, packed.chunks) } else { 1 };
    // Where kernels overlap, more than a third of the shared memory: a multiprocessor has two blocks and
    // no room for one of the next kernel, which would take turns with them and leave others two of its
    // own later.
    let third = if device.overlaps() { device.gpu.block_shared.div_ceil(3) } else { 0 };
    let alone = (ring + kind.row_bytes(packed.chunks.div_ceil(splits))).max(third);
    let one = match alone <= device.gpu.block_shared {
        false => None,
        true => Some((block("product_1", alone)?, alone)),
    };
    let wide = match device.gpu.is_hopper() {
        false => None,
        true => Some(Wide::new(device, &kind, packed.tiles, packed.chunks)?),
    };
    tensors.iter().for_each(|t| t.bytes().release());
    let mut tile = 0;
    for (_, product) in &mut parts {
        product.tile = tile;
        tile += product.n.div_ceil(TILE);
    }
    Ok(Matrix {
        records,
        row_scales,
        kind,
        one,
        few: block("product_8", ring)?,
        many: block("product_32", ring)?,
        wide,
        tiles: packed.tiles,
        chunks: packed.chunks,
        splits,
        products: parts.into_iter().map(|(_, p)| p).collect(),
    })
}

impl Op for Linear {
    fn needs(&self, operands: &[Operand]) -> Needs {
        // Fewer rows may need more: each way of multiplying has a layout of its own.
        let rows = operands[0].rows();
        let sizes = [rows, rows.min(DENSE_FROM - 1), rows.min(SPLIT_UP_TO), rows.min(FEW)];
        let scratch = sizes.iter().map(|&rows| self.layout(rows).total).max().unwrap_or(0);
        Needs { scratch, zeros: 0 }
    }

    fn launches(&self, operands: &[Operand], scratch: Scratch, out: &mut Vec<Launch>) {
        let rows = operands[0].rows();
        if rows == 0 {
            return;
        }
        let layout = self.layout(rows);
        let at = |offset: usize| scratch.address + offset as u64;
        let alone = self.is_alone(rows);
        if !alone {
            out.extend(self.prepare(operands, &layout, &at));
        }
        for m in &self.matrices {
            let targets = self.targets(m, operands);
            if let Some(wide) = m.wide.as_ref().filter(|_| self.is_wide(rows)) {
                let operands = wide::Operands {
                    matrix: m.parameter(),
                    row_scales: m.row_scales.as_ref(),
                    rows,
                    padded: layout.padded,
                    codes: at(layout.codes),
                    scales: at(layout.scales),
                    partials: at(layout.partials),
                    decoded: at(layout.decoded),
                    targets,
                };
                wide.launches(&operands, self.is_dense(rows), out);
                continue;
            }
            // Blocks that are there at once walk over the tiles, or pairs of them; those of the
            // same tiles and other tokens stand side by side and share what they read.
            let tiles = if self.paired.is_some() { m.tiles / 2 } else { m.tiles };
            if let Some((one, shared)) = m.one.as_ref().filter(|_| alone) {
                let other = self.other.map_or(0, |i| operands[i].address);
                let clusters = (self.multiprocessors * one.resident / m.splits).max(1).min(tiles);
                out.push(Launch {
                    function: one.function,
                    grid: ((clusters * m.splits) as u32, 1, 1),
                    block: 256,
                    cluster: m.splits as u32,
                    shared: *shared as u32,
                    parameters: vec![
                        m.parameter(),
                        self.before.source(operands[0].address, other),
                        Parameter::int(self.k),
                        targets,
                    ],
                });
                continue;
            }
            let x = match m.kind.is_float() {
                false => [layout.codes, layout.scales, layout.firsts],
                true => [layout.high, layout.low, layout.down],
            };
            let x = x.iter().fold(Parameter::new(), |p, &offset| p.u64(at(offset)));
            let x = x.i32(if m.kind.is_float() { layout.padded } else { layout.columns }).i32(rows);
            let (block, columns) =
                if rows <= FEW { (&m.few, 1) } else { (&m.many, rows.div_ceil(32)) };
            let room = (self.multiprocessors * block.resident).div_ceil(columns).max(1);
            out.push(Launch {
                function: block.function,
                grid: ((columns * tiles.min(room)) as u32, 1, 1),
                block: 256,
                cluster: 1,
                shared: ring_shared(&m.kind, self.hopper) as u32,
                parameters: vec![m.parameter(), x, targets],
            });
        }
    }
}
