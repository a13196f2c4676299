//! `models info MODEL.onnx --graph`: the graph of the file, the steps it becomes, and why.

use cyb_llm::OnnxModel;
use serde_json::json;

use crate::args::Common;
use crate::failure::Failure;
use crate::output;

/// Shows what came of a model that has been prepared.
pub(super) fn show(common: &Common, model: &OnnxModel) -> Result<(), Failure> {
    let (nodes, steps, notes) = (&model.model().graph.nodes, model.steps(), model.notes());
    if common.json {
        return output::json(&json!({
            "before": nodes.iter().map(|n| json!({
                "op": n.op, "domain": n.domain, "node": n.name,
                "inputs": n.inputs, "outputs": n.outputs,
            })).collect::<Vec<_>>(),
            "after": steps.iter().map(|s| json!({
                "op": s.op, "kernel": s.kernel, "node": s.node,
            })).collect::<Vec<_>>(),
            "recognized": notes.iter().filter(|n| n.missed.is_none()).map(|n| json!({
                "jet": n.jet, "node": n.node,
            })).collect::<Vec<_>>(),
            "missed": notes.iter().filter_map(|n| Some(json!({
                "jet": n.jet, "node": n.node, "why": n.missed.as_ref()?,
            }))).collect::<Vec<_>>(),
        }));
    }
    let mut rows = vec![vec![format!("before: {} nodes", nodes.len())]];
    for node in nodes {
        let names = |all: &[String]| all.join(", ");
        let call = format!("{}({})", node.op, names(&node.inputs));
        rows.push(vec![format!("  {}", node.name), call, format!("-> {}", names(&node.outputs))]);
    }
    rows.push(vec![format!("after: {} steps", steps.len())]);
    for step in &steps {
        rows.push(vec![format!("  {}", step.node), step.op.to_owned(), step.kernel.to_owned()]);
    }
    rows.push(vec!["recognized".to_owned()]);
    for note in notes.iter().filter(|n| n.missed.is_none()) {
        rows.push(vec![format!("  {}", note.node), note.jet.clone()]);
    }
    rows.push(vec!["nearly".to_owned()]);
    for note in &notes {
        if let Some(why) = &note.missed {
            rows.push(vec![format!("  {}", note.node), note.jet.clone(), why.clone()]);
        }
    }
    output::text(&output::table(&rows))
}
