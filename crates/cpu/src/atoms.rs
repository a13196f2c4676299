//! The kernel of last resort: a call evaluated through its definition.

use cyb_interp::evaluate_node;
use cyb_ir::Op;
use cyb_tensor::{AlignedBytes, Bindings, Bytes, Tensor};

use crate::io::{Io, RawTensor};
use crate::kernel::Kernel;

/// Runs a node through the interpreter on one worker.
#[derive(Debug)]
pub(crate) struct Atoms {
    pub(crate) op: Op,
    pub(crate) symbols: cyb_exec::Symbols,
}

impl Kernel for Atoms {
    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        if io.worker.index != 0 {
            return Ok(());
        }
        let tensor = |i: usize, t: &RawTensor| {
            let bytes = Bytes::owned(AlignedBytes::from_slice(io.bytes(i)));
            Tensor::new(t.dtype, t.dims[..t.rank].to_vec(), bytes).map_err(|e| e.to_string())
        };
        let inputs: Vec<Tensor> =
            io.inputs.iter().enumerate().map(|(i, t)| tensor(i, t)).collect::<Result<_, _>>()?;
        let bindings: Bindings = self.symbols.bind(io.bound);
        let outputs = evaluate_node(&self.op, &inputs, &bindings).map_err(|e| e.to_string())?;
        for (i, output) in outputs.iter().enumerate() {
            let to = io.output_bytes(i);
            let from = output.bytes().as_slice();
            if from.len() != to.len() {
                return Err(format!("output {i} has {} bytes, not {}", from.len(), to.len()));
            }
            // SAFETY: only this worker touches the step's outputs.
            unsafe { to.range(0, from.len()) }.copy_from_slice(from);
        }
        Ok(())
    }
}
