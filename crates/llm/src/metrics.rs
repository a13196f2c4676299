//! What an inference took.

/// Measurements of the latest generation of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Loading the model: opening, building, preparing, and packing weights where that came after their
    /// first use; no other time counts it.
    pub load_ms: f64,
    /// From the request to the first token.
    pub prefill_ms: f64,
    /// From the first token to the last.
    pub decode_ms: f64,
    /// Prompt tokens computed a second; those that the prefix cache had do not count.
    pub prefill_tok_per_sec: f64,
    /// Tokens made a second, after the first.
    pub decode_tok_per_sec: f64,
    /// The most memory that the process has held, in MiB; 0 where the system does not say.
    pub peak_memory_mb: f64,
    /// Tokens since the model was loaded that were chosen where the logits are.
    pub chosen_on_device: u64,
    /// Tokens since the model was loaded for which all logits came to the processor.
    pub chosen_from_logits: u64,
    /// Time per operation since the model was loaded, the slowest first.
    pub ops: Vec<OpTime>,
}

/// Time spent in one kind of operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// The jet or atom.
    pub name: &'static str,
    /// How often it ran.
    pub calls: u64,
    /// How long that took together.
    pub total_ms: f64,
}

/// `count` things in `ms` milliseconds, as things a second; 0 when no time passed.
pub(crate) fn per_second(count: usize, ms: f64) -> f64 {
    if ms > 0.0 { count as f64 * 1000.0 / ms } else { 0.0 }
}
