//! Which operations of the text families the GPU has kernels for, asked without a GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use cyb_exec::{Backend, Call, ExecError, Kernel, PlanMode, Program, optimize};
use cyb_ir::Graph;
use cyb_models::GraphOptions;

use crate::program::find;

/// What the backend says of kernels, without a device.
#[derive(Debug)]
struct Kernels;

impl Backend for Kernels {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> String {
        String::new()
    }

    fn kernel(&self, call: &Call<'_>) -> Option<Kernel> {
        find(call)
    }

    fn runs_atoms(&self) -> bool {
        false
    }

    fn prepare(&self, _: Graph, _: PlanMode) -> Result<Box<dyn Program>, ExecError> {
        Err(ExecError::Step { step: "prepare".into(), why: "there is no device".into() })
    }
}

/// Operations of a golden model without a kernel.
fn without_kernel(path: &Path) -> BTreeSet<String> {
    let file = cyb_formats::open(path).unwrap();
    let built = cyb_models::build(&file, &GraphOptions::default()).unwrap();
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Kernels)];
    let (graph, _) = optimize(built.graph, &backends, false).unwrap();
    let calls = graph.nodes.iter().map(|node| Call::of(&graph, node));
    // Heads of a width that is no multiple of 8, which no published model has, are for the processor.
    let odd = |call: &Call<'_>| {
        let width = call.inputs[0].shape.last().and_then(|d| d.known());
        call.op.name() == "sdpa_paged" && width.is_some_and(|n| !n.is_multiple_of(8))
    };
    let without = calls.filter(|call| find(call).is_none() && !odd(call));
    without.map(|call| call.op.name().to_owned()).collect()
}

#[test]
fn text_models_run_on_the_gpu() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden");
    let mut missing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut seen = 0;
    for folder in ["families", "encoders"] {
        for entry in std::fs::read_dir(golden.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.join("config.json").exists()
                || path.extension().is_some_and(|e| e == "gguf")
            {
                seen += 1;
                for op in without_kernel(&path) {
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    missing.entry(op).or_default().insert(name);
                }
            }
        }
    }
    assert!(seen > 30, "{seen}");
    assert_eq!(missing, BTreeMap::new());
}
