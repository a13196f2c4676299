//! Rendered chat to token ids.

use crate::{Rendered, TextError, Tokenizer};

/// The ids of a rendered chat.
///
/// Control tokens are read in the template's own text only; markup tokens (`</think>`) also in
/// what the model said before. The text between two of them is encoded as one, so that a chat
/// without control-token text in its messages has the ids of its whole text. If the tokenizer
/// puts BOS in front and the template did not, it is added, so that there is exactly one.
///
/// # Errors
/// If a message holds control-token text and the template rewrites it beyond recognition, or the
/// text cannot be encoded.
pub fn encode_chat(tokenizer: &Tokenizer, rendered: &Rendered) -> Result<Vec<u32>, TextError> {
    if let Some(token) =
        rendered.inseparable.as_deref().and_then(|text| tokenizer.control_text_in(text))
    {
        return Err(TextError::ControlTextInMessage { token: token.to_owned() });
    }
    let mut ids = tokenizer.encode_segments(&rendered.segments)?;
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    Ok(ids)
}
