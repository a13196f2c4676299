//! Running given tokens through a model, without an engine: one sequence, every wanted row.

use cyb_engine::{StepPlan, Stepper};

use crate::stepper::ModelStepper;
use crate::{Cancel, Error};

/// The most bytes of logits that one step makes.
const LOGIT_BYTES: usize = 64 << 20;

/// Takes `ids` through the model from an empty context, in steps of at most `chunk` tokens, and
/// hands `sink` the stepper after each step with the first position of the step and the number of
/// tokens. Logits are computed for positions from `first` on; row 0 is that of the first such
/// position in the step.
pub(crate) fn run(
    stepper: &mut ModelStepper,
    ids: &[u32],
    first: usize,
    chunk: usize,
    block: usize,
    cancel: &Cancel,
    sink: &mut dyn FnMut(&mut ModelStepper, usize, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let rows = (LOGIT_BYTES / 4 / stepper.vocab().max(1)).max(1);
    let mut at = 0;
    let mut plan = StepPlan::default();
    while at < ids.len() {
        if cancel.is_set() {
            return Err(Error::Interrupted);
        }
        // A step ends where logits begin to be wanted, so that few rows never shrink a long prefill.
        let end = if at < first { (at + chunk).min(first) } else { at + chunk.min(rows) };
        let end = end.min(ids.len());
        fill_plan(&mut plan, &ids[at..end], at, block, at >= first);
        stepper
            .step(&plan)
            .map_err(|error| Error::Value { what: "step", why: error.to_string() })?;
        sink(stepper, at, end - at)?;
        at = end;
    }
    Ok(())
}

/// A plan of one sequence whose block number i is the block i of the pool.
pub(crate) fn fill_plan(plan: &mut StepPlan, ids: &[u32], at: usize, block: usize, logits: bool) {
    let n = ids.len() as u32;
    let range = at as u32..at as u32 + n;
    plan.tokens.clear();
    plan.tokens.extend_from_slice(ids);
    plan.positions.clear();
    plan.positions.extend(range.clone());
    plan.slots.clear();
    plan.slots.extend(range.clone());
    plan.rows.clear();
    plan.rows.resize(ids.len(), 0);
    plan.seqs.clear();
    plan.seqs.push(cyb_engine::SeqId(0));
    plan.token_starts.clear();
    plan.token_starts.extend([0, n]);
    plan.context_lens.clear();
    plan.context_lens.push(range.end);
    plan.tables.clear();
    plan.table_stride = (range.end as usize).div_ceil(block);
    plan.tables.extend(0..plan.table_stride as u32);
    plan.logits_tokens.clear();
    if logits {
        plan.logits_tokens.extend(0..n);
    }
    plan.logits_starts.clear();
    plan.logits_starts.extend([0, plan.logits_tokens.len() as u32]);
}

/// A row of the latest step's logits.
pub(crate) fn logits(stepper: &mut ModelStepper, row: usize) -> Result<&[f32], Error> {
    stepper.logits(row).map_err(|error| Error::Value { what: "logits", why: error.to_string() })
}
