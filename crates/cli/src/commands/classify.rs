//! `soma-runtime classify` scores texts, or the tokens of texts.

use clap::Args;
use cyb_llm::{FastText, Scored, Scratch, Task, TextOptions, TokenLabel, ZeroShot};
use serde_json::json;

use super::embed::Texts;
use super::load_for_sequences;
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Print the scores of a classifier's labels, or of labels of your own
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    #[command(flatten)]
    texts: Texts,
    /// A second text that is read together with each
    #[arg(long, allow_hyphen_values = true, conflicts_with = "labels")]
    pair: Option<String>,
    /// Labels to choose among, separated by commas, through a model of entailment, or for pictures
    /// one that sees and reads [default: those that the model was made for]
    #[arg(long, value_delimiter = ',', value_name = "A,B,C")]
    labels: Vec<String>,
    /// The statement that a label makes [default: This example is {}. Of a picture: This is a photo
    /// of {}.]
    #[arg(long, requires = "labels", value_name = "TEXT")]
    hypothesis: Option<String>,
    /// Score each label by itself instead of against the others
    #[arg(long, requires = "labels")]
    multi_label: bool,
    /// Show the best N labels only [default: all; of a fastText model 5]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Cut a text that is too long for the model instead of failing
    #[arg(long)]
    truncate: bool,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    let texts = arguments.texts.read()?;
    let images = arguments.texts.images()?;
    let runtime = cyb_llm::Runtime::new(settings.config()?)?;
    if let Some(model) = runtime.fasttext(settings.model())? {
        return by_fasttext(common, arguments, &model, &texts);
    }
    let model = load_for_sequences(&runtime, settings.model())?;
    let options = TextOptions { truncate: arguments.truncate };
    let labels: Vec<&str> = arguments.labels.iter().map(|label| label.trim()).collect();
    if !images.is_empty() && labels.is_empty() {
        for image in &images {
            show(common, best(&model.label_image(image)?, arguments.top))?;
        }
        return Ok(());
    }
    if !images.is_empty() {
        let hypothesis = arguments.hypothesis.as_deref().unwrap_or("This is a photo of {}.");
        let how =
            ZeroShot { hypothesis: hypothesis.to_owned(), multi_label: arguments.multi_label };
        for image in &images {
            let scored = model.classify_image(image, &labels, &how, options)?;
            show(common, best(&scored, arguments.top))?;
        }
        return Ok(());
    }
    if !labels.is_empty() {
        let mut how = ZeroShot { multi_label: arguments.multi_label, ..ZeroShot::default() };
        if let Some(hypothesis) = &arguments.hypothesis {
            how.hypothesis.clone_from(hypothesis);
        }
        for text in &texts {
            let scored = model.classify_by(text, &labels, &how, options)?;
            show(common, best(&scored, arguments.top))?;
        }
        return Ok(());
    }
    if model.task() == Some(Task::ClassifyTokens) && arguments.pair.is_none() {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for tokens in model.classify_tokens(&texts, options)? {
            show_tokens(common, &tokens)?;
        }
        return Ok(());
    }
    let texts: Vec<_> = texts.iter().map(|t| (t.as_str(), arguments.pair.as_deref())).collect();
    for scored in model.classify(&texts, options)? {
        show(common, best(&scored, arguments.top))?;
    }
    Ok(())
}

/// The first of scores that are sorted.
fn best(scored: &[Scored], top: Option<usize>) -> &[Scored] {
    &scored[..top.unwrap_or(scored.len()).min(scored.len())]
}

/// A fastText model has hundreds of labels, so the best few are shown.
fn by_fasttext(
    common: &Common,
    arguments: &Arguments,
    model: &FastText,
    texts: &[String],
) -> Result<(), Failure> {
    if !arguments.labels.is_empty() || arguments.pair.is_some() || texts.is_empty() {
        return Err(Failure::work("a fastText model takes single texts and has labels of its own"));
    }
    let mut scratch = Scratch::default();
    for text in texts {
        let best = model.predict(text, arguments.top.unwrap_or(5), 0.0, &mut scratch);
        let scored: Vec<Scored> = best
            .into_iter()
            .map(|(label, score)| Scored { label: model.label(label).to_owned(), score })
            .collect();
        show(common, &scored)?;
    }
    Ok(())
}

/// The scores of one text: a line of JSON, or a line for each label.
pub(super) fn show(common: &Common, scored: &[Scored]) -> Result<(), Failure> {
    if common.json {
        let scores: Vec<_> = scored.iter().map(|s| json!([s.label, s.score])).collect();
        return output::json(&json!({ "scores": scores }));
    }
    let rows: Vec<Vec<String>> =
        scored.iter().map(|s| vec![s.label.clone(), format!("{:.6}", s.score)]).collect();
    output::text(&output::table(&rows))
}

fn show_tokens(common: &Common, tokens: &[TokenLabel]) -> Result<(), Failure> {
    if common.json {
        let tokens: Vec<_> = tokens
            .iter()
            .map(|t| {
                json!({
                    "token": t.token,
                    "label": t.label,
                    "score": t.score,
                    "start": t.span.start,
                    "end": t.span.end,
                })
            })
            .collect();
        return output::json(&json!({ "tokens": tokens }));
    }
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|t| vec![t.token.clone(), t.label.clone(), format!("{:.6}", t.score)])
        .collect();
    output::text(&output::table(&rows))
}
