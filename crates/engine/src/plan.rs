//! What one step computes, as flat arrays that a model can be fed with.

use crate::SeqId;

/// The input of one step. A *row* is a sequence of the step, in `0..n_seqs`; a *slot* is a place for
/// one token's keys and values, `block * block_size + offset`.
///
/// The tokens of a row are consecutive and in order of position. Each token's keys and values go to
/// its slot; attention for a token at position `p` reads the slots that the row's table gives for
/// positions `0..=p`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Token ids, `[n_tokens]`.
    pub tokens: Vec<u32>,
    /// Index of each token in its sequence, `[n_tokens]`.
    pub positions: Vec<u32>,
    /// Where each token's keys and values go, `[n_tokens]`; no slot appears twice.
    pub slots: Vec<u32>,
    /// The row of each token, `[n_tokens]`.
    pub rows: Vec<u32>,
    /// The sequence of each row, `[n_seqs]`.
    pub seqs: Vec<SeqId>,
    /// Where each row's tokens start, and the end, `[n_seqs + 1]`.
    pub token_starts: Vec<u32>,
    /// Tokens of each row whose keys and values exist after the step, `[n_seqs]`.
    pub context_lens: Vec<u32>,
    /// The blocks of each row in order of position, `[n_seqs, table_stride]`, padded with 0.
    pub tables: Vec<u32>,
    /// Length of a row in `tables`.
    pub table_stride: usize,
    /// The tokens (as indices into `tokens`) whose logits are wanted, `[n_logits]`, by row.
    pub logits_tokens: Vec<u32>,
    /// Where each row's entries in `logits_tokens` start, and the end, `[n_seqs + 1]`.
    pub logits_starts: Vec<u32>,
}

impl StepPlan {
    /// Tokens in the step.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Sequences in the step.
    pub fn n_seqs(&self) -> usize {
        self.seqs.len()
    }

    /// Rows of logits that the step produces.
    pub fn n_logits(&self) -> usize {
        self.logits_tokens.len()
    }

    /// Whether there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// The block table of a row, padding included.
    pub fn table(&self, row: usize) -> &[u32] {
        &self.tables[row * self.table_stride..][..self.table_stride]
    }

    /// The indices of a row's logits, in `0..n_logits`.
    pub fn logits_of(&self, row: usize) -> std::ops::Range<usize> {
        self.logits_starts[row] as usize..self.logits_starts[row + 1] as usize
    }

    /// The indices of a row's tokens, in `0..n_tokens`.
    pub fn tokens_of(&self, row: usize) -> std::ops::Range<usize> {
        self.token_starts[row] as usize..self.token_starts[row + 1] as usize
    }

    pub(crate) fn clear(&mut self, table_stride: usize) {
        let StepPlan { tokens, positions, slots, rows, seqs, .. } = self;
        for list in [tokens, positions, slots, rows] {
            list.clear();
        }
        seqs.clear();
        self.context_lens.clear();
        self.tables.clear();
        self.logits_tokens.clear();
        self.table_stride = table_stride;
        for starts in [&mut self.token_starts, &mut self.logits_starts] {
            starts.clear();
            starts.push(0);
        }
    }

    /// Adds a row: the tokens of a sequence from position `first` on, with its whole table. The
    /// logits of the last token are wanted if `wants_logits`.
    pub(crate) fn push_row(
        &mut self,
        seq: SeqId,
        tokens: &[u32],
        first: usize,
        table: impl ExactSizeIterator<Item = u32>,
        block_size: usize,
        wants_logits: bool,
    ) {
        let row = self.seqs.len();
        let n_blocks = table.len();
        self.tables.extend(table);
        self.tables.resize(self.tables.len() + self.table_stride - n_blocks, 0);
        for (i, &token) in tokens.iter().enumerate() {
            let position = first + i;
            let block = self.tables[row * self.table_stride + position / block_size];
            self.tokens.push(token);
            self.positions.push(position as u32);
            self.slots.push(block * block_size as u32 + (position % block_size) as u32);
            self.rows.push(row as u32);
        }
        self.seqs.push(seq);
        self.context_lens.push((first + tokens.len()) as u32);
        if wants_logits {
            self.logits_tokens.push(self.tokens.len() as u32 - 1);
        }
        self.token_starts.push(self.tokens.len() as u32);
        self.logits_starts.push(self.logits_tokens.len() as u32);
    }
}
