//! One file an architecture family: its configuration, its tensors' names, its graph.

pub(crate) mod bert;
pub(crate) mod clip;
pub(crate) mod deberta_v2;
pub(crate) mod eurobert;
pub(crate) mod gemma2;
pub(crate) mod gemma3;
pub(crate) mod llama;
pub(crate) mod modernbert;
pub(crate) mod nomic_bert;
pub(crate) mod phi3;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod t5;
