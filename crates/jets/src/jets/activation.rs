//! Activations and softmax.

use cyb_ir::{Attrs, Builder, Case, Exp, Fill, IrError, Jet, ValueId};
use cyb_tensor::DType;

use crate::sugar::{Defined, ELEMENTWISE, EXACT, arity, sigmoid, softmax, tanh, unary_signatures};

/// Values on both sides of where an activation bends, saturates or overflows.
const EDGES: [f32; 13] =
    [0.0, -0.0, 1e-8, -1e-8, 0.5, -0.5, 3.0, -3.0, 20.0, -20.0, 88.8, -88.8, 1000.0];

fn cases(attrs: Attrs) -> Vec<Case> {
    vec![
        Case::new("normal", attrs.clone()).normal(&[3, 37]),
        Case::new("edges", attrs.clone()).input(DType::F32, &[13], Fill::Floats(EDGES.into())),
        Case::new("empty", attrs).normal(&[0]),
    ]
}

fn unary(
    name: &str,
    b: &mut Builder,
    inputs: &[ValueId],
    apply: impl Fn(&mut Builder, ValueId) -> Result<ValueId, IrError>,
) -> Defined {
    arity(name, inputs, 1..=1)?;
    Ok(vec![apply(b, inputs[0])?])
}

/// `sigmoid(x) = 1 / (1 + exp(-x))`.
pub static SIGMOID: Jet = Jet {
    name: "sigmoid",
    summary: "logistic function",
    define: |b, inputs, _| unary("sigmoid", b, inputs, sigmoid),
    signatures: || unary_signatures(Attrs::new()),
    cases: || cases(Attrs::new()),
    tolerance: ELEMENTWISE,
    in_place: &[],
};

/// `tanh(x)`.
pub static TANH: Jet = Jet {
    name: "tanh",
    summary: "hyperbolic tangent",
    define: |b, inputs, _| unary("tanh", b, inputs, tanh),
    signatures: || unary_signatures(Attrs::new()),
    cases: || cases(Attrs::new()),
    tolerance: ELEMENTWISE,
    in_place: &[],
};

/// `relu(x) = max(x, 0)`.
pub static RELU: Jet = Jet {
    name: "relu",
    summary: "max(x, 0)",
    define: |b, inputs, _| {
        unary("relu", b, inputs, |b, x| {
            let zero = b.scalar(b.fact(x).dtype, 0.0)?;
            b.max(x, zero)
        })
    },
    signatures: || unary_signatures(Attrs::new()),
    cases: || cases(Attrs::new()),
    tolerance: EXACT,
    in_place: &[],
};

/// `leaky_relu{slope}(x) = max(x, 0) + slope * min(x, 0)`.
pub static LEAKY_RELU: Jet = Jet {
    name: "leaky_relu",
    summary: "x above 0, slope * x below",
    define: |b, inputs, attrs| {
        unary("leaky_relu", b, inputs, |b, x| leaky(b, x, attrs.float("slope")?))
    },
    signatures: || unary_signatures(Attrs::new().with("slope", 0.01)),
    cases: || cases(Attrs::new().with("slope", 0.1)),
    tolerance: ELEMENTWISE,
    in_place: &[],
};

pub(super) fn leaky(b: &mut Builder, x: ValueId, slope: f64) -> Result<ValueId, IrError> {
    let zero = b.scalar(b.fact(x).dtype, 0.0)?;
    let (above, below) = (b.max(x, zero)?, b.min(x, zero)?);
    let below = b.scale(below, slope)?;
    b.add(above, below)
}

/// `silu(x) = x * sigmoid(x)`.
pub static SILU: Jet = Jet {
    name: "silu",
    summary: "x * sigmoid(x)",
    define: |b, inputs, _| {
        unary("silu", b, inputs, |b, x| {
            let s = sigmoid(b, x)?;
            b.mul(x, s)
        })
    },
    signatures: || unary_signatures(Attrs::new()),
    cases: || cases(Attrs::new()),
    tolerance: ELEMENTWISE,
    in_place: &[],
};

/// `gelu{approximate}(x)` with `approximate` one of `none` (by erf), `tanh`, `quick`
/// (x * sigmoid(1.702 x)).
pub static GELU: Jet = Jet {
    name: "gelu",
    summary: "Gaussian error linear unit: erf, tanh or quick form",
    define: |b, inputs, attrs| unary("gelu", b, inputs, |b, x| gelu(b, x, attrs)),
    signatures: || {
        ["none", "tanh", "quick"]
            .into_iter()
            .flat_map(|form| unary_signatures(Attrs::new().with("approximate", form)))
            .collect()
    },
    cases: || {
        ["none", "tanh", "quick"]
            .into_iter()
            .flat_map(|form| {
                let mut cases = cases(Attrs::new().with("approximate", form));
                cases.iter_mut().for_each(|c| c.name = format!("{form} {}", c.name));
                cases
            })
            .collect()
    },
    tolerance: ELEMENTWISE,
    in_place: &[],
};

/// The three spellings of GELU.
pub(crate) fn gelu(b: &mut Builder, x: ValueId, attrs: &Attrs) -> Result<ValueId, IrError> {
    match attrs.text("approximate")? {
        "none" => {
            let scaled = b.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
            let e = b.exp(Exp::Erf, scaled)?;
            let above = b.offset(e, 1.0)?;
            let half = b.scale(x, 0.5)?;
            b.mul(half, above)
        }
        "tanh" => {
            // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
            let square = b.mul(x, x)?;
            let cube = b.mul(square, x)?;
            let small = b.scale(cube, 0.044715)?;
            let inner = b.add(x, small)?;
            let inner = b.scale(inner, (2.0 / std::f64::consts::PI).sqrt())?;
            let t = tanh(b, inner)?;
            let above = b.offset(t, 1.0)?;
            let half = b.scale(x, 0.5)?;
            b.mul(half, above)
        }
        "quick" => {
            let scaled = b.scale(x, 1.702)?;
            let s = sigmoid(b, scaled)?;
            b.mul(x, s)
        }
        other => Err(IrError::Attr {
            name: "approximate".into(),
            want: "none, tanh or quick",
            got: other.to_owned(),
        }),
    }
}

/// `softmax{axis}(x)`.
pub static SOFTMAX: Jet = Jet {
    name: "softmax",
    summary: "exponentials that sum to one along an axis",
    define: |b, inputs, attrs| {
        let axis = attrs.size("axis")?;
        unary("softmax", b, inputs, |b, x| softmax(b, x, axis))
    },
    signatures: || {
        let of_rank = |rank: usize| {
            let attrs = Attrs::new().with("axis", rank - 1);
            cyb_ir::Signature { inputs: vec![crate::sugar::f32_of_rank(rank)], attrs }
        };
        [2, 1, 3, 4, 5].map(of_rank).into()
    },
    cases: || {
        let axis = |axis: usize| Attrs::new().with("axis", axis);
        vec![
            Case::new("last", axis(1)).normal(&[5, 37]),
            Case::new("first", axis(0)).normal(&[5, 37]),
            Case::new("middle", axis(1)).normal(&[3, 8, 5]),
            Case::new("large", axis(1)).input(DType::F32, &[2, 50], Fill::Normal(100.0)),
        ]
    },
    tolerance: ELEMENTWISE,
    in_place: &[],
};

/// The activations that fused jets name.
pub(super) const ACTIVATIONS: [&str; 9] =
    ["silu", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "gelu_quick", "leaky_relu", "none"];

/// The activation that the attributes `activation` and `slope` name.
pub(super) fn activate(b: &mut Builder, y: ValueId, attrs: &Attrs) -> Result<ValueId, IrError> {
    let form = |form: &str| Attrs::new().with("approximate", form);
    match attrs.text("activation")? {
        "none" => Ok(y),
        "leaky_relu" => leaky(b, y, attrs.float("slope")?),
        "silu" => {
            let s = sigmoid(b, y)?;
            b.mul(y, s)
        }
        "relu" => {
            let zero = b.scalar(DType::F32, 0.0)?;
            b.max(y, zero)
        }
        "sigmoid" => sigmoid(b, y),
        "tanh" => tanh(b, y),
        "gelu" => gelu(b, y, &form("none")),
        "gelu_tanh" => gelu(b, y, &form("tanh")),
        "gelu_quick" => gelu(b, y, &form("quick")),
        other => Err(IrError::Attr {
            name: "activation".into(),
            want: "none, silu, relu, leaky_relu, sigmoid, tanh, gelu, gelu_tanh or gelu_quick",
            got: other.to_owned(),
        }),
    }
}
