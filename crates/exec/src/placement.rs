//! Which backend each node runs on.

use std::collections::HashMap;
use std::sync::Arc;

use cyb_ir::{Graph, Op, ValueId};

use crate::{Backend, Call, ExecError};

/// The layer that a label names.
pub(crate) fn layer_of(label: &str) -> Option<usize> {
    label.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The first backend that each node may go to: the last one behind `device_layers` layers.
pub(crate) fn firsts(
    graph: &Graph,
    backends: &[Arc<dyn Backend>],
    device_layers: Option<usize>,
) -> Vec<usize> {
    let mut past = device_layers == Some(0);
    let each = graph.nodes.iter().map(|node| {
        past |= device_layers.zip(layer_of(&node.label)).is_some_and(|(n, layer)| layer >= n);
        if past { backends.len().saturating_sub(1) } else { 0 }
    });
    each.collect()
}

/// The backend of every node: of those from its `firsts` on the first that has a kernel for it, or one
/// that runs atoms. All users of a state, and of states that one of them uses too, are on one backend.
pub(crate) fn place(
    graph: &Graph,
    backends: &[Arc<dyn Backend>],
    firsts: &[usize],
) -> Result<Vec<usize>, ExecError> {
    let mut places = vec![None; graph.nodes.len()];
    let alone = (0..graph.nodes.len()).map(|index| vec![index]);
    for group in sharing_states(graph).into_iter().chain(alone) {
        if places[group[0]].is_some() {
            continue;
        }
        let first = group.iter().map(|&index| firsts[index]).max().unwrap_or(0);
        let on = |b: usize, or_atoms: bool| {
            let all = |kernel: &dyn Fn(&Call<'_>) -> bool| {
                group.iter().all(|&index| kernel(&Call::of(graph, &graph.nodes[index])))
            };
            let backend = &backends[b];
            all(&|call| backend.kernel(call).is_some() || or_atoms && backend.runs_atoms())
        };
        let found = (first..backends.len())
            .find(|&b| on(b, false))
            .or_else(|| (first..backends.len()).find(|&b| on(b, true)));
        let Some(chosen) = found else {
            let node = &graph.nodes[group[0]];
            let call = Call::of(graph, node);
            let facts: Vec<String> = call.inputs.iter().map(|f| f.to_string()).collect();
            let op = node.op.name().to_owned();
            return Err(ExecError::Unsupported { op, facts: facts.join(", ") });
        };
        group.iter().for_each(|&index| places[index] = Some(chosen));
    }
    // Every node is in a group.
    Ok(places.into_iter().flatten().collect())
}

/// Nodes that use the same state, or states that a node uses together.
fn sharing_states(graph: &Graph) -> Vec<Vec<usize>> {
    let mut group_of: HashMap<ValueId, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (_, state) in graph.states() {
        group_of.insert(state, groups.len());
        groups.push(Vec::new());
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut used: Vec<usize> =
            node.inputs.iter().filter_map(|v| group_of.get(v).copied()).collect();
        used.sort_unstable();
        used.dedup();
        let Some((&group, others)) = used.split_first() else { continue };
        for &other in others {
            let moved = std::mem::take(&mut groups[other]);
            groups[group].extend(moved);
            group_of.values_mut().filter(|g| **g == other).for_each(|g| *g = group);
        }
        groups[group].push(index);
        if let Op::Jet(jet, _) = &node.op {
            for &(_, output) in jet.in_place {
                group_of.insert(node.outputs[output], group);
            }
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use cyb_ir::{Attrs, Builder, Fact};
    use cyb_jets::{KV_CACHE, MUL};
    use cyb_tensor::DType;

    use super::*;
    use crate::{Kernel, PlanMode, Program};

    /// A backend that has kernels for some operations.
    #[derive(Debug)]
    struct Knows(&'static [&'static str]);

    impl Backend for Knows {
        fn name(&self) -> &'static str {
            "knows"
        }

        fn device(&self) -> String {
            String::new()
        }

        fn kernel(&self, call: &Call<'_>) -> Option<Kernel> {
            self.0.contains(&call.op.name()).then_some(Kernel { name: "known" })
        }

        fn runs_atoms(&self) -> bool {
            false
        }

        fn prepare(&self, _: Graph, _: PlanMode) -> Result<Box<dyn Program>, ExecError> {
            Err(ExecError::Step { step: "prepare".into(), why: "nothing runs here".into() })
        }
    }

    /// A row is stored in two states, which are multiplied; their product is stored in a third.
    fn graph() -> Graph {
        let mut b = Builder::new();
        let slots = b.input("slots", Fact::new(DType::I32, [1.into()]));
        let row = b.input("row", Fact::new(DType::F32, [1, 2, 8].map(Into::into)));
        let pool = || Fact::new(DType::F32, [4, 2, 8].map(Into::into));
        let states = ["a", "b", "c"].map(|name| b.state(name, pool()));
        let store = |b: &mut Builder, state: ValueId| {
            let new = b.jet(&KV_CACHE, Attrs::new(), &[state, slots, row]).unwrap();
            b.update(state, new);
            new
        };
        let (first, second) = (store(&mut b, states[0]), store(&mut b, states[1]));
        let product = b.jet(&MUL, Attrs::new(), &[first, second]).unwrap();
        store(&mut b, states[2]);
        b.output("product", product);
        b.finish()
    }

    fn placed(backends: [Knows; 2]) -> Vec<usize> {
        let backends = backends.map(|b| -> Arc<dyn Backend> { Arc::new(b) });
        place(&graph(), &backends, &[0; 4]).unwrap()
    }

    #[test]
    fn users_of_a_state_go_where_all_of_them_have_kernels() {
        let all: &[&str] = &["kv_cache", "mul"];
        assert_eq!(placed([Knows(all), Knows(all)]), [0, 0, 0, 0]);
        // The states that are multiplied together, but not the third.
        assert_eq!(placed([Knows(&["kv_cache"]), Knows(all)]), [1, 1, 1, 0]);
        assert_eq!(placed([Knows(&["mul"]), Knows(all)]), [1, 1, 1, 1]);
    }
}
