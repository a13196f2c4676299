//! `soma-runtime embed` turns texts into vectors.

use std::path::PathBuf;

use clap::Args;
use cyb_llm::media::Image;
use cyb_llm::{Runtime, TextOptions};
use serde_json::json;

use super::{load_for_sequences, read_image, read_json};
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Print the vectors of texts, as sentence-transformers makes them, or of pictures
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    #[command(flatten)]
    texts: Texts,
    /// Cut a text that is too long for the model instead of failing
    #[arg(long)]
    truncate: bool,
}

/// Where texts or pictures come from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Texts {
    /// One text or more; write --text=TEXT for one that begins with a hyphen
    #[arg(long, num_args = 1.., value_name = "TEXT")]
    text: Vec<String>,
    /// A JSON file with an array of strings
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// One picture or more: JPEG, PNG, WebP, BMP or GIF files, for a model that sees
    #[arg(long, num_args = 1.., value_name = "FILE")]
    image: Vec<PathBuf>,
}

impl Texts {
    /// The pictures, where they are what is given.
    pub(crate) fn images(&self) -> Result<Vec<Image>, Failure> {
        self.image.iter().map(|path| read_image(path)).collect()
    }

    pub(crate) fn read(&self) -> Result<Vec<String>, Failure> {
        match &self.texts {
            None => Ok(self.text.clone()),
            Some(path) => read_json(path, "a JSON array of strings"),
        }
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    let (texts, images) = (arguments.texts.read()?, arguments.texts.images()?);
    let model = load_for_sequences(&Runtime::new(settings.config()?)?, settings.model())?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = match images.is_empty() {
        true => model.embed(&texts, TextOptions { truncate: arguments.truncate })?,
        false => model.embed_images(&images)?,
    };
    if common.json {
        let dimensions = vectors.first().map_or(0, Vec::len);
        return output::json(&json!({ "embeddings": vectors, "dimensions": dimensions }));
    }
    for vector in &vectors {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        output::line(numbers.join(" "))?;
    }
    Ok(())
}
