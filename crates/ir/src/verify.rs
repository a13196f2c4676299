//! The list of legal forms. Run after every pass in debug builds and in tests.

use crate::hash::inferred;
use crate::{Graph, IrError, Source};

/// Checks that `graph` is a DAG in topological order whose facts follow from its operations.
pub fn verify(graph: &Graph) -> Result<(), IrError> {
    let illegal = |what: String| Err(IrError::Illegal(what));
    for (i, node) in graph.nodes.iter().enumerate() {
        for &v in &node.inputs {
            let Some(value) = graph.values.get(v.index()) else {
                return illegal(format!("node {i} reads {v}, which does not exist"));
            };
            if let Source::Node(from, _) = value.source
                && from.index() >= i
            {
                return illegal(format!("node {i} reads {v}, which node {} makes later", from.0));
            }
        }
        let facts = inferred(graph, node)?;
        if facts.len() != node.outputs.len() {
            return illegal(format!("node {i} ({}) has {} outputs", node.op.name(), facts.len()));
        }
        for (k, (&v, fact)) in node.outputs.iter().zip(&facts).enumerate() {
            match graph.values.get(v.index()) {
                Some(value) if value.fact != *fact => {
                    return illegal(format!("{v} is {}, its node makes {fact}", value.fact));
                }
                Some(value) => match value.source {
                    Source::Node(n, output) if n.index() == i && output == k => {}
                    _ => return illegal(format!("{v} does not name node {i} as its source")),
                },
                None => return illegal(format!("node {i} makes {v}, which does not exist")),
            }
        }
    }
    for (name, v) in &graph.outputs {
        if v.index() >= graph.values.len() {
            return illegal(format!("output {name} is {v}, which does not exist"));
        }
    }
    for (state, new) in &graph.updates {
        if !matches!(graph.value(*state).source, Source::State(_)) {
            return illegal(format!("{state} is updated but is no state"));
        }
        if graph.fact(*state) != graph.fact(*new) {
            return illegal(format!("the update of {state} has other facts than it"));
        }
    }
    Ok(())
}
