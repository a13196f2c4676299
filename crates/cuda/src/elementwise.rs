//! Norms, rotary embedding, cache writes, table lookups and what works element by element.

use cyb_exec::{Call, ExecError};
use cyb_ir::{Atom, Cmp, Node, Op as IrOp, Read, Scatter, Write};
use cyb_tensor::DType;

use crate::driver::{Function, Launch, Parameter};
use crate::op::{
    Activation, Before, Build, MAX_RANK, Op, Operand, Row, Scratch, attrs_of, per_element, per_row,
};

pub(crate) static ROWS: &[Row] = &[
    Row { op: "rmsnorm", name: "rmsnorm", supports: norm_fits },
    Row { op: "rope", name: "rope", supports: rope_fits },
    Row { op: "kv_cache", name: "kv_cache", supports: cache_fits },
    Row { op: "embedding", name: "embedding", supports: table_fits },
    Row { op: "add", name: "binary", supports: all_f32 },
    Row { op: "mul", name: "binary", supports: all_f32 },
    Row { op: "sub", name: "binary", supports: all_f32 },
    Row { op: "swiglu", name: "activation", supports: same_shapes },
    Row { op: "geglu", name: "activation", supports: same_shapes },
    Row { op: "silu", name: "activation", supports: all_f32 },
    Row { op: "gelu", name: "activation", supports: all_f32 },
    Row { op: "sigmoid", name: "activation", supports: all_f32 },
    Row { op: "tanh", name: "activation", supports: all_f32 },
    Row { op: "relu", name: "activation", supports: all_f32 },
];

fn all_f32(call: &Call<'_>) -> bool {
    let fits = |f: &&cyb_ir::Fact| f.dtype == DType::F32 && f.rank() <= MAX_RANK;
    call.inputs.iter().all(fits) && call.outputs.iter().all(fits)
}

fn same_shapes(call: &Call<'_>) -> bool {
    all_f32(call) && call.inputs[0].shape == call.inputs[1].shape
}

fn norm_fits(call: &Call<'_>) -> bool {
    all_f32(call) && call.inputs[0].rank() > 0
}

fn rope_fits(call: &Call<'_>) -> bool {
    call.inputs[0].dtype == DType::F32
        && call.inputs[1].dtype == DType::I32
        && call.inputs[2].dtype == DType::F32
}

/// The numbering of pools in the kernels.
pub(crate) fn pool_kind(dtype: DType) -> Option<usize> {
    [DType::F32, DType::F16, DType::BF16, DType::Q8_0].iter().position(|d| *d == dtype)
}

fn cache_fits(call: &Call<'_>) -> bool {
    pool_kind(call.inputs[0].dtype).is_some()
        && call.inputs[1].dtype == DType::I32
        && call.inputs[2].dtype == DType::F32
}

/// The numbering of tables in `elementwise.cu`.
fn table_kind(dtype: DType) -> Option<usize> {
    use DType::{BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K]
        .iter()
        .position(|d| *d == dtype)
}

fn table_fits(call: &Call<'_>) -> bool {
    table_kind(call.inputs[0].dtype).is_some()
        && call.inputs[0].rank() == 2
        && call.inputs[1].dtype == DType::I32
}

/// Which operation on two tensors an atom is, or that it takes or stores rows: what small jets become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Small {
    Add,
    Mul,
    Take,
    Max,
    Store,
}

/// The kernel of an atom.
pub(crate) fn small(call: &Call<'_>) -> Option<Small> {
    let rows = |call: &Call<'_>| {
        call.inputs[0].dtype == DType::F32 && call.inputs[0].rank() == 3 && cache_fits(call)
    };
    match call.op {
        IrOp::Atom(Atom::Add) if all_f32(call) => Some(Small::Add),
        IrOp::Atom(Atom::Mul) if all_f32(call) => Some(Small::Mul),
        IrOp::Atom(Atom::Read(Read::Gather { axis: 0 }))
            if call.inputs[0].dtype == DType::F32 && table_fits(call) =>
        {
            Some(Small::Take)
        }
        IrOp::Atom(Atom::Cmp(Cmp::Max)) if all_f32(call) => Some(Small::Max),
        IrOp::Atom(Atom::Write(Write::Scatter { axis: 0, mode: Scatter::Set })) if rows(call) => {
            Some(Small::Store)
        }
        _ => None,
    }
}

/// The step of a node of [`ROWS`], or of an atom that [`small`] knows.
pub(crate) fn build(b: &mut Build<'_>, node: &Node) -> Result<Box<dyn Op>, ExecError> {
    let attrs = attrs_of(&node.op);
    let function = |name: &str| b.device.function("elementwise", name);
    if let Some(small) = small(&Call::of(b.graph, node)) {
        return Ok(match small {
            Small::Add => Box::new(Binary { op: 0, function: function("binary")? }),
            Small::Mul => Box::new(Binary { op: 1, function: function("binary")? }),
            Small::Take => Box::new(Embedding { function: function("embedding")? }),
            Small::Max => Box::new(Binary { op: 3, function: function("binary")? }),
            Small::Store => Box::new(Cache::new(b)?),
        });
    }
    Ok(match node.op.name() {
        "rmsnorm" => {
            Box::new(RmsNorm { eps: attrs.float("eps")? as f32, function: function("rmsnorm")? })
        }
        "rope" => Box::new(Rope {
            pairs: attrs.text("style")? == "pairs",
            scale: attrs.float("scale")? as f32,
            function: function("rope")?,
        }),
        "kv_cache" => Box::new(Cache::new(b)?),
        "embedding" => Box::new(Embedding { function: function("embedding")? }),
        "add" => Box::new(Binary { op: 0, function: function("binary")? }),
        "mul" => Box::new(Binary { op: 1, function: function("binary")? }),
        "sub" => Box::new(Binary { op: 2, function: function("binary")? }),
        name => {
            let (activation, gated) = match name {
                "swiglu" => (Activation::Silu, true),
                "geglu" => (Activation::named(attrs.text("approximate")?), true),
                "gelu" => (Activation::named(attrs.text("approximate")?), false),
                "sigmoid" => (Activation::Sigmoid, false),
                "tanh" => (Activation::Tanh, false),
                "relu" => (Activation::Relu, false),
                _ => (Activation::Silu, false),
            };
            Box::new(Elementwise { activation, gated, function: function("activation")? })
        }
    })
}

#[derive(Debug)]
struct RmsNorm {
    eps: f32,
    function: Function,
}

impl Op for RmsNorm {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let (x, y) = (&t[0], &t[t.len() - 1]);
        let weight = if t.len() > 2 { t[1].address } else { 0 };
        if x.elements() > 0 {
            out.push(per_row(
                self.function,
                x.rows(),
                vec![
                    Before::Norm(self.eps).source(x.address, weight),
                    Parameter::address(y.address),
                    Parameter::int(x.width()),
                ],
            ));
        }
    }
}

#[derive(Debug)]
struct Rope {
    pairs: bool,
    scale: f32,
    function: Function,
}

/// `Rope` of `elementwise.cu`.
pub(crate) fn rope_parameter(
    positions: &Operand,
    frequencies: &Operand,
    pairs: bool,
    scale: f32,
) -> Parameter {
    Parameter::new()
        .u64(positions.address)
        .u64(frequencies.address)
        .i32(frequencies.elements())
        .i32(usize::from(pairs))
        .f32(scale)
}

impl Op for Rope {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let [tokens, heads, width] = *t[0].dims() else { return };
        if t[0].elements() > 0 {
            out.push(per_row(
                self.function,
                tokens,
                vec![
                    rope_parameter(&t[1], &t[2], self.pairs, self.scale),
                    Parameter::address(t[0].address),
                    Parameter::address(t[3].address),
                    Parameter::int(heads),
                    Parameter::int(width),
                ],
            ));
        }
    }
}

#[derive(Debug)]
struct Cache {
    store: Function,
    copy: Function,
}

impl Cache {
    fn new(b: &Build<'_>) -> Result<Cache, ExecError> {
        let function = |name| b.device.function("elementwise", name);
        Ok(Cache { store: function("kv_cache")?, copy: function("copy")? })
    }
}

impl Op for Cache {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let [slots, heads, width] = *t[0].dims() else { return };
        let tokens = t[1].elements();
        if t[3].address != t[0].address && t[0].bytes > 0 {
            out.push(per_element(
                self.copy,
                t[0].bytes / 2,
                vec![
                    Parameter::address(t[0].address),
                    Parameter::address(t[3].address),
                    Parameter::long(t[0].bytes / 2),
                ],
            ));
        }
        if tokens > 0 {
            let kind = t[0].dtype.and_then(pool_kind).unwrap_or(0);
            out.push(per_row(
                self.store,
                tokens,
                vec![
                    Parameter::address(t[3].address),
                    Parameter::address(t[1].address),
                    Parameter::address(t[2].address),
                    Parameter::int(heads * width),
                    Parameter::int(kind),
                    Parameter::int(slots),
                ],
            ));
        }
    }
}

#[derive(Debug)]
struct Embedding {
    function: Function,
}

impl Op for Embedding {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let [rows, width] = *t[0].dims() else { return };
        if t[2].elements() > 0 {
            let kind = t[0].dtype.and_then(table_kind).unwrap_or(0);
            let mut launch = per_row(
                self.function,
                t[1].elements(),
                vec![
                    Parameter::address(t[0].address),
                    Parameter::address(t[1].address),
                    Parameter::address(t[2].address),
                    Parameter::int(width),
                    Parameter::long(t[0].bytes / rows.max(1)),
                    Parameter::int(kind),
                    Parameter::int(rows),
                ],
            );
            launch.grid.1 = width.div_ceil(launch.block as usize) as u32;
            out.push(launch);
        }
    }
}

#[derive(Debug)]
struct Binary {
    op: usize,
    function: Function,
}

impl Op for Binary {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let dims = t[2].dims();
        if t[2].elements() == 0 {
            return;
        }
        // Axes count from the last; an operand's axis of length 1 stays where it is.
        let strides = |operand: &Operand| {
            let mut strides = [0usize; MAX_RANK];
            let mut stride = 1;
            for (i, &n) in operand.dims().iter().rev().enumerate() {
                strides[dims.len() - 1 - i] = if n == 1 { 0 } else { stride };
                stride *= n;
            }
            strides
        };
        let mut shape = Parameter::new().i32(dims.len());
        let mut all = [1usize; MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        for list in [all, strides(&t[0]), strides(&t[1])] {
            shape = list.iter().fold(shape, |shape, &n| shape.i32(n));
        }
        out.push(per_element(
            self.function,
            t[2].elements(),
            vec![
                Parameter::address(t[0].address),
                Parameter::address(t[1].address),
                Parameter::address(t[2].address),
                Parameter::long(t[2].elements()),
                Parameter::int(self.op),
                shape,
            ],
        ));
    }
}

#[derive(Debug)]
struct Elementwise {
    activation: Activation,
    gated: bool,
    function: Function,
}

impl Op for Elementwise {
    fn launches(&self, t: &[Operand], _: Scratch, out: &mut Vec<Launch>) {
        let y = &t[t.len() - 1];
        if y.elements() > 0 {
            out.push(per_element(
                self.function,
                y.elements(),
                vec![
                    Parameter::address(t[0].address),
                    Parameter::address(if self.gated { t[1].address } else { 0 }),
                    Parameter::address(y.address),
                    Parameter::long(y.elements()),
                    Parameter::int(self.activation as usize),
                ],
            ));
        }
    }
}
