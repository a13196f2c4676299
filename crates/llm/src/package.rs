//! A model file and what it says about text. Opening one reads metadata only, so that tokenizing
//! needs no weights.

use std::path::{Path, PathBuf};

use cyb_formats::{ModelFile, Value};
use cyb_sample::{PARAMETERS, SamplingParams};
use cyb_tensor::DType;
use cyb_text::{
    ChatTemplate, Detokenizer, EncodeOptions, Message, RenderOptions, Tokenizer, encode_chat,
};

use crate::{Error, directory, vocabulary};

/// An opened model file.
#[derive(Debug)]
pub struct Package {
    pub(crate) name: String,
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: ModelFile,
    tokenizer: Option<Tokenizer>,
    template: Result<Option<ChatTemplate>, String>,
}

/// A model file of which only what is in its header was read.
#[derive(Debug)]
pub(crate) struct PackageFile {
    pub(crate) name: String,
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: ModelFile,
}

impl PackageFile {
    pub(crate) fn open(path: &Path) -> Result<PackageFile, Error> {
        let name =
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(PackageFile { name, path: Some(path.to_owned()), file: cyb_formats::open(path)? })
    }

    pub(crate) fn in_memory(name: &str, file: ModelFile) -> PackageFile {
        PackageFile { name: name.to_owned(), path: None, file }
    }
}

/// What a model file says about text. A large vocabulary takes a while, in which the graph can be
/// built.
#[derive(Debug)]
pub(crate) struct TextParts {
    tokenizer: Option<Tokenizer>,
    template: Result<Option<ChatTemplate>, String>,
}

impl TextParts {
    pub(crate) fn read(name: &str, file: &ModelFile) -> Result<TextParts, Error> {
        let tokenizer = match file.documents.get("tokenizer.json") {
            Some(json) => Some(directory::tokenizer(name, &file.metadata, json.as_slice())?),
            None => match vocabulary::tokenizer(name, &file.metadata)? {
                Some(tokenizer) => Some(tokenizer),
                None => match directory::from_pieces(name, file)? {
                    Some(tokenizer) => Some(tokenizer),
                    None => directory::from_lists(name, file)?,
                },
            },
        };
        let source = template_source(file)?;
        let template = match (&source, &tokenizer) {
            (Some(source), Some(tokenizer)) => {
                let json = file.metadata.contains("config.model_type");
                let special = match json {
                    true => directory::special_tokens(&file.metadata)?,
                    false => vocabulary::special_tokens(&file.metadata, tokenizer)?,
                };
                ChatTemplate::compile(source, special).map(Some).map_err(|error| error.to_string())
            }
            _ => Ok(None),
        };
        Ok(TextParts { tokenizer, template })
    }
}

/// Blocks of a tensor that are decoded at once.
const PIECE_BLOCKS: usize = 4096;

/// One thing that `verify` looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// What was found.
    pub result: Result<String, String>,
}

impl Package {
    pub(crate) fn open(path: &Path) -> Result<Package, Error> {
        Package::new(PackageFile::open(path)?)
    }

    pub(crate) fn new(opened: PackageFile) -> Result<Package, Error> {
        let text = TextParts::read(&opened.name, &opened.file)?;
        Ok(Package::of(opened, text))
    }

    pub(crate) fn of(opened: PackageFile, text: TextParts) -> Package {
        let PackageFile { name, path, file } = opened;
        let TextParts { tokenizer, template } = text;
        Package { name, path, file, tokenizer, template }
    }

    /// The name of the file or directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        !matches!(self.template, Ok(None))
    }

    /// The source of the chat template.
    pub fn template_source(&self) -> Option<&str> {
        template_source(&self.file).ok().flatten()
    }

    /// The tokenizer.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer { model: self.name.clone() })
    }

    pub(crate) fn template(&self) -> Result<&ChatTemplate, Error> {
        match &self.template {
            Ok(Some(template)) => Ok(template),
            Ok(None) => Err(Error::NoTemplate { model: self.name.clone() }),
            Err(why) => Err(Error::BadTemplate { model: self.name.clone(), why: why.clone() }),
        }
    }

    fn text_error(&self, problem: cyb_text::TextError) -> Error {
        Error::Text { model: self.name.clone(), problem }
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// There is no tokenizer, or a part of the text has no token.
    pub fn tokenize(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, Error> {
        self.tokenizer()?.encode(text, options).map_err(|problem| self.text_error(problem))
    }

    /// The text of ids, control tokens included.
    ///
    /// # Errors
    /// There is no tokenizer, or an id is not in the vocabulary.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, Error> {
        self.tokenizer()?.decode(ids, false).map_err(|problem| self.text_error(problem))
    }

    /// The prompt that the chat template makes of messages, ending with the beginning of an answer.
    ///
    /// # Errors
    /// There is no template, or it refuses the messages.
    pub fn render(&self, messages: &[Message]) -> Result<String, Error> {
        Ok(self.render_with(messages)?.text())
    }

    fn render_with(&self, messages: &[Message]) -> Result<cyb_text::Rendered, Error> {
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        self.template()?.render(messages, &options).map_err(|problem| self.text_error(problem))
    }

    /// The ids of the prompt that [`Package::render`] gives. Text in messages never becomes control
    /// tokens.
    ///
    /// # Errors
    /// As [`Package::render`], or a message cannot be told from the template.
    pub fn tokenize_chat(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        let rendered = self.render_with(messages)?;
        encode_chat(self.tokenizer()?, &rendered).map_err(|problem| self.text_error(problem))
    }

    /// Text of ids as they come, for an answer: control tokens are no text.
    pub(crate) fn detokenizer(&self) -> Result<Detokenizer<'_>, Error> {
        Ok(Detokenizer::new(self.tokenizer()?, true))
    }

    /// How the model is sampled where nobody says: `params` with what its directory's `sampling.toml`
    /// says of them. Other models leave `params` as they are.
    ///
    /// # Errors
    /// A value in `sampling.toml` is not one that its parameter takes.
    pub fn sampling(&self, mut params: SamplingParams) -> Result<SamplingParams, Error> {
        let metadata = &self.file.metadata;
        for parameter in PARAMETERS {
            let key = format!("sampling.{}", parameter.name);
            let texts: Vec<String> = match metadata.value(&key) {
                None => continue,
                Some(Value::Array(list)) => {
                    (0..list.len()).filter_map(|i| list.get(i)).map(|v| plain(&v)).collect()
                }
                Some(value) => vec![plain(value)],
            };
            for text in texts {
                params.set(parameter.name, &text).map_err(|error| Error::Value {
                    what: "sampling.toml",
                    why: error.to_string(),
                })?;
            }
        }
        Ok(params)
    }

    /// Writes the model as a directory of the project's own form: `config.toml` and, beside it, the
    /// rest as TOML, the tokenizer, and `weights.safetensors`; of a GGUF file `weights.gguf`.
    ///
    /// # Errors
    /// The model was made in memory, or a file cannot be written.
    pub fn write_directory(&self, dir: &Path) -> Result<(), Error> {
        self.file.check_unchanged()?;
        Ok(cyb_formats::write_directory(&self.file, dir)?)
    }

    /// Looks at everything that can be checked without computing: what opening the file has checked
    /// already, every weight's values, the tokenizer and the template.
    ///
    /// # Errors
    /// The file changed while it was read.
    pub fn verify(&self) -> Result<Vec<Finding>, Error> {
        self.file.check_unchanged()?;
        let structure = format!(
            "{}, {} tensors, {} metadata entries, {} bytes of weights in bounds",
            self.file.format,
            self.file.tensors.len(),
            self.file.metadata.len(),
            self.file.tensor_bytes()
        );
        let mut findings = vec![Finding { what: "structure", result: Ok(structure) }];
        findings.push(Finding { what: "weights", result: self.verify_weights() });
        findings.push(Finding { what: "tokenizer", result: self.verify_tokenizer() });
        findings.push(Finding {
            what: "template",
            result: match &self.template {
                Ok(None) => Ok("none".to_owned()),
                Ok(Some(_)) => self
                    .tokenize_chat(&[Message::new("user", "Hello")])
                    .map(|ids| format!("compiles; a greeting is {} tokens", ids.len()))
                    .map_err(|error| error.to_string()),
                Err(why) => Err(why.clone()),
            },
        });
        Ok(findings)
    }

    /// Decodes every tensor of floats: a scale that is not finite shows there.
    fn verify_weights(&self) -> Result<String, String> {
        let mut hasher = blake3::Hasher::new();
        let mut values = Vec::new();
        for (name, tensor) in &self.file.tensors {
            let dtype = tensor.dtype();
            hasher.update(name.as_bytes());
            hasher.update(tensor.bytes().as_slice());
            let bytes = tensor.bytes().as_slice();
            for piece in bytes.chunks(dtype.layout().bytes.max(1) * PIECE_BLOCKS) {
                let found = first_not_finite(dtype, piece, &mut values);
                if let Some(value) = found.map_err(|error| format!("{name}: {error}"))? {
                    return Err(format!("{name} holds {value}; the file is damaged"));
                }
            }
            tensor.bytes().release();
        }
        Ok(format!("all finite; BLAKE3 {}", hasher.finalize().to_hex()))
    }

    fn verify_tokenizer(&self) -> Result<String, String> {
        const SAMPLE: &str = "The quick brown fox, 12345 naïve cafés; 東京 👩‍👧 \u{1F600}\n\tdone.";
        let Ok(tokenizer) = self.tokenizer() else { return Ok("none".to_owned()) };
        let ids = tokenizer.encode(SAMPLE, EncodeOptions::default()).map_err(|e| e.to_string())?;
        let size = tokenizer.vocab_size();
        let back = tokenizer.decode(&ids, true).map_err(|e| e.to_string())?;
        let kept =
            if back == SAMPLE { "comes back unchanged" } else { "is changed by the tokenizer" };
        Ok(format!("{size} tokens; a sample text is {} tokens and {kept}", ids.len()))
    }
}

/// The chat template of a directory or of a GGUF file.
fn template_source(file: &ModelFile) -> Result<Option<&str>, Error> {
    match directory::chat_template(file)? {
        Some(source) => Ok(Some(source)),
        None => Ok(file.metadata.opt(vocabulary::CHAT_TEMPLATE)?),
    }
}

/// A value as a flag would say it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::I64(number) => number.to_string(),
        Value::F64(number) => number.to_string(),
        // TOML has no others that a parameter takes.
        value => value.to_string(),
    }
}

/// The first value of whole blocks that is infinite or no number. Integers have none.
fn first_not_finite(
    dtype: DType,
    bytes: &[u8],
    values: &mut Vec<f32>,
) -> Result<Option<f32>, String> {
    let layout = dtype.layout();
    let is_float = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if !is_float && !dtype.is_quantized() {
        return Ok(None);
    }
    values.clear();
    match dtype {
        DType::F32 => values
            .extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        DType::F16 => values
            .extend(bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())),
        DType::BF16 => values.extend(
            bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        ),
        _ => {
            values.resize(bytes.len() / layout.bytes.max(1) * layout.block, 0.0);
            cyb_tensor::quant::decode(dtype, bytes, values).map_err(|error| error.to_string())?;
        }
    }
    Ok(values.iter().copied().find(|value| !value.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_no_numbers_are_found() {
        let mut values = Vec::new();
        let mut found = |dtype, bytes: &[u8]| first_not_finite(dtype, bytes, &mut values).unwrap();
        let mut block = [1u8; 34];
        assert_eq!(found(DType::Q8_0, &block), None);
        block[..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
        assert_eq!(found(DType::Q8_0, &block), Some(f32::INFINITY));
        assert!(found(DType::F32, &f32::NAN.to_le_bytes()).unwrap().is_nan());
        assert_eq!(found(DType::BF16, &[0xff, 0xff]).map(f32::is_nan), Some(true));
        assert_eq!(found(DType::I32, &[0xff; 4]), None);
    }
}
