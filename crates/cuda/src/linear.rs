//! Products with weights: `linear` and the jets fused from it.
//!
//! A step prepares its rows once (normalised or gated where the step says so) and multiplies them
//! with one matrix for each storage kind; weights of one kind lie behind each other, so that
//! queries, keys and values are one launch.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Node, ValueId};
use cyb_tensor::DType;

use crate::driver::{Function, Launch, Memory, Parameter};
use crate::fold::Folded;
use crate::op::{
    Activation, Before, Build, Needs, Op, Operand, Row, Scratch, attrs_of, per_element, per_row,
};
use crate::pack::{Kind, Rows, TILE, pack};

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
/// Tokens up to which a product's columns are split among blocks, so that all of the GPU is busy.
const SPLIT_UP_TO: usize = 128;
/// Tokens of a block of `wide.cu`, by number of its kernel.
const WIDTHS: [usize; 4] = [32, 64, 128, 256];
/// Tiles of weights of a block there.
const WIDE_TILES: usize = 8;

/// Bytes of shared memory of a block of `width` tokens: four stages of 64 f16 columns, aligned.
fn wide_shared(width: usize) -> usize {
    4 * width * 128 + 1024
}

fn fits(call: &Call<'_>, x: usize, weights: std::ops::Range<usize>) -> bool {
    let stores = |d: DType| d.is_quantized() || float_kernel(d).is_some();
    let floats = |i: usize| weights.contains(&i) || call.inputs[i].dtype == DType::F32;
    call.inputs[x].dtype == DType::F32
        && call.inputs[x].rank() > 0
        && (0..call.inputs.len()).all(floats)
        && weights.clone().all(|i| {
            call.fixed[i]
                && stores(call.inputs[i].dtype)
                && call.inputs[i].rank() == 2
                && call.inputs[i].shape.iter().all(|d| d.known().is_some_and(|n| n > 0))
        })
}

fn float_kernel(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("product_f32"),
        DType::F16 => Some("product_f16"),
        DType::BF16 => Some("product_bf16"),
        _ => None,
    }
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
    memory: Memory,
    store: Store,
    products: Vec<Product>,
}

/// The kernels of `wide.cu`.
#[derive(Debug)]
struct Wide {
    products: [Function; 4],
    add_splits: Function,
}

#[derive(Debug)]
enum Store {
    Packed {
        one: (Function, usize),
        few: (Function, usize),
        many: (Function, usize),
        wide: Option<Wide>,
        tiles: usize,
        chunks: usize,
        offsets: [usize; 4],
    },
    Float {
        one: Function,
        many: Function,
        padded: usize,
    },
}

#[derive(Debug)]
pub(crate) struct Linear {
    before: Before,
    /// Input with the norm's weight, or with `up`.
    other: Option<usize>,
    /// Input of what the product is added to.
    residual: Option<usize>,
    k: usize,
    inputs: usize,
    matrices: Vec<Matrix>,
    quantize: Function,
    narrow: Function,
    float: Function,
    multiprocessors: usize,
    hopper: bool,
}

impl Linear {
    /// The step of a node. What it takes over has its own second operand, where it has one, as the
    /// step's last input.
    pub(crate) fn build(
        b: &mut Build<'_>,
        node: &Node,
        folded: Option<&Folded>,
    ) -> Result<Linear, ExecError> {
        let call = Call::of(b.graph, node);
        let last = node.inputs.len();
        let mut before = folded.map_or(Before::Plain, |f| f.before);
        let mut other = folded.and_then(|f| f.other).map(|_| last);
        let inputs = last + usize::from(other.is_some());
        let mut residual = None;
        let (weights, biases): (Vec<usize>, Vec<Option<usize>>) = match node.op.name() {
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
                before = Before::Gated(Activation::named(attrs_of(&node.op).text("activation")?));
                other = Some(1);
                residual = (last > 3).then_some(3);
                (vec![2], vec![None])
            }
            _ => (vec![1], vec![(last > 2).then_some(2)]),
        };
        let device = b.device;
        let mut matrices: Vec<(DType, Vec<(ValueId, Product)>)> = Vec::new();
        for (out, (&weight, bias)) in weights.iter().zip(biases).enumerate() {
            let v = node.inputs[weight];
            let fact = b.graph.fact(v);
            let n = fact.shape[0].known().unwrap_or(0);
            let product = Product { bias, out, n, tile: 0 };
            let room = |(d, parts): &&mut (DType, Vec<(ValueId, Product)>)| {
                *d == fact.dtype && d.is_quantized() && parts.len() < MAX_TARGETS
            };
            match matrices.iter_mut().find(room) {
                Some((_, parts)) => parts.push((v, product)),
                None => matrices.push((fact.dtype, vec![(v, product)])),
            }
        }
        let k = b.graph.fact(node.inputs[weights[0]]).shape[1].known().unwrap_or(0);
        let matrices = matrices
            .into_iter()
            .map(|(dtype, parts)| matrix(b, dtype, k, parts))
            .collect::<Result<_, _>>()?;
        Ok(Linear {
            before,
            other,
            residual,
            k,
            inputs,
            matrices,
            quantize: device.function("activations", "quantize_rows")?,
            narrow: device.function("activations", "narrow_rows")?,
            float: device.function("activations", "float_rows")?,
            hopper: device.gpu.is_hopper(),
            multiprocessors: device.gpu.multiprocessors,
        })
    }

    fn has_packed(&self) -> bool {
        self.matrices.iter().any(|m| matches!(m.store, Store::Packed { .. }))
    }

    /// Whether rows are needed as floats that are not there yet.
    fn has_floats(&self) -> bool {
        self.before != Before::Plain
            && self.matrices.iter().any(|m| matches!(m.store, Store::Float { .. }))
    }

    /// Whether the float tensor cores do the quantised products.
    fn is_wide(&self, rows: usize) -> bool {
        self.hopper && rows > FEW
    }

    /// Splits of the columns, and chunks of each.
    fn splits(&self, rows: usize, tiles: usize, chunks: usize) -> (usize, usize) {
        let blocks = tiles.div_ceil(WIDE_TILES);
        let wanted =
            if rows > SPLIT_UP_TO { 1 } else { (self.multiprocessors / blocks).clamp(1, 8) };
        let each = chunks.div_ceil(wanted);
        (chunks.div_ceil(each), each)
    }

    fn layout(&self, rows: usize) -> Layout {
        let padded = self.k.next_multiple_of(256);
        let columns = rows.next_multiple_of(32);
        let align = |bytes: usize| bytes.next_multiple_of(256);
        let mut at = 0;
        let mut take = |bytes: usize| {
            at += align(bytes);
            at - align(bytes)
        };
        let (mut codes, mut scales, mut firsts, mut partials) = (0, 0, 0, 0);
        if self.has_packed() {
            if self.is_wide(rows) {
                codes = take(rows * padded * 2);
                scales = take(rows * 4);
                let splits = |m: &Matrix| match m.store {
                    Store::Packed { tiles, chunks, .. } => {
                        self.splits(rows, tiles, chunks).0 * tiles
                    }
                    Store::Float { .. } => 0,
                };
                let most = self.matrices.iter().map(splits).max().unwrap_or(0);
                if rows <= SPLIT_UP_TO {
                    partials = take(most * rows * TILE * 4);
                }
            } else {
                codes = take(padded * columns);
                scales = take(padded / 32 * columns * 8);
                firsts = take(padded / 32 * columns * 4);
            }
        }
        let floats = take(if self.has_floats() { rows * self.k * 4 } else { 0 });
        Layout { padded, columns, codes, scales, firsts, partials, floats, total: take(0) }
    }
}

/// Where the prepared rows lie in scratch memory.
struct Layout {
    padded: usize,
    columns: usize,
    /// 8-bit codes, or f16 rows.
    codes: usize,
    /// Scales of groups, or of rows.
    scales: usize,
    firsts: usize,
    partials: usize,
    floats: usize,
    total: usize,
}

fn matrix(
    b: &mut Build<'_>,
    dtype: DType,
    k: usize,
    mut parts: Vec<(ValueId, Product)>,
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
    let (memory, store) = if let Some(kind) = Kind::of(dtype) {
        let rows: Vec<Rows<'_>> = tensors
            .iter()
            .map(|t| Rows { dtype, n: t.shape()[0], bytes: t.bytes().as_slice() })
            .collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let packed = pack(kind, k, &rows, threads);
        let one = device.function(kind.module, "product_1")?;
        let few = device.function(kind.module, "product_8")?;
        let many = device.function(kind.module, "product_32")?;
        let wide = match device.gpu.is_hopper() {
            false => None,
            true => {
                let mut products = [few; 4];
                for (to, width) in products.iter_mut().zip(WIDTHS) {
                    *to = device.function(kind.wide, &format!("wide_{width}"))?;
                    to.allow_shared(wide_shared(width))?;
                }
                Some(Wide { products, add_splits: device.function(kind.wide, "add_splits")? })
            }
        };
        let store = Store::Packed {
            one: (one, one.resident(256)?),
            few: (few, few.resident(256)?),
            many: (many, many.resident(256)?),
            wide,
            tiles: packed.tiles,
            chunks: packed.chunks,
            offsets: packed.offsets,
        };
        (b.weights.upload(&device.gpu, &packed.bytes)?, store)
    } else {
        let name = float_kernel(dtype).ok_or_else(|| fail("no kernel reads their type"))?;
        let padded = k.next_multiple_of(8);
        let size = dtype.layout().bytes;
        let bytes = tensors[0].bytes().as_slice();
        let memory = if padded == k {
            b.weights.upload(&device.gpu, bytes)?
        } else {
            let mut rows = vec![0; tensors[0].shape()[0] * padded * size];
            for (to, from) in rows.chunks_exact_mut(padded * size).zip(bytes.chunks_exact(k * size))
            {
                to[..k * size].copy_from_slice(from);
            }
            b.weights.upload(&device.gpu, &rows)?
        };
        let one = device.function("activations", &format!("{name}_1"))?;
        let many = device.function("activations", &format!("{name}_8"))?;
        (memory, Store::Float { one, many, padded })
    };
    tensors.iter().for_each(|t| t.bytes().release());
    let mut tile = 0;
    for (_, product) in &mut parts {
        product.tile = tile;
        tile += product.n.div_ceil(TILE);
    }
    Ok(Matrix { memory, store, products: parts.into_iter().map(|(_, p)| p).collect() })
}

impl Op for Linear {
    fn needs(&self, operands: &[Operand]) -> Needs {
        // Fewer rows may need more: each way of multiplying has a layout of its own.
        let rows = operands[0].rows();
        let sizes = [rows, rows.min(SPLIT_UP_TO), rows.min(FEW)];
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
        let other = self.other.map_or(0, |i| operands[i].address);
        let source = || self.before.source(operands[0].address, other);
        if self.has_packed() && self.is_wide(rows) {
            out.push(per_row(
                self.narrow,
                rows,
                vec![
                    source(),
                    Parameter::address(at(layout.codes)),
                    Parameter::address(at(layout.scales)),
                    Parameter::int(self.k),
                    Parameter::int(layout.padded),
                ],
            ));
        } else if self.has_packed() {
            out.push(Launch {
                function: self.quantize,
                grid: (layout.padded.div_ceil(SEGMENT) as u32, rows as u32, 1),
                block: 256,
                shared: 0,
                parameters: vec![
                    source(),
                    Parameter::address(at(layout.codes)),
                    Parameter::address(at(layout.scales)),
                    Parameter::address(at(layout.firsts)),
                    Parameter::int(self.k),
                    Parameter::int(layout.padded),
                    Parameter::int(layout.columns),
                ],
            });
        }
        let mut floats = operands[0].address;
        if self.has_floats() {
            floats = at(layout.floats);
            out.push(Launch {
                function: self.float,
                grid: (self.k.div_ceil(SEGMENT) as u32, rows as u32, 1),
                block: 256,
                shared: 0,
                parameters: vec![source(), Parameter::address(floats), Parameter::int(self.k)],
            });
        }
        let residual = self.residual.map_or(0, |i| operands[i].address);
        let target = |product: &Product| {
            let bias = product.bias.map_or(0, |i| operands[i].address);
            (operands[self.inputs + product.out].address, bias)
        };
        for matrix in &self.matrices {
            match &matrix.store {
                Store::Packed { one, few, many, wide, tiles, chunks, offsets } => {
                    let plane = |i: usize| matrix.memory.at(offsets[i]);
                    let weights = Parameter::new()
                        .u64(plane(0))
                        .u64(plane(1))
                        .u64(plane(2))
                        .u64(plane(3))
                        .i32(*tiles)
                        .i32(*chunks);
                    let x = Parameter::new()
                        .u64(at(layout.codes))
                        .u64(at(layout.scales))
                        .u64(at(layout.firsts))
                        .i32(layout.columns)
                        .i32(rows);
                    let mut targets = Parameter::new();
                    for i in 0..MAX_TARGETS {
                        let part = matrix.products.get(i);
                        let (to, bias) = part.map_or((0, 0), target);
                        targets = targets.u64(to).u64(bias).u64(residual);
                        let (n, tile) = part.map_or((0, 0), |p| (p.n, p.tile));
                        targets = targets.i32(n).i32(tile);
                    }
                    let targets = targets.i32(matrix.products.len());
                    if let Some(wide) = wide.as_ref().filter(|_| self.is_wide(rows)) {
                        let (splits, each) = self.splits(rows, *tiles, *chunks);
                        let number = WIDTHS.iter().position(|&w| w >= rows).unwrap_or(3);
                        let width = WIDTHS[number];
                        let partials = if splits > 1 { at(layout.partials) } else { 0 };
                        let x = Parameter::new()
                            .u64(at(layout.codes))
                            .u64(at(layout.scales))
                            .u64(partials)
                            .i32(rows)
                            .i32(layout.padded)
                            .i32(each);
                        out.push(Launch {
                            function: wide.products[number],
                            grid: (
                                tiles.div_ceil(WIDE_TILES) as u32,
                                rows.div_ceil(width) as u32,
                                splits as u32,
                            ),
                            block: 256,
                            shared: wide_shared(width) as u32,
                            parameters: vec![weights, x, targets.clone()],
                        });
                        if splits > 1 {
                            out.push(per_element(
                                wide.add_splits,
                                rows * tiles * TILE,
                                vec![
                                    Parameter::address(partials),
                                    Parameter::int(splits),
                                    Parameter::int(rows),
                                    Parameter::int(*tiles),
                                    targets,
                                ],
                            ));
                        }
                        continue;
                    }
                    let ((function, resident), columns, tiles) = if rows <= FEW {
                        (if rows == 1 { *one } else { *few }, 1, *tiles)
                    } else {
                        (*many, rows.div_ceil(32), tiles.div_ceil(2))
                    };
                    // Blocks that are there at once walk over the tiles; those of the same tiles
                    // and other tokens stand side by side and share what they read.
                    let room = (self.multiprocessors * resident).div_ceil(columns).max(1);
                    let blocks = columns * tiles.min(room);
                    out.push(Launch {
                        function,
                        grid: (blocks as u32, 1, 1),
                        block: 256,
                        shared: 0,
                        parameters: vec![weights, x, targets],
                    });
                }
                Store::Float { one, many, padded } => {
                    for product in &matrix.products {
                        let (to, bias) = target(product);
                        let weights = Parameter::new()
                            .u64(matrix.memory.at(0))
                            .i32(product.n)
                            .i32(self.k)
                            .i32(*padded);
                        let (function, groups) =
                            if rows == 1 { (*one, 1) } else { (*many, rows.div_ceil(8)) };
                        out.push(Launch {
                            function,
                            grid: (product.n.div_ceil(16) as u32, groups as u32, 1),
                            block: 256,
                            shared: 0,
                            parameters: vec![
                                weights,
                                Parameter::address(floats),
                                Parameter::int(rows),
                                Parameter::address(to),
                                Parameter::address(bias),
                                Parameter::address(residual),
                            ],
                        });
                    }
                }
            }
        }
    }
}
