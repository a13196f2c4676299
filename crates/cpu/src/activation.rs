//! What is done to a sum before it is stored.

use cyb_exec::ExecError;
use cyb_ir::{Attrs, IrError};
use cyb_simd::{Isa, math};

/// A function of each result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    #[default]
    None,
    Silu,
    Relu,
    Sigmoid,
    Tanh,
    Gelu,
    GeluTanh,
    GeluQuick,
    LeakyRelu(f32),
}

impl Activation {
    /// That which the attributes `activation` and `slope` of a call name.
    pub(crate) fn of(attrs: &Attrs) -> Result<Activation, ExecError> {
        if attrs.get("activation").is_none() {
            return Ok(Activation::None);
        }
        Ok(match attrs.text("activation")? {
            "none" => Activation::None,
            "silu" => Activation::Silu,
            "relu" => Activation::Relu,
            "sigmoid" => Activation::Sigmoid,
            "tanh" => Activation::Tanh,
            "gelu" => Activation::Gelu,
            "gelu_tanh" => Activation::GeluTanh,
            "gelu_quick" => Activation::GeluQuick,
            "leaky_relu" => Activation::LeakyRelu(attrs.float("slope")? as f32),
            other => {
                return Err(IrError::Attr {
                    name: "activation".into(),
                    want: "the name of an activation",
                    got: other.to_owned(),
                }
                .into());
            }
        })
    }

    #[inline(always)]
    pub(crate) fn apply<S: Isa>(self, s: S, v: S::F) -> S::F {
        match self {
            Activation::None => v,
            Activation::Silu => math::silu(s, v),
            // NaN stays: `max` gives its second operand where either is NaN.
            Activation::Relu => s.max(s.splat(0.0), v),
            Activation::Sigmoid => math::sigmoid(s, v),
            Activation::Tanh => math::tanh(s, v),
            Activation::Gelu => math::gelu_erf(s, v),
            Activation::GeluTanh => math::gelu_tanh(s, v),
            Activation::GeluQuick => math::gelu_quick(s, v),
            Activation::LeakyRelu(slope) => {
                s.select_gt(v, s.splat(0.0), v, s.mul(v, s.splat(slope)))
            }
        }
    }
}
