//! The body of a fuzz target: a plain function of bytes that must return. libFuzzer runs it from the
//! crate in `fuzz/`.

use std::sync::Arc;

use cyb_formats::onnx::{Dimension, Elem, Model};
use cyb_ir::Fact;

use crate::Port;
use crate::import::Import;

/// Sizes of inputs that a file may ask for here: larger ones only take longer.
const LARGEST_INPUT: usize = 1 << 16;

/// Parses `data` as a model and imports it up to the first number that only a run gives.
///
/// # Panics
/// When a graph that was accepted does not hold together.
pub fn fuzz_onnx(data: &[u8]) {
    let Ok(model) = Model::from_bytes(data.to_vec(), None) else { return };
    if !crate::unsupported(&model).is_empty() {
        return;
    }
    let model = Arc::new(model);
    let mut names: Vec<(String, Elem)> = Vec::new();
    let mut facts = Vec::new();
    for port in model.graph.inputs.iter().map(Port::of) {
        let elem = port.elem.unwrap_or(Elem::F32);
        let Some(dtype) = elem.storage() else { return };
        let dims: Vec<usize> = port
            .shape
            .unwrap_or_default()
            .iter()
            .map(|d| match d {
                Dimension::Known(n) => *n,
                Dimension::Symbol(_) | Dimension::Unknown => 2,
            })
            .collect();
        let elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if elements.is_none_or(|n| n > LARGEST_INPUT) {
            return;
        }
        facts.push(Fact::new(dtype, dims.into_iter().map(Into::into)));
        names.push((port.name, elem));
    }
    if let Ok(stage) = Import::new(&model, &names).stage(&facts) {
        cyb_ir::verify(&stage.graph).expect("an imported graph holds together");
    }
}
