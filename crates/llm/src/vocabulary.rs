//! The `tokenizer.ggml.*` metadata of a model file as a vocabulary.

use cyb_formats::{Metadata, StringArray};
use cyb_text::{SpecialTokens, StringTable, TokenType, Tokenizer, VocabModel, Vocabulary};

use crate::Error;

/// Where the chat template is.
pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

const MODEL: &str = "tokenizer.ggml.model";

/// The tokenizer that metadata describes; `None` when there is none.
pub(crate) fn tokenizer(model: &str, metadata: &Metadata) -> Result<Option<Tokenizer>, Error> {
    match metadata.opt::<&str>(MODEL)? {
        None | Some("none" | "no_vocab") => Ok(None),
        Some(name) => {
            let text = |problem| Error::Text { model: model.to_owned(), problem };
            let kind = VocabModel::from_name(name).map_err(text)?;
            let vocabulary = read(metadata, kind)?;
            Ok(Some(Tokenizer::from_vocabulary(vocabulary).map_err(text)?))
        }
    }
}

fn read(metadata: &Metadata, model: VocabModel) -> Result<Vocabulary, Error> {
    let table = |strings: &StringArray| strings.iter().collect::<StringTable>();
    let id = |key: &str| metadata.opt::<u32>(&format!("tokenizer.ggml.{key}_token_id"));
    let flag = |key: &str| metadata.opt::<bool>(&format!("tokenizer.ggml.{key}"));
    let types: Option<Vec<i32>> = metadata.opt("tokenizer.ggml.token_type")?;
    let merges: Option<&StringArray> = metadata.opt("tokenizer.ggml.merges")?;
    Ok(Vocabulary {
        pre: metadata.opt::<&str>("tokenizer.ggml.pre")?.map(str::to_owned),
        scores: metadata.opt("tokenizer.ggml.scores")?,
        types: types.map(|types| types.into_iter().map(TokenType::from).collect()),
        merges: merges.map_or_else(StringTable::default, table),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        sep: id("seperator")?,
        pad: id("padding")?,
        cls: id("cls")?,
        mask: id("mask")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        precompiled_charsmap: metadata.opt("tokenizer.ggml.precompiled_charsmap")?,
        lowercase: flag("normalizer.lowercase")?,
        strip_accents: flag("normalizer.strip_accents")?,
        ..Vocabulary::new(model, table(metadata.strings("tokenizer.ggml.tokens")?))
    })
}

/// The token strings that a chat template prints.
pub(crate) fn special_tokens(
    metadata: &Metadata,
    tokenizer: &Tokenizer,
) -> Result<SpecialTokens, Error> {
    let spelled = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(str::to_owned);
    let id = |key: &str| metadata.opt::<u32>(&format!("tokenizer.ggml.{key}_token_id"));
    Ok(SpecialTokens {
        bos: spelled(tokenizer.bos()),
        eos: spelled(tokenizer.eos()),
        unk: spelled(id("unknown")?),
        pad: spelled(id("padding")?),
    })
}
