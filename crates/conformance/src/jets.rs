//! Every case of a jet against its definition.

use std::collections::BTreeMap;

use cyb_ir::{Builder, Case, Fact, Jet, Op, ValueId};
use cyb_tensor::{Bindings, DType, Tensor};

use crate::call::{Call, badness, floats};
use crate::random::Random;
use crate::{CaseError, Line, Suite, case};

/// Inputs that models keep as weights.
fn weights_of(jet: &Jet) -> &'static [usize] {
    match jet.name {
        "linear" | "linear_activation" => &[1, 2],
        "linear_add" | "conv" | "conv_activation" | "conv_add" | "conv_transpose" => &[1],
        "linear_many" => &[1, 2, 3, 4],
        "gated_linear" => &[2],
        "embedding" => &[0],
        "lstm" => &[3, 4],
        "gru" | "rnn" => &[2, 3],
        "matmul_integer" | "conv_integer" => &[1, 3],
        _ => &[],
    }
}

pub(crate) fn check(suite: &Suite<'_>, jet: &'static Jet) -> Line {
    let mut line = Line::new(jet.name);
    for (number, one) in (jet.cases)().iter().enumerate() {
        let mut random = Random(suite.seed.wrapping_add(number as u64 * 1000));
        case(&mut line, &one.name, |line| compare(suite, jet, one, &mut random, line));
    }
    line
}

fn compare(
    suite: &Suite<'_>,
    jet: &'static Jet,
    one: &Case,
    random: &mut Random,
    line: &mut Line,
) -> Result<(), CaseError> {
    let mut inputs = Vec::with_capacity(one.inputs.len());
    for (fact, fill) in &one.inputs {
        let shape: Option<Vec<usize>> = fact.shape.iter().map(|d| d.known()).collect();
        let shape = shape.ok_or_else(|| CaseError::Other("a case of unknown size".into()))?;
        inputs.push(random.tensor(fact.dtype, &shape, fill)?);
    }
    let op = Op::Jet(jet, one.attrs.clone());
    let want = cyb_interp::evaluate_node(&op, &inputs, &Bindings::new())?;
    // A device may record what it does and replay it: the third run must be as good as the first.
    let ran = jet_call(jet, one, &inputs)?.run(suite.backends, 3)?;
    line.on_first += usize::from(ran.backends.iter().all(|name| *name == suite.first()));
    let tolerance = jet.tolerance_of(inputs.iter().map(Tensor::dtype));
    for (want, got) in want.iter().zip(&ran.bytes) {
        if want.dtype() == DType::F32 {
            let want = want.to_f32_vec()?;
            let bad = badness(&want, &floats(got), tolerance.absolute, tolerance.relative);
            line.check_near(&one.name, bad);
        } else {
            let same = want.bytes().as_slice() == &got[..];
            line.check(&one.name, same, || "it has other bytes".into());
        }
    }
    Ok(())
}

fn jet_call(jet: &'static Jet, one: &Case, inputs: &[Tensor]) -> Result<Call, CaseError> {
    let mut b = Builder::new();
    let mut leaves = BTreeMap::new();
    let ids: Vec<ValueId> = inputs
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let name = i.to_string();
            leaves.insert(name.clone(), tensor.clone());
            if weights_of(jet).contains(&i) {
                b.weight(&name, tensor.clone())
            } else if jet.in_place.iter().any(|(input, _)| *input == i) {
                b.state(&name, Fact::of(tensor))
            } else {
                b.input(&name, Fact::of(tensor))
            }
        })
        .collect();
    for (i, v) in b.jet_outputs(jet, one.attrs.clone(), &ids)?.into_iter().enumerate() {
        b.output(&i.to_string(), v);
    }
    Ok(Call { graph: b.finish(), leaves })
}
