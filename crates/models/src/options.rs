//! What the user of a graph chooses about it.

use cyb_tensor::DType;

use crate::ModelError;

/// Choices that shape a decoder's graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// How keys and values are stored.
    pub kv_dtype: DType,
    /// Tokens of a pool block.
    pub kv_block: usize,
    /// Tokens of the longest sequence that is asked for. It matters to models with two sets of
    /// rotary frequencies: without it their graph is that for short contexts.
    pub context: Option<usize>,
    /// Whether the graph takes whole sequences, packed as an encoder's, and gives their hidden states
    /// too, instead of steps over a paged cache.
    pub packed: bool,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions { kv_dtype: DType::F16, kv_block: 32, context: None, packed: false }
    }
}

impl GraphOptions {
    /// Fails when the cache cannot hold heads of this width.
    pub(crate) fn check(&self, head_dim: usize) -> Result<(), ModelError> {
        let fail = |why: String| Err(ModelError::KvStorage { dtype: self.kv_dtype, why });
        let block = self.kv_dtype.layout().block;
        if self.kv_block == 0 {
            return fail("a pool block must have at least one token".into());
        }
        if !matches!(
            self.kv_dtype,
            DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0 | DType::Q4_0
        ) {
            return fail("use f32, f16, bf16, q8_0 or q4_0".into());
        }
        if !head_dim.is_multiple_of(block) {
            return fail(format!("heads of {head_dim} are not whole blocks of {block}; use f16"));
        }
        Ok(())
    }
}
