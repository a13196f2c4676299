//! Models as graphs. A family of architectures is one file that reads like its paper; the registry
//! finds the family of a model file and builds its graph.
//!
//! A family says what is computed out of which tensors, and nothing of where or how: it names no
//! device, no backend, no storage format of weights.

#![forbid(unsafe_code)]

mod config;
mod config_json;
mod decoder;
mod encoder;
mod error;
mod families;
mod keys;
mod names;
mod options;
mod picture;
mod registry;
mod relative;
pub mod rope;
mod synthetic;
mod weights;

pub use config::Config;
pub use encoder::{EncoderInfo, Head, LogScale, Pooled, Positions, Relative, Scores};
pub use error::ModelError;
pub use options::GraphOptions;
pub use picture::{Contrast, Cut, PictureInfo, PictureTower, Places};
pub use registry::{FAMILIES, Family, Sampling, Summary, Template, TextModel, build, find};
pub use synthetic::synthetic;

/// Names of the inputs and outputs of text models; which of them a graph has is its family's
/// [`Template`]'s business.
///
/// A decoder's states are `k.{layer}` and `v.{layer}`, the pools
/// of keys and values: `[N, kv_heads, head_dim]`, where N is the number of slots.
pub mod inputs {
    /// `I32[T]`: token ids.
    pub const TOKENS: &str = "tokens";
    /// `I32[T]`: the position of each token in its sequence.
    pub const POSITIONS: &str = "positions";
    /// `I32[T]`: the pool slot where each token's key and value are stored.
    pub const SLOTS: &str = "slots";
    /// `I32[T]`: the row of `tables` of each token's sequence.
    pub const ROWS: &str = "rows";
    /// `I32[R, M]`: the pool blocks of each sequence, in order.
    pub const TABLES: &str = "tables";
    /// `I32[L]`: which of the T tokens need logits.
    pub const LOGIT_ROWS: &str = "logit_rows";
    /// `I32[R + 1]`: where each of an encoder's (or a packed decoder's) sequences begins in its tokens, and where they end.
    pub const BOUNDS: &str = "bounds";
    /// `I32[T]`: the kind of each of an encoder's tokens.
    pub const TOKEN_TYPES: &str = "token_types";
    /// `I32[T]`: 0 for those of an encoder's tokens that no other sees.
    pub const SHOWN: &str = "shown";
    /// `I32[R]`: the token that stands for each of an encoder's sequences.
    pub const POOLED: &str = "pooled";
    /// `I32[P]`: numbers of the relative positions that an encoder's sequences need, rising.
    pub const RELATIVES: &str = "relatives";
    /// `I32[W]`: which of the P each distance of key and query has, the middle for none.
    pub const RELATIVE_INDEX: &str = "relative_index";
    /// `I32[T, K]`: the tokens under a convolution at each token; T where there is none.
    pub const NEIGHBORS: &str = "neighbors";
    /// `F32[T, 1, 1]`: what the queries of each token are multiplied with.
    pub const QUERY_SCALES: &str = "query_scales";
    /// `F32[T, patch]`: patches of pictures.
    pub const PATCHES: &str = "patches";
    /// `F32[T, hidden]`: what is added to patches for their places.
    pub const PLACE_ROWS: &str = "place_rows";
    /// Output `F32[R, width]`: vectors in the space that texts and pictures share.
    pub const EMBEDS: &str = "embeds";
    /// Output `F32[L, vocab]` of a decoder; of an encoder see [`crate::Head`].
    pub const LOGITS: &str = "logits";
    /// Output `F32[R, hidden]` of an encoder with a pooler.
    pub const POOLER_OUTPUT: &str = "pooler_output";
    /// Output `F32[T, hidden]`, after the final norm.
    pub const LAST_HIDDEN_STATE: &str = "last_hidden_state";
}

#[cfg(test)]
mod tests;
