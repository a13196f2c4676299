//! One file an architecture family: its configuration, its tensors' names, its graph.

pub(crate) mod gemma3;
pub(crate) mod llama;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
