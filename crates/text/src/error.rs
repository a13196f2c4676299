//! What can go wrong with a vocabulary, a template or a text; every message names the input at
//! fault and, where there is one, the remedy.

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The vocabulary has no tokens at all.
    /// A SentencePiece file that cannot be used.
    #[error("the SentencePiece model cannot be used: {reason}")]
    SentencePiece { reason: String },
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// A special token id points outside the vocabulary.
    #[error("{role} id {id} is out of range for a vocabulary of {size}")]
    IdOutOfRange { role: &'static str, id: u32, size: usize },
    /// Automatic BOS, EOS or SEP was asked for, and the vocabulary does not say which token it is.
    #[error("the vocabulary asks for an automatic {role} token but has no {role} id")]
    MissingSpecial { role: &'static str },
    /// Two ids have the same string, so text has no single reading.
    #[error("token {text:?} is twice in the vocabulary, as ids {first} and {second}")]
    DuplicateToken { text: String, first: u32, second: u32 },
    /// A merge rule is not of the form `left right`.
    #[error("merge {index} ({merge:?}) is not two tokens with a space between")]
    MalformedMerge { index: usize, merge: String },
    /// A merge rule uses or makes a token that the vocabulary lacks.
    #[error("merge {index} ({merge:?}) refers to {missing:?}, which is not in the vocabulary")]
    MergeTokenMissing { index: usize, merge: String, missing: String },
    /// An array of the vocabulary is not as long as the token list.
    #[error("the vocabulary has {tokens} tokens but {count} {what}")]
    LengthMismatch { what: &'static str, count: usize, tokens: usize },
    /// The tokenizer model needs something that the vocabulary does not carry.
    #[error("a {model} vocabulary needs {what}, and this one has none")]
    MissingPart { model: &'static str, what: &'static str },
    /// The name of the tokenizer model is not one that this crate implements.
    #[error("unknown tokenizer model {name:?}; known are: {known}")]
    UnknownModel { name: String, known: String },
    /// The name of the pre-tokenizer is not one that this crate knows.
    #[error("unknown pre-tokenizer {name:?}; known are: {known}")]
    UnknownPreTokenizer { name: String, known: String },
    /// A byte of the text has no token and there is no unknown token to stand for it.
    #[error("the vocabulary has no token for {text:?} and no unknown token")]
    NoToken { text: String },
    /// Splitting the text into words failed.
    #[error("the pre-tokenizer failed: {reason}")]
    PreTokenize { reason: String },
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is out of range for a vocabulary of {size}")]
    UnknownId { id: u32, size: usize },
    /// A `tokenizer.json` that cannot be used.
    #[error("tokenizer.json: {reason}")]
    Json { reason: String },
    /// A pair of texts for a vocabulary that knows single texts only.
    #[error("the vocabulary does not say how two texts are put together; use a tokenizer.json")]
    NoPairs,
    /// The text cannot be encoded by the Hugging Face tokenizer.
    #[error("the tokenizer failed: {reason}")]
    Encode { reason: String },
    /// The chat template is not valid.
    #[error("chat template, line {line}: {reason}")]
    TemplateSyntax { line: usize, reason: String },
    /// Rendering the chat template failed.
    #[error("chat template, line {line}: {reason}")]
    TemplateRender { line: usize, reason: String },
    /// The template refused the messages by `raise_exception`; the text is the template's own.
    #[error("{message}")]
    TemplateRaised { message: String },
    /// The template ran longer or produced more than is sane.
    #[error("the chat template does not end within its limits ({limit})")]
    TemplateTooLong { limit: String },
    /// A message holds control-token text, and the template changes the message in such a way
    /// that message and template cannot be told apart in the prompt.
    #[error(
        "a message contains the control token {token:?} and the chat template rewrites the \
         message, so the two cannot be kept apart; take {token:?} out of the message"
    )]
    ControlTextInMessage { token: String },
}
