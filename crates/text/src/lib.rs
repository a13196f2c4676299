//! Text in and out of a language model: tokenizers, chat templates, the streaming detokenizer.
//!
//! The one idea: a [`Tokenizer`] is built either from what a GGUF file says about its vocabulary
//! ([`Vocabulary`]), a SentencePiece file ([`sentencepiece`]), a Hugging Face `tokenizer.json` or the
//! lists that came before it ([`wordpiece_json`]), and from then on callers see the same type. A [`ChatTemplate`] renders messages to a [`Rendered`] that remembers which characters came
//! from the template and which from a message, so that [`encode_chat`] reads control tokens in the
//! former only.
//!
//! This crate knows no model, no graph and no file format.
#![forbid(unsafe_code)]

mod bpe;
mod bytes;
mod chat;
mod detokenize;
mod error;
mod huggingface;
mod lists;
mod native;
mod pretokenize;
mod sentencepiece_model;
mod special;
mod spm;
mod stop;
mod template;
mod token_map;
mod tokenizer;
mod unigram;
mod vocabulary;
mod wordpiece;

pub use chat::encode_chat;
pub use detokenize::Detokenizer;
pub use error::TextError;
pub use huggingface::JsonConfig;
pub use lists::{MergeList, SpecialNames, WordPieceList, merges_json, wordpiece_json};
pub use pretokenize::known_pre_tokenizers;
pub use sentencepiece_model::{Arrangement, sentencepiece};
pub use stop::{StopMatcher, StopOutput};
pub use template::{
    ChatTemplate, Clock, Content, ContentPart, Message, Origin, RenderOptions, Rendered, Segment,
    SpecialTokens,
};
pub use tokenizer::{EncodeOptions, Encoded, PairOptions, Tokenizer};
pub use vocabulary::{Around, StringTable, TokenType, VocabModel, Vocabulary};
