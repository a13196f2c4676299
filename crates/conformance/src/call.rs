//! A small graph with the values of its leaves, and its runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cyb_exec::{Backend, Executor, PrepareOptions};
use cyb_ir::Graph;
use cyb_tensor::{DType, Tensor};

use crate::CaseError;

pub(crate) struct Call {
    pub(crate) graph: Graph,
    /// Inputs and states by name.
    pub(crate) leaves: BTreeMap<String, Tensor>,
}

/// What a run gave.
pub(crate) struct Ran {
    /// Outputs in their order, then states.
    pub(crate) bytes: Vec<Vec<u8>>,
    /// The backend of each step.
    pub(crate) backends: Vec<&'static str>,
}

impl Call {
    fn leaf(&self, name: &str) -> Result<&[u8], CaseError> {
        let leaf = self.leaves.get(name).map(|tensor| tensor.bytes().as_slice());
        leaf.ok_or_else(|| CaseError::Other(format!("the graph has no leaf {name:?}")))
    }

    /// Runs it `runs` times in one session; what the last run gave.
    pub(crate) fn run(&self, backends: &[Arc<dyn Backend>], runs: usize) -> Result<Ran, CaseError> {
        let options = PrepareOptions::default();
        let executor = Arc::new(Executor::prepare(self.graph.clone(), backends, options)?);
        let steps = executor.steps().iter().map(|step| step.backend).collect();
        let mut running = executor.start(&[])?;
        let names: Vec<String> = executor.inputs().map(|(name, _)| name.to_owned()).collect();
        let states: Vec<String> = executor.states().map(str::to_owned).collect();
        for _ in 0..runs {
            for (i, name) in names.iter().enumerate() {
                let bytes = self.leaf(name)?;
                running.input(i, &mut |to| to.copy_from_slice(bytes));
            }
            for (i, name) in states.iter().enumerate() {
                running.set_state(i, self.leaf(name)?)?;
            }
            running.run()?;
        }
        let mut bytes = Vec::new();
        for i in 0..executor.outputs().count() {
            bytes.push(running.output(i)?.to_vec());
        }
        for i in 0..states.len() {
            bytes.push(running.state(i)?.to_vec());
        }
        Ok(Ran { bytes, backends: steps })
    }
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// The elements of a tensor's bytes.
pub(crate) fn decoded(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>, CaseError> {
    if dtype == DType::F32 {
        return Ok(floats(bytes));
    }
    let layout = dtype.layout();
    let mut out = vec![0.0; bytes.len() / layout.bytes * layout.block];
    cyb_tensor::quant::decode(dtype, bytes, &mut out)?;
    Ok(out)
}

/// The largest difference in units of what is allowed; above 1 is wrong.
pub(crate) fn badness(want: &[f32], got: &[f32], absolute: f32, relative: f32) -> f32 {
    let largest = want.iter().filter(|v| v.is_finite()).fold(0f32, |m, v| m.max(v.abs()));
    let allowed = absolute + relative * largest;
    let worst = want.iter().zip(got).map(|(w, g)| {
        let same = w == g || (w.is_nan() && g.is_nan());
        match () {
            () if same => 0.0,
            () if (w - g).is_nan() => f32::INFINITY,
            () => (w - g).abs() / allowed.max(f32::MIN_POSITIVE),
        }
    });
    if want.len() == got.len() { worst.fold(0.0, f32::max) } else { f32::INFINITY }
}
