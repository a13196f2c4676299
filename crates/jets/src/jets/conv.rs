//! Convolutions over one to three spatial axes.

use cyb_ir::{Attrs, Builder, Case, Fact, IrError, Jet, Signature, Tolerance, ValueId};
use cyb_tensor::{DType, Dim};

use super::activation::{ACTIVATIONS, activate, leaky};
use crate::sugar::{Defined, SUMMED, arity, f32_of_rank};

/// `conv{strides, pads, dilations, groups}(x[N, C, S...], w[M, C/groups, K...], bias[M]?)
/// -> [N, M, O...]`: cross-correlation. `pads` holds the zeros before each axis, then those after;
/// O = floor((S + pads - dilation * (K - 1) - 1) / stride) + 1.
pub static CONV: Jet = Jet {
    name: "conv",
    summary: "convolution over one to three axes, with groups and bias",
    define: |b, inputs, attrs| {
        arity("conv", inputs, 2..=3)?;
        Ok(vec![conv(b, inputs, attrs)?])
    },
    signatures: || {
        [(4, 3), (3, 3), (5, 3)]
            .map(|(rank, k)| {
                let mut w = vec![Dim::symbol("m"), Dim::symbol("d1")];
                w.resize(rank, k.into());
                let inputs = vec![f32_of_rank(rank), Fact::new(DType::F32, w)];
                Signature { inputs, attrs: window(&vec![1; rank - 2]) }
            })
            .into()
    },
    cases: || shapes().into_iter().map(|s| s.case(window(&vec![1; s.x.len() - 2]))).collect(),
    tolerance: SUMMED,
    in_place: &[],
};

/// `conv_activation{..., activation, slope?, input_slope?}(x, w, bias?)`: [`CONV`] and an activation of
/// its result: `none`, `silu`, `relu`, `sigmoid`, `tanh`, `gelu`, `gelu_tanh`, `gelu_quick`, or
/// `leaky_relu` with its `slope`. With an `input_slope` the input goes through a `leaky_relu` of that
/// slope first.
pub static CONV_ACTIVATION: Jet = Jet {
    name: "conv_activation",
    summary: "convolution and activation",
    define: |b, inputs, attrs| {
        arity("conv_activation", inputs, 2..=3)?;
        let y = bent_conv(b, inputs, attrs)?;
        Ok(vec![activate(b, y, attrs)?])
    },
    signatures: || {
        let w = [Dim::symbol("m"), Dim::symbol("d1"), 3.into(), 3.into()];
        let inputs = vec![f32_of_rank(4), Fact::new(DType::F32, w)];
        vec![Signature { inputs, attrs: window(&[1, 1]).with("activation", "silu") }]
    },
    cases: || {
        let each = ACTIVATIONS.into_iter().cycle().zip(shapes()).enumerate();
        each.map(|(number, (activation, shape))| {
            let attrs = window(&vec![1; shape.x.len() - 2])
                .with("activation", activation)
                .with("slope", 0.2);
            let bends = activation == "none" || number % 3 == 1;
            shape.case(if bends { attrs.with("input_slope", 0.1) } else { attrs })
        })
        .collect()
    },
    tolerance: SUMMED,
    in_place: &[],
};

/// `conv_add{..., activation?, slope?, input_slope?}(x, w, bias[M], residual, more?)`: [`CONV`] added
/// to `residual`, that to `more`, and an activation of the sum; attributes are those of
/// [`CONV_ACTIVATION`].
pub static CONV_ADD: Jet = Jet {
    name: "conv_add",
    summary: "convolution added to a residual",
    define: |b, inputs, attrs| {
        arity("conv_add", inputs, 4..=5)?;
        let mut y = bent_conv(b, &inputs[..3], attrs)?;
        for &residual in &inputs[3..] {
            y = b.add(residual, y)?;
        }
        Ok(vec![if attrs.get("activation").is_some() { activate(b, y, attrs)? } else { y }])
    },
    signatures: || {
        let w = [Dim::symbol("m"), Dim::symbol("d1"), 1.into(), 1.into()];
        let residual = ["d0", "m", "d2", "d3"].map(Dim::symbol);
        let inputs = vec![
            f32_of_rank(4),
            Fact::new(DType::F32, w),
            Fact::new(DType::F32, [Dim::symbol("m")]),
            Fact::new(DType::F32, residual),
        ];
        vec![Signature { inputs, attrs: window(&[1, 1]) }]
    },
    cases: || {
        let each = shapes().into_iter().enumerate();
        each.map(|(number, shape)| {
            let attrs = window(&vec![1; shape.x.len() - 2]);
            let shape = Shape { bias: true, ..shape };
            let outputs = shape.outputs();
            let bends = number % 2 == 0;
            let attrs = if bends { attrs.with("input_slope", 0.3) } else { attrs };
            let attrs = if number % 3 == 0 { attrs.with("activation", "relu") } else { attrs };
            let case = shape.case(attrs).normal(&outputs);
            if number % 4 < 2 { case.normal(&outputs) } else { case }
        })
        .collect()
    },
    tolerance: SUMMED,
    in_place: &[],
};

/// `conv_transpose{strides, pads, dilations, groups, output_padding}(x[N, C, S...],
/// w[C, M/groups, K...], bias[M]?) -> [N, M, O...]`, the gradient of a convolution:
/// O = (S - 1) * stride - pads + dilation * (K - 1) + 1 + output_padding.
pub static CONV_TRANSPOSE: Jet = Jet {
    name: "conv_transpose",
    summary: "transposed convolution over one to three axes, with groups and bias",
    define: define_transposed,
    signatures: || {
        [4, 3, 5]
            .map(|rank| {
                let mut w = vec![Dim::symbol("d1"), Dim::symbol("m")];
                w.resize(rank, 3.into());
                let inputs = vec![f32_of_rank(rank), Fact::new(DType::F32, w)];
                let attrs = window(&vec![2; rank - 2]).with("output_padding", zeros(rank - 2));
                Signature { inputs, attrs }
            })
            .into()
    },
    cases: transposed_cases,
    // The definition adds zeros where the kernel skips them: the sums are those of `conv`.
    tolerance: Tolerance { ..SUMMED },
    in_place: &[],
};

/// Attributes of a window with these strides and nothing else.
pub(super) fn window(strides: &[usize]) -> Attrs {
    Attrs::new()
        .with("strides", strides)
        .with("pads", zeros(2 * strides.len()))
        .with("dilations", vec![1; strides.len()].as_slice())
        .with("groups", 1usize)
}

fn zeros(n: usize) -> Vec<i64> {
    vec![0; n]
}

/// A concrete convolution of the tests.
struct Shape {
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    bias: bool,
    strides: &'static [usize],
    pads: &'static [usize],
    dilations: &'static [usize],
    groups: usize,
}

impl Shape {
    fn attrs(&self, attrs: Attrs) -> Attrs {
        attrs
            .with("strides", self.strides)
            .with("pads", self.pads)
            .with("dilations", self.dilations)
            .with("groups", self.groups)
    }

    fn case(&self, attrs: Attrs) -> Case {
        let attrs = self.attrs(attrs);
        let case = Case::new(self.name, attrs).normal(self.x).normal(self.w);
        if self.bias { case.normal(&[self.w[0]]) } else { case }
    }
}

impl Shape {
    /// The shape of its result.
    fn outputs(&self) -> Vec<usize> {
        let axes = self.strides.len();
        let along = |i: usize| {
            let room = self.x[2 + i] + self.pads[i] + self.pads[axes + i];
            (room - self.dilations[i] * (self.w[2 + i] - 1) - 1) / self.strides[i] + 1
        };
        [self.x[0], self.w[0]].into_iter().chain((0..axes).map(along)).collect()
    }
}

/// Attributes, inputs and weights of every concrete convolution of the tests.
pub(super) fn plain_shapes() -> Vec<(Attrs, Vec<usize>, Vec<usize>)> {
    let each = shapes().into_iter();
    each.map(|s| (s.attrs(window(&vec![1; s.x.len() - 2])), s.x.to_vec(), s.w.to_vec())).collect()
}

fn shapes() -> Vec<Shape> {
    let plain = Shape {
        name: "3x3",
        x: &[1, 5, 9, 11],
        w: &[19, 5, 3, 3],
        bias: true,
        strides: &[1, 1],
        pads: &[1, 1, 1, 1],
        dilations: &[1, 1],
        groups: 1,
    };
    vec![
        Shape { ..plain },
        Shape { name: "1x1", x: &[2, 7, 5, 13], w: &[9, 7, 1, 1], pads: &[0, 0, 0, 0], ..plain },
        Shape { name: "stride 2", strides: &[2, 2], bias: false, x: &[1, 3, 33, 50], ..plain }
            .with_weight(&[16, 3, 3, 3]),
        Shape {
            name: "depthwise, odd pads",
            x: &[2, 6, 10, 17],
            w: &[6, 1, 3, 5],
            pads: &[0, 2, 1, 3],
            groups: 6,
            ..plain
        },
        Shape {
            name: "groups, dilated",
            x: &[1, 8, 12, 9],
            w: &[12, 4, 3, 2],
            strides: &[1, 2],
            dilations: &[2, 3],
            groups: 2,
            ..plain
        },
        Shape {
            name: "one axis, long",
            x: &[1, 17, 203],
            w: &[24, 17, 7],
            strides: &[3],
            pads: &[3, 2],
            dilations: &[2],
            bias: false,
            ..plain
        },
        Shape {
            name: "three axes",
            x: &[2, 3, 5, 6, 7],
            w: &[4, 3, 2, 3, 3],
            strides: &[2, 1, 2],
            pads: &[1, 0, 1, 0, 1, 1],
            dilations: &[1, 2, 1],
            ..plain
        },
        Shape { name: "many channels", x: &[1, 130, 7, 8], w: &[33, 130, 3, 3], ..plain },
        Shape {
            name: "patches",
            x: &[1, 3, 32, 48],
            w: &[10, 3, 16, 16],
            strides: &[16, 16],
            pads: &[0, 0, 0, 0],
            ..plain
        },
        Shape {
            name: "1x1 of whole vectors",
            x: &[1, 300, 8, 12],
            w: &[18, 300, 1, 1],
            pads: &[0, 0, 0, 0],
            ..plain
        },
        Shape { name: "1x1 skipping", strides: &[2, 3], pads: &[0; 4], ..plain }
            .with_weight(&[8, 5, 1, 1]),
        // Wide enough for the kernels of 3x3 windows that multiply less.
        Shape { name: "3x3 of 40", x: &[2, 24, 40, 39], ..plain }.with_weight(&[17, 24, 3, 3]),
        Shape {
            name: "3x3 in groups",
            x: &[1, 26, 1, 7],
            w: &[16, 13, 3, 3],
            pads: &[2, 0, 1, 3],
            groups: 2,
            bias: false,
            ..plain
        },
        Shape { name: "no images", x: &[0, 5, 4, 4], ..plain },
        // Long enough to be computed in bands.
        Shape {
            name: "one axis, very long",
            x: &[1, 40, 7_001],
            w: &[5, 40, 3],
            strides: &[1],
            pads: &[5, 3],
            dilations: &[3],
            ..plain
        },
        Shape {
            name: "few positions",
            x: &[1, 33, 9],
            w: &[70, 33, 5],
            strides: &[2],
            pads: &[3, 1],
            dilations: &[1],
            ..plain
        },
        Shape {
            name: "few positions, dilated",
            x: &[2, 19, 4, 5],
            w: &[37, 19, 2, 3],
            strides: &[2, 3],
            pads: &[1, 0, 1, 2],
            dilations: &[3, 2],
            ..plain
        },
    ]
}

impl Shape {
    fn with_weight(self, w: &'static [usize]) -> Shape {
        Shape { w, ..self }
    }
}

/// The last axes of a weight, which must be numbers.
fn kernel_shape(b: &Builder, w: ValueId) -> Result<Vec<usize>, IrError> {
    let sizes: Option<Vec<usize>> = b.shape(w).iter().skip(2).map(Dim::known).collect();
    sizes.filter(|k| (1..=3).contains(&k.len()) && !k.contains(&0)).ok_or_else(|| {
        IrError::Operand {
            op: "conv".into(),
            facts: b.fact(w).to_string(),
            why: "a weight has one to three spatial axes of a known length".into(),
        }
    })
}

/// A list with one entry for each of `n`.
fn list(attrs: &Attrs, name: &str, n: usize) -> Result<Vec<usize>, IrError> {
    let sizes = attrs.sizes(name)?;
    if sizes.len() == n {
        return Ok(sizes);
    }
    Err(IrError::Attr {
        name: name.to_owned(),
        want: "one entry an axis (pads: two)",
        got: format!("{sizes:?}"),
    })
}

/// [`conv`], of an input that goes through a `leaky_relu` where the attributes say so.
fn bent_conv(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Result<ValueId, IrError> {
    let mut inputs = inputs.to_vec();
    if attrs.get("input_slope").is_some() {
        inputs[0] = leaky(b, inputs[0], attrs.float("input_slope")?)?;
    }
    conv(b, &inputs, attrs)
}

fn conv(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Result<ValueId, IrError> {
    let w = b.cast(inputs[1], DType::F32)?;
    conv_of(b, inputs[0], w, inputs.get(2).copied(), attrs)
}

/// The convolution of two tensors of one dtype.
pub(super) fn conv_of(
    b: &mut Builder,
    x: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
    attrs: &Attrs,
) -> Result<ValueId, IrError> {
    let kernel = kernel_shape(b, w)?;
    let rank = kernel.len();
    check_rank(b, x, rank)?;
    let pads = list(attrs, "pads", 2 * rank)?;
    let (strides, dilations) = (list(attrs, "strides", rank)?, list(attrs, "dilations", rank)?);
    let mut x = x;
    for axis in 0..rank {
        if pads[axis] + pads[rank + axis] > 0 {
            x = b.pad(x, 2 + axis, pads[axis], pads[rank + axis], 0.0)?;
        }
    }
    for axis in 0..rank {
        x = b.window(x, 2 + axis, kernel[axis], strides[axis], dilations[axis])?;
    }
    // [M, C/G, K...] as [G, M/G, C/G, K...]
    let groups = groups(attrs)?;
    let mut shape = b.shape(w).to_vec();
    shape[0] = shape[0].floor_div(&groups);
    shape.insert(0, groups);
    let w = b.reshape(w, shape)?;
    contract(b, x, w, bias, rank)
}

fn groups(attrs: &Attrs) -> Result<Dim, IrError> {
    match attrs.size("groups")? {
        0 => Err(IrError::Attr { name: "groups".into(), want: "1 or more", got: "0".into() }),
        n => Ok(n.into()),
    }
}

fn check_rank(b: &Builder, x: ValueId, rank: usize) -> Result<(), IrError> {
    if b.fact(x).rank() == rank + 2 {
        return Ok(());
    }
    Err(IrError::Operand {
        op: "conv".into(),
        facts: b.fact(x).to_string(),
        why: format!("the weight has {rank} spatial axes, so the input has {}", rank + 2),
    })
}

/// Windows `x[N, C, O..., K...]` times `w[G, M/G, C/G, K...]`, summed over C/G and K, plus bias.
fn contract(
    b: &mut Builder,
    x: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
    rank: usize,
) -> Result<ValueId, IrError> {
    let [groups, rows, channels] = [0, 1, 2].map(|i| b.shape(w)[i].clone());
    let mut shape = b.shape(x).to_vec();
    shape.splice(1..2, [groups.clone(), 1.into(), channels]);
    let x = b.reshape(x, shape)?; // [N, G, 1, C/G, O..., K...]
    let mut shape = b.shape(w).to_vec();
    shape.splice(3..3, vec![Dim::from(1); rank]);
    let w = b.reshape(w, shape)?; // [G, M/G, C/G, 1..., K...]
    let products = b.mul(x, w)?;
    let axes: Vec<usize> = [3].into_iter().chain(4 + rank..4 + 2 * rank).collect();
    let y = b.sum(products, &axes)?; // [N, G, M/G, O...]
    let mut shape = b.shape(y).to_vec();
    shape.splice(1..3, [groups * rows]);
    let y = b.reshape(y, shape)?;
    let Some(bias) = bias else { return Ok(y) };
    let mut shape = b.shape(bias).to_vec();
    shape.extend(vec![Dim::from(1); rank]);
    let bias = b.cast(bias, DType::F32)?;
    let bias = b.reshape(bias, shape)?;
    b.add(y, bias)
}

fn define_transposed(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("conv_transpose", inputs, 2..=3)?;
    let mut w = b.cast(inputs[1], DType::F32)?;
    let kernel = kernel_shape(b, w)?;
    let rank = kernel.len();
    check_rank(b, inputs[0], rank)?;
    let pads = list(attrs, "pads", 2 * rank)?;
    let (strides, dilations) = (list(attrs, "strides", rank)?, list(attrs, "dilations", rank)?);
    let extra = list(attrs, "output_padding", rank)?;
    let mut x = inputs[0];
    for axis in 0..rank {
        let (at, k) = (2 + axis, kernel[axis]);
        x = spread(b, x, at, strides[axis])?;
        let reach = dilations[axis] as i64 * (k as i64 - 1);
        let before = reach - pads[axis] as i64;
        let after = reach - pads[rank + axis] as i64 + extra[axis] as i64;
        x = extend(b, x, at, before, after)?;
        w = b.strided(w, at, k - 1, k, -1)?;
    }
    for axis in 0..rank {
        x = b.window(x, 2 + axis, kernel[axis], 1, dilations[axis])?;
    }
    // [C, M/G, K...] as [G, M/G, C/G, K...]
    let groups = groups(attrs)?;
    let mut shape = b.shape(w).to_vec();
    shape[0] = shape[0].floor_div(&groups);
    shape.insert(0, groups);
    let w = b.reshape(w, shape)?;
    let mut perm: Vec<usize> = (0..rank + 3).collect();
    perm.swap(1, 2);
    let w = b.permute(w, &perm)?;
    Ok(vec![contract(b, x, w, inputs.get(2).copied(), rank)?])
}

/// `stride - 1` zeros between the elements of an axis.
fn spread(b: &mut Builder, x: ValueId, axis: usize, stride: usize) -> Result<ValueId, IrError> {
    if stride <= 1 {
        return Ok(x);
    }
    let len = b.dim(x, axis)?;
    let x = b.unsqueeze(x, axis + 1)?;
    let x = b.pad(x, axis + 1, 0, stride - 1, 0.0)?;
    let mut shape = b.shape(x).to_vec();
    let wide = len.clone() * Dim::from(stride);
    shape.splice(axis..axis + 2, [wide.clone()]);
    let x = b.reshape(x, shape)?;
    b.slice(x, axis, 0, wide - Dim::from(stride - 1))
}

/// Zeros around an axis, or elements cut off where a width is negative.
fn extend(
    b: &mut Builder,
    x: ValueId,
    axis: usize,
    before: i64,
    after: i64,
) -> Result<ValueId, IrError> {
    let size = |n: i64| usize::try_from(n).unwrap_or(0);
    let (cut_before, cut_after) = (size(-before), size(-after));
    let mut x = x;
    if cut_before + cut_after > 0 {
        let len = b.dim(x, axis)? - Dim::from(cut_before + cut_after);
        x = b.slice(x, axis, cut_before, len)?;
    }
    if size(before) + size(after) > 0 {
        x = b.pad(x, axis, size(before), size(after), 0.0)?;
    }
    Ok(x)
}

fn transposed_cases() -> Vec<Case> {
    let case = |name: &str, x: &[usize], w: &[usize], strides: &[usize], pads: &[usize]| {
        let attrs = window(strides).with("pads", pads);
        let attrs = attrs.with("output_padding", zeros(strides.len()));
        Case::new(name, attrs).normal(x).normal(w)
    };
    let with = |mut case: Case, name: &str, value: cyb_ir::Attr| {
        case.attrs = case.attrs.with(name, value);
        case
    };
    vec![
        case("2x2 stride 2", &[1, 5, 4, 7], &[5, 9, 2, 2], &[2, 2], &[0; 4]).normal(&[9]),
        case("3x3 stride 1", &[2, 3, 5, 5], &[3, 4, 3, 3], &[1, 1], &[1, 1, 1, 1]),
        with(
            case("odd", &[1, 4, 6, 5], &[4, 3, 3, 4], &[2, 3], &[1, 0, 0, 2]),
            "output_padding",
            vec![1, 2].into(),
        ),
        case("one axis", &[1, 24, 37], &[24, 11, 16], &[8], &[4, 4]).normal(&[11]),
        with(
            with(
                case("groups, dilated", &[1, 6, 9], &[6, 2, 3], &[2], &[1, 1]).normal(&[6]),
                "groups",
                3usize.into(),
            ),
            "dilations",
            vec![3].into(),
        ),
        case("one axis, very long", &[1, 40, 7001], &[40, 4, 4], &[2], &[1, 2]).normal(&[4]),
        case("pads beyond the kernel", &[1, 2, 9], &[2, 3, 2], &[1], &[3, 2]),
        case("stride beyond the kernel", &[1, 2, 4, 3], &[2, 3, 1, 2], &[3, 3], &[0; 4]),
        case("three axes", &[1, 2, 3, 4, 3], &[2, 2, 3, 2, 2], &[1, 2, 1], &[1, 0, 0, 1, 0, 1]),
    ]
}
