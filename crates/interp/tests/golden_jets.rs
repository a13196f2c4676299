//! The definitions of the jets, run through the interpreter, against PyTorch.

use cyb_interp::evaluate_node;
use cyb_ir::Op;
use cyb_tensor::Bindings;

#[test]
fn definitions_compute_what_pytorch_computes() {
    let mut wrong = Vec::new();
    for case in cyb_testkit::golden_jets() {
        let op = Op::Jet(case.jet, case.attrs.clone());
        let checked = match evaluate_node(&op, &case.inputs, &Bindings::new()) {
            Ok(outputs) => case.check(&outputs),
            Err(error) => Err(format!("{}: {error}", case.name)),
        };
        wrong.extend(checked.err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
