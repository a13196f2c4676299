//! Products of one row and of many: a row's result does not depend on those beside it.

use std::collections::BTreeMap;

use cyb_exec::{Executor, PlanMode, PrepareOptions};
use cyb_ir::{Attrs, Builder, Fact, Fill};
use cyb_tensor::DType;

use crate::call::{Call, badness, floats};
use crate::random::Random;
use crate::{CaseError, Line, Suite, case};

/// `linear` of `m` rows; the first rows are the same whatever `m`.
fn linear(seed: u64, dtype: DType, m: usize, k: usize, n: usize) -> Result<Call, CaseError> {
    let mut random = Random(seed);
    let w = random.tensor(dtype, &[n, k], &Fill::Normal(0.5))?;
    let x = random.tensor(DType::F32, &[m, k], &Fill::Normal(1.0))?;
    let mut b = Builder::new();
    let (xv, wv) = (b.input("x", Fact::of(&x)), b.weight("w", w));
    let y = b.jet(&cyb_jets::LINEAR, Attrs::new(), &[xv, wv])?;
    b.output("y", y);
    Ok(Call { graph: b.finish(), leaves: BTreeMap::from([("x".into(), x)]) })
}

pub(crate) fn check(suite: &Suite<'_>, line: &mut Line) {
    use DType::{BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    for dtype in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16, F32] {
        case(line, &format!("linear {dtype}"), |line| of_dtype(suite, dtype, line));
    }
    case(line, "linear, every buffer in its own place", |_| {
        let options = PrepareOptions { mode: PlanMode::WriteNewOnly, ..PrepareOptions::default() };
        let call = linear(suite.seed, Q4_K, 3, 256, 32)?;
        Executor::prepare(call.graph, suite.backends, options)?;
        Ok(())
    });
}

fn of_dtype(suite: &Suite<'_>, dtype: DType, line: &mut Line) -> Result<(), CaseError> {
    let (k, n) = (2816, 200);
    let alone = linear(suite.seed, dtype, 1, k, n)?.run(suite.backends, 1)?;
    let invariant = linear(suite.seed, dtype, 1, k, n)?.run(suite.invariant, 1)?;
    line.on_first += usize::from(alone.backends.iter().all(|name| *name == suite.first()));
    let alone = &alone.bytes[0];
    for m in [2, 8, 9, 33, 64, 65, 200, 300, 513] {
        let name = format!("linear {dtype} {m}x{k}x{n}");
        let call = linear(suite.seed, dtype, m, k, n)?;
        let got = &call.run(suite.backends, 1)?.bytes[0];
        if let Some(reference) = suite.reference {
            let want = &call.run(reference, 1)?.bytes[0];
            line.check_near(&name, badness(&floats(want), &floats(got), 1e-4, 2e-2));
        }
        let again = &call.run(suite.backends, 3)?.bytes[0];
        line.check(&name, again == got, || "two runs have other bits".into());
        let same = got.get(..alone.len()) == Some(&alone[..]);
        line.check(&name, same || m > 8, || "a row alone has other bits".into());
        let fixed = &call.run(suite.invariant, 1)?.bytes[0];
        let fixed = fixed.get(..alone.len()) == Some(&invariant.bytes[0][..]);
        line.check(&name, fixed, || "batch-invariant, a row alone has other bits".into());
    }
    Ok(())
}
