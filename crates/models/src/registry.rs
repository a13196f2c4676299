//! The table of families, and the way from a file to its family's graph.

use std::path::Path;

use cyb_formats::{Format, ModelFile, edit_distance};
use cyb_ir::{Graph, ValueId, verify};

use crate::config::Config;
use crate::decoder::{Decoder, Ending};
use crate::encoder::{self, EncoderInfo, Head, Pooled};
use crate::families::{
    bert, clip, deberta_v2, eurobert, gemma2, gemma3, llama, modernbert, nomic_bert, phi3, qwen2,
    qwen3, t5,
};
use crate::keys::Keys;
use crate::picture::{Contrast, PictureTower};
use crate::weights::Weights;
use crate::{GraphOptions, ModelError};

/// Every family. Adding one is a file in `families/` and a line here.
pub static FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi3::FAMILY,
    &bert::FAMILY,
    &deberta_v2::FAMILY,
    &modernbert::FAMILY,
    &nomic_bert::FAMILY,
    &eurobert::FAMILY,
    &t5::FAMILY,
    &clip::FAMILY,
];

/// What the runtime knows about an architecture family.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    /// What `general.architecture` of a GGUF file or `model_type` of a config.json may say.
    pub names: &'static [&'static str],
    pub template: Template,
    /// Sampling parameters that its authors publish, where a user asks for none.
    pub sampling: Sampling,
    pub(crate) build: fn(Source) -> Result<TextModel, ModelError>,
}

/// The shape of a family's graph, which says how it is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// Tokens in, logits out, keys and values in a paged cache.
    TextDecoder,
    /// Packed sequences in, hidden states and what a head makes of them out.
    TextEncoder,
    /// An encoder of texts, one of pictures, or both.
    Towers,
}

/// Default sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    pub temperature: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
}

impl Sampling {
    /// A mild temperature and no filter.
    pub const PLAIN: Sampling =
        Sampling { temperature: 0.7, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 };
}

/// A text model ready to be prepared for a backend.
#[derive(Debug)]
pub struct TextModel {
    pub family: &'static Family,
    pub summary: Summary,
    pub graph: Graph,
    /// What was noticed and does not hinder: tensors and keys without use, contradictions.
    pub warnings: Vec<String>,
    /// How it is driven when it is an encoder, or a decoder of whole sequences.
    pub encoder: Option<EncoderInfo>,
    /// The tower for pictures. Where there is no `encoder` beside it, `graph` is empty.
    pub pictures: Option<Box<PictureTower>>,
    /// How texts and pictures are compared.
    pub contrast: Option<Contrast>,
}

/// The sizes of a model, for its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// Tokens of the longest sequence that the model was made for.
    pub context_length: usize,
    /// Elements of all tensors.
    pub parameters: u64,
}

/// The graph of a model file, by the family that its metadata names.
pub fn build(file: &ModelFile, options: &GraphOptions) -> Result<TextModel, ModelError> {
    let path = file.metadata.file();
    if let Some(model_type) = file.metadata.opt::<&str>("config.model_type")? {
        let family = find(model_type).ok_or_else(|| unknown(path, model_type))?;
        let keys = Keys::config_json(&file.metadata);
        return (family.build)(Source { family, keys, weights: Weights::new(file), options });
    }
    if matches!(file.format, Format::Safetensors | Format::Torch) {
        return Err(ModelError::NoConfig { file: path.to_owned() });
    }
    let architecture: &str = file.metadata.get("general.architecture")?;
    match file.metadata.opt::<&str>("general.type")? {
        None | Some("model") => {}
        Some(what) => {
            let what = format!("'{}'", what.escape_debug());
            return Err(ModelError::NotAModel { file: path.to_owned(), what });
        }
    }
    let family = find(architecture).ok_or_else(|| unknown(path, architecture))?;
    let source = Source {
        family,
        keys: Keys::new(&file.metadata, architecture),
        weights: Weights::new(file),
        options,
    };
    (family.build)(source)
}

/// The family that knows an architecture's name.
pub fn find(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|f| f.names.contains(&architecture))
}

fn unknown(file: &Path, name: &str) -> ModelError {
    let names: Vec<&'static str> = FAMILIES.iter().flat_map(|f| f.names).copied().collect();
    // A name from a file may have any length; its start is enough to compare.
    let start: String = name.chars().take(64).collect();
    let nearest = names
        .iter()
        .copied()
        .min_by_key(|n| edit_distance(n.as_bytes(), start.as_bytes()))
        .unwrap_or_default();
    let supported = names.join(", ");
    ModelError::UnknownArchitecture { file: file.to_owned(), name: start, nearest, supported }
}

/// A file on its way to a graph.
pub(crate) struct Source<'f> {
    pub(crate) family: &'static Family,
    pub(crate) keys: Keys<'f>,
    pub(crate) weights: Weights<'f>,
    options: &'f GraphOptions,
}

impl Source<'_> {
    /// Fails unless the model is a directory with a config.json.
    pub(crate) fn needs_config_json(&self) -> Result<(), ModelError> {
        match self.keys.is_config_json() {
            true => Ok(()),
            false => Err(ModelError::NeedsDirectory {
                file: self.weights.path(),
                family: self.family.name,
            }),
        }
    }

    /// Builds a decoder: `layers` takes the embedded tokens through the layers. Everything in the
    /// file that could change the result must have been used by then.
    pub(crate) fn decoder(
        self,
        sizes: &Config,
        layers: impl FnOnce(&mut Decoder) -> Result<ValueId, ModelError>,
    ) -> Result<TextModel, ModelError> {
        let info = match self.keys.is_config_json() {
            true => classifier(&self.keys)?,
            false => EncoderInfo { head: Head::Words, ..EncoderInfo::default() },
        };
        let classifies = matches!(info.head, Head::Sequence | Head::Token);
        let packed = self.options.packed || classifies || sizes.bidirectional;
        let ending = Ending { head: info.head, labels: info.labels.len(), packed };
        let mut warnings = self.keys.finish(self.family.name)?;
        let parameters = self.weights.parameters();
        let mut decoder = Decoder::new(sizes, self.weights, self.options, ending)?;
        let x = layers(&mut decoder)?;
        decoder.head(x)?;
        let (graph, weights, notes) = decoder.finish();
        warnings.extend(notes);
        let json = weights.is_checkpoint();
        warnings.extend(weights.finish(self.family.name, |name| {
            // A checkpoint has nothing but the model, and stages that come after it.
            let gguf = ["blk.", "output", "token_embd", "rope_"];
            if json {
                !name.starts_with("modules.")
            } else {
                gguf.iter().any(|p| name.starts_with(p))
            }
        })?);
        if cfg!(debug_assertions) {
            verify(&graph)?;
        }
        let summary = Summary {
            vocab_size: sizes.vocab_size,
            hidden_size: sizes.hidden_size,
            num_hidden_layers: sizes.num_hidden_layers,
            num_attention_heads: sizes.num_attention_heads,
            num_key_value_heads: sizes.num_key_value_heads,
            head_dim: sizes.head_dim,
            context_length: sizes.served(self.options),
            parameters,
        };
        Ok(TextModel {
            family: self.family,
            summary,
            graph,
            warnings,
            encoder: packed.then_some(info),
            pictures: None,
            contrast: None,
        })
    }
}

/// How a decoder is driven where its sequences are whole: by its last token that is no padding.
fn classifier(keys: &Keys) -> Result<EncoderInfo, ModelError> {
    let head = encoder::decoder_head(keys)?;
    let labels = encoder::labels(keys)?;
    let scores = encoder::scores(keys, labels.len())?;
    // -1 is no id.
    let pad = keys.opt::<i64>("pad_token_id")?.and_then(|id| u32::try_from(id).ok());
    Ok(EncoderInfo {
        pooled: pad.map_or(Pooled::Last, Pooled::LastNot),
        ..EncoderInfo::with_head(head, &labels, scores)
    })
}
