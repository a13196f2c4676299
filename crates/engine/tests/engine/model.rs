//! A model whose next token is a hash of the whole history, which it reads through a paged KV store
//! that it writes by slots. A wrong slot, table, position or shared block therefore shows up as a
//! wrong token. It also checks what every plan must obey.

use std::collections::HashMap;

use cyb_engine::{StepError, StepPlan, Stepper};

pub(crate) const VOCAB: usize = 61;

/// One mixing step (the finaliser of SplitMix64).
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(17) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// What the model stores for a token: it depends on everything before it.
fn state(previous: u64, token: u32, position: u32) -> u64 {
    mix(mix(previous, u64::from(token)), u64::from(position))
}

fn logits_of(digest: u64) -> impl Iterator<Item = f32> {
    (0..VOCAB as u64).map(move |i| (mix(digest, i) % 1000) as f32 / 100.0)
}

/// The logits after `tokens`, without any cache.
pub(crate) fn reference_logits(tokens: &[u32]) -> Vec<f32> {
    let (mut last, mut digest) = (1, 2);
    for (position, &token) in tokens.iter().enumerate() {
        last = state(last, token, position as u32);
        digest = mix(digest, last);
    }
    logits_of(digest).collect()
}

pub(crate) struct HashModel {
    block_size: usize,
    kv: Vec<u64>,
    logits: Vec<f32>,
    /// Fails a step whose plan holds this token.
    pub(crate) poison: Option<(u32, StepError)>,
    /// Gives NaN instead of logits after this token.
    pub(crate) nan_after: Option<u32>,
    /// Checks plans, which allocates.
    pub(crate) checks: bool,
    pub(crate) n_steps: usize,
    pub(crate) n_tokens: usize,
    /// Sequences of the largest step.
    pub(crate) widest: usize,
}

impl HashModel {
    pub(crate) fn new(n_blocks: usize, block_size: usize) -> Self {
        HashModel {
            block_size,
            kv: vec![0; n_blocks * block_size],
            logits: Vec::new(),
            poison: None,
            nan_after: None,
            checks: true,
            n_steps: 0,
            n_tokens: 0,
            widest: 0,
        }
    }

    fn slot(&self, plan: &StepPlan, row: usize, position: usize) -> usize {
        plan.table(row)[position / self.block_size] as usize * self.block_size
            + position % self.block_size
    }

    fn check(&self, plan: &StepPlan) {
        let (n, n_seqs) = (plan.n_tokens(), plan.n_seqs());
        assert!(n > 0 && n_seqs > 0);
        for list in [&plan.positions, &plan.slots, &plan.rows] {
            assert_eq!(list.len(), n);
        }
        assert_eq!(plan.tables.len(), n_seqs * plan.table_stride);
        let mut writers: HashMap<usize, usize> = HashMap::new();
        for row in 0..n_seqs {
            let range = plan.tokens_of(row);
            assert!(!range.is_empty());
            for i in range.clone() {
                assert_eq!(plan.rows[i] as usize, row);
                let position = plan.positions[i] as usize;
                assert_eq!(position + range.end, plan.context_lens[row] as usize + i);
                let slot = plan.slots[i] as usize;
                assert_eq!(slot, self.slot(plan, row, position));
                assert_eq!(writers.insert(slot, row), None, "slot {slot} is written twice");
            }
        }
        for row in 0..n_seqs {
            for position in 0..plan.context_lens[row] as usize {
                let writer = writers.get(&self.slot(plan, row, position));
                assert!(writer.is_none_or(|&w| w == row), "row {row} reads what another writes");
            }
        }
    }
}

impl Stepper for HashModel {
    fn vocab(&self) -> usize {
        VOCAB
    }

    fn step(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        if self.checks {
            self.check(plan);
        }
        self.n_steps += 1;
        self.n_tokens += plan.n_tokens();
        self.widest = self.widest.max(plan.n_seqs());
        if let Some((token, error)) = &self.poison
            && let Some(at) = plan.tokens.iter().position(|t| t == token)
        {
            return Err(match error {
                StepError::Row { message, .. } => {
                    StepError::Row { row: plan.rows[at] as usize, message: message.clone() }
                }
                StepError::Step(_) => error.clone(),
            });
        }
        for i in 0..plan.n_tokens() {
            let (row, position) = (plan.rows[i] as usize, plan.positions[i] as usize);
            let previous = match position {
                0 => 1,
                _ => self.kv[self.slot(plan, row, position - 1)],
            };
            self.kv[plan.slots[i] as usize] = state(previous, plan.tokens[i], plan.positions[i]);
        }
        self.logits.clear();
        for &i in &plan.logits_tokens {
            let (row, token) = (plan.rows[i as usize] as usize, plan.tokens[i as usize]);
            let digest = (0..=plan.positions[i as usize] as usize)
                .fold(2, |digest, position| mix(digest, self.kv[self.slot(plan, row, position)]));
            self.logits.extend(logits_of(digest));
            if self.nan_after == Some(token) {
                let first = self.logits.len() - VOCAB;
                self.logits[first + 3] = f32::NAN;
            }
        }
        Ok(())
    }

    fn logits(&mut self, row: usize) -> Result<&[f32], StepError> {
        Ok(&self.logits[row * VOCAB..(row + 1) * VOCAB])
    }
}
