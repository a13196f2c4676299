//! The operators: a row each, a file a family.

mod attention;
mod bits;
mod cast;
mod contrib;
mod conv;
mod deform;
mod einsum;
mod elementwise;
mod fused;
mod gather;
mod grid;
mod host;
mod integer;
mod math;
mod matmul;
mod normalization;
mod packed;
mod pool;
mod qlinear;
mod quantized;
mod random;
mod recurrent;
mod recurrent_codes;
mod reduce;
mod resize;
mod rotary;
mod sequence;
mod shape;
mod spectral;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::context::{Context, Outputs};

/// Adds an operator's nodes to the graph and gives its outputs.
pub(crate) type OpFn = fn(&mut Context<'_>) -> Outputs;

/// Operators of the default domain, whose opset the function looks at where versions differ.
pub(crate) type Rows = &'static [(&'static str, OpFn)];

const MICROSOFT: &str = "com.microsoft";

static FAMILIES: &[(&str, Rows)] = &[
    ("", attention::ROWS),
    ("", bits::ROWS),
    ("", cast::ROWS),
    ("", einsum::ROWS),
    ("", spectral::ROWS),
    ("", elementwise::ROWS),
    ("", contrib::STRAY),
    ("", conv::ROWS),
    ("", deform::ROWS),
    ("", gather::ROWS),
    ("", normalization::ROWS),
    ("", sequence::ROWS),
    ("", shape::ROWS),
    (MICROSOFT, contrib::ROWS),
    (MICROSOFT, packed::ROWS),
    (MICROSOFT, qlinear::ROWS),
    (MICROSOFT, quantized::MICROSOFT),
    (MICROSOFT, recurrent_codes::MICROSOFT),
    ("", pool::ROWS),
    ("", quantized::ROWS),
    ("", grid::ROWS),
    ("", host::ROWS),
    ("", random::ROWS),
    ("", recurrent::ROWS),
    ("", resize::ROWS),
    ("", reduce::ROWS),
    ("", matmul::ROWS),
];

static TABLE: LazyLock<HashMap<(&'static str, &'static str), OpFn>> = LazyLock::new(|| {
    let rows = FAMILIES.iter().flat_map(|(domain, rows)| rows.iter().map(move |r| (*domain, r)));
    rows.map(|(domain, (name, function))| ((domain, *name), *function)).collect()
});

/// The operator of this domain and name.
pub(crate) fn find(domain: &str, name: &str) -> Option<OpFn> {
    TABLE.get(&(domain, name)).copied()
}

/// What a user can do about an operator that is not supported.
pub(crate) fn remedy(domain: &str, name: &str) -> &'static str {
    match domain {
        "" if name.starts_with("String")
            || name.contains("Vectorizer")
            || name == "RegexFullMatch" =>
        {
            "strings are not computed with; cut the graph behind them"
        }
        "" => "export the model with another opset, or without the operator",
        "ai.onnx.ml" => "classic models of this domain are not run; export a neural network",
        "ai.onnx.preview.training" | "ai.onnx.training" => {
            "training is not supported; export the model for inference"
        }
        _ => "export the model with the operators of the default domain",
    }
}
