//! Who computes what in the next step.
//!
//! Sequences wait in a queue or run. A step goes through the running ones, those that need a single
//! token first (decodes), then the others in order of arrival (prefill), and gives each as much of
//! the budget as it can use; what is left admits waiting sequences in order of arrival. A sequence
//! that needs a block when none is free takes it from the youngest running one, which loses all its
//! blocks and waits again: it recomputes later, often from the prefix cache. The oldest sequence
//! can therefore always go on, so everybody finishes.
//!
//! Running sequences are always older than waiting ones, since both queues keep the order of
//! arrival and victims return to the front.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::plan::StepPlan;
use crate::pool::{BlockId, BlockPool, Namespace, PrefixId};

/// A sequence; later ones have larger numbers, none is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Sizes and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Tokens per block of KV memory.
    pub block_size: usize,
    /// Blocks of KV memory.
    pub n_blocks: usize,
    /// The most sequences that run at once.
    pub max_running: usize,
    /// The most sequences that wait; further ones are refused.
    pub max_waiting: usize,
    /// The most tokens that a step computes.
    pub step_tokens: usize,
    /// The most tokens that a step computes of one sequence.
    pub chunk: usize,
    /// Whether sequences start from blocks that others computed.
    pub prefix_cache: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            block_size: 32,
            n_blocks: 128,
            max_running: 16,
            max_waiting: 1024,
            step_tokens: 512,
            chunk: 512,
            prefix_cache: true,
        }
    }
}

/// Why a sequence was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Nothing to continue.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// The prompt leaves no room in the context.
    #[error(
        "the prompt has {prompt} tokens, but the context holds {context} with the answer; shorten the prompt or ask for a larger context"
    )]
    ContextTooSmall {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The prompt can never fit the KV memory.
    #[error(
        "the prompt has {prompt} tokens, but the KV memory holds {capacity} with the answer; shorten the prompt or give the model more memory"
    )]
    PoolTooSmall {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of all blocks together.
        capacity: usize,
    },
    /// Too many sequences wait.
    #[error("{limit} requests are waiting already, which is the limit; try again later")]
    QueueFull {
        /// The limit.
        limit: usize,
    },
}

/// Token counts of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were not computed because the prefix cache had them.
    pub cached_tokens: usize,
    /// Tokens added since.
    pub output_tokens: usize,
}

/// What the scheduler is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that run.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Blocks of KV memory.
    pub blocks: usize,
    /// Blocks that no sequence uses.
    pub free_blocks: usize,
    /// Blocks, in use or not, whose content can be shared.
    pub cached_blocks: usize,
    /// Preemptions so far.
    pub preemptions: u64,
}

#[derive(Debug)]
struct Sequence {
    id: SeqId,
    /// Prompt and output.
    tokens: Vec<u32>,
    n_prompt: usize,
    /// Tokens whose keys and values are in the blocks of `table`.
    computed: usize,
    /// The most tokens that the sequence may come to hold.
    limit: usize,
    table: Vec<BlockId>,
    namespace: Arc<Namespace>,
    /// The chain of the blocks that are registered; none when it cannot go on.
    prefix: Option<PrefixId>,
    n_registered: usize,
    /// Prompt tokens found in the prefix cache at first admission; none before.
    n_cached: Option<usize>,
    /// When it was last given tokens, counted in servings.
    served: u64,
}

impl Sequence {
    fn missing(&self) -> usize {
        self.tokens.len() - self.computed
    }

    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.n_prompt,
            cached_tokens: self.n_cached.unwrap_or(0),
            output_tokens: self.tokens.len() - self.n_prompt,
        }
    }
}

/// The state machine. See the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    pool: BlockPool,
    /// In order of arrival, all younger than those that run.
    waiting: VecDeque<Sequence>,
    /// In order of arrival.
    running: Vec<Sequence>,
    n_sequences: u64,
    n_servings: u64,
    n_preemptions: u64,
    /// The order in which a step serves the running sequences: sort keys that end with the id.
    order: Vec<(bool, u64, SeqId)>,
    /// What the step being planned computes: how many tokens of whom.
    planned: Vec<(SeqId, usize)>,
    hits: Vec<BlockId>,
}

impl Scheduler {
    /// An idle scheduler.
    ///
    /// # Panics
    /// When a size in the configuration that cannot be zero is.
    pub fn new(config: Config) -> Self {
        let Config { max_running, step_tokens, chunk, .. } = config;
        assert!(max_running > 0 && step_tokens > 0 && chunk > 0, "sizes are positive: {config:?}");
        Scheduler {
            config,
            pool: BlockPool::new(config.n_blocks, config.block_size),
            waiting: VecDeque::new(),
            running: Vec::with_capacity(max_running),
            n_sequences: 0,
            n_servings: 0,
            n_preemptions: 0,
            order: Vec::with_capacity(max_running),
            planned: Vec::with_capacity(max_running),
            hits: Vec::new(),
        }
    }

    /// Takes a sequence. `limit` is the most tokens that it may come to hold, prompt included; what
    /// the KV memory holds is a limit too.
    ///
    /// # Errors
    /// See [`AdmitError`].
    pub fn submit(
        &mut self,
        prompt: &[u32],
        limit: usize,
        namespace: Namespace,
    ) -> Result<SeqId, AdmitError> {
        let capacity = self.pool.n_blocks() * self.pool.block_size();
        let n_prompt = prompt.len();
        if n_prompt == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        if n_prompt >= limit {
            return Err(AdmitError::ContextTooSmall { prompt: n_prompt, context: limit });
        }
        if n_prompt >= capacity {
            return Err(AdmitError::PoolTooSmall { prompt: n_prompt, capacity });
        }
        if self.waiting.len() >= self.config.max_waiting {
            return Err(AdmitError::QueueFull { limit: self.config.max_waiting });
        }
        self.n_sequences += 1;
        self.waiting.push_back(Sequence {
            id: SeqId(self.n_sequences),
            tokens: prompt.to_vec(),
            n_prompt,
            computed: 0,
            limit: limit.min(capacity),
            table: Vec::new(),
            namespace: Arc::new(namespace),
            prefix: None,
            n_registered: 0,
            n_cached: None,
            served: 0,
        });
        Ok(SeqId(self.n_sequences))
    }

    /// Plans the next step, of at most `budget` tokens. The plan is empty only when no sequence is
    /// left. Nothing counts as computed until [`Scheduler::complete`].
    pub fn schedule(&mut self, budget: usize, plan: &mut StepPlan) {
        self.planned.clear();
        let mut budget = budget.max(1);
        let preemptions_before = self.n_preemptions;

        // Decodes by who was served longest ago, which matters when the budget is smaller than
        // their number; prefills by arrival.
        self.order.clear();
        self.order.extend(self.running.iter().map(|s| match s.missing() {
            0..=1 => (false, s.served, s.id),
            _ => (true, 0, s.id),
        }));
        self.order.sort_unstable();
        for i in 0..self.order.len() {
            let (_, _, id) = self.order[i];
            // Absent: preempted for one that was served before it.
            let Some(at) = index_of(&self.running, id) else { continue };
            let n = self.running[at].missing().min(budget).min(self.config.chunk);
            if n == 0 {
                continue;
            }
            budget += self.make_room(at, n);
            if self.running.get(at).is_some_and(|s| s.id == id) {
                self.extend_table(at, n);
                self.planned.push((id, n));
                budget -= n;
            }
        }

        // Admitting in the step of a preemption would take the blocks that it was made for.
        while self.n_preemptions == preemptions_before
            && budget > 0
            && self.running.len() < self.config.max_running
            && self.admit_next()
        {
            let at = self.running.len() - 1;
            let n = self.running[at].missing().min(budget).min(self.config.chunk);
            self.extend_table(at, n);
            self.planned.push((self.running[at].id, n));
            budget -= n;
        }
        self.emit(plan);
    }

    /// Preempts the youngest sequences until the one at `at` can get the blocks for `n` more tokens,
    /// itself if it comes to that. Gives back the budget that victims had been planned for.
    fn make_room(&mut self, at: usize, n: usize) -> usize {
        let needed = self.blocks_missing(&self.running[at], n);
        let mut refund = 0;
        while self.pool.n_free() < needed && self.running.len() > at {
            let Some(mut victim) = self.running.pop() else { break };
            if let Some(i) = self.planned.iter().position(|p| p.0 == victim.id) {
                refund += self.planned.remove(i).1;
            }
            release_blocks(&mut self.pool, &mut victim);
            self.waiting.push_front(victim);
            self.n_preemptions += 1;
        }
        refund
    }

    fn blocks_missing(&self, seq: &Sequence, n: usize) -> usize {
        (seq.computed + n).div_ceil(self.pool.block_size()).saturating_sub(seq.table.len())
    }

    /// Gives the sequence at `at` the blocks for `n` more tokens; they must be free.
    fn extend_table(&mut self, at: usize, n: usize) {
        for _ in 0..self.blocks_missing(&self.running[at], n) {
            let block = self.pool.allocate().expect("room was made before");
            self.running[at].table.push(block);
        }
    }

    /// Moves the oldest waiting sequence to the running ones, with the blocks that the prefix cache
    /// has for it, if all its tokens fit beside what the running ones still need for theirs.
    fn admit_next(&mut self) -> bool {
        let Some(seq) = self.waiting.front() else { return false };
        let block_size = self.pool.block_size();
        self.hits.clear();
        let mut prefix = PrefixId::START;
        // The last token is always computed: its logits are wanted.
        let n_usable = (seq.tokens.len() - 1) / block_size;
        for block_tokens in seq.tokens.chunks_exact(block_size).take(n_usable) {
            let Some((block, longer)) = self
                .config
                .prefix_cache
                .then(|| self.pool.lookup(prefix, &seq.namespace, block_tokens))
                .flatten()
            else {
                break;
            };
            self.hits.push(block);
            prefix = longer;
        }
        let n_revived = self.hits.iter().filter(|&&b| self.pool.refs(b) == 0).count();
        let n_own = seq.tokens.len().div_ceil(block_size) - self.hits.len();
        let n_promised: usize =
            self.running.iter().map(|s| self.blocks_missing(s, s.missing())).sum();
        if n_revived + n_own + n_promised > self.pool.n_free() {
            return false;
        }
        let Some(mut seq) = self.waiting.pop_front() else { return false };
        // Memory for all that may come, so that later steps take none.
        seq.tokens.reserve(seq.limit - seq.tokens.len());
        seq.table.reserve(seq.limit.div_ceil(block_size));
        for &block in &self.hits {
            self.pool.retain(block);
            seq.table.push(block);
        }
        seq.computed = self.hits.len() * block_size;
        seq.n_registered = self.hits.len();
        seq.prefix = self.config.prefix_cache.then_some(prefix);
        seq.n_cached.get_or_insert(seq.computed);
        self.running.push(seq);
        true
    }

    fn emit(&mut self, plan: &mut StepPlan) {
        let tables = self.planned.iter().filter_map(|p| index_of(&self.running, p.0));
        let stride = tables.map(|at| self.running[at].table.len()).max().unwrap_or(0);
        plan.clear(stride);
        for &(id, n) in &self.planned {
            let Some(at) = index_of(&self.running, id) else { continue };
            let seq = &mut self.running[at];
            self.n_servings += 1;
            seq.served = self.n_servings;
            let tokens = &seq.tokens[seq.computed..seq.computed + n];
            let table = seq.table.iter().map(|b| b.index() as u32);
            let is_last = n == seq.missing();
            plan.push_row(id, tokens, seq.computed, table, self.pool.block_size(), is_last);
        }
    }

    /// Takes note that a plan, the latest, was computed; full blocks become findable.
    pub fn complete(&mut self, plan: &StepPlan) {
        let block_size = self.pool.block_size();
        for (row, &id) in plan.seqs.iter().enumerate() {
            let Some(at) = index_of(&self.running, id) else { continue };
            let seq = &mut self.running[at];
            seq.computed += plan.tokens_of(row).len();
            while let Some(parent) = seq.prefix
                && (seq.n_registered + 1) * block_size <= seq.computed
            {
                let tokens = &seq.tokens[seq.n_registered * block_size..][..block_size];
                let block = seq.table[seq.n_registered];
                seq.prefix = self.pool.register(block, parent, &seq.namespace, tokens);
                seq.n_registered += 1;
            }
        }
    }

    /// Appends a token to a running sequence; false when there is no such sequence or it is at its
    /// limit.
    pub fn push_token(&mut self, id: SeqId, token: u32) -> bool {
        match index_of(&self.running, id) {
            Some(at) if self.running[at].tokens.len() < self.running[at].limit => {
                self.running[at].tokens.push(token);
                true
            }
            _ => false,
        }
    }

    /// How many tokens a running sequence has, prompt included.
    pub fn n_tokens(&self, id: SeqId) -> usize {
        self.running_seq(id).map_or(0, |seq| seq.tokens.len())
    }

    /// How many more tokens a running sequence may come to hold.
    pub fn room(&self, id: SeqId) -> usize {
        self.running_seq(id).map_or(0, |seq| seq.limit - seq.tokens.len())
    }

    fn running_seq(&self, id: SeqId) -> Option<&Sequence> {
        index_of(&self.running, id).map(|at| &self.running[at])
    }

    /// Ends a sequence, whether it waits or runs. Its blocks are free but stay findable.
    pub fn remove(&mut self, id: SeqId) -> Option<Usage> {
        let mut seq = match index_of(&self.running, id) {
            Some(at) => self.running.remove(at),
            None => {
                let at = self.waiting.binary_search_by_key(&id, |s| s.id).ok()?;
                self.waiting.remove(at)?
            }
        };
        release_blocks(&mut self.pool, &mut seq);
        Some(seq.usage())
    }

    /// Token counts of a sequence.
    pub fn usage(&self, id: SeqId) -> Option<Usage> {
        self.running.iter().chain(&self.waiting).find(|s| s.id == id).map(Sequence::usage)
    }

    /// Whether any sequence is left.
    pub fn has_work(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Forgets the prefix cache, as when weights change.
    pub fn clear_cache(&mut self) {
        self.pool.clear_cache();
    }

    /// Replaces the KV memory by one of `n_blocks` blocks, whose content is forgotten. For times when
    /// no sequence is left: those that there are would lose their blocks, so nothing changes then.
    pub fn set_blocks(&mut self, n_blocks: usize) {
        if !self.has_work() {
            self.config.n_blocks = n_blocks;
            self.pool = BlockPool::new(n_blocks, self.config.block_size);
        }
    }

    /// Counts, for monitoring.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks: self.pool.n_blocks(),
            free_blocks: self.pool.n_free(),
            cached_blocks: self.pool.n_cached(),
            preemptions: self.n_preemptions,
        }
    }

    /// Checks tables, reference counts, limits and queues against each other.
    ///
    /// # Errors
    /// What is inconsistent.
    pub fn verify(&self) -> Result<(), String> {
        self.pool.verify()?;
        let mut refs = vec![0u32; self.pool.n_blocks()];
        for seq in &self.running {
            seq.table.iter().for_each(|b| refs[b.index()] += 1);
            if seq.computed > seq.table.len() * self.pool.block_size()
                || seq.computed > seq.tokens.len()
                || seq.tokens.len() > seq.limit
            {
                return Err(format!("inconsistent counts: {seq:?}"));
            }
        }
        for (block, &expected) in self.pool.blocks().zip(&refs) {
            let counted = self.pool.refs(block);
            if counted != expected {
                return Err(format!("{block:?}: {counted} references, {expected} in tables"));
            }
        }
        if let Some(seq) = self.waiting.iter().find(|s| !s.table.is_empty() || s.computed != 0) {
            return Err(format!("waiting with blocks: {seq:?}"));
        }
        if !self.running.iter().chain(&self.waiting).is_sorted_by(|a, b| a.id < b.id) {
            return Err("not in order of arrival".to_owned());
        }
        if self.running.len() > self.config.max_running {
            return Err(format!("{} running", self.running.len()));
        }
        Ok(())
    }
}

/// Where a sequence is in a list in order of arrival.
fn index_of(running: &[Sequence], id: SeqId) -> Option<usize> {
    running.binary_search_by_key(&id, |s| s.id).ok()
}

/// Takes all blocks from a sequence. The last go first, so that the cache loses ends of chains
/// before the starts that they hang on.
fn release_blocks(pool: &mut BlockPool, seq: &mut Sequence) {
    while let Some(block) = seq.table.pop() {
        pool.release(block);
    }
    seq.computed = 0;
    seq.n_registered = 0;
    seq.prefix = None;
}

#[cfg(test)]
mod tests;
