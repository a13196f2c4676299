//! Jets back into atoms.

use std::collections::HashMap;

use crate::{Builder, Graph, IrError, Node, Op, Source, ValueId};

/// A graph that computes the same with every jet for which `keep` is false replaced by its
/// definition.
pub fn expand(graph: &Graph, keep: &dyn Fn(&Node) -> bool) -> Result<Graph, IrError> {
    let mut out = Copy::new(graph);
    for node in &graph.nodes {
        let inputs = out.mapped(&node.inputs);
        out.builder.set_label(&node.label);
        let outputs = match &node.op {
            Op::Jet(jet, attrs) if !keep(node) => (jet.define)(&mut out.builder, &inputs, attrs)?,
            _ => out.builder.push_node(graph, node, &inputs)?,
        };
        out.map.extend(node.outputs.iter().copied().zip(outputs));
    }
    Ok(out.finish())
}

/// A graph being rebuilt from another one, leaves first.
struct Copy<'g> {
    from: &'g Graph,
    builder: Builder,
    map: HashMap<ValueId, ValueId>,
}

impl<'g> Copy<'g> {
    fn new(from: &'g Graph) -> Copy<'g> {
        let mut leaves = Graph::default();
        let mut map = HashMap::new();
        for v in from.value_ids() {
            let value = from.value(v);
            if !matches!(value.source, Source::Node(..)) {
                map.insert(v, ValueId(leaves.values.len() as u32));
                leaves.values.push(value.clone());
            }
        }
        Copy { from, builder: Builder::over(leaves), map }
    }

    fn mapped(&self, values: &[ValueId]) -> Vec<ValueId> {
        values.iter().map(|v| self.map[v]).collect()
    }

    fn finish(mut self) -> Graph {
        for (name, v) in &self.from.outputs {
            self.builder.output(name, self.map[v]);
        }
        for (state, v) in &self.from.updates {
            self.builder.update(self.map[state], self.map[v]);
        }
        self.builder.finish()
    }
}
