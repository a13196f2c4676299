//! The jet table, with the kernels that backends have for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cyb_exec::{Backend, Call};
use cyb_ir::{Builder, Case, Jet, Op};
use cyb_jets::JETS;

use crate::Error;

/// What there is of a jet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JetInfo {
    /// Its name.
    pub name: &'static str,
    /// What it computes, in a line.
    pub summary: &'static str,
    /// BLAKE3 of its formula, in hex.
    pub hash: String,
    /// Names of the kernels that its test cases would run on, by backend.
    pub kernels: BTreeMap<&'static str, Vec<&'static str>>,
}

/// Every jet of the table.
pub(crate) fn list(backends: &[Arc<dyn Backend>]) -> Result<Vec<JetInfo>, Error> {
    JETS.iter()
        .map(|jet| {
            let mut kernels = BTreeMap::new();
            for backend in backends {
                let names: Vec<&'static str> = kernels_of(jet, backend.as_ref())?;
                if !names.is_empty() {
                    kernels.insert(backend.name(), names);
                }
            }
            let hash = jet.formula_hash()?.to_string();
            Ok(JetInfo { name: jet.name, summary: jet.summary, hash, kernels })
        })
        .collect()
}

fn kernels_of(jet: &'static Jet, backend: &dyn Backend) -> Result<Vec<&'static str>, Error> {
    let mut names = Vec::new();
    for Case { inputs, attrs, .. } in (jet.cases)() {
        let mut b = Builder::new();
        let ids: Vec<_> = inputs
            .iter()
            .enumerate()
            .map(|(i, (fact, _))| b.input(&i.to_string(), fact.clone()))
            .collect();
        b.push(Op::Jet(jet, attrs), &ids)?;
        let graph = b.finish();
        let Some(node) = graph.nodes.first() else { continue };
        let mut call = Call::of(&graph, node);
        // Kernels for weights take them as fixed; whatever else they say, so would a model.
        for fixed_from in [ids.len(), 1] {
            call.fixed.iter_mut().enumerate().for_each(|(i, fixed)| *fixed = i >= fixed_from);
            names.extend(backend.kernel(&call).map(|kernel| kernel.name));
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}
